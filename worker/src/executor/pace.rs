//! The choice of the thread that steps run on: the one that delivers their operands, or that of a compute job. It
//! starts from a step's predicted time, and is corrected by measured times. No result depends on it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Number of measurements in a row that must contradict the choice: a single one may only show that a thread was
/// interrupted.
const CONVINCED: u8 = 16;
/// One in this many steps is measured: reading a clock takes as long as a small kernel.
const SAMPLE: u64 = 4;

/// The prediction decides whether steps are brief.
const PREDICTED: u8 = 0;
/// Steps were measured to be brief.
const FOUND_BRIEF: u8 = 1;
/// Steps were measured to be long.
const FOUND_LONG: u8 = 2;

/// Decides whether the steps of one program run as compute jobs.
pub(super) struct Pace {
    /// The longest time of a brief step.
    longest: Duration,
    /// The predicted time of a step on one thread. Without one, since it depends on the call, steps always run as jobs.
    predicted: Option<Duration>,
    found: AtomicU8,
    /// Number of measurements in a row that contradict the choice.
    otherwise: AtomicU8,
}

impl Pace {
    pub(super) fn new(predicted: Option<Duration>, longest: Duration) -> Pace {
        Pace {
            longest,
            predicted,
            found: AtomicU8::new(PREDICTED),
            otherwise: AtomicU8::new(0),
        }
    }

    /// Whether a step takes no longer than handing it to another thread does.
    pub(super) fn is_brief(&self) -> bool {
        match self.found.load(Ordering::Relaxed) {
            FOUND_BRIEF => true,
            FOUND_LONG => false,
            _ => self.predicted.is_some_and(|p| p <= self.longest),
        }
    }

    /// A bound on the average time of a step that runs without a job.
    pub(super) fn usual(&self) -> Duration {
        let predicted = self.predicted.unwrap_or(self.longest);
        predicted.min(self.longest)
    }

    /// Whether step `n` is measured, which may change the choice.
    pub(super) fn listens(&self, n: u64) -> bool {
        n.is_multiple_of(SAMPLE) && self.predicted.is_some() && !self.longest.is_zero()
    }

    /// Takes account of a measured step: `time` is a bound on its time on one thread.
    pub(super) fn took(&self, time: Duration) {
        let brief = self.is_brief();
        if (time <= self.longest) == brief {
            self.otherwise.store(0, Ordering::Relaxed);
        } else if self.otherwise.fetch_add(1, Ordering::Relaxed) + 1 >= CONVINCED {
            let found = if brief { FOUND_LONG } else { FOUND_BRIEF };
            self.otherwise.store(0, Ordering::Relaxed);
            self.found.store(found, Ordering::Relaxed);
        }
    }
}

/// Measures the time between starts and stops, added up.
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

    /// The time so far, while the stopwatch runs.
    pub(super) fn read(&self) -> Duration {
        self.before + self.since.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(20);

    /// Feeds times in microseconds, each with a number of steps that took it, and checks whether later steps count as
    /// brief.
    fn check(predicted: Option<u64>, took: &[(u64, usize)], want: bool) {
        let pace = Pace::new(predicted.map(Duration::from_micros), LONGEST);
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
        // Steps are measured to be brief, a number of times in a row.
        check(Some(50), &[(20, 15)], false);
        check(Some(50), &[(20, 16)], true);
        check(Some(50), &[(21, 100)], false);
        check(Some(50), &[(9, 15), (90, 1), (9, 15)], false);
        // Steps are measured to be long, and to be brief once more: the machine was busy.
        check(Some(5), &[(21, 15)], true);
        check(Some(5), &[(21, 16)], false);
        check(Some(5), &[(20, 100)], true);
        check(Some(5), &[(90, 15), (5, 1), (90, 15)], true);
        check(Some(5), &[(90, 16), (1, 15)], false);
        check(Some(5), &[(90, 16), (1, 16)], true);
        check(Some(50), &[(9, 16), (90, 16), (50, 100)], false);
    }

    #[test]
    fn nothing_is_brief_where_jobs_start_at_once() {
        let pace = Pace::new(Some(Duration::from_micros(1)), Duration::ZERO);
        assert!(!pace.is_brief() && !pace.listens(0));
    }
}
