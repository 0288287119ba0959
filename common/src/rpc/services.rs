//! The services, as tarpc declares them.

use std::sync::Arc;

use convoke_graph::graph::Function;
use convoke_graph::program::Program;

use super::{
    ClusterStatus, InstallAnswer, JoinAnswer, JoinRequest, LeaseGrant, LinkReport, MemoryReport,
    PlanAnswer, PlanOptions, Progress, Registration, RegistrationAnswer, StepFailure, WorkerStatus,
};
use crate::error::{Error, Result};
use crate::grant::{Grant, Participant};
use crate::identity::TokenId;
use crate::ids::{Incarnation, LeaseId, PlanId};

/// The service that the coordinator offers to every peer that can speak TLS to it.
#[tarpc::service]
pub trait Joining {
    /// Trades a token for a certificate.
    async fn join(request: JoinRequest) -> Result<JoinAnswer>;
}

/// The service that the coordinator offers to members.
#[tarpc::service]
pub trait Coordinator {
    /// Registers a worker, or its return as a new incarnation.
    async fn register(request: Registration) -> Result<RegistrationAnswer>;
    /// Announces that a worker takes no new work and will end: nothing more is planned on it, and its running steps go
    /// on.
    async fn leave() -> Result<()>;
    /// Reports that a kernel of a worker does not stop: the worker's leases end, and nothing more is planned on this
    /// process.
    async fn wedged(why: Error) -> Result<()>;
    /// Reports that a worker has dropped these leases, because it lost their driver or the driver told it to.
    async fn dropped(leases: Vec<LeaseId>) -> Result<()>;
    /// Reports steps that failed at a worker, by its own fault or because of what it observed.
    async fn failed(steps: Vec<StepFailure>) -> Result<()>;
    /// Reports what a worker measured of its links.
    async fn report_links(links: Vec<LinkReport>) -> Result<()>;
    /// Issues a fresh certificate for the caller's own name.
    async fn renew(csr: Vec<u8>) -> Result<JoinAnswer>;
    /// Waits until `count` workers have joined or `wait_ms` have passed; returns how many workers there are.
    async fn await_workers(count: u32, wait_ms: u64) -> Result<u32>;
    /// Optimises, places and partitions a function; installs nothing. `driver` is the caller's incarnation. Where the
    /// function does not fit what is free, the request waits as its [`Intent`](super::Intent) says.
    async fn plan(
        function: Arc<Function>,
        options: PlanOptions,
        driver: Incarnation,
    ) -> Result<PlanAnswer>;
    /// Installs a plan at its workers; the caller becomes the driver of the lease.
    async fn install(plan: PlanId) -> Result<LeaseGrant>;
    /// How far the install of `plan` is.
    async fn progress(plan: PlanId) -> Result<Progress>;
    /// Ends a lease; ending it again is no error. Returns once the workers that are alive have freed it, or after
    /// [`RETURN_BOUND`](super::RETURN_BOUND).
    async fn release(lease: LeaseId) -> Result<()>;
    /// Resumes a client on a new connection, or starts its first: the leases and plans of this incarnation belong to
    /// the caller. Leases that are not in `held` end: the client gave them up, or never learned that they were granted.
    async fn resume(driver: Incarnation, held: Vec<LeaseId>, version: String) -> Result<()>;
    /// The state of the whole cluster.
    async fn status() -> Result<ClusterStatus>;
    /// Gives up the install of `plan`, for which the caller no longer waits: a lease that was or is being granted for
    /// it ends.
    async fn abandon(plan: PlanId) -> Result<()>;
}

/// The service that a worker offers to its coordinator.
#[tarpc::service]
pub trait Worker {
    /// Loads weights, runs the init part and reserves memory; returns when steps may start. `programs` are those that
    /// the grant names by their hashes. They are left out at first: a worker that does not have them all answers
    /// [`InstallAnswer::NeedsProgram`], and is then called again, with all of them.
    async fn install(grant: Grant, programs: Vec<Arc<Program>>) -> Result<InstallAnswer>;
    /// How far the install of `plan` is.
    async fn progress(plan: PlanId) -> Result<Progress>;
    /// Drops a lease whose driver is done with it. Returns once the lease is gone, even if the worker did not have it.
    async fn release(lease: LeaseId) -> Result<()>;
    /// Measures the links to these workers.
    async fn probe(peers: Vec<Participant>) -> Result<Vec<LinkReport>>;
    /// Revokes these token ids: certificates of members that joined with them are refused.
    async fn revoke(token_ids: Vec<TokenId>) -> Result<()>;
    /// Makes the worker take no new work, finish its running steps, and end. Returns at once.
    async fn drain() -> Result<()>;
    /// The worker's report of itself.
    async fn status() -> Result<WorkerStatus>;
    /// How much of the worker's memory is in use, and by whom.
    async fn memory() -> Result<MemoryReport>;
}
