//! The failed steps of a worker: counted for `status`, logged, and kept until the coordinator has heard of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use convoke_common::error::Code;
use convoke_common::rpc::StepFailure;
use convoke_common::telemetry::LineLimit;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Most failures that wait to be reported; beyond them the oldest are dropped.
const MOST_UNTOLD: usize = 64;

/// The counts of a worker's failed steps, and the failures that the coordinator has yet to hear of.
#[derive(Debug, Default)]
pub struct Failures {
    lines: LineLimit,
    known: Mutex<FailureCounts>,
    more: Notify,
}

#[derive(Debug, Default)]
struct FailureCounts {
    by_code: BTreeMap<Code, u64>,
    untold: VecDeque<StepFailure>,
}

impl Failures {
    fn known(&self) -> MutexGuard<'_, FailureCounts> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failed step.
    pub(crate) fn count(&self, code: Code) {
        *self.known().by_code.entry(code).or_default() += 1;
    }

    /// Logs a failed step and queues it for the coordinator, unless many steps have failed lately.
    pub(crate) fn tell(&self, worker: &str, mut failure: StepFailure) {
        let Some(others) = self.lines.admit(Instant::now()) else {
            return;
        };
        failure.others = others;
        failure.log(worker, others);
        let untold = &mut self.known().untold;
        if untold.len() == MOST_UNTOLD {
            untold.pop_front();
        }
        untold.push_back(failure);
        self.more.notify_one();
    }

    /// The number of failed steps, by the name of their error code.
    pub fn counted(&self) -> BTreeMap<String, u64> {
        let known = self.known();
        let named = known.by_code.iter();
        named
            .map(|(code, n)| (code.name().to_owned(), *n))
            .collect()
    }

    /// Returns when there may be failures to report to the coordinator.
    pub async fn more(&self) {
        self.more.notified().await;
    }

    /// Takes the failures that the coordinator has yet to hear of; the caller reports them.
    pub fn take(&self) -> Vec<StepFailure> {
        std::mem::take(&mut self.known().untold).into()
    }

    /// Puts failures back that could not be reported, before those that came since.
    pub fn put_back(&self, failures: Vec<StepFailure>) {
        let untold = &mut self.known().untold;
        for failure in failures.into_iter().rev() {
            if untold.len() < MOST_UNTOLD {
                untold.push_front(failure);
            }
        }
        self.more.notify_one();
    }
}
