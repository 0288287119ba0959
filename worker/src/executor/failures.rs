//! Steps that failed here: counted for `status`, said in the log, and told to the coordinator.
//!
//! A worker tells of a step whose error is its own, and of one that its driver ended if it is the first of the step's
//! workers; so each failed step is told of although nobody may look at what its caller gets. A step that its caller cancelled,
//! or left behind when it ended, is only counted. A partial step in which a node failed counts as one that failed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use convoke_common::error::{Code, Error};
use convoke_common::ids::{ParticipantIx, StepKey};
use convoke_common::rpc::{StepFailure, close};
use convoke_common::telemetry::LineLimit;
use convoke_rendezvous::Lease;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Executor, Run};

/// The most failures that wait for the coordinator; of more the oldest are left out.
const MOST_UNTOLD: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct Failures {
    lines: LineLimit,
    known: Mutex<Known>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Known {
    by_code: BTreeMap<Code, u64>,
    untold: VecDeque<StepFailure>,
}

impl Failures {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failed step.
    fn count(&self, code: Code) {
        *self.known().by_code.entry(code).or_default() += 1;
    }

    /// Says that a step failed, unless there were many of late.
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

    /// How many steps failed, by the name of the code.
    pub fn counted(&self) -> BTreeMap<String, u64> {
        let known = self.known();
        let named = known.by_code.iter();
        named
            .map(|(code, n)| (code.name().to_owned(), *n))
            .collect()
    }

    /// Returns when the coordinator may have to be told of some.
    pub async fn more(&self) {
        self.more.notified().await;
    }

    /// Those that the coordinator is to be told of, which the caller does.
    pub fn take(&self) -> Vec<StepFailure> {
        std::mem::take(&mut self.known().untold).into()
    }

    /// They could not be told: they come before those that failed since.
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
    /// A step of this lease failed because of what the participant `from` found; under its lock, once for each step.
    pub(super) fn tell_failure(
        &self,
        lease: &Lease,
        run: &Run,
        error: &Error,
        from: ParticipantIx,
    ) {
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
