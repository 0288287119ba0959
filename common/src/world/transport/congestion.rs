//! Congestion control that does not take every lost packet for a sign of congestion.
//!
//! QUIC's Cubic gives up 30 % of its window for each round trip in which a packet was lost. A path that loses one packet in
//! a hundred by itself then carries a few packets a round trip, whatever its capacity. [`LossTolerant`] is Cubic that is
//! told of a loss only where it speaks of congestion:
//!
//! 1. packets wait in a queue on the way, as they do before a queue overflows: the round trip takes half longer than
//!    the shortest one, and [`QUEUE`] at least; or
//! 2. more than [`TOLERATED`] of the recently sent bytes are lost, as happens at a short queue, which the round trip
//!    does not show; or
//! 3. nothing arrived for several timeouts, or the network itself says that it is congested (ECN).
//!
//! Its decisions depend on its calls alone, so that simulations repeat. quinn's BBR draws from the system's generator.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::RttEstimator;

/// One in this many sent bytes may be lost without being taken for congestion.
const TOLERATED: u64 = 20;

/// The packets over which losses are counted at least: among fewer, one lost packet would be a large part.
const SAMPLE: u64 = 100;

/// The least time in a queue that counts: shorter delays are those of the processes at both ends.
const QUEUE: Duration = Duration::from_millis(1);

/// Makes a controller for each path, with the same first window.
pub(super) struct LossTolerant {
    cubic: Arc<CubicConfig>,
}

impl LossTolerant {
    pub(super) fn new(first_window: u64) -> LossTolerant {
        let mut cubic = CubicConfig::default();
        cubic.initial_window(first_window);
        LossTolerant {
            cubic: Arc::new(cubic),
        }
    }
}

impl ControllerFactory for LossTolerant {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(PathController {
            cubic: self.cubic.clone().build(now, mtu),
            mtu: mtu.into(),
            acknowledged: 0,
            lost: 0,
            queued: false,
        })
    }
}

/// The controller of one path.
struct PathController {
    cubic: Box<dyn Controller>,
    mtu: u64,
    /// Bytes that arrived and bytes that were lost, of about the last window.
    acknowledged: u64,
    lost: u64,
    /// Whether packets wait in a queue on the way, by the last acknowledgement.
    queued: bool,
}

impl PathController {
    /// Whether more is lost than a path may lose by itself.
    fn loses_much(&self) -> bool {
        let sent = (self.acknowledged + self.lost).max(SAMPLE * self.mtu);
        self.lost > sent / TOLERATED
    }

    /// Halves the counts, once they exceed the last window.
    fn age(&mut self) {
        if self.acknowledged + self.lost > self.cubic.window().max(SAMPLE * self.mtu) {
            self.acknowledged /= 2;
            self.lost /= 2;
        }
    }
}

/// Whether a round trip that takes `smoothed` on average waits in a queue, where the shortest took `least`.
fn is_queued(smoothed: Duration, least: Duration) -> bool {
    smoothed > least + (least / 2).max(QUEUE)
}

impl Controller for PathController {
    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.acknowledged += bytes;
        self.queued = is_queued(rtt.get(), rtt.min());
        self.age();
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        self.lost += lost;
        // An event without lost bytes is one of ECN.
        if lost == 0 || persistent || self.queued || self.loses_much() {
            self.cubic.on_congestion_event(now, sent, persistent, lost);
        }
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = mtu.into();
        self.cubic.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(PathController {
            cubic: self.cubic.clone_box(),
            ..*self
        })
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = 1 << 20;
    const MTU: u64 = 1000;
    const MS: Duration = Duration::from_millis(1);

    /// Loses every `nth` packet of a thousand, while round trips take `smoothed` and the shortest took `least`, and
    /// returns the part of its window that the controller has given up at the end, in percent.
    fn given_up(nth: u64, smoothed: Duration, least: Duration) -> u64 {
        let start = tokio::time::Instant::now().into_std();
        let mut c = PathController {
            cubic: LossTolerant::new(FIRST).cubic.build(start, MTU as u16),
            mtu: MTU,
            acknowledged: 0,
            lost: 0,
            queued: is_queued(smoothed, least),
        };
        for packet in 1..=1000 {
            let sent = start + MS * packet as u32;
            match packet % nth {
                0 => c.on_congestion_event(sent + smoothed, sent, false, MTU),
                // Count as `on_ack` does. The test cannot call it, since it cannot make an estimate of the round trip.
                _ => {
                    c.acknowledged += MTU;
                    c.age();
                }
            }
        }
        100 - c.window() * 100 / FIRST
    }

    #[test]
    fn what_a_path_loses_by_itself_costs_no_window() {
        assert_eq!(given_up(100, 30 * MS, 30 * MS), 0);
        assert_eq!(given_up(25, 40 * MS, 30 * MS), 0);
        // A queue shows in the round trip, and a short queue in how much is lost.
        assert!(given_up(100, 50 * MS, 30 * MS) > 50);
        assert!(given_up(10, 30 * MS, 30 * MS) > 50);
    }

    #[test]
    fn a_queue_is_longer_than_what_the_ends_take() {
        let us = Duration::from_micros;
        assert!(!is_queued(us(1000), us(100)));
        assert!(is_queued(us(1200), us(100)));
        assert!(!is_queued(us(44_000), us(30_000)));
        assert!(is_queued(us(46_000), us(30_000)));
    }

    #[test]
    fn nothing_for_several_timeouts_or_a_mark_of_the_network_is_congestion() {
        for (persistent, lost) in [(true, MTU), (false, 0)] {
            let now = tokio::time::Instant::now().into_std();
            let mut c = Arc::new(LossTolerant::new(FIRST)).build(now, MTU as u16);
            c.on_congestion_event(now, now, persistent, lost);
            assert!(c.window() < FIRST, "persistent: {persistent}");
        }
    }
}
