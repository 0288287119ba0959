//! The invariants, one in each file, in groups by what they promise. They are checked after every tick, and at each
//! [`Stage`] of a run.
//!
//! A checker sees the events of the steps and the state of the live processes. It shares no code with what it checks.

mod cause;
mod outcome;
mod recovery;
mod rest;
mod shares;
#[cfg(test)]
mod testing;
mod time;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use convoke_common::error::{Code, Error};
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, Host};
use crate::event_log::Event;
use crate::faults::{Harm, Hog, Injury};
use crate::oracle::ExpectedOutcome;
use crate::scenario::Scenario;
use crate::script::Record;
use crate::steps::{Steps, worker};

pub use recovery::canary::Canary;
pub use recovery::keeping::keeps;
pub use rest::at_rest::{deserted, left_over, of_coordinator, unretired};
pub use time::progress::{CALL_BOUND, KEPT_BOUND, REST_BOUND, SETTLE_BOUND};

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The invariant's name.
    pub invariant: String,
    /// Milliseconds since the cluster was ready.
    pub at: u64,
    pub what: String,
}

/// What a checker sees, between two ticks. Times are since the simulation began, unless stated otherwise.
pub struct View<'a> {
    pub now: Duration,
    /// When the cluster was ready and the scenario began.
    pub zero: Duration,
    pub scenario: &'a Scenario,
    pub cluster: &'a Cluster,
    pub steps: &'a Steps,
    /// What happened in the last tick.
    pub events: &'a [Event],
    pub injured: &'a [Injury],
    /// Clients that take all they can get of a worker.
    pub hogs: &'a [Hog],
    /// Workers that left for good, and when they were told to leave.
    pub left: &'a BTreeMap<Host, Duration>,
    /// Workers that have not joined yet.
    pub absent: &'a BTreeSet<usize>,
    /// The calls and loads of all scripts. Their times are since `zero`.
    pub records: &'a [Record],
    /// The expected outcome of each call, by client and call.
    pub expected: &'a BTreeMap<(usize, usize), ExpectedOutcome>,
    /// What the coordinator holds, as text; empty except at [`Stage::Rest`] and [`Stage::Deserted`].
    pub coordinators: &'a [String],
    /// Whether the coordinator kept what it was told once everything was mended, or why not; `None` until then.
    pub kept: Option<&'a Result<(), String>>,
    /// The outcomes of the clients' canaries; empty except at [`Stage::Rest`].
    pub canaries: &'a [Canary],
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

/// How long a process takes from its start until it has joined and everybody knows, and from its end until it is back.
const JOINING: Duration = Duration::from_secs(5);

/// How long a worker takes from being told to leave until it has left, its steps included.
const LEAVING: Duration = Duration::from_secs(10);

/// Memory in MiB of a worker that a few clients fill with what the scenario has them do, where no model of it has tables.
const SMALL: u32 = 24;

/// How many violations are kept of one run; further ones tell nothing new.
const MOST: usize = 20;

impl Findings {
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
        found.at = view.now.saturating_sub(view.zero).as_millis() as u64;
        for invariant in &mut self.0 {
            found.name = invariant.name();
            look(invariant.as_mut(), view, found);
        }
    }
}

impl View<'_> {
    /// The hosts that should be ready and are not, as text.
    pub fn missing(&self) -> String {
        let hosts = self.cluster.hosts().into_iter();
        let missing = hosts.filter(|h| {
            let away = matches!(h, Host::Worker(i) if self.absent.contains(&usize::from(*i)));
            !away && !self.left.contains_key(h) && !self.cluster.is_ready(*h)
        });
        let missing: Vec<String> = missing.map(|h| h.to_string()).collect();
        missing.join(", ")
    }

    /// Faults that were active at some time between `from` and `to`, which are times since the simulation began.
    pub fn injuries(&self, from: Duration, to: Duration) -> impl Iterator<Item = &Injury> {
        self.injured
            .iter()
            .filter(move |i| i.at <= to && i.until.is_none_or(|until| until >= from))
    }

    /// Whether peers may have lost each other between `from` and `to`, for any reason.
    pub fn separated(&self, from: Duration, to: Duration) -> bool {
        self.injuries(from, to).any(|i| i.harm.separates())
            || self
                .cluster
                .hosts()
                .iter()
                .any(|h| self.moves(*h, from, to))
    }

    /// Whether a host's process was joining, leaving for good or restarting after its end at some time between `from`
    /// and `to`.
    pub fn moves(&self, host: Host, from: Duration, to: Duration) -> bool {
        let within = |at: Duration, takes: Duration| at <= to && at + takes >= from;
        let joins = match host {
            Host::Worker(i) => {
                let spec = self.scenario.workers.get(usize::from(i));
                spec.map_or(0, |w| w.joins)
            }
            Host::Coordinator | Host::Client(_) => 0,
        };
        let joined = self.zero + Duration::from_millis(joins.into());
        let mut ends = self.cluster.ends().iter();
        (joins > 0 && within(joined, JOINING))
            || self.left.get(&host).is_some_and(|at| within(*at, LEAVING))
            || ends.any(|(at, h, _)| *h == host && within(*at, JOINING))
    }

    /// Whether an error says that a worker, which it names, is full, and several clients hold what fills it: the worker is of
    /// the smallest size, or a model with tables fills most of it. The scenario asks for more than there is.
    pub fn is_crowded(&self, error: &Error) -> bool {
        let named = error.site.as_deref().and_then(|s| s.worker.as_deref());
        let Some(named @ Host::Worker(i)) = named.and_then(worker) else {
            return false;
        };
        let spec = self.scenario.workers.get(usize::from(i));
        let small = spec.is_some_and(|w| w.memory_mib <= SMALL) || self.has_tables();
        let full = error.message.contains(&format!("worker {named} has "));
        error.code == Code::OutOfMemory && full && small && self.scenario.clients.len() > 1
    }

    /// Whether a model of the scenario has tables, which fill most of two workers.
    pub fn has_tables(&self) -> bool {
        let mut models = self.scenario.clients.iter().flat_map(|c| &c.models);
        models.any(|m| m.spec.tables > 0)
    }

    /// The longest time that a kernel that does not hang takes between `from` and `to`, including the wait for its
    /// turn.
    pub fn kernel(&self, from: Duration, to: Duration) -> Duration {
        let slow = self.injuries(from, to).filter_map(|i| match i.harm {
            Harm::Slow(factor) => Some(factor),
            _ => None,
        });
        let most = self.scenario.workers.iter().map(|w| w.kernel_ms).max();
        // A client that floods the worker has every other turn.
        let mut flooded = self.injuries(from, to);
        let turns = 1 + u32::from(flooded.any(|i| matches!(i.harm, Harm::Flood { .. })));
        let most = turns * slow.max().unwrap_or(1) * most.unwrap_or(0);
        Duration::from_millis(u64::from(most))
    }
}
