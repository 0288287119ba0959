//! Virtual time, and the calendar that a scenario may set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use convoke_common::world::WallClock;

use super::knobs::Knobs;

/// The calendar time at which every simulation begins, in seconds since 1970.
pub const EPOCH: u64 = 1_800_000_000;

/// Time since the simulation began, with the resolution of a tick: what happens within a tick happens at its start.
/// Clones share the time.
#[derive(Debug, Clone, Default)]
pub struct SimTime(Arc<AtomicU64>);

impl SimTime {
    /// The current time since the simulation began.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn set(&self, now: Duration) {
        self.0.store(now.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// A host's calendar: virtual time that starts at [`EPOCH`], shifted by the offset that the scenario set.
#[derive(Debug)]
pub(super) struct SimClock {
    time: SimTime,
    knobs: Arc<Knobs>,
}

impl SimClock {
    pub(super) fn new(time: SimTime, knobs: Arc<Knobs>) -> SimClock {
        SimClock { time, knobs }
    }
}

impl WallClock for SimClock {
    fn now(&self) -> SystemTime {
        let right = Duration::from_secs(EPOCH) + self.time.now();
        let off = self.knobs.clock_off();
        let shown = match off.is_negative() {
            false => right.saturating_add(Duration::from_secs(off.unsigned_abs())),
            true => right.saturating_sub(Duration::from_secs(off.unsigned_abs())),
        };
        UNIX_EPOCH + shown
    }
}
