//! The watch over work that has ended and still runs.
//!
//! An aborted step, or a cancelled install, stops once its kernel notices: kernels look at their flag every 10 ms. A
//! kernel that still computes after [`WEDGED`] will not stop at all. Its thread cannot be taken back, and its buffers
//! are still written: the worker keeps them, refuses new work, reports the kernel, and its process ends. A device that
//! failed for good ends the worker in the same way, at once.
//!
//! Invariants
//! 1. Only work that has ended is watched: a healthy step runs as long as its work.
//! 2. Only a kernel or a device wedges a worker. A peer that does not read the tensors of an ended step loses its link
//!    instead.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use convoke_common::actor;
use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::error::Error;
use convoke_common::ids::{LeaseId, StepKey};
use convoke_common::mutant;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long ended work may take to quiesce before its worker counts as wedged.
pub const WEDGED: Duration = Duration::from_secs(5);

/// The advice about a wedged worker: how it ends and returns.
pub const RETURNS: &str =
    "its process ends and returns by itself where a supervisor runs it; else restart it";

/// The kinds of work that are watched after their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// A step.
    Step(StepKey),
    /// The init part of a lease's program.
    Init(LeaseId),
    /// An eager session.
    Session(LeaseId),
}

/// The work that has ended and not quiesced, with the time when it is overdue. `T` is the handle by which the work is
/// looked at.
#[derive(Debug)]
struct Core<T>(BTreeMap<Work, (Timer, T)>);

impl<T> Core<T> {
    /// Notes that the work ended and has not quiesced; only the first call for it counts.
    fn ended(&mut self, now: Instant, work: Work, look: T) {
        self.0
            .entry(work)
            .or_insert_with(|| (Timer::arm(TimerKind::Wedge, now + WEDGED), look));
    }

    /// Forgets work that has quiesced.
    fn quiesced(&mut self, work: Work) {
        self.0.remove(&work);
    }

    /// When the next work becomes overdue.
    fn poll_timeout(&self) -> Option<Instant> {
        self.0.values().map(|(timer, _)| timer.due()).min()
    }

    /// Removes and returns work that is overdue, if there is any.
    fn overdue(&mut self, now: Instant) -> Option<T> {
        let late = |(_, (timer, _)): &(&Work, &(Timer, T))| timer.due() <= now;
        let (work, _) = self.0.iter().find(late)?;
        let work = *work;
        self.0.remove(&work).map(|(_, look)| look)
    }
}

/// Looks at overdue work: returns the error that names the kernel that does not stop, if a kernel is the reason.
pub type OverdueProbe = Box<dyn FnOnce() -> Option<Error> + Send>;

/// Watches work that has ended until it has quiesced.
pub struct Watch {
    core: Mutex<Core<OverdueProbe>>,
    /// Why the worker's device will never work again.
    device: OnceLock<Error>,
    changed: Notify,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch {
            core: Mutex::new(Core(BTreeMap::new())),
            device: OnceLock::new(),
            changed: Notify::new(),
        }
    }
}

impl Watch {
    fn core(&self) -> MutexGuard<'_, Core<OverdueProbe>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches work that ended and has not quiesced yet. May be called under a step's lock, which `look` may take.
    pub fn ended(&self, work: Work, look: OverdueProbe) {
        self.core().ended(Instant::now(), work, look);
        self.changed.notify_one();
    }

    /// Ends the watch over work that has quiesced.
    pub fn quiesced(&self, work: Work) {
        self.core().quiesced(work);
    }

    /// Notes that the worker's device will never work again.
    pub fn device_failed(&self, error: &Error) {
        let _ = self.device.set(error.clone());
        self.changed.notify_one();
    }

    /// Number of ended steps, init parts and sessions that are watched.
    pub fn len(&self) -> usize {
        self.core().0.len()
    }

    /// Whether no work is watched.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns once a kernel does not stop, or the device has failed for good, with the error that names it.
    pub async fn wedged(&self) -> Error {
        loop {
            if let Some(error) = self.device.get() {
                return error.clone();
            }
            let due = self.core().poll_timeout();
            let due = due.filter(|_| !mutant!("wedge-unnoticed"));
            tokio::select! {
                biased;
                () = actor::due(due) => {}
                () = self.changed.notified() => continue,
            }
            loop {
                // The look runs outside the lock: it takes a step's lock, under which others call this watch.
                let Some(look) = self.core().overdue(Instant::now()) else {
                    break;
                };
                if let Some(error) = look() {
                    return error;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(n: u64) -> Work {
        let lease = LeaseId(1);
        Work::Step(StepKey { lease, n })
    }

    #[test]
    fn what_quiesces_in_time_is_never_overdue() {
        let mut core = Core(BTreeMap::new());
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(core.poll_timeout(), None);
        core.ended(at(0), step(0), "a");
        core.ended(at(100), step(1), "b");
        core.ended(at(200), Work::Init(LeaseId(1)), "c");
        // A second end of the same work changes nothing.
        core.ended(at(4000), step(0), "later");
        assert_eq!(core.poll_timeout(), Some(at(5000)));
        core.quiesced(step(1));
        assert_eq!(core.overdue(at(4999)), None);
        assert_eq!(core.overdue(at(5200)), Some("a"));
        assert_eq!(core.overdue(at(5200)), Some("c"));
        assert_eq!((core.overdue(at(9000)), core.poll_timeout()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn the_watch_names_the_kernel_that_does_not_stop() {
        let watch = Watch::default();
        let start = Instant::now();
        let named = |message: &'static str| -> OverdueProbe {
            Box::new(move || Some(Error::internal(message)))
        };
        watch.ended(step(0), named("stops in time"));
        watch.ended(step(1), Box::new(|| None));
        let wedged = async {
            let error = watch.wedged().await;
            (error.message, start.elapsed())
        };
        let others = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            watch.quiesced(step(0));
            watch.ended(step(2), named("hangs"));
            std::future::pending::<()>().await
        };
        tokio::select! {
            biased;
            (message, took) = wedged => {
                assert_eq!(message, "hangs");
                assert!(took >= Duration::from_secs(8) && took < Duration::from_secs(9), "{took:?}");
            }
            () = others => {}
        }
        assert!(watch.is_empty());
    }
}
