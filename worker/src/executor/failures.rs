//! Steps that failed here: counted, and reported to the coordinator.
//!
//! A worker reports a step whose error is its own, and one that its driver ended if the worker is the first of the
//! lease. So each failed step is reported even where no one looks at the result of the call. A step that its caller
//! cancelled, or left behind when it ended, is only counted. A partial step in which a node failed counts as failed.

use convoke_common::error::{Code, Error};
use convoke_common::ids::StepKey;
use convoke_common::rpc::{StepFailure, close};
use convoke_graph::ids::ParticipantIx;
use convoke_rendezvous::Lease;

use super::Executor;
use super::run::Run;

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
