//! The contents of `status`: each worker's report of itself, and the coordinator's view of the cluster.

use std::collections::BTreeMap;

use convoke_graph::ids::FunctionId;
use convoke_graph::ops::CustomOp;
use convoke_graph::printable::Printable;
use serde::{Deserialize, Serialize};

use crate::device_spec::DeviceId;
use crate::error::Error;
use crate::ids::{Incarnation, LeaseId, StepKey};
use crate::members::OpenConnections;
use crate::memory::{Purpose, TokenHolding};
use crate::world::{AccountId, ComputeUse};

/// The memory of a device that is not the host itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeviceMemory {
    #[serde(rename = "budget_bytes")]
    pub budget: u64,
    #[serde(rename = "used_bytes")]
    pub used: BTreeMap<Purpose, u64>,
    /// The most bytes that were ever in use.
    #[serde(rename = "peak_bytes")]
    pub peak: u64,
}

/// A worker's report of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerStatus {
    pub incarnation: Incarnation,
    #[serde(rename = "memory_budget_bytes")]
    pub memory_budget: u64,
    #[serde(rename = "memory_used_bytes")]
    pub memory_used: BTreeMap<Purpose, u64>,
    /// The most bytes that the ledger ever held.
    #[serde(rename = "memory_peak_bytes")]
    pub memory_peak: u64,
    /// The memory of the worker's device; absent where the device is the host itself.
    pub device_memory: Option<DeviceMemory>,
    /// VmRSS and VmHWM of the process, in bytes.
    #[serde(rename = "resident_bytes")]
    pub resident: u64,
    #[serde(rename = "resident_peak_bytes")]
    pub resident_peak: u64,
    pub programs: Vec<ProgramStatus>,
    pub live_steps: u64,
    /// How many steps ended, in any way.
    pub steps_done: u64,
    /// How many steps failed, by the code of their error; cancelled steps are included.
    pub steps_failed: BTreeMap<String, u64>,
    /// The number of handles of eager sessions, and the bytes of their tensors, except those of tensors that lie in the
    /// handle itself ([`convoke_graph::tensor::INLINE`]).
    pub live_handles: u64,
    pub handle_bytes: u64,
    pub rendezvous: RendezvousStatus,
    pub links: Vec<LinkStatus>,
    /// How many frames, streams, connections and handshakes were refused, by reason.
    pub refused: BTreeMap<String, u64>,
    pub cache_bytes: u64,
    #[serde(rename = "loaded_bytes")]
    pub loaded: Sources,
    pub weights: WeightsStatus,
    pub program_store: ProgramStoreStatus,
    /// How much memory the holders of each token use, and how much they may use.
    pub holdings: Vec<TokenHolding>,
    /// The open connections of members, by the token with which they joined.
    pub connections: Vec<OpenConnections>,
    /// The leases and sessions whose jobs run, and whose jobs wait behind them.
    pub compute: Vec<ComputeUse>,
}

/// How much of a worker's memory is in use, and by whom.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    pub host: MemoryUse,
    /// The memory of the worker's device; nothing is in use there where the device is the host itself.
    pub device: MemoryUse,
}

/// How much of one memory of a worker is in use, and by whom.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Bytes in use, by purpose.
    pub used: BTreeMap<Purpose, u64>,
    /// The bytes that the holders of each token use.
    pub holdings: Vec<TokenHolding>,
}

/// Bytes of weights, by where they were read from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// Bytes from files at paths that the worker shares with the client.
    pub shared_path: u64,
    pub cache: u64,
    pub clients: u64,
}

/// A member's end of the rendezvous: what the steps in flight wait for at the moment of the question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RendezvousStatus {
    /// Leases that this member takes part in.
    pub leases: u64,
    /// Steps in flight.
    pub open_steps: u64,
    /// Receives whose tensor has not begun to arrive.
    pub waiting_receives: u64,
    /// Tensors whose bytes are arriving.
    pub arriving_tensors: u64,
    /// Tensors that have arrived and wait for their receive.
    pub waiting_tensors: u64,
    /// How often steps were aborted at this member.
    pub aborts: u64,
}

/// The weights that a worker holds, each counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsStatus {
    pub held_bytes: u64,
    /// Bytes that several leases or handles use.
    pub shared_bytes: u64,
    /// Bytes that nobody uses, which are freed where memory is asked for.
    pub unused_bytes: u64,
}

/// The programs that a worker keeps under their content hashes, each counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramStoreStatus {
    /// How many programs there are.
    #[serde(rename = "held_programs")]
    pub held: u64,
    /// Bytes of memory that they are counted with.
    pub held_bytes: u64,
    /// How many of them no lease uses. They are dropped where memory for records is asked for.
    #[serde(rename = "unused_programs")]
    pub unused: u64,
    /// How many programs the worker was sent, because it did not have them, and their bytes on the wire.
    #[serde(rename = "received_programs")]
    pub received: u64,
    pub received_bytes: u64,
}

/// The log target of lines about failed steps, by which logs can be filtered.
pub const STEPS: &str = "convoke::steps";

/// A failed step, reported by the worker at which the error arose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFailure {
    pub step: StepKey,
    /// The name of the model or function.
    pub function: String,
    pub error: Error,
    /// The client, and the account that is charged for it: its token, or its name if it joined without one.
    pub client: String,
    pub token: AccountId,
    /// How many earlier failures the worker did not report.
    pub others: u64,
}

impl StepFailure {
    /// Writes the failure as one line to the log of this process.
    pub fn log(&self, worker: &str, others: u64) {
        let site = self.error.site.as_deref();
        let node = site.and_then(|s| s.node.as_deref()).map(Printable);
        let op = site.and_then(|s| s.op.as_deref()).map(Printable);
        tracing::warn!(
            target: STEPS,
            step = %self.step,
            function = %Printable(&self.function),
            node = node.map(tracing::field::display),
            op = op.map(tracing::field::display),
            %worker,
            client = %Printable(&self.client),
            token = %self.token,
            code = %self.error.code.name(),
            cause = %Printable(&self.error.message),
            others,
            "a step failed"
        );
    }
}

/// An installed program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProgramStatus {
    pub lease: LeaseId,
    pub name: String,
    pub driver: String,
    pub nodes: u32,
    pub weights_bytes: u64,
    /// Bytes of the weights that other leases or handles use as well.
    pub shared_weights_bytes: u64,
}

/// A link to a peer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LinkStatus {
    pub peer: String,
    pub address: String,
    /// `quic`, `local`, or `shm` if the peer reads large tensors in memory that both share.
    pub path: String,
    /// Round trip time in nanoseconds, as QUIC measures it.
    #[serde(rename = "round_trip_ns")]
    pub round_trip: u64,
    /// Whether a TCP tripwire is armed, so that the end of the peer's process is noticed at once.
    pub tripwire: bool,
    /// Bytes on the wire.
    #[serde(rename = "sent_bytes")]
    pub sent: u64,
    #[serde(rename = "received_bytes")]
    pub received: u64,
    /// Number of UDP datagrams.
    pub sent_datagrams: u64,
    pub received_datagrams: u64,
    /// Bytes of tensors and frames that wait to be sent, or that the peer still reads.
    pub queued_bytes: u64,
}

/// The state of a worker as the coordinator sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// The worker is connected, and plans use it.
    Alive,
    /// The worker was told to end, and finishes its running steps.
    Leaving,
    /// The name is out of service until it is asked back, whether or not a worker is connected under it.
    Drained,
    /// The worker has a kernel that does not stop: it will end, and return as another incarnation.
    Wedged,
    /// The worker is gone without a word. A worker that announced its end is no member any more.
    Lost,
}

/// A member as the coordinator sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemberStatus {
    pub name: String,
    pub incarnation: Incarnation,
    pub address: String,
    pub host: String,
    /// The release that the member runs; empty if it was not heard of since the coordinator started.
    pub version: String,
    /// The member's device, such as `cpu:0`.
    pub device: DeviceId,
    /// The numerics profile of the device: devices of equal profiles compute equal bits.
    pub device_profile: String,
    pub threads: u32,
    /// Bytes of the member's host that programs may use.
    #[serde(rename = "memory_bytes")]
    pub memory: u64,
    /// Bytes of its device that programs may use; those of the host where the device is the host itself.
    #[serde(rename = "device_memory_bytes")]
    pub device_memory: u64,
    /// The measured speed of a matrix product on the member's host, which runs ops that are issued one by one.
    #[serde(rename = "host_flops_per_second")]
    pub host_flops: f64,
    /// The measured speed of the member's device: of a matrix product, and of its memory.
    #[serde(rename = "flops_per_second")]
    pub flops: f64,
    #[serde(rename = "memory_bandwidth_bytes_per_second")]
    pub memory_bandwidth: f64,
    /// Milliseconds since the member was last heard.
    pub last_seen_ms: u64,
    pub state: MemberState,
    /// A remark about the member's state, or about how its former process ended; empty if there is nothing to say.
    pub remark: String,
    /// Whether the TCP tripwire between the member and the coordinator is armed.
    pub tripwire: bool,
    /// The custom ops for which the member has kernels.
    pub ops: Vec<CustomOp>,
    /// The member's report of itself; absent if the member did not answer in time.
    pub status: Option<WorkerStatus>,
}

/// The speed that the planner assumes for a connection between workers, as one of them measured it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLink {
    pub from: String,
    pub to: String,
    /// Latency in one direction, in nanoseconds.
    #[serde(rename = "latency_ns")]
    pub latency: u64,
    /// Bytes per second.
    #[serde(rename = "bandwidth_bytes_per_second")]
    pub bandwidth: f64,
}

/// The state of the whole cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterStatus {
    pub version: String,
    pub profile: String,
    /// Why the coordinator cannot write its state; absent if it can.
    pub state_failure: Option<String>,
    pub members: Vec<MemberStatus>,
    pub links: Vec<MeasuredLink>,
    pub leases: Vec<LeaseStatus>,
    /// The nodes in which workers died, whether or not they are refused already.
    pub quarantine: Vec<QuarantineStatus>,
    /// How many streams, connections and handshakes the coordinator refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Bytes of weights that passed through the coordinator: always 0, and measured nevertheless.
    #[serde(rename = "relayed_weight_bytes")]
    pub weight_bytes_relayed: u64,
    /// All bytes that the coordinator received and sent.
    #[serde(rename = "received_bytes")]
    pub bytes_received: u64,
    #[serde(rename = "sent_bytes")]
    pub bytes_sent: u64,
    /// How much of the coordinator's memory the holders of each token use, and how much they may use.
    pub holdings: Vec<TokenHolding>,
    /// The open connections of members to the coordinator, by the token with which they joined.
    pub connections: Vec<OpenConnections>,
}

/// A node that killed workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantineStatus {
    pub node: String,
    pub function: FunctionId,
    /// Whether plans with the node are refused. One death is not enough, since it may be the machine's fault.
    pub refused: bool,
    /// The latest deaths, the oldest first.
    pub deaths: Vec<DeathStatus>,
}

/// One death of a worker in a quarantined node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeathStatus {
    pub worker: String,
    /// The name of the signal, such as `SIGSEGV`.
    pub signal: String,
    /// Seconds since the death was reported.
    #[serde(rename = "age_seconds")]
    pub age: u64,
}

/// A lease as the coordinator knows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LeaseStatus {
    pub lease: LeaseId,
    pub model: String,
    pub driver: String,
    pub workers: Vec<String>,
}
