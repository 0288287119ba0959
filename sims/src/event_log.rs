//! The record of a run: every step event of production code and the fate of every packet, in order, with a hash that is
//! the same for two runs of one seed.
//!
//! Production code reports what happens to steps as `tracing` events of the target `convoke::step_event`
//! ([`convoke_rendezvous::step_events`]), and which timers run as events of [`convoke_common::detection::timer`]. The [`Recorder`]
//! notes them with virtual time and host.

mod recorder;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::detection::timer::TimerKind;

use crate::history::History;
use crate::world::{Host, SimTime};

pub use recorder::Recorder;

/// What happened to a step or a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A driver received a lease.
    Lease,
    /// A worker began to install its part of a lease.
    Install,
    /// A worker finished its install, or failed it.
    Installed,
    /// The driver numbered the step, and sends its inputs.
    Begin,
    /// A worker accepted the driver's request to start the step.
    Start,
    /// A tensor was handed to a link; `peer` is the receiver, and `slot` is the receiver's slot.
    Sent,
    /// A tensor was published in a slot.
    Filled,
    /// The consumer took the tensor from its slot.
    Taken,
    /// The step ended with an error at this host.
    Abort,
    /// A worker quiesced the step and reported that.
    Done,
    /// The caller has its answer; `code` is absent if the step succeeded.
    Outcome,
    /// The driver knows that everybody has quiesced the step.
    Retire,
}

impl Kind {
    /// Whether this event is about a step, and not about a lease.
    pub fn is_of_step(self) -> bool {
        !matches!(self, Kind::Lease | Kind::Install | Kind::Installed)
    }

    fn parse(text: &str) -> Option<Kind> {
        Some(match text {
            "lease" => Kind::Lease,
            "install" => Kind::Install,
            "installed" => Kind::Installed,
            "begin" => Kind::Begin,
            "start" => Kind::Start,
            "sent" => Kind::Sent,
            "filled" => Kind::Filled,
            "taken" => Kind::Taken,
            "abort" => Kind::Abort,
            "done" => Kind::Done,
            "outcome" => Kind::Outcome,
            "retire" => Kind::Retire,
            _ => return None,
        })
    }
}

/// One step event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Time since the simulation began, with the resolution of a tick.
    pub at: Duration,
    /// The host that reported the event.
    pub host: Host,
    /// What happened.
    pub kind: Kind,
    /// The lease, by the id under which workers know it.
    pub lease: u64,
    /// Whether this end of the lease is its driver's. A worker that drives a partitioned body may run a part of it as well.
    pub by_driver: bool,
    /// The number of the step; 0 for an event about a lease.
    pub n: u64,
    /// The recv slot, for an event about a tensor.
    pub slot: Option<u32>,
    /// The other participant's index in the lease, for a tensor that was sent.
    pub peer: Option<u16>,
    /// Checksum of the tensor's dtype, shape and bytes, if the event is about one.
    pub checksum: Option<u64>,
    /// Name of the error's code, if the event reports an error.
    pub code: Option<String>,
    /// Names of the lease's workers by index, separated by commas, for [`Kind::Lease`].
    pub participants: Option<String>,
}

/// Counts of packets by what happened to them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Packets {
    /// Packets handed to the network.
    pub sent: u64,
    /// Bytes of the packets in `sent`.
    pub bytes: u64,
    /// Packets lost on the way.
    pub lost: u64,
    /// Packets that the network doubled.
    pub duplicated: u64,
    /// Packets that were damaged.
    pub corrupted: u64,
}

/// How many timers of each kind run at each host; no entry for those of which none runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunningTimers(BTreeMap<(Host, TimerKind), u32>);

impl RunningTimers {
    fn count(&mut self, host: Host, kind: TimerKind, runs: bool) {
        match (self.0.entry((host, kind)), runs) {
            (entry, true) => *entry.or_default() += 1,
            (Entry::Occupied(n), false) if *n.get() == 1 => drop(n.remove()),
            (Entry::Occupied(mut n), false) => *n.get_mut() -= 1,
            // A process that is gone lets go of its timers late.
            (Entry::Vacant(_), false) => {}
        }
    }

    fn stop(&mut self, host: Host) {
        self.0.retain(|(of, _), _| *of != host);
    }

    /// One timer.
    #[cfg(test)]
    pub fn of(host: Host, kind: TimerKind) -> RunningTimers {
        RunningTimers([((host, kind), 1)].into())
    }

    /// Whether a timer of this kind runs at a host.
    pub fn has(&self, host: Host, kind: TimerKind) -> bool {
        self.0.contains_key(&(host, kind))
    }
}

#[derive(Default)]
struct Log {
    hash: u64,
    events: Vec<Event>,
    packets: Packets,
    running: RunningTimers,
}

impl Log {
    fn mix(&mut self, word: u64) {
        let mut z = (self.hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.hash = z ^ (z >> 31);
    }

    fn mix_bytes(&mut self, bytes: &[u8]) {
        self.mix(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }
}

/// The record of one run; clones share it.
#[derive(Clone, Default)]
pub struct EventLog {
    log: Arc<Mutex<Log>>,
    history: History,
    time: SimTime,
}

impl EventLog {
    /// Starts an empty record, whose events are dated by `time`.
    pub fn new(time: SimTime) -> EventLog {
        EventLog {
            time,
            ..EventLog::default()
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was asked of the coordinator, and how it answered.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The hash of everything so far. The random numbers that ring draws for TLS are not in it, since packets count by
    /// time, hosts and length only.
    pub fn hash(&self) -> u64 {
        self.log().hash
    }

    /// How many step events were recorded.
    pub fn len(&self) -> usize {
        self.log().events.len()
    }

    /// Whether no step event was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the step events from index `start` on.
    pub fn since(&self, start: usize) -> Vec<Event> {
        self.log().events.get(start..).unwrap_or_default().to_vec()
    }

    /// The packets counted so far.
    pub fn packets(&self) -> Packets {
        self.log().packets
    }

    /// The timers that run at present.
    pub fn running(&self) -> RunningTimers {
        self.log().running.clone()
    }

    /// Notes that a host's process is gone, and its timers with it.
    pub(crate) fn stop_timers(&self, host: Host) {
        self.log().running.stop(host);
    }

    fn timer(&self, host: Host, kind: TimerKind, runs: bool) {
        let mut log = self.log();
        log.mix(self.time.now().as_nanos() as u64);
        log.mix(host.number());
        log.mix(kind as u64 * 2 + u64::from(runs));
        log.running.count(host, kind, runs);
    }

    /// Mixes something that a scenario did into the hash.
    pub fn note(&self, what: &str) {
        let mut log = self.log();
        log.mix(self.time.now().as_nanos() as u64);
        log.mix_bytes(what.as_bytes());
    }

    pub(crate) fn packet(
        &self,
        from: Host,
        to: SocketAddr,
        length: usize,
        passed: bool,
        copies: u64,
        corrupt: bool,
    ) {
        let mut log = self.log();
        log.packets.sent += 1;
        log.packets.bytes += length as u64;
        log.packets.lost += u64::from(!passed);
        log.packets.duplicated += copies - 1;
        log.packets.corrupted += u64::from(corrupt);
        log.mix(self.time.now().as_nanos() as u64);
        log.mix(from.number());
        match to.ip() {
            IpAddr::V4(ip) => log.mix(u64::from(ip.to_bits())),
            IpAddr::V6(ip) => log.mix_bytes(&ip.octets()),
        }
        log.mix(u64::from(to.port()));
        log.mix(length as u64);
        log.mix(u64::from(passed) | copies << 1 | u64::from(corrupt) << 8);
    }

    fn event(&self, mut event: Event) {
        event.at = self.time.now();
        let mut log = self.log();
        log.mix(event.at.as_nanos() as u64);
        log.mix(event.host.number());
        log.mix(event.kind as u64);
        log.mix(event.lease);
        log.mix(event.n);
        log.mix(event.slot.map_or(0, |s| u64::from(s) + 1));
        log.mix(event.peer.map_or(0, |p| u64::from(p) + 1));
        log.mix(event.checksum.unwrap_or(0));
        log.mix_bytes(event.code.as_deref().unwrap_or("").as_bytes());
        log.mix_bytes(event.participants.as_deref().unwrap_or("").as_bytes());
        log.events.push(event);
    }
}

impl std::fmt::Debug for EventLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let log = self.log();
        f.debug_struct("EventLog")
            .field("hash", &log.hash)
            .field("events", &log.events.len())
            .field("packets", &log.packets)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_run_until_they_are_over_or_their_process_is() {
        let log = EventLog::default();
        let (here, there) = (Host::Worker(1), Host::Coordinator);
        let runs = |host| log.running().has(host, TimerKind::Probe);
        log.timer(here, TimerKind::Probe, true);
        log.timer(here, TimerKind::Probe, true);
        log.timer(there, TimerKind::Probe, true);
        log.timer(here, TimerKind::Probe, false);
        assert!(runs(here) && runs(there));
        log.timer(here, TimerKind::Probe, false);
        assert!(!runs(here) && !log.running().has(there, TimerKind::Cause));
        log.stop_timers(there);
        // What a process that is gone still lets go of does not count for the next one.
        log.timer(there, TimerKind::Probe, false);
        assert!(!runs(there));
        log.timer(there, TimerKind::Probe, true);
        assert!(runs(there));
    }
}
