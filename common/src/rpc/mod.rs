//! The control plane: the services that coordinator and workers offer, and the messages of these services.
//!
//! Each connection carries streams; the first byte of a bidirectional stream says what it carries ([`StreamKind`]).
//! tarpc does not order calls: messages that must arrive in order travel on a lane.

pub(crate) mod services;
mod status;
mod streams;
pub mod transport;

use std::time::Duration;

use convoke_graph::ids::{FunctionId, ParticipantIx};
use convoke_graph::ops::{CustomOp, KernelSet};
use convoke_graph::program::{Axes, DriverProgram};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::device_spec::DeviceId;
use crate::error::{Code, Error, Result};
use crate::grant::Participant;
use crate::identity::{Role, TokenId, TokenSecret};
use crate::ids::{Incarnation, LeaseId, PlanId};
use crate::memory::SharedBlocks;
use crate::world::World;
use transport::{DeadlineChannel, MAX_FRAME, client_config, client_transport};

pub use services::{Coordinator, Joining, Worker};
pub use status::{
    ClusterStatus, DeathStatus, DeviceMemory, LeaseStatus, LinkStatus, MeasuredLink, MemberState,
    MemberStatus, MemoryReport, MemoryUse, ProgramStatus, ProgramStoreStatus, QuarantineStatus,
    RendezvousStatus, STEPS, Sources, StepFailure, WeightsStatus, WorkerStatus,
};
pub use streams::{FORBIDDEN, StreamService, serve_stream_of, serve_streams};

/// What a bidirectional stream carries; this is its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum StreamKind {
    /// Calls of [`Joining`]; the only kind that an unauthenticated peer may open.
    Join = 1,
    /// Calls of [`Coordinator`].
    Coordinator = 2,
    /// Calls of [`Worker`].
    Worker = 3,
    /// The ordered lane of a link between two participants.
    Lane = 4,
    /// Chunks of an artifact, which a worker requests from a client.
    Artifact = 5,
    /// Echoes and bulk bytes, by which a link is measured.
    Probe = 6,
    /// The nonce of a TCP tripwire, see [`crate::detection`].
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

/// Asks for a certificate in exchange for a join token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JoinRequest {
    /// Token id and secret, as in the token.
    pub token_id: TokenId,
    pub secret: TokenSecret,
    /// The role of the newcomer, for which the token must be.
    pub role: Role,
    /// The name that the newcomer asks for; empty if the coordinator is to choose.
    pub name: String,
    /// The certificate signing request in DER; the key never leaves the newcomer.
    pub csr: Vec<u8>,
    /// The former certificate of a member in DER, which may have expired; empty for a newcomer. A member makes the
    /// request with the key of that certificate, and keeps its name.
    pub former: Vec<u8>,
    /// The release that the newcomer runs, [`crate::VERSION`].
    pub version: String,
}

/// The answer to a [`JoinRequest`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JoinAnswer {
    pub name: String,
    /// The member's certificate in DER.
    pub certificate: Vec<u8>,
    /// The authorities that the member is to trust, in DER; the first signed its certificate.
    pub authorities: Vec<Vec<u8>>,
}

/// What a worker tells the coordinator about itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Registration {
    pub incarnation: Incarnation,
    /// `host:port` at which the worker is reached; an empty host stands for the one that the coordinator sees.
    pub advertise: String,
    pub host: String,
    /// The release that the worker runs, [`crate::VERSION`].
    pub version: String,
    /// The numerics profile of the worker's host, which the release decides.
    pub profile: String,
    /// The worker's device.
    pub device: DeviceId,
    /// The numerics profile of the device; that of its host is [`Registration::profile`].
    pub device_profile: String,
    pub threads: u32,
    /// Bytes of the host that programs may use: the memory limit less the base footprint and the load buffer.
    pub memory: u64,
    /// Bytes of the device that programs may use. Where the device is the host itself, these are those of the host.
    pub device_memory: u64,
    /// How small constants share blocks of a device's own memory.
    pub device_blocks: SharedBlocks,
    /// Bytes of the load buffer, which is kept for weights in flight.
    pub load_buffer: u64,
    /// The measured speed of the host, on all threads.
    pub host_speed: Speed,
    /// The measured speed of the device; that of the host where the device is the host itself.
    pub device_speed: Speed,
    /// The kernels that were running when the former process with this worker's state folder died of a signal; empty if
    /// it ended in another way.
    pub deaths: Vec<Death>,
    /// The leases that the worker holds, for a coordinator that was restarted since.
    pub leases: Vec<HeldLease>,
    /// The custom ops that the worker has kernels for, which run on its host.
    pub ops: Vec<CustomOp>,
    /// The ops of the registry that the worker has kernels for.
    pub kernels: WorkerKernels,
}

/// The measured speed of a host or a device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// FLOP/s of a matrix product.
    pub flops: f64,
    /// Bytes/s of memory that no cache holds.
    pub memory_bandwidth: f64,
}

/// The ops of the registry that a worker has kernels for. Ops that its device lacks run on its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerKernels {
    pub host: KernelSet,
    /// Those of the device; those of the host where the device is the host itself.
    pub device: KernelSet,
}

/// A lease that one worker holds.
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
    /// The incarnation of the process that died.
    pub incarnation: Incarnation,
    /// The signal's number.
    pub signal: i32,
    /// The function that contains the node.
    pub function: FunctionId,
    /// The node's name as in the model, shortened at its front where it is very long.
    pub node: String,
}

/// The name of a signal, such as `SIGSEGV`. The signals that a defect of a program raises have the same numbers on all
/// of Linux.
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

/// The coordinator's answer to a [`Registration`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RegistrationAnswer {
    pub name: String,
    /// `host:port` at which the other members will reach the worker.
    pub address: String,
    /// The ids of revoked tokens.
    pub revoked: Vec<TokenId>,
    /// The other workers, to which the worker measures its links.
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
    /// Bandwidth in bytes per second; 0 where it was not measured.
    pub bandwidth: f64,
    /// Why the peer could not be reached, if that is so.
    pub failure: Option<String>,
}

/// How many workers a plan uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerCount {
    /// The fewest workers whose memory suffices, and one more only where that shortens the predicted step.
    Auto,
    /// This many, each with at least one node; fewer where there are fewer nodes.
    Exactly(u32),
}

/// The purpose of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// It is shown. If the function does not fit the memory that is free, the plan is made as if nothing were taken,
    /// and a warning says so.
    Explain,
    /// It is installed at once. The memory that it needs counts as taken from now on; where there is too little, no plan
    /// is made.
    Install,
    /// As [`Intent::Install`], but if there is too little memory, the request waits up to this many milliseconds until
    /// memory is released, behind the requests that wait already. With 0 it is refused instead of waiting.
    InstallInTurn { wait_ms: u64 },
}

/// The devices that may compute one plan. The bits of a result depend on the numerics profiles of the devices that compute
/// it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Profiles {
    /// Devices of one profile, which the coordinator chooses: the one whose workers are the fastest together, or the next
    /// where these do not suffice.
    #[default]
    Uniform,
    /// Devices of this profile.
    Profile(String),
    /// Any devices, whatever their profiles are.
    Mixed,
}

/// What the optimiser may do to the values of a model. Each includes those before it. The bits of results depend on the
/// choice, and on nothing else that a plan decides on devices of one profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Numerics {
    /// Every node is computed as the file has it.
    Exact,
    /// Batch normalisation is folded into the weights before it, and a GELU or layer normalisation that the file composes of
    /// simpler ops is computed as one, which changes last bits. The functions of control flow are computed as the file has
    /// them.
    #[default]
    Standard,
    /// Products whose file allows it (`MatMulNBits` with `accuracy_level` 4) make each block of a row codes of eight bits
    /// first, and multiply codes, also in the functions of control flow. Large products are faster by it, and less accurate.
    Int8,
}

impl Numerics {
    /// All choices, each after those that it includes.
    pub const ALL: [Numerics; 3] = [Numerics::Exact, Numerics::Standard, Numerics::Int8];
}

/// A stage of the pipeline that a model's file divides the model into. The stages of a model run on workers in their order,
/// but one whose device has the name of a worker, or of a worker and its device, runs there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// The name of the stage's device in the file, where that has one.
    pub device: Option<String>,
    /// The names of its nodes.
    pub nodes: Vec<String>,
}

/// The caller's wishes for a plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanOptions {
    pub intent: Intent,
    pub workers: WorkerCount,
    /// The pins. Each has a pattern of node names (`*` matches anything) and, as a [device
    /// specification](crate::device_spec), the devices that may run the nodes that it matches; the first match counts.
    pub pins: Vec<(String, String)>,
    /// The stages that the model's file divides it into, in their order. A pin that matches a node comes before its stage.
    pub stages: Vec<Stage>,
    /// Whether the answer lists the nodes of each part.
    pub list_nodes: bool,
    /// Bounds of the dynamic axes: memory is planned for them.
    pub axes: Axes,
    /// Bounds that are taken instead where the function does not fit with those before, in this order.
    pub tighter: Vec<Axes>,
    /// Sizes of the axes in the calls to come, for which times are predicted; for an axis that is not named, its bound
    /// counts.
    pub expected: Vec<(String, i64)>,
    /// What the optimiser may do to values.
    pub numerics: Numerics,
    /// The most steps in flight at once.
    pub in_flight: u32,
    /// Workers that the caller has lost contact with, whether or not the coordinator has noticed. The plan uses the
    /// other workers, and fewer than [`PlanOptions::workers`] where it must.
    pub avoid: Vec<(String, Incarnation)>,
    /// The custom ops of the function as the caller defines them: their nodes run on workers with the same definition.
    /// Nodes of a custom op that is not listed run on workers with any definition of it.
    pub ops: Vec<CustomOp>,
    pub profiles: Profiles,
}

/// One worker's part of a plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PartSummary {
    pub name: String,
    pub address: String,
    /// The worker's device.
    pub device: DeviceId,
    /// The numerics profile of the device.
    pub profile: String,
    pub threads: u32,
    pub nodes: u32,
    /// First and last node by name, in the order they run.
    pub first_node: String,
    pub last_node: String,
    /// Bytes of weights in the form that kernels use.
    pub weights_bytes: u64,
    /// Bytes of weights as read from files.
    pub artifact_bytes: u64,
    /// The most bytes that the tensors of one step take at once, at the axes' bounds.
    pub activation_bytes: u64,
    /// Bytes that the worker's host must offer: the larger of what loading needs, and weights with the tensors of all
    /// steps in flight at the axes' bounds.
    pub needed_bytes: u64,
    /// Bytes that the worker's host offers.
    #[serde(rename = "memory_bytes")]
    pub memory: u64,
    /// How many of these bytes were free for the caller when the plan was made.
    #[serde(rename = "free_bytes")]
    pub free: u64,
    /// Bytes that the worker's device must offer: the weights that steps read there, and the tensors of all steps in
    /// flight at the axes' bounds. Where the device is the host itself, this and the next two figures are the host's.
    pub device_needed_bytes: u64,
    /// Bytes that the worker's device offers.
    #[serde(rename = "device_memory_bytes")]
    pub device_memory: u64,
    /// How many of these bytes were free for the caller when the plan was made.
    #[serde(rename = "device_free_bytes")]
    pub device_free: u64,
    /// Predicted peak bytes of a worker process that holds this program alone, above its base footprint, with the axes
    /// as expected and all steps in flight. Weights in flight are included, and the part of the memory for steps that
    /// they touch. A test of real processes holds the prediction to 15 %, or 4 MiB where that is more. A process that
    /// shares chunks of weights with others, or loads faster than it receives, may use less of its load buffer than is
    /// counted.
    pub peak_bytes: u64,
    /// Predicted busy nanoseconds of a step, with the axes as expected.
    pub step_ns: u64,
}

/// One tensor that crosses between workers in every step, or in every run of a partitioned body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutEdge {
    pub tensor: String,
    pub from: String,
    pub to: String,
    /// Bytes with the axes as expected.
    pub bytes: u64,
}

/// How a plan follows a pin.
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

/// How a plan follows a stage of the model's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSummary {
    /// The name of the stage's device in the file, where that has one.
    pub device: Option<String>,
    /// The worker that runs the stage.
    pub worker: String,
    /// How many nodes of a step run there because of the stage.
    pub nodes: u32,
}

/// The explanation of a plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanSummary {
    pub parts: Vec<PartSummary>,
    pub cut_edges: Vec<CutEdge>,
    /// The pins in the order in which they were given.
    pub pins: Vec<PinSummary>,
    /// The stages of the model's file, in their order.
    pub stages: Vec<StageSummary>,
    /// Predicted nanoseconds of a step as planned, with the axes as expected.
    pub step_ns: u64,
    /// Predicted nanoseconds of a step on the fastest single worker, with the axes as expected; `None` if it fits none.
    pub single_ns: Option<u64>,
    /// The changes that the passes made to the function, one line each.
    pub passes: Vec<String>,
    pub warnings: Vec<String>,
    /// The functions of control flow that several workers run together.
    pub bodies: Vec<BodySummary>,
}

/// A function of control flow that is too large for one worker, so that several workers run it together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BodySummary {
    /// The node that runs it, and the attribute that it is: `body`, or a branch.
    pub node: String,
    pub function: String,
    /// The worker that drives it.
    pub owner: String,
    /// The workers that run it.
    pub parts: Vec<BodyPartSummary>,
    /// The tensors that cross between workers in one run: operands from the owner, tensors between the parts, results
    /// to the owner.
    pub cut_edges: Vec<CutEdge>,
    /// Predicted nanoseconds of one run, with the axes as expected.
    pub step_ns: u64,
}

/// The part of a partitioned body that one worker runs. The worker's [`PartSummary`] counts it as well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BodyPartSummary {
    pub worker: String,
    pub nodes: u32,
    /// First and last node by name, in the order they run.
    pub first_node: String,
    pub last_node: String,
    /// Bytes of weights in the form that kernels use.
    pub weights_bytes: u64,
}

/// The answer to a request for a plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanAnswer {
    pub plan: PlanId,
    /// The workers, then the driver.
    pub participants: Vec<Participant>,
    pub driver: DriverProgram,
    pub axes: Axes,
    pub summary: PlanSummary,
    /// The names of the nodes of each part, where [`PlanOptions::list_nodes`] asked for them.
    pub nodes: Vec<Vec<String>>,
}

impl PlanAnswer {
    /// Checks that every participant and every slot that the driver's part names exists.
    pub fn check(&self) -> Result<()> {
        let workers = self.participants.len().checked_sub(1);
        let workers = workers.filter(|n| ParticipantIx::try_from(*n).is_ok());
        if workers.is_some_and(|n| self.driver.names(n)) {
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
pub struct LeaseGrant {
    pub lease: LeaseId,
    pub in_flight: u32,
}

/// A worker's answer to an install that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum InstallAnswer {
    /// The worker's part of the lease is installed.
    Installed,
    /// Nothing was done: the worker does not have the program that the grant names.
    NeedsProgram,
}

/// The progress of an install.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes of weights that are in place.
    pub done: u64,
    /// Bytes of all weights.
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
    /// The coordinator refuses the connection, or the member did what it must not; the reason of the close says which.
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
/// Longest time for which a request for a plan may wait until memory is released.
pub const QUEUE_BOUND: Duration = Duration::from_secs(3600);
/// Longest wait for an install: loading the weights of the largest models over a slow link.
pub const INSTALL_BOUND: Duration = Duration::from_secs(3600);

/// How long client and coordinator wait for each other after their connection broke: as long as it takes to notice any
/// loss. The client's leases go on meanwhile, and calls that need the coordinator wait.
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
        Ok(Err(e)) => {
            let msg = format!("lost contact with {peer}: {e}");
            Err(Error::unreachable(None, msg))
        }
        Err(_) => {
            let msg = format!("{peer} accepts no further stream");
            Err(Error::unreachable(None, msg))
        }
    }
}

macro_rules! connect {
    ($(#[$doc:meta])* $name:ident, $client:ident, $request:ident, $response:ident, $kind:ident) => {
        $(#[$doc])*
        pub type $client = services::$client<DeadlineChannel<services::$request, services::$response>>;

        $(#[$doc])*
        pub async fn $name(world: &World, connection: &quinn::Connection) -> Result<$client> {
            Ok(open_client(world, connection, StreamKind::$kind).await?.0.into())
        }
    };
}

/// Opens a client on a stream of its own, and spawns the task that carries its calls. The task ends with the client's
/// last clone, with the stream, or with the connection.
async fn open_client<Req, Resp>(
    world: &World,
    connection: &quinn::Connection,
    kind: StreamKind,
) -> Result<(DeadlineChannel<Req, Resp>, JoinHandle<()>)>
where
    Req: tarpc::RequestName + Serialize + Send + 'static,
    Resp: for<'de> Deserialize<'de> + Send + 'static,
{
    open_client_within(world, connection, kind, MAX_FRAME).await
}

/// As [`open_client`], on a stream whose frames have at most `max_frame` bytes.
async fn open_client_within<Req, Resp>(
    world: &World,
    connection: &quinn::Connection,
    kind: StreamKind,
    max_frame: usize,
) -> Result<(DeadlineChannel<Req, Resp>, JoinHandle<()>)>
where
    Req: tarpc::RequestName + Serialize + Send + 'static,
    Resp: for<'de> Deserialize<'de> + Send + 'static,
{
    let (send, recv) = open_stream(connection, kind).await?;
    let new = tarpc::client::new(client_config(), client_transport(send, recv, max_frame));
    let dispatch = world.spawn(async move { drop(new.dispatch.await) });
    Ok((DeadlineChannel::from(new.client), dispatch))
}

/// As [`connect_coordinator`], but also returns the task that carries the calls: once it has ended, no call is answered
/// any more.
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

/// As [`connect_worker`], for calls of which neither the request nor the answer has more than `most` bytes: a longer
/// answer ends the stream before it is kept.
pub async fn connect_worker_within(
    world: &World,
    connection: &quinn::Connection,
    most: usize,
) -> Result<WorkerClient> {
    let kind = StreamKind::Worker;
    Ok(
        open_client_within(world, connection, kind, most.min(MAX_FRAME))
            .await?
            .0
            .into(),
    )
}

/// Makes one result of the two of a call: transport failures become errors that name the worker that was called, or the
/// coordinator where that is `None`.
pub fn answer<T>(
    worker: Option<&str>,
    result: std::result::Result<Result<T>, tarpc::client::RpcError>,
) -> Result<T> {
    use tarpc::client::RpcError;
    let peer = worker.map_or("the coordinator".to_owned(), |w| format!("worker '{w}'"));
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
        // The request never left this process.
        Err(RpcError::Send(_)) => Err(Error::new(
            Code::InvalidArgument,
            format!(
                "a call to {peer} is larger than the {} MiB that one may have",
                MAX_FRAME >> 20
            ),
        )),
        // The details of the transport's failure say nothing to the caller.
        Err(RpcError::Shutdown | RpcError::Channel(_)) => {
            let msg = format!("lost contact with {peer}: the connection ended over a call");
            Err(Error::unreachable(worker, msg))
        }
    }
}

#[cfg(test)]
mod tests;
