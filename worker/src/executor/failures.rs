//! Steps that failed here: counted for `status`, logged, and reported to the coordinator.
//!
//! A worker reports a step whose error is its own, and one that its driver ended if the worker is the first of the
//! lease. So each failed step is reported even where no one looks at the result of the call. A step that its caller
//! cancelled, or left behind when it ended, is only counted. A partial step in which a node failed counts as failed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use convoke_common::error::{Code, Error};
use convoke_common::ids::StepKey;
use convoke_common::rpc::{StepFailure, close};
use convoke_common::telemetry::LineLimit;
use convoke_graph::ids::ParticipantIx;
use convoke_rendezvous::Lease;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Executor, Run};

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
    fn count(&self, code: Code) {
        *self.known().by_code.entry(code).or_default() += 1;
    }

    /// Logs a failed step and queues it for the coordinator, unless many steps have failed lately.
    fn tell(&self, worker: &str, mut failure: StepFailure) {
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

impl Executor {
    /// Counts and reports a step that failed because of an error that participant `from` found. Called under the step's
    /// lock, once for each step. A step of a partitioned body is told of by the step that drives it.
    pub(super) fn tell_failure(
        &self,
        lease: &Lease,
        run: &Run,
        error: &Error,
        from: ParticipantIx,
    ) {
        if lease.is_of_body() {
            return;
        }
        run.span.record("otel.status_code", "ERROR");
        run.span
            .record("otel.status_description", tracing::field::display(error));
        let failures = &self.engine.failures;
        failures.count(error.code);
        let from_driver = from == lease.driver() && lease.me == 0;
        let left = error.code == Code::PeerLost && error.message.ends_with(close::CLIENT_LEAVING);
        if error.code == Code::Cancelled || left || !(from == lease.me || from_driver) {
            return;
        }
        failures.tell(
            &self.engine.worker,
            StepFailure {
                step: StepKey {
                    lease: lease.id,
                    n: run.n,
                },
                function: self.installed.program.name.to_string(),
                error: error.clone(),
                client: self.share.member().to_owned(),
                token: self.share.account().clone(),
                others: 0,
            },
        );
    }
}
