//! What a checker sees of a run between two ticks, and what follows from it for several checkers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use convoke_common::error::{Code, Error};
use convoke_graph::Tensor;

use crate::cluster::{Cluster, Host};
use crate::event_log::Event;
use crate::faults::{Harm, Hog, Injury};
use crate::oracle::ExpectedOutcome;
use crate::scenario::Scenario;
use crate::script::Record;
use crate::steps::{Steps, worker};

/// How long a process takes from its start until it has joined and everybody knows, and from its end until it is back.
pub(super) const JOINING: Duration = Duration::from_secs(5);

/// How long a worker takes from being told to leave until it has left, its steps included.
pub(super) const LEAVING: Duration = Duration::from_secs(10);

/// Memory in MiB of a worker that a few clients fill with what the scenario has them do, where no model of it has tables.
const SMALL: u32 = 24;

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
    /// What the coordinator holds, as text; empty except at [`Stage::Rest`](super::Stage::Rest) and
    /// [`Stage::Deserted`](super::Stage::Deserted).
    pub coordinators: &'a [String],
    /// Whether the coordinator kept what it was told once everything was mended, or why not; `None` until then.
    pub kept: Option<&'a Result<(), String>>,
    /// The outcomes of the clients' canaries; empty except at [`Stage::Rest`](super::Stage::Rest).
    pub canaries: &'a [Canary],
}

/// The canary of one client: a step that it runs after all faults are healed.
pub struct Canary {
    pub client: u16,
    pub want: Vec<Tensor>,
    /// The step's outcome, or `None` if it did not end in time.
    pub got: Option<Result<Vec<Tensor>, Error>>,
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
