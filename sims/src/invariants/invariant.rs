//! What an invariant is, when it is checked, and what its checker records.

use serde::{Deserialize, Serialize};

use crate::invariants::view::View;

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The invariant's name.
    pub invariant: String,
    /// Milliseconds since the cluster was ready.
    pub at: u64,
    pub what: String,
}

/// A moment of the run at which the invariants are checked besides the ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The time that the cluster has to get ready is over, or it is ready.
    Ready,
    /// Faults are healed, and processes had time to come back.
    Back,
    /// Calls have ended, and models are unloaded.
    Rest,
    /// After [`Stage::Rest`], the clients have gone as well.
    Deserted,
    /// Everybody was asked to stop, and had time for it.
    Over,
}

/// The violations that were found.
#[derive(Debug, Default)]
pub struct Findings {
    name: &'static str,
    at: u64,
    pub violations: Vec<Violation>,
}

/// How many violations are kept of one run; further ones tell nothing new.
const MOST: usize = 20;

impl Findings {
    /// Turns to the invariant of this name, at this time: what is recorded from now on violates it.
    pub(super) fn turn_to(&mut self, name: &'static str, at: u64) {
        (self.name, self.at) = (name, at);
    }

    /// Records a violation of the invariant that is being checked.
    pub fn say(&mut self, what: impl Into<String>) {
        if self.violations.len() < MOST {
            self.violations.push(Violation {
                invariant: self.name.to_owned(),
                at: self.at,
                what: what.into(),
            });
        }
    }
}

/// One invariant.
pub trait Invariant {
    /// The name of the invariant, as reports give it.
    fn name(&self) -> &'static str;

    /// Checks the invariant after a tick.
    fn tick(&mut self, _view: &View<'_>, _found: &mut Findings) {}

    /// Checks the invariant at a stage of the run.
    fn at(&mut self, _stage: Stage, _view: &View<'_>, _found: &mut Findings) {}
}
