//! The control plane: the services that coordinator and workers offer, and what they exchange.
//!
//! Each connection carries streams; the first byte of a bidirectional stream says what it is
//! ([`StreamKind`]). tarpc orders nothing: what must be ordered travels on a step lane.

pub(crate) mod services;
mod status;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::error::{Code, Error, Result};
use crate::identity::{Role, TokenId, TokenSecret};
use crate::ids::{FunctionId, Incarnation, LeaseId, ParticipantIx, PlanId};
use crate::ops::CustomOp;
use crate::program::{Axes, DriverProgram, FetchFrom, Participant};
use crate::rpc_transport::{Bounded, MAX_FRAME, client_config, client_transport};
use crate::world::World;

pub use services::{Coordinator, Joining, Worker};
pub use status::{
    ClusterStatus, ComputeUse, DeathStatus, LeaseStatus, LinkStatus, MeasuredLink, MemberState,
    MemberStatus, ProgramStatus, QuarantineStatus, STEPS, Sources, StepFailure, WorkerStatus,
};

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
    /// Announces the nonce of a TCP tripwire, see [`crate::detection`].
    Tripwire = 7,
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
            Self::Tripwire,
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
    /// The certificate that a member had, which may have expired, in DER; empty for a newcomer. The request is then made
    /// with its key, and the member keeps its name.
    pub former: Vec<u8>,
    /// The release that the newcomer runs, [`crate::VERSION`].
    pub version: String,
}

/// The certificate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Joined {
    pub name: String,
    /// In DER.
    pub certificate: Vec<u8>,
    /// The authorities that the member is to trust, in DER; the first signed its certificate.
    pub authorities: Vec<Vec<u8>>,
}

/// What a worker says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Register {
    pub incarnation: Incarnation,
    /// `host:port` to reach it at; an empty host means the one the coordinator sees.
    pub advertise: String,
    pub host: String,
    /// The release that it runs, [`crate::VERSION`].
    pub version: String,
    pub profile: String,
    pub threads: u32,
    /// Bytes that programs may use: the budget less the base footprint and the window.
    pub memory: u64,
    /// Bytes kept for weights on their way.
    pub window: u64,
    /// Measured speed of a matrix product on all threads, in FLOP/s.
    pub flops: f64,
    /// Measured speed of reading memory that no cache holds, on all threads, in bytes/s.
    pub memory_bandwidth: f64,
    /// What the former process with this worker's state folder died of; empty where it ended in another way.
    pub deaths: Vec<Death>,
    /// The leases that it holds, for a coordinator that was restarted since.
    pub leases: Vec<HeldLease>,
    /// The custom ops that it has kernels for, by name.
    pub ops: Vec<CustomOp>,
}

/// A lease at one worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HeldLease {
    pub lease: LeaseId,
    pub model: String,
    /// The driver's name and incarnation.
    pub driver: (String, Incarnation),
}

/// A kernel that was running when a fatal signal of its own process ended a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// The process that died.
    pub incarnation: Incarnation,
    /// The signal's number.
    pub signal: i32,
    /// The function that the node is of.
    pub function: FunctionId,
    /// The node's name as in the model, shortened at its front where it is very long.
    pub node: String,
}

/// `SIGSEGV` and the like: the signals that a defect of a program raises have the same numbers on all of Linux.
pub fn signal_name(signal: i32) -> String {
    match signal {
        4 => "SIGILL".into(),
        6 => "SIGABRT".into(),
        7 => "SIGBUS".into(),
        8 => "SIGFPE".into(),
        11 => "SIGSEGV".into(),
        n => format!("signal {n}"),
    }
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
    /// Whether the worker is out of service until it is asked back.
    pub drained: bool,
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
    /// Node-name pattern (`*` matches anything) and, as a [device specification](crate::device_spec), the devices that may
    /// run the nodes it matches; the first match counts.
    pub pins: Vec<(String, String)>,
    /// Bounds of the dynamic axes: memory is planned for them.
    pub axes: Axes,
    /// Sizes of the axes in the calls to come: times are predicted for them, and for the bound of an axis that is
    /// not named.
    pub expected: Vec<(String, i64)>,
    /// Whether passes that change values (batch-norm folding) are off.
    pub exact: bool,
    /// Steps in flight at once.
    pub in_flight: u32,
    /// Workers that the caller has lost contact with, also where the coordinator has not noticed yet: the plan is
    /// for the others, fewer than [`PlanOptions::workers`] where it must be.
    pub avoid: Vec<(String, Incarnation)>,
    /// The custom ops of the function as the caller defines them: their nodes are for workers that do it likewise. Of one
    /// that is not among these any definition will do.
    pub ops: Vec<CustomOp>,
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
    /// What the worker must offer: the larger of what loading needs, and weights with the tensors of all steps in
    /// flight at the axes' bounds.
    pub needed_bytes: u64,
    /// What the worker offers.
    #[serde(rename = "memory_bytes")]
    pub memory: u64,
    /// Predicted peak of a worker process that holds this program alone, above its base footprint, with the axes as
    /// expected and all steps in flight: weights on their way included, and of the memory for steps what they touch.
    /// A test of real processes holds it to 15 %, or 4 MiB where that is more; of a process that shares chunks of
    /// weights with others, or loads faster than it receives, less of the window may be in use than is counted.
    pub peak_bytes: u64,
    /// Predicted busy nanoseconds of a step, with the axes as expected.
    pub step_ns: u64,
}

/// One tensor that crosses between workers in every step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CutEdge {
    pub tensor: String,
    pub from: String,
    pub to: String,
    /// Bytes with the axes as expected.
    pub bytes: u64,
}

/// What became of a pin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinSummary {
    /// The pattern of node names, as it was given.
    pub pattern: String,
    /// The device specification, as it was given.
    pub devices: String,
    /// The workers that run nodes of this pin.
    pub parts: Vec<PinPart>,
}

/// The nodes of a pin that one worker runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinPart {
    pub worker: String,
    pub nodes: u32,
}

/// A plan, explained.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanSummary {
    pub parts: Vec<PartSummary>,
    pub cut_edges: Vec<CutEdge>,
    /// The pins in the order in which they were given.
    pub pins: Vec<PinSummary>,
    /// Predicted nanoseconds of a step as planned, and on the fastest single worker (`None`: fits none), with the
    /// axes as expected.
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

impl Planned {
    /// Checks that everybody whom the driver's part names takes part, and that every slot is there.
    pub fn check(&self) -> Result<()> {
        let workers = self.participants.len().checked_sub(1);
        let workers = workers.filter(|n| ParticipantIx::try_from(*n).is_ok());
        let known = |ix: ParticipantIx| workers.is_some_and(|n| usize::from(ix) < n);
        let DriverProgram {
            feeds,
            fetches,
            slots,
        } = &self.driver;
        let mut fed = feeds.iter().flat_map(|f| &f.to).map(|(to, _)| *to);
        let mut fetched = fetches.iter().map(|f| match f.from {
            FetchFrom::Worker { from, slot } => {
                slots.get(slot as usize).is_some_and(|s| s.from == from)
            }
            FetchFrom::Param(i) => (i as usize) < feeds.len(),
        });
        let mut filled = slots.iter().map(|s| s.from);
        if workers.is_some() && fed.all(known) && filled.all(known) && fetched.all(|there| there) {
            return Ok(());
        }
        Err(Error::new(
            Code::ProtocolViolation,
            "the plan names participants or slots that do not exist",
        ))
    }
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

/// Codes with which a process closes a member's connection, so that the member knows what to do.
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
    /// The time for which the member's token let it stay is over: stop, and join anew.
    pub const MEMBERSHIP_OVER: u32 = 0x25;
    /// The member's token has no memory left for what its connection may make this process hold.
    pub const NO_MEMORY: u32 = 0x26;
    /// The reason that a client gives which ends in order: nothing of it failed.
    pub const CLIENT_LEAVING: &str = "client leaving";
}

/// Longest wait for the answer to a control call that does no work of its own.
pub const CALL_BOUND: Duration = Duration::from_secs(10);
/// Longest wait for a plan: optimising, placing and partitioning the largest graphs.
pub const PLAN_BOUND: Duration = Duration::from_secs(120);
/// Longest wait for an install: loading the weights of the largest models over a slow link.
pub const INSTALL_BOUND: Duration = Duration::from_secs(3600);

/// How long either side of a client's broken connection to the coordinator waits for the other, as long as it takes to
/// notice any loss: the client's leases go on meanwhile, and what needs the coordinator waits.
pub const RETURN_BOUND: Duration = crate::detection::bounds::LOST;

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
    ($(#[$doc:meta])* $name:ident, $client:ident, $request:ident, $response:ident, $kind:ident) => {
        $(#[$doc])*
        pub type $client = services::$client<Bounded<services::$request, services::$response>>;

        $(#[$doc])*
        pub async fn $name(world: &World, connection: &quinn::Connection) -> Result<$client> {
            Ok(open_client(world, connection, StreamKind::$kind).await?.0.into())
        }
    };
}

/// A client on a stream of its own, and the task that carries its calls: that ends with the client's last clone, with the
/// stream, or with the connection.
async fn open_client<Req, Resp>(
    world: &World,
    connection: &quinn::Connection,
    kind: StreamKind,
) -> Result<(Bounded<Req, Resp>, JoinHandle<()>)>
where
    Req: tarpc::RequestName + Serialize + Send + 'static,
    Resp: for<'de> Deserialize<'de> + Send + 'static,
{
    let (send, recv) = open_stream(connection, kind).await?;
    let new = tarpc::client::new(client_config(), client_transport(send, recv, MAX_FRAME));
    let dispatch = world.spawn(async move { drop(new.dispatch.await) });
    Ok((Bounded::from(new.client), dispatch))
}

/// As [`connect_coordinator`], for as long as the connection stands, and the task that carries the calls: once that has
/// ended, none is answered any more.
pub async fn stay_connected(
    world: &World,
    connection: &quinn::Connection,
) -> Result<(CoordinatorClient, JoinHandle<()>)> {
    let (client, carrier) = open_client(world, connection, StreamKind::Coordinator).await?;
    Ok((client.into(), carrier))
}
connect!(
    /// A client of [`Joining`] on a connection that we dialled.
    connect_joining, JoiningClient, JoiningRequest, JoiningResponse, Join
);
connect!(
    /// A client of [`Coordinator`] on a connection that we dialled.
    connect_coordinator, CoordinatorClient, CoordinatorRequest, CoordinatorResponse, Coordinator
);
connect!(
    /// A client of [`Worker`] on a connection that either side dialled.
    connect_worker, WorkerClient, WorkerRequest, WorkerResponse, Worker
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
        Err(RpcError::Server(e)) => Err(Error::new(
            Code::Busy,
            format!("{peer} does not take the call: {}", e.detail),
        )),
        // It never left this process.
        Err(RpcError::Send(_)) => Err(Error::new(
            Code::InvalidArgument,
            format!(
                "a call to {peer} is larger than the {} MiB that one may have",
                MAX_FRAME >> 20
            ),
        )),
        // What became of the bytes says nothing to whoever made the call.
        Err(RpcError::Shutdown | RpcError::Channel(_)) => Err(Error::new(
            Code::Unreachable,
            format!("lost contact with {peer}: the connection ended over a call"),
        )),
    }
}

#[cfg(test)]
mod tests;
