//! Where a program's steps run: on the thread that delivers their operands, or as jobs of compute. It begins with what a step
//! is predicted to take, and is corrected by what steps take. No value depends on it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How often in a row what was measured must say otherwise: a thread that was interrupted says little.
const CONVINCED: u8 = 16;
/// One in so many steps is measured: looking at a clock takes as long as a small kernel.
const SAMPLE: u64 = 4;

/// Steps are brief as predicted, or are not, and may be found to be.
const PREDICTED: u8 = 0;
/// They were found to be brief.
const FOUND_BRIEF: u8 = 1;
/// They are not, and no job that was split over threads makes them so again.
const FOUND_LONG: u8 = 2;

/// See the module.
pub(super) struct Pace {
    /// What it takes to start a job.
    wake: Duration,
    /// Unknown where it depends on the call: such steps never run but as jobs.
    predicted: Option<Duration>,
    found: AtomicU8,
    /// Measurements in a row that say otherwise.
    otherwise: AtomicU8,
}

impl Pace {
    pub(super) fn new(predicted: Option<Duration>, wake: Duration) -> Pace {
        Pace {
            wake,
            predicted,
            found: AtomicU8::new(PREDICTED),
            otherwise: AtomicU8::new(0),
        }
    }

    /// Whether a step takes no longer than starting a job for it.
    pub(super) fn is_brief(&self) -> bool {
        match self.found.load(Ordering::Relaxed) {
            FOUND_BRIEF => true,
            FOUND_LONG => false,
            _ => self.predicted.is_some_and(|p| p <= self.wake),
        }
    }

    /// What a step takes that runs without a job, at most on average.
    pub(super) fn usual(&self) -> Duration {
        let predicted = self.predicted.unwrap_or(self.wake);
        predicted.min(self.wake)
    }

    /// Whether what step `n` takes can change where steps run.
    pub(super) fn listens(&self, n: u64) -> bool {
        n.is_multiple_of(SAMPLE)
            && self.predicted.is_some()
            && !self.wake.is_zero()
            && self.found.load(Ordering::Relaxed) != FOUND_LONG
    }

    /// Threads worked at a step for so long, all in all.
    pub(super) fn took(&self, time: Duration) {
        let brief = self.is_brief();
        if (time <= self.wake) == brief {
            self.otherwise.store(0, Ordering::Relaxed);
        } else if self.otherwise.fetch_add(1, Ordering::Relaxed) + 1 >= CONVINCED {
            let found = if brief { FOUND_LONG } else { FOUND_BRIEF };
            self.otherwise.store(0, Ordering::Relaxed);
            self.found.store(found, Ordering::Relaxed);
        }
    }
}

/// Adds up the time of what is done between starts and stops.
pub(super) struct Stopwatch {
    since: Instant,
    before: Duration,
}

impl Stopwatch {
    pub(super) fn start() -> Stopwatch {
        Stopwatch {
            since: Instant::now(),
            before: Duration::ZERO,
        }
    }

    pub(super) fn stop(&mut self) {
        self.before += self.since.elapsed();
    }

    pub(super) fn go_on(&mut self) {
        self.since = Instant::now();
    }

    /// The time so far, while it runs.
    pub(super) fn read(&self) -> Duration {
        self.before + self.since.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAKE: Duration = Duration::from_micros(20);

    /// Microseconds that steps took, one after the other; whether those that follow are brief.
    fn check(predicted: Option<u64>, took: &[(u64, usize)], want: bool) {
        let pace = Pace::new(predicted.map(Duration::from_micros), WAKE);
        for (micros, times) in took {
            for _ in 0..*times {
                if pace.listens(0) {
                    pace.took(Duration::from_micros(*micros));
                }
            }
        }
        assert_eq!(pace.is_brief(), want, "{predicted:?} {took:?}");
    }

    #[test]
    fn predictions_are_corrected_by_what_steps_take() {
        check(Some(20), &[], true);
        check(Some(21), &[], false);
        check(None, &[(1, 100)], false);
        // Found to be brief, again and again.
        check(Some(50), &[(20, 15)], false);
        check(Some(50), &[(20, 16)], true);
        check(Some(50), &[(21, 100)], false);
        check(Some(50), &[(9, 15), (90, 1), (9, 15)], false);
        // Found to be long, and then it stays so.
        check(Some(5), &[(21, 15)], true);
        check(Some(5), &[(21, 16)], false);
        check(Some(5), &[(20, 100)], true);
        check(Some(5), &[(90, 15), (5, 1), (90, 15)], true);
        check(Some(5), &[(90, 16), (1, 100)], false);
        check(Some(50), &[(9, 16), (90, 16), (1, 100)], false);
    }

    #[test]
    fn nothing_is_brief_where_jobs_start_at_once() {
        let pace = Pace::new(Some(Duration::from_micros(1)), Duration::ZERO);
        assert!(!pace.is_brief() && !pace.listens(0));
    }
}
