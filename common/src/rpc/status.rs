//! What `status` tells: each worker's own account, and the coordinator's view of all.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{FunctionId, Incarnation, LeaseId};
use crate::members::OpenConnections;
use crate::memory::{Account, Holding};
use crate::ops::CustomOp;
use crate::world::AccountId;

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
    /// Handles of eager sessions, and bytes of their tensors, but for those that lie in the handle itself
    /// ([`crate::tensor::INLINE`]).
    pub live_handles: u64,
    pub handle_bytes: u64,
    pub links: Vec<LinkStatus>,
    /// What was refused of frames, streams, connections and handshakes, by reason.
    pub refused: BTreeMap<String, u64>,
    pub cache_bytes: u64,
    /// Weight bytes read from a shared path, from the cache, and from clients.
    pub loaded: [u64; 3],
    /// What the holders of each token have of the memory, and of how much.
    pub holdings: Vec<Holding>,
    /// Connections that members have open, by the token that let them in.
    pub connections: Vec<OpenConnections>,
    /// Whose jobs compute runs, and whose wait behind them.
    pub compute: Vec<ComputeUse>,
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
    /// Jobs that have not begun, and jobs that gave way in the middle.
    pub waiting: [u32; 2],
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
    pub round_trip: u64,
    /// Whether a TCP tripwire stands, so that the end of the peer's process is noticed at once.
    pub tripwire: bool,
    /// Bytes on the wire.
    pub sent: u64,
    pub received: u64,
    /// UDP datagrams, sent and received.
    pub datagrams: [u64; 2],
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
    pub memory: u64,
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
    pub latency: u64,
    /// Bytes per second.
    pub bandwidth: f64,
}

/// The whole cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterStatus {
    pub version: String,
    pub profile: String,
    pub members: Vec<MemberStatus>,
    pub links: Vec<MeasuredLink>,
    pub leases: Vec<LeaseStatus>,
    /// Nodes in which workers died, whether they are refused already or not.
    pub quarantine: Vec<QuarantineStatus>,
    /// What the coordinator refused of streams, connections and handshakes, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Bytes of weights that passed through the coordinator: always 0, counted all the same.
    pub weight_bytes_relayed: u64,
    /// All bytes that the coordinator received and sent.
    pub bytes_received: u64,
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
