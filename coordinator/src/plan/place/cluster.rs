//! The cluster as placement sees it: what each worker offers, and the speed of the links.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use convoke_common::device_spec::DeviceId;
use convoke_common::ids::Incarnation;
use convoke_graph::ops::{Cost, CustomOp};
use convoke_graph::program::{ConstantId, NUMERICS_PROFILE, ProgramNode};

use super::memory::Need;
use super::work::Work;

/// A worker's offer, as placement sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerModel {
    pub name: String,
    /// The worker's address, `host:port`.
    pub address: String,
    pub incarnation: Incarnation,
    pub device: DeviceId,
    /// The numerics profile of the device.
    pub profile: Arc<str>,
    pub threads: u32,
    /// Bytes of memory that are free.
    pub memory: u64,
    /// Bytes that the client's token may still have of the memory.
    pub budget: u64,
    /// Bytes that the client could use if nothing were taken.
    pub offered: u64,
    /// The constants that are there. They are taken of the memory already, and a lease that reads them shares them.
    pub constants: PresentConstants,
    /// Those of the function that is placed; see [`ClusterModel::for_work`].
    pub presence: Arc<Presence>,
    /// Those who have memory there, the largest first.
    pub holders: Vec<Holder>,
    /// Bytes that the worker reserves for weights while they are loaded.
    pub load_buffer: u64,
    /// Speed of all threads together, in FLOP/s.
    pub flops: f64,
    /// Bandwidth of memory that no cache holds, in bytes/s.
    pub memory_bandwidth: f64,
    /// The custom ops that the worker has kernels for.
    pub ops: Vec<CustomOp>,
}

/// The constants that leases have at a worker.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PresentConstants {
    /// The constants of all leases.
    pub all: Arc<BTreeSet<ConstantId>>,
    /// Those that the client's token is charged for already.
    pub own: Arc<BTreeSet<ConstantId>>,
}

impl PresentConstants {
    /// Adds those of a part that is placed there.
    pub fn add(&mut self, of_part: &BTreeMap<ConstantId, u64>) {
        for ids in [&mut self.all, &mut self.own] {
            Arc::make_mut(ids).extend(of_part.keys());
        }
    }
}

/// The constants of a function that a worker has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Presence {
    /// For each constant of the function whether the worker has it, and whether the client's token is charged for it;
    /// empty if the worker has none.
    of: Vec<(bool, bool)>,
    /// Bytes of those that the worker has, and of those that the token is charged for.
    bytes: [u64; 2],
}

impl Presence {
    pub fn new(work: &Work, there: &PresentConstants) -> Presence {
        if there.all.is_empty() {
            return Presence::default();
        }
        let is = |all: &BTreeSet<ConstantId>, id: &Option<ConstantId>| {
            id.as_ref().is_some_and(|id| all.contains(id))
        };
        let of = work.const_id.iter();
        let of: Vec<(bool, bool)> = of
            .map(|id| (is(&there.all, id), is(&there.own, id)))
            .collect();
        let mut bytes = [0u64; 2];
        for ((here, own), size) in of.iter().zip(&work.const_bytes) {
            let [all, mine] = &mut bytes;
            *all = all.saturating_add(if *here { *size } else { 0 });
            *mine = mine.saturating_add(if *own { *size } else { 0 });
        }
        Presence { of, bytes }
    }

    /// Returns the bytes of the constants that the worker has.
    pub fn bytes(&self) -> u64 {
        self.bytes[0]
    }

    /// Returns whether the worker has none of the constants.
    pub fn is_empty(&self) -> bool {
        self.bytes[0] == 0
    }

    /// Returns whether the worker has a constant.
    pub fn has(&self, constant: usize) -> bool {
        self.of.get(constant).is_some_and(|(here, _)| *here)
    }

    /// Returns whether the client's token is charged for a constant at the worker.
    pub fn is_paid(&self, constant: usize) -> bool {
        self.of.get(constant).is_some_and(|(_, own)| *own)
    }
}

impl WorkerModel {
    /// Returns the bytes that are free for the client.
    pub fn free(&self) -> u64 {
        self.memory.min(self.budget)
    }

    /// Returns the most bytes that a part of the function may take here, with the constants that are there.
    pub fn reach(&self) -> u64 {
        let [all, own] = self.presence.bytes;
        let memory = self.memory.saturating_add(all);
        memory.min(self.budget.saturating_add(own))
    }

    /// Returns whether this much memory is free for the client.
    pub fn holds(&self, need: &Need) -> bool {
        need.memory <= self.memory && need.budget <= self.budget
    }
}

/// Clients that have memory of a worker: the holders of one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub token: String,
    /// One of the clients.
    pub member: String,
    pub bytes: u64,
}

/// The predicted speed of a link in one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkSpeed {
    /// Latency in one direction in nanoseconds, including that of software.
    pub latency_ns: u64,
    /// Bandwidth in bytes/s.
    pub bandwidth: f64,
}

impl LinkSpeed {
    /// Returns for how many nanoseconds `bytes` occupy the link.
    pub fn occupancy_ns(&self, bytes: u64) -> u64 {
        nanos(bytes as f64 / self.bandwidth.max(1.0))
    }

    /// Returns after how many nanoseconds `bytes` have arrived.
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        self.latency_ns.saturating_add(self.occupancy_ns(bytes))
    }
}

/// The speed that is assumed of a link without measurements: a local network of 10 Gbit/s.
pub const ASSUMED_LINK: LinkSpeed = LinkSpeed {
    latency_ns: 100_000,
    bandwidth: 1.2e9,
};

/// The cluster as placement sees it.
#[derive(Debug, Clone)]
pub struct ClusterModel {
    pub workers: Vec<WorkerModel>,
    links: BTreeMap<(usize, usize), LinkSpeed>,
    /// The link between the driver and any worker.
    pub driver: LinkSpeed,
}

impl ClusterModel {
    /// Returns a cluster whose links are [`ASSUMED_LINK`] until they are set.
    pub fn new(workers: Vec<WorkerModel>) -> ClusterModel {
        ClusterModel {
            workers,
            links: BTreeMap::new(),
            driver: ASSUMED_LINK,
        }
    }

    /// Returns the workers for which `stays` holds, with the links between them.
    pub fn filtered(&self, stays: impl Fn(&WorkerModel) -> bool) -> ClusterModel {
        let indices = 0..self.workers.len();
        let kept: Vec<usize> = indices.filter(|i| stays(&self.workers[*i])).collect();
        let links = self.links.iter().filter_map(|((from, to), link)| {
            let new = |old: &usize| kept.binary_search(old).ok();
            Some(((new(from)?, new(to)?), *link))
        });
        ClusterModel {
            links: links.collect(),
            workers: kept.iter().map(|i| self.workers[*i].clone()).collect(),
            driver: self.driver,
        }
    }

    /// Returns the numerics profile that all devices have; `None` where they differ.
    pub fn profile(&self) -> Option<&str> {
        let (first, others) = self.workers.split_first()?;
        let same = others.iter().all(|w| w.profile == first.profile);
        same.then_some(&*first.profile)
    }

    /// Returns whether a node computes the same bits inside a branch of control flow, which a worker's CPU runs, as
    /// outside of it, and not slower, on every worker.
    pub fn runs_branches_alike(&self) -> bool {
        let alike = |w: &WorkerModel| w.device.is_cpu() && &*w.profile == NUMERICS_PROFILE;
        self.workers.iter().all(alike)
    }

    /// Returns whether less than everything is free anywhere.
    pub fn is_taken(&self) -> bool {
        self.workers.iter().any(|w| w.free() < w.offered)
    }

    /// Returns the cluster as if no memory were taken.
    pub fn idle(&self) -> ClusterModel {
        let mut idle = self.clone();
        for worker in &mut idle.workers {
            (worker.memory, worker.budget) = (worker.offered, worker.offered);
            worker.constants = PresentConstants::default();
        }
        idle
    }

    /// Returns the cluster with what each worker has of the constants of `work`.
    pub fn for_work(&self, work: &Work) -> ClusterModel {
        let mut seen = self.clone();
        for worker in &mut seen.workers {
            worker.presence = Arc::new(Presence::new(work, &worker.constants));
        }
        seen
    }

    /// Sets the link from worker `from` to worker `to`.
    pub fn set_link(&mut self, from: usize, to: usize, link: LinkSpeed) {
        self.links.insert((from, to), link);
    }

    /// Returns the link from worker `from` to worker `to`.
    pub fn link(&self, from: usize, to: usize) -> LinkSpeed {
        self.links.get(&(from, to)).copied().unwrap_or(ASSUMED_LINK)
    }

    /// Returns the workers with these indices as a team.
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

/// The workers of a plan; `workers[i]` is participant `i`.
#[derive(Debug, Clone)]
pub struct Team {
    /// Index of each participant in [`ClusterModel::workers`].
    pub indices: Vec<usize>,
    pub workers: Vec<WorkerModel>,
    /// The links between participants, row-major: from × to.
    links: Vec<LinkSpeed>,
    pub driver: LinkSpeed,
}

impl Team {
    /// Number of participants.
    pub fn size(&self) -> usize {
        self.workers.len()
    }

    /// Returns the nanoseconds that `bytes` take from one participant to another; 0 from a participant to itself.
    pub fn transfer_ns(&self, from: usize, to: usize, bytes: u64) -> u64 {
        if from == to {
            0
        } else {
            self.link(from, to).transfer_ns(bytes)
        }
    }

    /// Returns the link between two participants.
    pub fn link(&self, from: usize, to: usize) -> LinkSpeed {
        self.links[from * self.workers.len() + to]
    }

    /// Predicts the nanoseconds of a node on a participant: its arithmetic or its memory traffic, whichever is slower.
    pub fn time_ns(&self, participant: usize, cost: &Cost) -> u64 {
        let w = &self.workers[participant];
        let seconds = (cost.flops / w.flops.max(1.0)).max(cost.bytes / w.memory_bandwidth.max(1.0));
        nanos(seconds).saturating_add(ProgramNode::OVERHEAD_NS)
    }
}

/// Converts seconds to nanoseconds. Saturates far below overflow, so that sums of absurd predictions stay ordered.
fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9).clamp(0.0, 1e15) as u64
}
