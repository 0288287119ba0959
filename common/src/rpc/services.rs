//! The services, as tarpc declares them.

use std::sync::Arc;

use super::{
    ClusterStatus, JoinRequest, Joined, Leased, LinkReport, PlanOptions, Planned, Progress,
    Register, Registered, StepFailure, WorkerStatus,
};
use crate::error::{Error, Result};
use crate::graph::Function;
use crate::identity::TokenId;
use crate::ids::{Incarnation, LeaseId, PlanId};
use crate::program::{Grant, Participant};

/// Served by the coordinator to anyone who can speak TLS to it.
#[tarpc::service]
pub trait Joining {
    /// Trades a token for a certificate.
    async fn join(request: JoinRequest) -> Result<Joined>;
}

/// Served by the coordinator to members.
#[tarpc::service]
pub trait Coordinator {
    /// A worker enters, or returns as a new incarnation.
    async fn register(request: Register) -> Result<Registered>;
    /// A worker takes no new work and will end: nothing more is planned on it, what runs there goes on.
    async fn leave() -> Result<()>;
    /// A kernel of a worker does not stop: its leases end, and nothing more is planned on this process of it.
    async fn wedged(why: Error) -> Result<()>;
    /// A worker has dropped these leases: it lost their driver, or the driver told it to.
    async fn dropped(leases: Vec<LeaseId>) -> Result<()>;
    /// Steps failed at a worker, by its own fault or because of what it saw.
    async fn failed(steps: Vec<StepFailure>) -> Result<()>;
    /// A worker reports what it measured of its links.
    async fn report_links(links: Vec<LinkReport>) -> Result<()>;
    /// A fresh certificate for the caller's own name.
    async fn renew(csr: Vec<u8>) -> Result<Joined>;
    /// Waits until `count` workers are there or `wait_ms` passed; answers how many there are.
    async fn await_workers(count: u32, wait_ms: u64) -> Result<u32>;
    /// Optimises, places and partitions; installs nothing. `driver` is the caller's incarnation.
    async fn plan(
        function: Arc<Function>,
        options: PlanOptions,
        driver: Incarnation,
    ) -> Result<Planned>;
    /// Installs a plan at its workers; the caller becomes the driver.
    async fn install(plan: PlanId) -> Result<Leased>;
    /// How far the install of `plan` is.
    async fn progress(plan: PlanId) -> Result<Progress>;
    /// Ends a lease; one that has ended already is no error. Answers once the workers that are there have freed it,
    /// or after [`RETURN_BOUND`](super::RETURN_BOUND).
    async fn release(lease: LeaseId) -> Result<()>;
    /// A client is back on a new connection, or there for the first time: the leases and plans of this incarnation of
    /// it are the caller's. Leases that it does not hold end: it gave them up, or never heard that they were granted.
    async fn resume(driver: Incarnation, held: Vec<LeaseId>, version: String) -> Result<()>;
    /// The whole cluster.
    async fn status() -> Result<ClusterStatus>;
    /// The caller no longer waits for the install of `plan`: a lease that it was or is being granted ends.
    async fn abandon(plan: PlanId) -> Result<()>;
}

/// Served by a worker to its coordinator.
#[tarpc::service]
pub trait Worker {
    /// Loads weights, runs the init part, reserves memory; answers when steps may start.
    async fn install(grant: Grant) -> Result<()>;
    /// How far that is.
    async fn progress(plan: PlanId) -> Result<Progress>;
    /// Drops the lease, whose driver is done with it. Answers once it is dropped, also where it was not there.
    async fn release(lease: LeaseId) -> Result<()>;
    /// Measures links to others.
    async fn probe(peers: Vec<Participant>) -> Result<Vec<LinkReport>>;
    /// Token ids that no longer count.
    async fn revoke(token_ids: Vec<TokenId>) -> Result<()>;
    /// Takes no new work, finishes what runs, and ends. Answers at once.
    async fn drain() -> Result<()>;
    /// Its own account.
    async fn status() -> Result<WorkerStatus>;
}
