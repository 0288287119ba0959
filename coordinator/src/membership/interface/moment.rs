//! The time as the core knows it.

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A time by the core's own count: nanoseconds since its start, negative for a time before it. Unlike the clock of a
/// process it means the same wherever a history of events is replayed. Sums that do not fit are cut to the nearest time
/// that does, three centuries away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(i64);

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl Moment {
    /// The start of the core.
    pub const START: Moment = Moment(0);

    /// Returns how much later this is than `earlier`; zero if it is not later.
    pub fn since(self, earlier: Moment) -> Duration {
        let nanos = self.0.saturating_sub(earlier.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    fn sub(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_sub(nanos(duration)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_before_the_start_count_as_well() {
        let (hour, start) = (Duration::from_secs(3600), Moment::START);
        let before = start - hour;
        assert!(before < start);
        assert_eq!(start.since(before), hour);
        assert_eq!(before.since(start), Duration::ZERO);
        assert_eq!(before + hour + hour, start + hour);
        assert!(start + Duration::MAX > start + hour && start - Duration::MAX < before);
    }
}
