//! A switch between hosts that delays, reorders and loses frames, or passes them at a limited rate.
//!
//! ```text
//! host (tap0) ──frame──> Switch::take ──> in flight, by the time at which it arrives
//!                                             └──> Switch::due ──frame──> host (tap0)
//! ```
//!
//! The kernel's own `netem` is not there on every machine, and needs a module. This needs TAP devices only.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

/// The most frames in flight; further ones are lost, as in a switch whose memory is full.
const MOST_FRAMES: usize = 100_000;

/// What the switch does to each frame.
#[derive(Debug, Clone, Copy, Default)]
pub struct Impairment {
    /// How long each frame takes.
    pub delay: Duration,
    /// The longest time that a frame takes beyond that. Each draws its own, so that frames overtake each other.
    pub jitter: Duration,
    /// The frames of a thousand that are lost, each by itself.
    pub lost_of_thousand: u32,
    /// A bottleneck in each direction between two hosts.
    pub bottleneck: Option<Bottleneck>,
}

/// A link that is slower than those who send on it.
#[derive(Debug, Clone, Copy)]
pub struct Bottleneck {
    pub bytes_per_second: u64,
    /// The longest time that a frame may wait for the link; frames that would wait longer are lost.
    pub queue: Duration,
}

/// A frame on its way: when it arrives, the place in the order of those that arrive at the same time, the host's port.
type Flight = Reverse<(Instant, u64, usize, Vec<u8>)>;

/// The state of the switch. Time is an argument, and frames come and go by calls.
pub struct Switch {
    ports: usize,
    impairment: Impairment,
    random: SplitMix,
    /// The port behind which each hardware address was seen.
    seen: BTreeMap<[u8; 6], usize>,
    /// Until when the bottleneck from a port to another one is busy.
    busy: BTreeMap<(usize, usize), Instant>,
    in_flight: BinaryHeap<Flight>,
    taken: u64,
}

impl Switch {
    pub fn new(ports: usize, impairment: Impairment) -> Switch {
        Switch {
            ports,
            impairment,
            random: SplitMix(1),
            seen: BTreeMap::new(),
            busy: BTreeMap::new(),
            in_flight: BinaryHeap::new(),
            taken: 0,
        }
    }

    /// Takes an Ethernet frame that came in at a port.
    pub fn take(&mut self, from: usize, frame: &[u8], now: Instant) {
        let (Some(to), Some(source)) = (address(frame, 0), address(frame, 6)) else {
            return;
        };
        self.seen.insert(source, from);
        match self.seen.get(&to) {
            Some(port) => self.send(from, *port, frame, now),
            // Nobody has been seen there, or the frame is meant for everybody.
            None => (0..self.ports)
                .filter(|port| *port != from)
                .for_each(|port| self.send(from, port, frame, now)),
        }
    }

    fn send(&mut self, from: usize, to: usize, frame: &[u8], now: Instant) {
        let Impairment {
            delay,
            jitter,
            lost_of_thousand,
            bottleneck,
        } = self.impairment;
        let lost = self.random.below(1000) < u64::from(lost_of_thousand);
        if lost || self.in_flight.len() >= MOST_FRAMES {
            return;
        }
        let mut leaves = now;
        if let Some(link) = bottleneck {
            let busy = self.busy.entry((from, to)).or_insert(now);
            let begins = (*busy).max(now);
            if begins - now > link.queue {
                return;
            }
            leaves =
                begins + Duration::from_secs_f64(frame.len() as f64 / link.bytes_per_second as f64);
            *busy = leaves;
        }
        let late = self.random.below(jitter.as_micros() as u64 + 1);
        let arrives = leaves + delay + Duration::from_micros(late);
        self.taken += 1;
        self.in_flight
            .push(Reverse((arrives, self.taken, to, frame.to_vec())));
    }

    /// Returns the next frame that has arrived, and the port at which it goes out.
    pub fn due(&mut self, now: Instant) -> Option<(usize, Vec<u8>)> {
        self.next().filter(|next| *next <= now)?;
        let Reverse((_, _, to, frame)) = self.in_flight.pop()?;
        Some((to, frame))
    }

    /// When the next frame arrives.
    pub fn next(&self) -> Option<Instant> {
        self.in_flight.peek().map(|Reverse((next, ..))| *next)
    }
}

fn address(frame: &[u8], at: usize) -> Option<[u8; 6]> {
    frame.get(at..at + 6)?.try_into().ok()
}

/// The generator SplitMix64, so that each run loses the same frames of its sequence.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
