//! The control plane: the services that coordinator and workers offer, and what they exchange.
//!
//! Each connection carries streams; the first byte of a bidirectional stream says what it is
//! ([`StreamKind`]). tarpc orders nothing: what must be ordered travels on a step lane.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::graph::Function;
use crate::identity::{Role, TokenId, TokenSecret};
use crate::ids::{Incarnation, LeaseId, PlanId};
use crate::memory::Account;
use crate::program::{Axes, DriverProgram, Grant, Participant};
use crate::rpc_transport::{MAX_FRAME, client_config, client_transport};
use crate::world::World;

/// What a bidirectional stream carries, its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum StreamKind {
    /// [`Joining`], the only one that an unauthenticated peer may open.
    Join = 1,
    /// [`Coordinator`].
    Coordinator = 2,
    /// [`Worker`].
    Worker = 3,
    /// The ordered lane of a link between two participants.
    Lane = 4,
    /// Chunks of an artifact, asked of a client.
    Artifact = 5,
    /// Echo and bulk bytes, to measure a link.
    Probe = 6,
}

impl StreamKind {
    /// The kind with this first byte.
    pub fn from_byte(b: u8) -> Option<StreamKind> {
        [
            Self::Join,
            Self::Coordinator,
            Self::Worker,
            Self::Lane,
            Self::Artifact,
            Self::Probe,
        ]
        .into_iter()
        .find(|k| *k as u8 == b)
    }
}

/// Exchanges a join token for a certificate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JoinRequest {
    /// Token id and secret, as in the token.
    pub token_id: TokenId,
    pub secret: TokenSecret,
    /// What the newcomer is; the token must be for that.
    pub role: Role,
    /// The name asked for; empty to be given one.
    pub name: String,
    /// The certificate signing request in DER; the key never leaves the newcomer.
    pub csr: Vec<u8>,
}

/// The certificate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Joined {
    pub name: String,
    /// In DER.
    pub certificate: Vec<u8>,
}

/// What a worker says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Register {
    pub incarnation: Incarnation,
    /// `host:port` to reach it at; an empty host means the one the coordinator sees.
    pub advertise: String,
    pub host: String,
    pub profile: String,
    pub threads: u32,
    /// Bytes that programs may use: the budget less the base footprint.
    pub memory: u64,
    /// Measured speed of a matrix product on all threads, in FLOP/s.
    pub flops: f64,
    /// Measured speed of reading memory, in bytes/s.
    pub memory_bandwidth: f64,
}

/// What the coordinator answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Registered {
    pub name: String,
    /// Where the others will reach it.
    pub address: String,
    /// Token ids that no longer count.
    pub revoked: Vec<TokenId>,
    /// Other workers, to probe.
    pub peers: Vec<Participant>,
}

/// A measured link.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LinkReport {
    pub peer: String,
    /// Round trip in nanoseconds.
    pub round_trip: u64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Why it could not be reached.
    pub failure: Option<String>,
}

/// How many workers a plan uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerCount {
    /// The fewest that fit; one more only where the predicted step shortens.
    Auto,
    /// This many, each with at least one node.
    Exactly(u32),
}

/// What the caller wants of a plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanOptions {
    pub workers: WorkerCount,
    /// Node-name pattern (`*` matches anything) and the worker that runs the nodes it matches; the first
    /// match counts.
    pub pins: Vec<(String, String)>,
    /// Bounds of the dynamic axes.
    pub axes: Axes,
    /// Whether passes that change values (batch-norm folding) are off.
    pub exact: bool,
    /// Steps in flight at once.
    pub in_flight: u32,
}

/// One worker's part of a plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PartSummary {
    pub name: String,
    pub address: String,
    pub threads: u32,
    pub nodes: u32,
    /// First and last node by name, in the order they run.
    pub first_node: String,
    pub last_node: String,
    /// Bytes of weights in the form that kernels use.
    pub weights_bytes: u64,
    /// Bytes of weights as read from files.
    pub artifact_bytes: u64,
    /// Most bytes of tensors of one step at once, at the axes' bounds.
    pub activation_bytes: u64,
    /// Predicted peak above the base footprint, loading included.
    pub peak_bytes: u64,
    /// What the worker offers.
    pub memory: u64,
    /// Predicted busy nanoseconds of a step.
    pub step_ns: u64,
}

/// One tensor that crosses between workers in every step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CutEdge {
    pub tensor: String,
    pub from: String,
    pub to: String,
    /// Bytes at the axes' bounds.
    pub bytes: u64,
}

/// A plan, explained.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanSummary {
    pub parts: Vec<PartSummary>,
    pub cut_edges: Vec<CutEdge>,
    /// Predicted nanoseconds of a step as planned, and on the fastest single worker (`None`: fits none).
    pub step_ns: u64,
    pub single_ns: Option<u64>,
    /// What the optimiser did, one line each.
    pub passes: Vec<String>,
    pub warnings: Vec<String>,
}

/// An answered plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Planned {
    pub plan: PlanId,
    /// Workers, then the driver.
    pub participants: Vec<Participant>,
    pub driver: DriverProgram,
    pub axes: Axes,
    pub summary: PlanSummary,
}

/// A granted lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Leased {
    pub lease: LeaseId,
    pub in_flight: u32,
}

/// How far an install is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Weight bytes that are in place, and all of them.
    pub done: u64,
    pub total: u64,
}

/// A worker's own account.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerStatus {
    pub incarnation: Incarnation,
    pub memory_budget: u64,
    pub memory_used: BTreeMap<Account, u64>,
    /// Most bytes the ledger ever held.
    pub memory_peak: u64,
    /// VmRSS and VmHWM of the process, in bytes.
    pub resident: u64,
    pub resident_peak: u64,
    pub programs: Vec<ProgramStatus>,
    pub live_steps: u64,
    pub steps_done: u64,
    pub links: Vec<LinkStatus>,
    /// Refused frames by reason.
    pub refused: BTreeMap<String, u64>,
    pub cache_bytes: u64,
    /// Weight bytes read from a shared path, from the cache, and from clients.
    pub loaded: [u64; 3],
}

/// An installed program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProgramStatus {
    pub lease: LeaseId,
    pub name: String,
    pub driver: String,
    pub nodes: u32,
    pub weights_bytes: u64,
}

/// A link to a peer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LinkStatus {
    pub peer: String,
    pub address: String,
    /// `quic` or `local`.
    pub path: String,
    /// Round trip in nanoseconds, as QUIC measures it.
    pub round_trip: u64,
    pub sent: u64,
    pub received: u64,
}

/// A member as the coordinator sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemberStatus {
    pub name: String,
    pub incarnation: Incarnation,
    pub address: String,
    pub host: String,
    pub threads: u32,
    pub memory: u64,
    pub flops: f64,
    /// Milliseconds since it was last heard.
    pub last_seen_ms: u64,
    pub alive: bool,
    /// Absent when it did not answer in time.
    pub status: Option<WorkerStatus>,
}

/// The whole cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterStatus {
    pub version: String,
    pub profile: String,
    pub members: Vec<MemberStatus>,
    pub leases: Vec<LeaseStatus>,
    /// Bytes of weights that passed through the coordinator: always 0, counted all the same.
    pub weight_bytes_relayed: u64,
    /// All bytes that the coordinator received and sent.
    pub bytes_received: u64,
    pub bytes_sent: u64,
}

/// A lease as the coordinator knows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LeaseStatus {
    pub lease: LeaseId,
    pub model: String,
    pub driver: String,
    pub workers: Vec<String>,
}

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
    /// Ends a lease; one that has ended already is no error.
    async fn release(lease: LeaseId) -> Result<()>;
    /// The whole cluster.
    async fn status() -> Result<ClusterStatus>;
}

/// Served by a worker to its coordinator.
#[tarpc::service]
pub trait Worker {
    /// Loads weights, runs the init part, reserves memory; answers when steps may start.
    async fn install(grant: Grant) -> Result<()>;
    /// How far that is.
    async fn progress(plan: PlanId) -> Result<Progress>;
    /// Drops the lease; `lost` names the worker whose loss ended it, where that is why.
    async fn release(lease: LeaseId, lost: Option<String>) -> Result<()>;
    /// Measures links to others.
    async fn probe(peers: Vec<Participant>) -> Result<Vec<LinkReport>>;
    /// Token ids that no longer count.
    async fn revoke(token_ids: Vec<TokenId>) -> Result<()>;
    /// Its own account.
    async fn status() -> Result<WorkerStatus>;
}

/// Codes with which the coordinator closes a member's connection, so that the member knows what to do.
pub mod close {
    /// The coordinator stops: dial again until it is back.
    pub const STOPPING: u32 = 0x20;
    /// Another process with this member's certificate took its place: stop.
    pub const REPLACED: u32 = 0x21;
    /// The member's token was revoked: stop, and join anew with another token.
    pub const REVOKED: u32 = 0x22;
    /// The member did not answer and counts as lost: dial and register again.
    pub const LOST: u32 = 0x23;
    /// The member did what it must not.
    pub const REFUSED: u32 = 0x24;
}

/// Longest wait for the answer to a control call that does no work of its own.
pub const CALL_BOUND: Duration = Duration::from_secs(10);
/// Longest wait for a plan: optimising, placing and partitioning the largest graphs.
pub const PLAN_BOUND: Duration = Duration::from_secs(120);
/// Longest wait for an install: loading the weights of the largest models over a slow link.
pub const INSTALL_BOUND: Duration = Duration::from_secs(3600);

/// Opens a stream of `kind` on a connection.
pub async fn open_stream(
    connection: &quinn::Connection,
    kind: StreamKind,
) -> Result<(quinn::SendStream, quinn::RecvStream)> {
    let opened = async {
        let (mut send, recv) = connection.open_bi().await.map_err(|e| e.to_string())?;
        send.write_all(&[kind as u8])
            .await
            .map_err(|e| e.to_string())?;
        Ok::<_, String>((send, recv))
    };
    let peer = connection.remote_address();
    match tokio::time::timeout(CALL_BOUND, opened).await {
        Ok(Ok(s)) => Ok(s),
        Ok(Err(e)) => Err(Error::new(
            Code::Unreachable,
            format!("lost contact with {peer}: {e}"),
        )),
        Err(_) => Err(Error::new(
            Code::Unreachable,
            format!("{peer} accepts no further stream"),
        )),
    }
}

macro_rules! connect {
    ($(#[$doc:meta])* $name:ident, $client:ident, $kind:ident) => {
        $(#[$doc])*
        pub async fn $name(world: &World, connection: &quinn::Connection) -> Result<$client> {
            let (send, recv) = open_stream(connection, StreamKind::$kind).await?;
            let new = $client::new(client_config(), client_transport(send, recv, MAX_FRAME));
            // The dispatch ends with the client's last clone or with the connection.
            world.spawn(async move { drop(new.dispatch.await) });
            Ok(new.client)
        }
    };
}
connect!(
    /// A client of [`Joining`] on a connection that we dialled.
    connect_joining, JoiningClient, Join
);
connect!(
    /// A client of [`Coordinator`] on a connection that we dialled.
    connect_coordinator, CoordinatorClient, Coordinator
);
connect!(
    /// A client of [`Worker`] on a connection that either side dialled.
    connect_worker, WorkerClient, Worker
);

/// One result from a call's two: transport failures become errors that name `peer`.
pub fn answer<T>(
    peer: &str,
    result: std::result::Result<Result<T>, tarpc::client::RpcError>,
) -> Result<T> {
    use tarpc::client::RpcError;
    match result {
        Ok(r) => r,
        Err(RpcError::DeadlineExceeded) => Err(Error::new(
            Code::DeadlineExceeded,
            format!("{peer} did not answer in time"),
        )),
        Err(e) => {
            let why = std::error::Error::source(&e).map_or(String::new(), |s| format!(": {s}"));
            Err(Error::new(
                Code::Unreachable,
                format!("lost contact with {peer}: {e}{why}"),
            ))
        }
    }
}
