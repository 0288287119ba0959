//! The cluster as placement sees it: what each worker offers, and the speed of the links.

use std::collections::BTreeMap;
use std::sync::Arc;

use convoke_common::device_spec::DeviceId;
use convoke_common::ids::Incarnation;
use convoke_common::memory::SharedBlocks;
use convoke_common::rpc::{Speed, WorkerKernels};
use convoke_graph::graph::Function;
use convoke_graph::ops::{Cost, CustomOp, KernelSet};
use convoke_graph::program::{NUMERICS_PROFILE, ProgramNode};

use super::device_nodes::DeviceNodes;
use super::memory::{MemoryModel, Presence, Usage};
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
    /// The memory of the worker's host.
    pub host: MemoryModel,
    /// The memory of its device; `None` where the device is the host itself.
    pub device_memory: Option<MemoryModel>,
    /// Bytes that the worker reserves for weights while they are loaded.
    pub load_buffer: u64,
    /// The measured speed of the host, and of the device.
    pub host_speed: Speed,
    pub device_speed: Speed,
    /// The ops of the registry that the worker has kernels for.
    pub kernels: Arc<WorkerKernels>,
    /// How small constants share blocks of the device's own memory.
    pub device_blocks: SharedBlocks,
    /// The nodes of the function that is placed which the device runs; see [`ClusterModel::for_work`].
    pub on_device: Arc<DeviceNodes>,
    /// The custom ops that the worker has kernels for.
    pub ops: Vec<CustomOp>,
}

impl WorkerModel {
    /// Returns an idle worker `wN` whose device is its host, with this much memory.
    pub fn cpu(number: u64, memory: u64, speed: Speed) -> WorkerModel {
        let all = WorkerKernels {
            host: KernelSet::all(),
            device: KernelSet::all(),
        };
        WorkerModel {
            name: format!("w{number}"),
            address: format!("10.0.0.{number}:7000"),
            incarnation: Incarnation(number),
            device: DeviceId::default(),
            profile: NUMERICS_PROFILE.into(),
            threads: 1,
            host: MemoryModel::idle(memory),
            device_memory: None,
            load_buffer: 0,
            host_speed: speed,
            device_speed: speed,
            kernels: Arc::new(all),
            device_blocks: SharedBlocks::default(),
            on_device: Arc::default(),
            ops: vec![],
        }
    }

    /// Predicts the nanoseconds of a position: its arithmetic or its memory traffic, whichever is slower, on the device or
    /// on the host, whichever runs it.
    pub fn time_ns(&self, work: &Work, position: usize) -> u64 {
        let speed = match self.on_device.runs(position) {
            true => &self.device_speed,
            false => &self.host_speed,
        };
        nanos(seconds(speed, &work.cost[position])).saturating_add(ProgramNode::OVERHEAD_NS)
    }

    /// Predicts the nanoseconds of an init node, which the host runs.
    pub fn init_ns(&self, cost: &Cost) -> u64 {
        nanos(seconds(&self.host_speed, cost)).saturating_add(ProgramNode::OVERHEAD_NS)
    }

    /// Predicts the nanoseconds of work as large as that of a whole function, whose cost is `all`.
    pub fn total_ns(&self, all: &Cost) -> u64 {
        let host = self.on_device.on_host();
        let device = Cost {
            flops: all.flops - host.flops,
            bytes: all.bytes - host.bytes,
        };
        nanos(seconds(&self.device_speed, &device) + seconds(&self.host_speed, host))
    }

    /// Returns the memories of the worker: that of its host, and that of a device which has one of its own.
    pub fn memories(&self) -> impl Iterator<Item = &MemoryModel> {
        std::iter::once(&self.host).chain(&self.device_memory)
    }

    /// Returns the memories of the worker, to change them.
    pub fn memories_mut(&mut self) -> impl Iterator<Item = &mut MemoryModel> {
        std::iter::once(&mut self.host).chain(&mut self.device_memory)
    }

    /// Returns the bytes that are free for the client in the memory that has the least.
    pub fn free(&self) -> u64 {
        self.memories().map(MemoryModel::usable).min().unwrap_or(0)
    }

    /// Returns the bytes that the client could use of the memory that offers the least, if nothing were taken.
    pub fn offered(&self) -> u64 {
        self.memories().map(|m| m.offered).min().unwrap_or(0)
    }

    /// Returns the most bytes that a part of the function may take in each of the memories, with the constants that are
    /// there.
    pub fn reach(&self) -> u64 {
        self.memories().map(MemoryModel::reach).min().unwrap_or(0)
    }

    /// Returns whether the device has a memory of its own, and less of it is free than of the host.
    pub fn is_short_of_device_memory(&self) -> bool {
        let own = self.device_memory.as_ref();
        own.is_some_and(|own| own.usable() < self.host.usable())
    }

    /// Returns the most bytes of a block that small constants share in the memory that is short, if they share any.
    pub fn unfilled(&self) -> u64 {
        match self.is_short_of_device_memory() {
            true => self.device_blocks.unfilled(),
            false => 0,
        }
    }

    /// Returns whether the memory for this part is free for the client.
    pub fn holds(&self, usage: &Usage) -> bool {
        let needs = [&usage.beyond, &usage.device.beyond];
        self.memories().zip(needs).all(|(m, need)| m.holds(need))
    }
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
        let memories = self.workers.iter().flat_map(WorkerModel::memories);
        memories.into_iter().any(|m| m.usable() < m.offered)
    }

    /// Returns the cluster as if no memory were taken.
    pub fn idle(&self) -> ClusterModel {
        let mut idle = self.clone();
        for memory in idle.workers.iter_mut().flat_map(WorkerModel::memories_mut) {
            *memory = MemoryModel::idle(memory.offered);
        }
        idle
    }

    /// Returns the cluster with `bytes` free in each memory, and no constants there.
    pub fn with_memory(&self, bytes: u64) -> ClusterModel {
        let mut other = self.clone();
        for memory in other.workers.iter_mut().flat_map(WorkerModel::memories_mut) {
            *memory = MemoryModel::idle(bytes);
        }
        other
    }

    /// Returns the cluster as a body of control flow sees it, which workers run on their hosts.
    pub fn hosts(&self) -> ClusterModel {
        let mut hosts = self.clone();
        for worker in &mut hosts.workers {
            worker.device_memory = None;
            worker.device_speed = worker.host_speed;
        }
        hosts
    }

    /// Returns the cluster with what each worker has of the constants of `f`, and which of its nodes each device runs.
    pub fn for_work(&self, f: &Function, work: &Work) -> ClusterModel {
        let mut seen = self.clone();
        let all = Arc::<DeviceNodes>::default();
        let mut known: Vec<(Arc<WorkerKernels>, SharedBlocks, Arc<DeviceNodes>)> = vec![];
        for worker in &mut seen.workers {
            if worker.device_memory.is_none() {
                // The device is the host itself.
                worker.on_device = all.clone();
                continue;
            }
            let (kernels, blocks) = (&worker.kernels, worker.device_blocks);
            let same = known
                .iter()
                .find(|(of, b, _)| of.device == kernels.device && *b == blocks);
            worker.on_device = match same {
                Some((_, _, nodes)) => nodes.clone(),
                None => {
                    let nodes = Arc::new(DeviceNodes::new(f, work, &kernels.device, blocks));
                    known.push((kernels.clone(), blocks, nodes.clone()));
                    nodes
                }
            };
        }
        for worker in &mut seen.workers {
            let host = &mut worker.host;
            host.presence = Arc::new(Presence::new(work, &work.const_bytes, &host.constants));
            if let Some(own) = &mut worker.device_memory {
                let bytes = worker.on_device.constant_bytes();
                own.presence = Arc::new(Presence::new(work, bytes, &own.constants));
            }
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

    /// Predicts the nanoseconds of a position on a participant.
    pub fn time_ns(&self, participant: usize, work: &Work, position: usize) -> u64 {
        self.workers[participant].time_ns(work, position)
    }
}

/// Predicts the seconds of work: its arithmetic or its memory traffic, whichever is slower.
fn seconds(speed: &Speed, cost: &Cost) -> f64 {
    let arithmetic = cost.flops / speed.flops.max(1.0);
    arithmetic.max(cost.bytes / speed.memory_bandwidth.max(1.0))
}

/// Converts seconds to nanoseconds. Saturates far below overflow, so that sums of absurd predictions stay ordered.
fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9).clamp(0.0, 1e15) as u64
}
