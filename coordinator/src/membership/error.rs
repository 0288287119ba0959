//! Why membership says no.

use convoke_common::ids::LeaseId;
use convoke_common::{Code, Error, Site};

use super::ConnectionId;

/// Each case is one that a caller decides on or a person acts on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// The worker computes under other rules.
    #[error(
        "worker '{name}' computes under the numerics profile '{theirs}', this cluster under '{ours}'"
    )]
    Profile {
        name: String,
        theirs: String,
        ours: String,
    },
    /// The name has a living holder, or was given away a moment ago (no `holder` then).
    #[error("the name '{name}' is in use by another worker")]
    NameTaken {
        name: String,
        holder: Option<ConnectionId>,
    },
    /// A registration that makes no sense.
    #[error("worker '{name}' registers with {what}")]
    BadRegister { name: String, what: &'static str },
    /// No room for another worker.
    #[error("the cluster has its full number of {most} workers")]
    Full { most: usize },
    /// A connection that speaks for one client already.
    #[error("client '{name}' cannot be two drivers on one connection")]
    SecondDriver { name: String },
    /// The plan expired, or never was, or is another client's.
    #[error(
        "the plan is not known here: it expired, or is another client's, or the coordinator was restarted"
    )]
    NoSuchPlan,
    /// A worker of the plan is lost or was restarted since.
    #[error("worker '{worker}', which the plan uses, {what} since the plan was made")]
    PlanOutdated { worker: String, what: &'static str },
    /// Workers died in a node of the function.
    #[error("node '{node}' is quarantined: it killed {deaths}")]
    Quarantined { node: String, deaths: String },
    /// Nobody has that name.
    #[error("there is no worker '{name}'")]
    NoSuchWorker { name: String },
    /// Nothing to lift.
    #[error("no node '{node}' is quarantined")]
    NotQuarantined { node: String },
    /// Somebody else's lease.
    #[error("{lease} belongs to another client")]
    NotDriver { lease: LeaseId },
    /// The lease ended while it was installed.
    #[error("the lease ended while it was installed: {why}")]
    LeaseEnded { why: String, worker: Option<String> },
}

impl From<MembershipError> for Error {
    fn from(e: MembershipError) -> Error {
        use MembershipError as M;
        let (code, advice) = match &e {
            M::Profile { .. } => (
                Code::VersionMismatch,
                "run the same release on all machines",
            ),
            M::NameTaken { .. } => (
                Code::InvalidArgument,
                "choose another name with --name, or stop the worker that has it",
            ),
            M::BadRegister { .. } => (
                Code::InvalidArgument,
                "run the same release on all machines",
            ),
            M::Full { .. } => (Code::Busy, "stop workers that are not needed"),
            M::SecondDriver { .. } => (Code::InvalidArgument, "connect once per client"),
            M::NoSuchPlan => (Code::NotFound, "plan again"),
            M::PlanOutdated { .. } => (
                Code::PeerLost,
                "plan again: the new plan uses the workers that are there now",
            ),
            M::Quarantined { .. } => (
                Code::Quarantined,
                "report it with the model; to run the node all the same, `convoke quarantine lift NODE` on the coordinator's machine",
            ),
            M::NoSuchWorker { .. } => (
                Code::NotFound,
                "`convoke status` shows those that there are",
            ),
            M::NotQuarantined { .. } => (Code::NotFound, "`convoke status` shows those that are"),
            M::NotDriver { .. } => (
                Code::Unauthorized,
                "only the client that installed it may release it",
            ),
            M::LeaseEnded { .. } => (Code::PeerLost, "plan and install again"),
        };
        let error = Error::new(code, e.to_string()).advise(advice);
        match e {
            // Whom it is about.
            M::PlanOutdated { worker, .. }
            | M::LeaseEnded {
                worker: Some(worker),
                ..
            } => error.at(Site {
                worker: Some(worker),
                ..Site::default()
            }),
            _ => error,
        }
    }
}
