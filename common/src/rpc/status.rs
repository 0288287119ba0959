//! What `status` tells: each worker's own account, and the coordinator's view of all.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::ids::{FunctionId, Incarnation, LeaseId, StepKey};
use crate::members::OpenConnections;
use crate::memory::{Account, Holding};
use crate::ops::CustomOp;
use crate::printable::Printable;
use crate::world::AccountId;

/// A worker's own account.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerStatus {
    pub incarnation: Incarnation,
    #[serde(rename = "memory_budget_bytes")]
    pub memory_budget: u64,
    #[serde(rename = "memory_used_bytes")]
    pub memory_used: BTreeMap<Account, u64>,
    /// Most bytes the ledger ever held.
    #[serde(rename = "memory_peak_bytes")]
    pub memory_peak: u64,
    /// VmRSS and VmHWM of the process, in bytes.
    #[serde(rename = "resident_bytes")]
    pub resident: u64,
    #[serde(rename = "resident_peak_bytes")]
    pub resident_peak: u64,
    pub programs: Vec<ProgramStatus>,
    pub live_steps: u64,
    /// Steps that ended, however they did.
    pub steps_done: u64,
    /// Steps that failed, by the code of their error; those that were cancelled are among them.
    pub steps_failed: BTreeMap<String, u64>,
    /// Handles of eager sessions, and bytes of their tensors, but for those that lie in the handle itself
    /// ([`crate::tensor::INLINE`]).
    pub live_handles: u64,
    pub handle_bytes: u64,
    pub links: Vec<LinkStatus>,
    /// What was refused of frames, streams, connections and handshakes, by reason.
    pub refused: BTreeMap<String, u64>,
    pub cache_bytes: u64,
    #[serde(rename = "loaded_bytes")]
    pub loaded: Sources,
    /// What the holders of each token have of the memory, and of how much.
    pub holdings: Vec<Holding>,
    /// Connections that members have open, by the token that let them in.
    pub connections: Vec<OpenConnections>,
    /// Whose jobs compute runs, and whose wait behind them.
    pub compute: Vec<ComputeUse>,
}

/// Bytes of weights by where they were read from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// A file at a path that the worker shares with the client.
    pub shared_path: u64,
    pub cache: u64,
    pub clients: u64,
}

/// The target of lines about failed steps, by which logs filter them.
pub const STEPS: &str = "convoke::steps";

/// A step that failed, as the worker tells of it that its error is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFailure {
    pub step: StepKey,
    /// The name of the model or function.
    pub function: String,
    pub error: Error,
    /// The client, and the account that it is charged to: its token, or its name where it came without one.
    pub client: String,
    pub token: AccountId,
    /// Failures of the worker before this one, of which it did not tell.
    pub others: u64,
}

impl StepFailure {
    /// Writes one line into the log of this process.
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

/// A lease, or an eager session, that has jobs at compute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeUse {
    /// Who is charged for it: the token of the client, or the client where it came without one.
    pub account: AccountId,
    /// The client.
    pub member: String,
    pub lease: LeaseId,
    /// Whether a job of it runs now.
    pub runs: bool,
    /// Jobs that have not begun.
    pub waiting: u32,
    /// Jobs that gave way in the middle.
    pub paused: u32,
    /// Milliseconds that the oldest of them has waited since it came or gave way; where none waits, that the running one has
    /// had its turn.
    pub since_ms: u64,
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
    /// `quic`, `shm` where the peer reads large tensors in memory that both share, or `local`.
    pub path: String,
    /// Round trip in nanoseconds, as QUIC measures it.
    #[serde(rename = "round_trip_ns")]
    pub round_trip: u64,
    /// Whether a TCP tripwire stands, so that the end of the peer's process is noticed at once.
    pub tripwire: bool,
    /// Bytes on the wire.
    #[serde(rename = "sent_bytes")]
    pub sent: u64,
    #[serde(rename = "received_bytes")]
    pub received: u64,
    /// UDP datagrams.
    pub sent_datagrams: u64,
    pub received_datagrams: u64,
    /// Bytes of tensors and frames that wait to be sent, or that the peer still reads.
    pub queued_bytes: u64,
}

/// Where a worker is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// There, and plans use it.
    Alive,
    /// There, finishing what runs: it was told to end.
    Leaving,
    /// Taken out of service until it is asked back, there or not.
    Drained,
    /// There, with a kernel that does not stop: it will end, and return as another incarnation.
    Wedged,
    /// Gone without a word. One that said that it would leave is no member any more.
    Lost,
}

/// A member as the coordinator sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemberStatus {
    pub name: String,
    pub incarnation: Incarnation,
    pub address: String,
    pub host: String,
    /// The release that it runs; empty where it was not heard of since the coordinator was started.
    pub version: String,
    pub threads: u32,
    #[serde(rename = "memory_bytes")]
    pub memory: u64,
    #[serde(rename = "flops_per_second")]
    pub flops: f64,
    /// Milliseconds since it was last heard.
    pub last_seen_ms: u64,
    pub state: MemberState,
    /// What is to be said of its state, or of how its former process ended; empty where that is nothing.
    pub remark: String,
    /// Whether a TCP tripwire to the coordinator stands.
    pub tripwire: bool,
    /// The custom ops that it has kernels for.
    pub ops: Vec<CustomOp>,
    /// Absent when it did not answer in time.
    pub status: Option<WorkerStatus>,
}

/// What plans reckon with of a connection between workers, as one of them measured it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLink {
    pub from: String,
    pub to: String,
    /// One way, in nanoseconds.
    #[serde(rename = "latency_ns")]
    pub latency: u64,
    /// Bytes per second.
    #[serde(rename = "bandwidth_bytes_per_second")]
    pub bandwidth: f64,
}

/// The whole cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterStatus {
    pub version: String,
    pub profile: String,
    /// Why the coordinator cannot write its state; absent where it can.
    pub state_failure: Option<String>,
    pub members: Vec<MemberStatus>,
    pub links: Vec<MeasuredLink>,
    pub leases: Vec<LeaseStatus>,
    /// Nodes in which workers died, whether they are refused already or not.
    pub quarantine: Vec<QuarantineStatus>,
    /// What the coordinator refused of streams, connections and handshakes, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Bytes of weights that passed through the coordinator: always 0, counted all the same.
    #[serde(rename = "relayed_weight_bytes")]
    pub weight_bytes_relayed: u64,
    /// All bytes that the coordinator received and sent.
    #[serde(rename = "received_bytes")]
    pub bytes_received: u64,
    #[serde(rename = "sent_bytes")]
    pub bytes_sent: u64,
    /// What the holders of each token have of the coordinator's memory, and of how much.
    pub holdings: Vec<Holding>,
    /// Connections that members have open at the coordinator, by the token that let them in.
    pub connections: Vec<OpenConnections>,
}

/// A node in which workers died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantineStatus {
    pub node: String,
    pub function: FunctionId,
    /// Whether plans with it are refused: not after one death, which may be the machine's fault.
    pub refused: bool,
    /// The latest, the oldest of them first.
    pub deaths: Vec<DeathStatus>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeathStatus {
    pub worker: String,
    /// `SIGSEGV` and the like.
    pub signal: String,
    /// Seconds since it was reported.
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
