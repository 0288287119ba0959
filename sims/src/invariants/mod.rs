//! The invariants, one in each file, in groups by what they promise. They are checked after every tick, and at each
//! [`Stage`] of a run.
//!
//! A checker sees the events of the steps and the state of the live processes. It shares no code with what it checks.

mod cause;
mod invariant;
mod outcome;
mod recovery;
mod rest;
mod shares;
#[cfg(test)]
mod testing;
mod time;
mod view;

pub use invariant::{Findings, Invariant, Stage, Violation};
pub use recovery::keeping::keeps;
pub use rest::at_rest::{deserted, left_over, of_coordinator, unretired};
pub use time::progress::{CALL_BOUND, KEPT_BOUND, REST_BOUND, SETTLE_BOUND};
pub use view::{Canary, View};

/// All invariants.
pub struct Invariants(Vec<Box<dyn Invariant>>);

impl Default for Invariants {
    fn default() -> Invariants {
        Invariants(vec![
            Box::new(outcome::one_life::OneLife),
            Box::new(outcome::delivery::Delivery),
            Box::new(outcome::agreement::Agreement),
            Box::new(outcome::order::Order),
            Box::<time::stopping::Stopping>::default(),
            Box::<time::queues::Queues>::default(),
            Box::<time::progress::Progress>::default(),
            Box::<time::deadlines::Deadlines>::default(),
            Box::<time::attempts::Attempts>::default(),
            Box::<cause::given_up::GivenUp>::default(),
            Box::<time::detection::Detection>::default(),
            Box::new(cause::undisturbed::Undisturbed),
            Box::<outcome::results::Results>::default(),
            Box::<shares::fairness::Fairness>::default(),
            Box::<shares::budgets::Budgets>::default(),
            Box::<shares::revocation::Revocation>::default(),
            Box::<cause::root_cause::RootCause>::default(),
            Box::<cause::must_succeed::MustSucceed>::default(),
            Box::<cause::refused::Refused>::default(),
            Box::<rest::processes::Processes>::default(),
            Box::new(recovery::ready::Ready),
            Box::new(recovery::back::Back),
            Box::new(recovery::canary::Canaries),
            Box::new(recovery::keeping::Keeping),
            Box::new(rest::at_rest::AtRest),
            Box::new(rest::stops::Stops),
        ])
    }
}

impl Invariants {
    /// The names of all invariants.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|i| i.name()).collect()
    }

    /// Checks all invariants after a tick.
    pub fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        self.each(view, found, |i, view, found| i.tick(view, found));
    }

    /// Checks all invariants at a stage of the run.
    pub fn at(&mut self, stage: Stage, view: &View<'_>, found: &mut Findings) {
        self.each(view, found, |i, view, found| i.at(stage, view, found));
    }

    fn each(
        &mut self,
        view: &View<'_>,
        found: &mut Findings,
        look: impl Fn(&mut dyn Invariant, &View<'_>, &mut Findings),
    ) {
        let at = view.now.saturating_sub(view.zero).as_millis() as u64;
        for invariant in &mut self.0 {
            found.turn_to(invariant.name(), at);
            look(invariant.as_mut(), view, found);
        }
    }
}
