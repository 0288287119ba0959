//! What is known of every step from the events: who takes part, what was sent, filled and taken, and how it ended.
//!
//! The invariants and the faults that strike in a certain state look here, between ticks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::faults::StepState;
use crate::trace::{Event, Kind, Trace};
use crate::world::Host;

/// A step: its lease and number.
pub type Key = (u64, u64);

/// One tensor of one step, by where it goes: the participant's index and its slot.
pub type Edge = (u16, u32);

/// What became of a tensor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tensor {
    /// Checksums of what was sent, by whom.
    pub sent: Vec<(Host, u64)>,
    /// Checksums of what was published.
    pub filled: Vec<u64>,
    /// How often a consumer took it.
    pub taken: u32,
}

/// A step.
#[derive(Debug, Clone, Default)]
pub struct Step {
    /// When its driver began it.
    pub begun: Vec<Duration>,
    /// Workers that took the driver's word, and when first.
    pub started: BTreeMap<Host, Duration>,
    pub tensors: BTreeMap<Edge, Tensor>,
    /// Where it ended with an error, when, and with which code.
    pub aborts: Vec<(Host, Duration, String)>,
    /// Workers that quiesced it, and when first.
    pub done: BTreeMap<Host, Duration>,
    /// What the caller was told: when, and the error's code.
    pub outcomes: Vec<(Duration, Option<String>)>,
    pub retired: Vec<Duration>,
}

/// A lease.
#[derive(Debug, Clone, Default)]
pub struct Lease {
    /// When its driver took it.
    pub since: Duration,
    /// Workers, then the driver.
    pub participants: Vec<Host>,
    /// Workers that install it at present.
    pub installing: BTreeSet<Host>,
    /// Workers that sent one another something: there is a link between them.
    pub linked: BTreeSet<(Host, Host)>,
    /// Participants whose process ended, and when: what runs there later is another incarnation, which has no part.
    pub ended: BTreeMap<Host, Duration>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Steps {
    read: usize,
    pub leases: BTreeMap<u64, Lease>,
    pub steps: BTreeMap<Key, Step>,
    /// Steps that are not retired, as far as their driver lives.
    live: BTreeSet<Key>,
}

impl Step {
    fn is_settled(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Whether somebody gave it up.
    pub fn has_failed(&self) -> bool {
        !self.aborts.is_empty() || matches!(self.outcomes.first(), Some((_, Some(_))))
    }
}

impl Lease {
    /// The participant with this index.
    pub fn host(&self, ix: u16) -> Option<Host> {
        self.participants.get(usize::from(ix)).copied()
    }

    /// A host's index.
    pub fn index(&self, host: Host) -> Option<u16> {
        let at = self.participants.iter().position(|p| *p == host)?;
        u16::try_from(at).ok()
    }

    /// The driver.
    pub fn driver(&self) -> Option<Host> {
        self.participants.last().copied()
    }

    /// Every participant that another one watches: the workers and the driver each other, workers that are linked each
    /// other. First the one that may be lost, then who is to notice.
    pub fn watched(&self) -> Vec<(Host, Host)> {
        let driver = self.driver().into_iter();
        let driven = driver.flat_map(|d| self.workers().iter().map(move |w| (d, *w)));
        let pairs = driven.chain(self.linked.iter().copied());
        let both: BTreeSet<_> = pairs.flat_map(|(a, b)| [(a, b), (b, a)]).collect();
        both.into_iter().collect()
    }

    /// The workers.
    pub fn workers(&self) -> &[Host] {
        self.participants.split_last().map_or(&[], |(_, w)| w)
    }
}

impl Steps {
    /// What happened since the last call; it is not applied yet.
    pub fn peek(&mut self, trace: &Trace) -> Vec<Event> {
        let events = trace.since(self.read);
        self.read += events.len();
        events
    }

    /// Takes what happened.
    pub fn apply(&mut self, events: &[Event]) {
        events.iter().for_each(|e| self.apply_one(e));
    }

    fn apply_one(&mut self, e: &Event) {
        match e.kind {
            Kind::Lease => {
                let names = e.participants.as_deref().unwrap_or_default();
                let mut participants: Vec<Host> = names.split(',').filter_map(worker).collect();
                participants.push(e.host);
                let lease = self.leases.entry(e.lease).or_default();
                (lease.since, lease.participants) = (e.at, participants);
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

    fn apply_to_step(&mut self, e: &Event) {
        let key = (e.lease, e.n);
        let edge_here = || {
            let ix = self.leases.get(&e.lease)?.index(e.host)?;
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
                let code = e.code.clone().unwrap_or_default();
                step.aborts.push((e.host, e.at, code));
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

    /// A host's process is gone: it drives and installs nothing any more, and has no part in the leases that are there.
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

    /// Steps that are under way, in order.
    pub fn live(&self) -> impl Iterator<Item = (&Key, &Step)> {
        self.live
            .iter()
            .filter_map(|key| Some((key, self.steps.get(key)?)))
    }

    /// Whether a step is not retired and its driver lives.
    pub fn is_live(&self, key: Key) -> bool {
        self.live.contains(&key)
    }

    /// The states of all steps and installs that concern `host`; those of everybody concern the coordinator.
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
    let is_worker = matches!(host, Host::Worker(_));
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

/// The worker of this name.
pub fn worker(name: &str) -> Option<Host> {
    name.strip_prefix('w')?.parse().ok().map(Host::Worker)
}
