//! The attempts of one call: when a step runs again, and with which error the call ends otherwise.
//!
//! A step runs again where a worker of it was lost, left, hung or dropped the lease: its inputs are still there, and
//! functions are pure. An error of a kernel is final. A load is planned and installed again for the same reasons, and
//! where a worker of its plan cannot be reached or has no room.

use convoke_common::error::{Code, Error, Result};
use convoke_common::mutant;
use tokio::time::Instant;

use crate::calls::options::{CallOptions, Retry};
use crate::calls::rerun::Rerun;
use crate::calls::worker_process::WorkerProcess;

/// How often one call runs again at most.
pub(crate) const RERUNS: usize = 2;

/// An attempt that failed.
#[derive(Debug, Clone)]
pub(crate) struct FailedAttempt {
    error: Box<Error>,
    /// Whether another attempt may succeed.
    again: bool,
    /// Whether the attempt ended before its step began, since its lease was replaced: it runs again whatever the call's
    /// options say.
    unbegun: bool,
    unusable: Vec<WorkerProcess>,
}

impl From<Error> for FailedAttempt {
    fn from(error: Error) -> FailedAttempt {
        FailedAttempt {
            error: Box::new(error),
            again: false,
            unbegun: false,
            unusable: vec![],
        }
    }
}

/// Whether an error says that a participant no longer serves the lease.
pub(crate) fn is_loss(code: Code) -> bool {
    use Code::{LeaseRetired, PeerLost, Wedged, WorkerLeaving};
    matches!(code, PeerLost | WorkerLeaving | Wedged | LeaseRetired)
}

impl FailedAttempt {
    /// The failure of a step. Further plans of the call avoid the workers in `unusable`.
    pub(crate) fn of_step(error: Error, unusable: Vec<WorkerProcess>) -> FailedAttempt {
        FailedAttempt {
            again: is_loss(error.code),
            unbegun: error.code == Code::LeaseRetired,
            error: Box::new(error),
            unusable,
        }
    }

    /// The failure of an install, because of the worker `about` where the error names one. A worker that cannot be
    /// reached may have been restarted or cut off since the plan was made, or advertise an address at which it cannot
    /// be reached: the next attempt avoids it. A worker that has no room for its part is not avoided: the coordinator
    /// remembers it, and plans for the memory that is free elsewhere.
    pub(crate) fn of_install(error: Error, about: Option<WorkerProcess>) -> FailedAttempt {
        let full = error.code == Code::OutOfMemory;
        let elsewhere = (full || error.code == Code::Unreachable) && about.is_some();
        FailedAttempt {
            again: is_loss(error.code) || elsewhere,
            unbegun: false,
            error: Box::new(error),
            unusable: about.filter(|_| !full).into_iter().collect(),
        }
    }
}

/// The failed attempts of a call so far, and what it may still try.
pub(crate) struct Attempts {
    retry: Retry,
    deadline: Option<Instant>,
    errors: Vec<Error>,
    avoid: Vec<WorkerProcess>,
    /// How many failed attempts [`Attempts::rerun`] has reported.
    told: usize,
}

impl Attempts {
    pub(crate) fn new(options: &CallOptions) -> Attempts {
        Attempts {
            retry: options.retry,
            // A deadline beyond the range of the clock is no deadline.
            deadline: options
                .deadline
                .and_then(|d| Instant::now().checked_add(d))
                .filter(|_| !mutant!("deadline-dropped")),
            errors: vec![],
            avoid: vec![],
            told: 0,
        }
    }

    /// The attempts of a call whose plans avoid these workers from the first one on.
    pub(crate) fn avoiding(options: &CallOptions, avoid: Vec<WorkerProcess>) -> Attempts {
        Attempts {
            avoid,
            ..Attempts::new(options)
        }
    }

    /// When all attempts have to be over, if the call has a deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Makes the running attempt the last one: another attempt would lack the donated operands that this one has taken.
    pub(crate) fn end_with_this(&mut self) {
        self.retry = Retry::Off;
    }

    /// The workers that further plans of this call avoid.
    pub(crate) fn avoid(&self) -> &[WorkerProcess] {
        &self.avoid
    }

    /// Returns the report of the attempt that begins on these workers; `None` where it is the first attempt or was
    /// reported already.
    pub(crate) fn rerun(&mut self, workers: impl FnOnce() -> Vec<String>) -> Option<Rerun> {
        let cause = self.errors.get(self.told..)?.last()?.clone();
        self.told = self.errors.len();
        Some(Rerun {
            attempt: self.errors.len() as u32 + 1,
            of: RERUNS as u32 + 1,
            cause,
            workers: workers(),
        })
    }

    /// Notes that an attempt failed. Returns the call's error where that attempt was the last.
    pub(crate) fn failed(&mut self, failed: FailedAttempt) -> Result<()> {
        // The plan used the worker once more, as nothing else would do, and the worker still cannot be reached.
        let out_of_reach = failed.error.code == Code::Unreachable
            && failed.unusable.iter().all(|n| self.avoid.contains(n));
        let may = self.retry == Retry::On || failed.unbegun;
        let reruns = RERUNS + usize::from(mutant!("attempts-unheeded"));
        if !failed.again || out_of_reach || !may || self.errors.len() == reruns {
            let errors = std::mem::take(&mut self.errors);
            return Err(concluded(errors, *failed.error));
        }
        self.errors.push(*failed.error);
        self.avoid.extend(failed.unusable);
        Ok(())
    }
}

/// The error of a call whose attempts ended with `errors` and `last`: the first cause, with what later attempts met; or
/// the last error, where that is a cause of its own.
pub(crate) fn concluded(errors: Vec<Error>, mut last: Error) -> Error {
    if last.code == Code::LeaseRetired {
        // The end of a lease tells nothing to the caller of a model.
        last.code = Code::PeerLost;
    }
    let mut errors = errors.into_iter();
    let Some(mut first) = errors.next() else {
        return last;
    };
    let met = match last.code {
        Code::ClusterTooSmall => "the survivors cannot hold the model: ",
        Code::OutOfMemory if is_loss(first.code) && last.site.is_none() => "it cannot run again: ",
        Code::Unreachable if last.site.is_some() => "run again, ",
        Code::NoWorkers | Code::Unreachable | Code::InvalidArgument => "it cannot run again: ",
        code if is_loss(code) => "run again, ",
        _ => {
            last.attached.push(first);
            last.attached.extend(errors);
            return last;
        }
    };
    let between: String = errors
        .as_slice()
        .iter()
        .map(|e| format!("run again, {}; ", e.message))
        .collect();
    first.message = format!("{}; {between}{met}{}", first.message, last.message);
    if !last.advice.is_empty() {
        first.advice = last.advice.clone();
    }
    first.attached.extend(errors);
    first.attached.push(last);
    first
}

#[cfg(test)]
mod tests {
    use convoke_common::ids::Incarnation;

    use super::*;

    fn lost(name: &str) -> FailedAttempt {
        let error = Error::lost(name, "its process ended");
        FailedAttempt::of_step(error, vec![(name.into(), Incarnation(1))])
    }

    fn error(code: Code, message: &str) -> FailedAttempt {
        FailedAttempt::of_step(Error::new(code, message), vec![])
    }

    /// Lets the attempts of a call fail, and checks the error that the last one ends the call with.
    #[track_caller]
    fn check(retry: Retry, failures: Vec<FailedAttempt>, expected: &str) -> Error {
        let mut attempts = Attempts::new(&CallOptions {
            retry,
            ..CallOptions::default()
        });
        let last = failures.len() - 1;
        for (i, failed) in failures.into_iter().enumerate() {
            match attempts.failed(failed) {
                Ok(()) => assert!(i < last, "one more attempt than expected"),
                Err(e) => {
                    assert_eq!((i, e.to_string().as_str()), (last, expected));
                    return e;
                }
            }
        }
        panic!("there is another attempt");
    }

    #[test]
    fn a_kernels_error_is_final() {
        check(Retry::On, vec![error(Code::KernelFailed, "boom")], "boom");
        check(Retry::On, vec![error(Code::Cancelled, "stop")], "stop");
        let e = check(
            Retry::On,
            vec![lost("w1"), error(Code::KernelFailed, "boom")],
            "boom; 1 further error",
        );
        assert_eq!(e.attached[0].code, Code::PeerLost);
    }

    #[test]
    fn without_retries_the_first_error_is_the_last() {
        check(
            Retry::Off,
            vec![lost("w1")],
            "lost contact with w1: its process ended [worker w1]",
        );
    }

    #[test]
    fn a_call_runs_three_times_at_most() {
        let e = check(
            Retry::On,
            vec![lost("w1"), lost("w2"), lost("w3")],
            "lost contact with w1: its process ended; run again, lost contact with w2: its process ended; \
             run again, lost contact with w3: its process ended [worker w1]; 2 further errors",
        );
        assert_eq!(e.code, Code::PeerLost);
    }

    #[test]
    fn what_the_retry_met_is_said() {
        let small = Error::new(Code::ClusterTooSmall, "the model needs 3 GiB").advise("add one");
        let e = check(
            Retry::On,
            vec![lost("w1"), small.into()],
            "lost contact with w1: its process ended; the survivors cannot hold the model: the model needs 3 GiB \
             [worker w1]; 1 further error\n  add one",
        );
        assert_eq!(
            (e.code, e.attached[0].code),
            (Code::PeerLost, Code::ClusterTooSmall)
        );
        let away = Error::unreachable(None, "the coordinator cannot be reached");
        check(
            Retry::On,
            vec![lost("w1"), away.into()],
            "lost contact with w1: its process ended; it cannot run again: the coordinator cannot be reached \
             [worker w1]; 1 further error",
        );
    }

    #[test]
    fn a_worker_out_of_reach_is_done_without() {
        let unreachable = |worker: &str| {
            let error = Error::unreachable(Some(worker), format!("cannot reach {worker}"));
            FailedAttempt::of_install(error, Some((worker.into(), Incarnation(1))))
        };
        let mut attempts = Attempts::new(&CallOptions::default());
        attempts.failed(unreachable("w1")).unwrap();
        attempts.failed(unreachable("w2")).unwrap();
        let names: Vec<_> = attempts.avoid().iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["w1", "w2"]);
        // Where nothing else will do, the plan uses the worker again, and only once.
        check(
            Retry::On,
            vec![unreachable("w1"), unreachable("w1")],
            "cannot reach w1; run again, cannot reach w1 [worker w1]; 1 further error",
        );
        let without = check(
            Retry::Off,
            vec![unreachable("w1")],
            "cannot reach w1 [worker w1]",
        );
        assert_eq!(without.code, Code::Unreachable);
        // The call has waited for an absent coordinator already, so it does not run again.
        let away = Error::unreachable(None, "the coordinator cannot be reached");
        check(
            Retry::On,
            vec![FailedAttempt::of_install(away, None)],
            "the coordinator cannot be reached",
        );
    }

    #[test]
    fn a_full_worker_is_planned_around() {
        let full = |worker: &str| {
            let error = Error::new(Code::OutOfMemory, format!("{worker} is full"));
            FailedAttempt::of_install(error.about(worker), Some((worker.into(), Incarnation(1))))
        };
        let mut attempts = Attempts::new(&CallOptions::default());
        attempts.failed(full("w1")).unwrap();
        // It is for the coordinator to say where there is room.
        assert!(attempts.avoid().is_empty());
        let e = check(
            Retry::On,
            vec![full("w1"), full("w2"), full("w2")],
            "w2 is full [worker w2]; 2 further errors",
        );
        assert_eq!(e.code, Code::OutOfMemory);
        // The plan says that nothing is free.
        let no_room = Error::new(Code::OutOfMemory, "w1 has 1 MiB of 2 MiB free");
        check(
            Retry::On,
            vec![full("w1"), no_room.clone().into()],
            "w1 has 1 MiB of 2 MiB free; 1 further error",
        );
        check(
            Retry::On,
            vec![lost("w1"), no_room.into()],
            "lost contact with w1: its process ended; it cannot run again: w1 has 1 MiB of 2 MiB free \
             [worker w1]; 1 further error",
        );
        check(Retry::Off, vec![full("w1")], "w1 is full [worker w1]");
    }

    #[test]
    fn each_attempt_is_told_of_once() {
        let mut attempts = Attempts::new(&CallOptions::default());
        assert_eq!(attempts.rerun(|| vec!["w0".into(), "w1".into()]), None);
        let mut two = lost("w1");
        two.error.attached = vec![Error::lost("w3", "its process ended")];
        attempts.failed(two).unwrap();
        let rerun = attempts.rerun(|| vec!["w0".into(), "w2".into()]).unwrap();
        assert_eq!(
            rerun.to_string(),
            "lost contact with w1: its process ended; lost contact with w3: its process ended; \
             running again on w0, w2 (attempt 2 of 3)"
        );
        assert_eq!(attempts.rerun(|| vec!["w0".into()]), None);
    }
}
