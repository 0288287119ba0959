//! The reasons for which membership refuses a request.

use convoke_common::ids::LeaseId;
use convoke_common::{Code, Error, Site};

use super::connection::ConnectionId;

/// A refusal. Each variant is one that a caller decides on or a person acts on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// The worker computes under another numerics profile.
    #[error(
        "worker '{name}' computes under the numerics profile '{theirs}', this cluster under '{ours}'"
    )]
    Profile {
        name: String,
        theirs: String,
        ours: String,
    },
    /// The name has a living holder, or was given away a moment ago; then `holder` is `None`.
    #[error("the name '{name}' is in use by another worker")]
    NameTaken {
        name: String,
        holder: Option<ConnectionId>,
    },
    /// The registration contains an impossible value.
    #[error("worker '{name}' registers with {what}")]
    BadRegister { name: String, what: &'static str },
    /// The cluster has no room for another worker.
    #[error("the cluster has its full number of {most} workers")]
    Full { most: usize },
    /// The connection already belongs to another driver.
    #[error("client '{name}' cannot be two drivers on one connection")]
    SecondDriver { name: String },
    /// The plan expired, never existed, or belongs to another client.
    #[error(
        "the plan is not known here: it expired, or is another client's, or the coordinator was restarted"
    )]
    NoSuchPlan,
    /// A worker of the plan was lost or restarted since the plan was made.
    #[error("worker '{worker}', which the plan uses, {what} since the plan was made")]
    PlanOutdated { worker: String, what: &'static str },
    /// Workers died in a node of the function.
    #[error("node '{node}' is quarantined: it killed {deaths}")]
    Quarantined { node: String, deaths: String },
    /// No worker has that name.
    #[error("there is no worker '{name}'")]
    NoSuchWorker { name: String },
    /// The worker is connected, so it cannot be forgotten.
    #[error("worker '{name}' is there")]
    StillThere { name: String },
    /// The worker cannot be forgotten: it may still run steps of its leases.
    #[error("worker '{name}' cannot be reached, but programs of clients are installed on it")]
    HoldsLeases { name: String },
    /// No node of that name is quarantined.
    #[error("no node '{node}' is quarantined")]
    NotQuarantined { node: String },
    /// The lease belongs to another client.
    #[error("{lease} belongs to another client")]
    NotDriver { lease: LeaseId },
    /// The lease ended while it was being installed.
    #[error("the lease was given up by its driver while it was installed")]
    GivenUp,
    /// A client, or the clients of a token, hold as many leases as they may.
    #[error("{who} may hold no more than {most} leases")]
    TooManyLeases { who: String, most: usize },
    /// The last holder of the name cannot be reached, and may still serve its leases.
    #[error(
        "the name '{name}' is reserved: its last process is out of the coordinator's reach and may still hold leases ({leases})"
    )]
    NameReserved { name: String, leases: usize },
    /// Another process took over the name of this one.
    #[error("another process took the place of worker '{name}'")]
    Superseded { name: String },
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
            M::StillThere { .. } => (
                Code::InvalidArgument,
                "stop it first, or take it out of service with `convoke drain NAME`",
            ),
            M::HoldsLeases { .. } => (
                Code::Busy,
                "try again once those clients have released them, or have left",
            ),
            M::NotQuarantined { .. } => (Code::NotFound, "`convoke status` shows those that are"),
            M::NotDriver { .. } => (
                Code::Unauthorized,
                "only the client that installed it may release it",
            ),
            M::TooManyLeases { .. } => {
                (Code::Busy, "unload functions that are not needed any more")
            }
            M::GivenUp => (Code::Cancelled, "plan and install again"),
            M::NameReserved { .. } => (
                Code::InvalidArgument,
                "wait until the clients that it served have given it up, or choose another name with --name",
            ),
            M::Superseded { .. } => (
                Code::Unauthorized,
                "give each worker a --state-dir and a --name of its own",
            ),
        };
        let error = Error::new(code, e.to_string()).advise(advice);
        match e {
            // The error names the worker, so that the caller can avoid it.
            M::PlanOutdated { worker, .. } => error.at(Site {
                worker: Some(worker),
                ..Site::default()
            }),
            _ => error,
        }
    }
}
