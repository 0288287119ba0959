//! What placement knows of the cluster: what each worker offers, and how fast they reach each other.

use std::collections::BTreeMap;

use convoke_common::ids::Incarnation;
use convoke_common::ops::{Cost, CustomOp};

/// A worker as placement sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerModel {
    pub name: String,
    /// `host:port`.
    pub address: String,
    pub incarnation: Incarnation,
    pub threads: u32,
    /// Bytes that programs may use.
    pub memory: u64,
    /// Bytes that it keeps aside for weights on their way.
    pub window: u64,
    /// FLOP/s on all threads.
    pub flops: f64,
    /// Bytes/s from memory that no cache holds.
    pub memory_bandwidth: f64,
    /// Custom ops that it has kernels for.
    pub ops: Vec<CustomOp>,
}

/// One direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// One way, in nanoseconds, with what software adds.
    pub latency_ns: u64,
    /// Bytes/s.
    pub bandwidth: f64,
}

impl Link {
    /// Nanoseconds that `bytes` occupy the link.
    pub fn occupancy_ns(&self, bytes: u64) -> u64 {
        nanos(bytes as f64 / self.bandwidth.max(1.0))
    }

    /// Nanoseconds until `bytes` arrived.
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        self.latency_ns.saturating_add(self.occupancy_ns(bytes))
    }
}

/// Taken for a link that nobody measured: a local network of 10 Gbit/s.
pub const ASSUMED_LINK: Link = Link {
    latency_ns: 100_000,
    bandwidth: 1.2e9,
};

/// What it costs to run a node, whatever it does.
const NODE_OVERHEAD_NS: u64 = 1_000;

/// The cluster as placement sees it.
#[derive(Debug, Clone)]
pub struct ClusterModel {
    pub workers: Vec<WorkerModel>,
    links: BTreeMap<(usize, usize), Link>,
    /// Between the driver and any worker.
    pub driver: Link,
}

impl ClusterModel {
    /// A cluster whose links are [`ASSUMED_LINK`] until they are set.
    pub fn new(workers: Vec<WorkerModel>) -> ClusterModel {
        ClusterModel {
            workers,
            links: BTreeMap::new(),
            driver: ASSUMED_LINK,
        }
    }

    /// Sets the link from worker `from` to worker `to`.
    pub fn set_link(&mut self, from: usize, to: usize, link: Link) {
        self.links.insert((from, to), link);
    }

    /// The link from worker `from` to worker `to`.
    pub fn link(&self, from: usize, to: usize) -> Link {
        self.links.get(&(from, to)).copied().unwrap_or(ASSUMED_LINK)
    }

    /// The workers of these indices as a team.
    pub fn team(&self, indices: &[usize]) -> Team {
        let pairs = indices
            .iter()
            .flat_map(|a| indices.iter().map(|b| (*a, *b)));
        Team {
            links: pairs.map(|(a, b)| self.link(a, b)).collect(),
            workers: indices.iter().map(|i| self.workers[*i].clone()).collect(),
            indices: indices.to_vec(),
            driver: self.driver,
        }
    }
}

/// Workers that a plan may use; member `i` is participant `i`.
#[derive(Debug, Clone)]
pub struct Team {
    /// Index of each member in [`ClusterModel::workers`].
    pub indices: Vec<usize>,
    pub workers: Vec<WorkerModel>,
    /// Row-major, from × to.
    links: Vec<Link>,
    pub driver: Link,
}

impl Team {
    /// Number of members.
    pub fn size(&self) -> usize {
        self.workers.len()
    }

    /// Nanoseconds for `bytes` from one member to another; none to itself.
    pub fn transfer_ns(&self, from: usize, to: usize, bytes: u64) -> u64 {
        if from == to {
            0
        } else {
            self.link(from, to).transfer_ns(bytes)
        }
    }

    /// The link between two members.
    pub fn link(&self, from: usize, to: usize) -> Link {
        self.links[from * self.workers.len() + to]
    }

    /// Predicted nanoseconds of a node on a member: its arithmetic or its memory traffic, whichever is
    /// slower.
    pub fn time_ns(&self, member: usize, cost: &Cost) -> u64 {
        let w = &self.workers[member];
        let seconds = (cost.flops / w.flops.max(1.0)).max(cost.bytes / w.memory_bandwidth.max(1.0));
        nanos(seconds).saturating_add(NODE_OVERHEAD_NS)
    }
}

/// Saturates far below overflow, so that sums of absurd predictions stay ordered.
fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9).clamp(0.0, 1e15) as u64
}
