//! The state of every step, as its events tell it: who takes part, what was sent, filled and taken, and how it ended.
//!
//! The invariants, and the faults that strike in a certain state of a step, read it between ticks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use convoke_common::detection::timer::TimerKind;
use convoke_common::grant::MOST_BODIES;
use convoke_common::ids::LeaseId;

use crate::event_log::{Event, EventLog, Kind, RunningTimers};
use crate::faults::StepState;
use crate::world::Host;

/// Identifies a step by its lease and its number.
pub type Key = (u64, u64);

/// Identifies a tensor of a step by its destination: the index of a participant, and a slot of that participant.
pub type Edge = (u16, u32);

/// What happened to a tensor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tensor {
    /// The sender of each send, and the checksum of the tensor.
    pub sent: Vec<(Host, u64)>,
    /// Checksums of the tensors that were published in the slot.
    pub filled: Vec<u64>,
    /// How often a consumer took the tensor.
    pub taken: u32,
}

/// An error with which a participant ended a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abort {
    pub host: Host,
    /// Whether its driver did.
    pub by_driver: bool,
    pub at: Duration,
    pub code: String,
}

/// What is known of a step.
#[derive(Debug, Clone, Default)]
pub struct Step {
    /// When its driver began it; more than one entry is a violation.
    pub begun: Vec<Duration>,
    /// Workers that accepted the driver's request to start it, and when they first did.
    pub started: BTreeMap<Host, Duration>,
    pub tensors: BTreeMap<Edge, Tensor>,
    /// The errors with which participants ended it, in order.
    pub aborts: Vec<Abort>,
    /// Workers that quiesced it, and when they first did.
    pub done: BTreeMap<Host, Duration>,
    /// The outcomes that the caller was told: when, and the error's code if it failed.
    pub outcomes: Vec<(Duration, Option<String>)>,
    pub retired: Vec<Duration>,
}

/// What is known of a lease.
#[derive(Debug, Clone, Default)]
pub struct Lease {
    /// When its driver took it.
    pub since: Duration,
    /// The workers, followed by the driver. The driver of a partitioned body may be one of the workers as well.
    pub participants: Vec<Host>,
    /// The lease that this one is a part of, if it is that of a partitioned body.
    pub around: Option<u64>,
    /// Workers that are installing their part at present.
    pub installing: BTreeSet<Host>,
    /// Pairs of workers of which the first sent a tensor to the second: there is a link between them.
    pub linked: BTreeSet<(Host, Host)>,
    /// Participants whose process ended, and when. A later process on that host is another incarnation, without a part
    /// in the lease.
    pub ended: BTreeMap<Host, Duration>,
}

/// All leases and steps of a run.
#[derive(Debug, Default)]
pub struct Steps {
    read: usize,
    pub leases: BTreeMap<u64, Lease>,
    pub steps: BTreeMap<Key, Step>,
    /// Steps that have begun and not retired, and whose driver lives.
    live: BTreeSet<Key>,
}

impl Step {
    fn is_settled(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Whether a participant gave the step up, or the caller was told an error.
    pub fn has_failed(&self) -> bool {
        !self.aborts.is_empty() || matches!(self.outcomes.first(), Some((_, Some(_))))
    }
}

impl Lease {
    /// The participant with this index.
    pub fn host(&self, ix: u16) -> Option<Host> {
        self.participants.get(usize::from(ix)).copied()
    }

    /// The index of a host among the participants, as a worker or as the driver.
    pub fn index(&self, host: Host, by_driver: bool) -> Option<u16> {
        let at = match by_driver {
            true if self.driver() == Some(host) => self.workers().len(),
            true => return None,
            false => self.workers().iter().position(|w| *w == host)?,
        };
        u16::try_from(at).ok()
    }

    /// The driver.
    pub fn driver(&self) -> Option<Host> {
        self.participants.last().copied()
    }

    /// Pairs of participants of which the second watches the first, and so has to notice its loss. Each worker and the
    /// driver watch each other, and so do workers that are linked.
    pub fn watched(&self) -> Vec<(Host, Host)> {
        let driver = self.driver().into_iter();
        let driven = driver.flat_map(|d| self.workers().iter().map(move |w| (d, *w)));
        let pairs = driven.chain(self.linked.iter().copied());
        let others = pairs.filter(|(a, b)| a != b);
        let both: BTreeSet<_> = others.flat_map(|(a, b)| [(a, b), (b, a)]).collect();
        both.into_iter().collect()
    }

    /// Whether it is the lease of a partitioned body, which a worker drives.
    pub fn is_of_body(&self) -> bool {
        matches!(self.driver(), Some(Host::Worker(_)))
    }

    /// The workers.
    pub fn workers(&self) -> &[Host] {
        self.participants.split_last().map_or(&[], |(_, w)| w)
    }
}

impl Steps {
    /// Returns the events since the last call, without applying them.
    pub fn peek(&mut self, trace: &EventLog) -> Vec<Event> {
        let events = trace.since(self.read);
        self.read += events.len();
        events
    }

    /// Updates leases and steps by these events.
    pub fn apply(&mut self, events: &[Event]) {
        events.iter().for_each(|e| self.apply_one(e));
    }

    fn apply_one(&mut self, e: &Event) {
        match e.kind {
            Kind::Lease => {
                let names = e.participants.as_deref().unwrap_or_default();
                let mut participants: Vec<Host> = names.split(',').filter_map(worker).collect();
                participants.push(e.host);
                let around = self.around(e);
                let lease = self.leases.entry(e.lease).or_default();
                (lease.since, lease.participants) = (e.at, participants);
                lease.around = around;
            }
            Kind::Install => {
                self.leases
                    .entry(e.lease)
                    .or_default()
                    .installing
                    .insert(e.host);
            }
            Kind::Installed => {
                self.leases
                    .entry(e.lease)
                    .or_default()
                    .installing
                    .remove(&e.host);
            }
            _ => self.apply_to_step(e),
        }
    }

    /// The lease that the lease of a partitioned body is a part of: the worker that drives it is installing it.
    fn around(&self, e: &Event) -> Option<u64> {
        let is_of = |id: u64| (1..=MOST_BODIES as u32).any(|n| LeaseId(id).of_body(n).0 == e.lease);
        let installing = self.leases.iter();
        let mut installing = installing.filter(|(_, lease)| lease.installing.contains(&e.host));
        let (around, _) = installing.find(|(id, _)| is_of(**id))?;
        Some(*around)
    }

    /// The participants of a lease, and those of the lease that it is a part of.
    pub fn members(&self, lease: &Lease) -> BTreeSet<Host> {
        let around = lease.around.and_then(|id| self.leases.get(&id));
        let around = around.into_iter().flat_map(|l| &l.participants);
        lease.participants.iter().chain(around).copied().collect()
    }

    /// The kinds of timers that run at a participant of a lease, or at the coordinator. While the lease is installed its
    /// participants are the workers that install it: the others are known once its driver has it.
    pub fn timers(&self, lease: u64, running: &RunningTimers) -> Vec<TimerKind> {
        let mut at = BTreeSet::from([Host::Coordinator]);
        if let Some(lease) = self.leases.get(&lease) {
            at.extend(self.members(lease));
            at.extend(&lease.installing);
        }
        let runs = |kind: &TimerKind| at.iter().any(|host| running.has(*host, *kind));
        TimerKind::ALL.into_iter().filter(runs).collect()
    }

    fn apply_to_step(&mut self, e: &Event) {
        let key = (e.lease, e.n);
        let edge_here = || {
            let ix = self.leases.get(&e.lease)?.index(e.host, e.by_driver)?;
            Some((ix, e.slot?))
        };
        let edge = match e.kind {
            Kind::Sent => e.peer.zip(e.slot),
            Kind::Filled | Kind::Taken => edge_here(),
            _ => None,
        };
        if let (Kind::Sent, Some((to, _)), Some(lease)) =
            (e.kind, edge, self.leases.get_mut(&e.lease))
            && let Some(to @ Host::Worker(_)) = lease.host(to)
            && e.host != to
            && matches!(e.host, Host::Worker(_))
        {
            lease.linked.insert((e.host, to));
        }
        let step = self.steps.entry(key).or_default();
        let tensor = edge.map(|edge| step.tensors.entry(edge).or_default());
        match (e.kind, tensor) {
            (Kind::Sent, Some(t)) => t.sent.push((e.host, e.checksum.unwrap_or_default())),
            (Kind::Filled, Some(t)) => t.filled.push(e.checksum.unwrap_or_default()),
            (Kind::Taken, Some(t)) => t.taken += 1,
            (Kind::Begin, _) => {
                step.begun.push(e.at);
                self.live.insert(key);
            }
            (Kind::Start, _) => {
                step.started.entry(e.host).or_insert(e.at);
            }
            (Kind::Abort, _) => {
                step.aborts.push(Abort {
                    host: e.host,
                    by_driver: e.by_driver,
                    at: e.at,
                    code: e.code.clone().unwrap_or_default(),
                });
            }
            (Kind::Done, _) => {
                step.done.entry(e.host).or_insert(e.at);
            }
            (Kind::Outcome, _) => step.outcomes.push((e.at, e.code.clone())),
            (Kind::Retire, _) => {
                step.retired.push(e.at);
                self.live.remove(&key);
            }
            _ => {}
        }
    }

    /// Notes that a host's process is gone: it drives and installs nothing any more, and has no further part in its
    /// leases.
    pub fn gone(&mut self, host: Host, at: Duration) {
        for lease in self.leases.values_mut() {
            lease.installing.remove(&host);
            if lease.participants.contains(&host) {
                lease.ended.entry(host).or_insert(at);
            }
        }
        let leases = &self.leases;
        self.live
            .retain(|(lease, _)| leases.get(lease).and_then(Lease::driver) != Some(host));
    }

    /// The steps that are under way, in order of lease and number.
    pub fn live(&self) -> impl Iterator<Item = (&Key, &Step)> {
        self.live
            .iter()
            .filter_map(|key| Some((key, self.steps.get(key)?)))
    }

    /// Whether a step has begun and not retired, and its driver lives.
    pub fn is_live(&self, key: Key) -> bool {
        self.live.contains(&key)
    }

    /// The states of all steps and installs that concern `host`. All of them concern the coordinator.
    pub fn states(&self, host: Host) -> Vec<(Key, StepState)> {
        let mut found = Vec::new();
        let concerns = |l: &Lease| host == Host::Coordinator || l.participants.contains(&host);
        for (id, lease) in &self.leases {
            let installs = match host {
                Host::Worker(_) => lease.installing.contains(&host),
                Host::Coordinator | Host::Client(_) => !lease.installing.is_empty(),
            };
            if installs {
                found.push(((*id, 0), StepState::Prepare));
            }
        }
        for (key, step) in self.live() {
            let lease = self.leases.get(&key.0).filter(|l| concerns(l));
            if let Some(lease) = lease {
                found.extend(states_of(step, lease, host).into_iter().map(|s| (*key, s)));
            }
        }
        found
    }
}

fn states_of(step: &Step, lease: &Lease, host: Host) -> Vec<StepState> {
    if step.is_settled() {
        return vec![];
    }
    if !step.outcomes.is_empty() {
        return vec![StepState::Retire];
    }
    if step.has_failed() {
        return vec![StepState::Abort];
    }
    let mut states = Vec::new();
    let is_worker = lease.workers().contains(&host);
    let unstarted = match is_worker {
        true => !step.started.contains_key(&host),
        false => lease
            .workers()
            .iter()
            .any(|w| !step.started.contains_key(w)),
    };
    if unstarted {
        states.push(StepState::Start);
    } else {
        states.push(StepState::Waiting);
    }
    let mine = |(ix, _): &Edge, t: &Tensor| {
        let to = lease.host(*ix) == Some(host);
        let from = t.sent.iter().any(|(from, _)| *from == host);
        host == Host::Coordinator || to || from
    };
    let under_way = |(edge, t): (&Edge, &Tensor)| mine(edge, t) && t.filled.len() < t.sent.len();
    if step.tensors.iter().any(under_way) {
        states.push(StepState::Filling);
    }
    states
}

/// Parses the name of a worker.
pub fn worker(name: &str) -> Option<Host> {
    name.strip_prefix('w')?.parse().ok().map(Host::Worker)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event about the lease 1.
    fn event(host: Host, kind: Kind) -> Event {
        Event {
            at: Duration::ZERO,
            host,
            kind,
            lease: 1,
            by_driver: false,
            n: 0,
            slot: None,
            peer: None,
            checksum: None,
            code: None,
            participants: None,
        }
    }

    #[test]
    fn the_timers_of_a_lease_run_at_those_who_install_it_and_then_at_its_participants() {
        let (one, other, client) = (Host::Worker(0), Host::Worker(1), Host::Client(0));
        let at = |steps: &Steps, host| {
            let running = RunningTimers::of(host, TimerKind::Wedge);
            steps.timers(1, &running) == [TimerKind::Wedge]
        };
        let mut steps = Steps::default();
        assert!(at(&steps, Host::Coordinator) && !at(&steps, one));
        steps.apply(&[event(one, Kind::Install)]);
        assert_eq!(steps.states(one), [((1, 0), StepState::Prepare)]);
        assert!(at(&steps, one) && !at(&steps, other) && at(&steps, Host::Coordinator));
        let lease = Event {
            participants: Some("w0,w1".to_owned()),
            ..event(client, Kind::Lease)
        };
        steps.apply(&[event(one, Kind::Installed), lease]);
        assert!(at(&steps, one) && at(&steps, other) && at(&steps, client));
        assert!(!at(&steps, Host::Worker(2)));
    }
}
