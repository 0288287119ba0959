//! Windows: runs of consecutive positions on one worker, and the memory that they need.
//!
//! Moving either end of a run costs the operands of the positions that it passes, so sliding a run over a graph
//! is linear.

use std::collections::VecDeque;

use crate::place::cluster::WorkerModel;
use crate::place::device_nodes::DeviceNodes;
use crate::place::memory::{MemoryModel, Need};
use crate::place::work::{NONE, Work};

/// How activations are charged to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// Charge everything that is live at its positions when the whole graph runs in order. This is never too little.
    Everything,
    /// Charge what its positions themselves read and write. This is never too much.
    OwnOperands,
}

/// The memory needs by which runs are measured; one per graph and charge.
pub struct Scale<'a> {
    pub work: &'a Work,
    /// The positions that runs run over.
    pub positions: Vec<u32>,
    /// For each position, the bytes of the activations of all steps in flight.
    steps: Vec<u64>,
    /// For each position, the bytes besides retained weights: those of the activations, or of the inputs of its weights
    /// while they load, whichever is more.
    slack: Vec<u64>,
}

impl<'a> Scale<'a> {
    /// Measures runs over `positions` with `in_flight` steps at once.
    pub fn new(work: &'a Work, positions: Vec<u32>, in_flight: u32, charge: Charge) -> Scale<'a> {
        let live = match charge {
            Charge::Everything => live_bytes(work),
            Charge::OwnOperands => own_bytes(work),
        };
        let all = |live: u64| live.saturating_mul(u64::from(in_flight.max(1)));
        let steps: Vec<u64> = live.into_iter().map(all).collect();
        let transient = transient_bytes(work);
        let slack = steps.iter().enumerate().map(|(p, steps)| {
            let weights = work.weights.row(p).iter();
            let loading = weights.map(|c| transient[*c as usize]).max();
            (*steps).max(loading.unwrap_or(0))
        });
        Scale {
            slack: slack.collect(),
            steps,
            work,
            positions,
        }
    }

    /// Returns the most bytes that any position needs besides weights.
    pub fn largest_slack(&self) -> u64 {
        self.slack.iter().max().copied().unwrap_or(0)
    }

    /// Returns how many workers of `memory` bytes each hold all positions; `None` if one position alone is too large.
    pub fn workers_of(&self, memory: u64) -> Option<u32> {
        let nothing = MemoryModel::default();
        let mut run = MemoryRun::new(self, &self.slack, &[], &nothing, None);
        let mut parts = 1;
        while run.end < self.positions.len() {
            run.grow();
            if run.bytes() > memory {
                let last = run.end - 1;
                while run.start < last {
                    run.shrink();
                }
                parts += 1;
                if run.bytes() > memory {
                    return None;
                }
            }
        }
        Some(parts)
    }
}

/// A run of positions, `start..end` in [`Scale::positions`], beside fixed positions of the same worker.
pub struct PositionRun<'a> {
    host: MemoryRun<'a>,
    /// The same run in the memory of a device that has its own.
    device: Option<MemoryRun<'a>>,
    pub start: usize,
}

impl<'a> PositionRun<'a> {
    /// Returns an empty run beside `fixed` positions of a worker.
    pub fn new(scale: &'a Scale<'a>, fixed: &[u32], worker: &'a WorkerModel) -> PositionRun<'a> {
        let device = worker.device_memory.as_ref();
        PositionRun {
            host: MemoryRun::new(scale, &scale.slack, fixed, &worker.host, None),
            device: device.map(|own| {
                let nodes = Some(&*worker.on_device);
                MemoryRun::new(scale, &scale.steps, fixed, own, nodes)
            }),
            start: 0,
        }
    }

    /// Adds the next position at the end.
    pub fn grow(&mut self) {
        self.host.grow();
        self.device.iter_mut().for_each(MemoryRun::grow);
    }

    /// Removes the first position.
    pub fn shrink(&mut self) {
        self.host.shrink();
        self.device.iter_mut().for_each(MemoryRun::shrink);
        self.start = self.host.start;
    }

    /// Returns whether the worker has the memory for the run and the fixed positions.
    pub fn fits(&self) -> bool {
        self.host.fits() && self.device.as_ref().is_none_or(MemoryRun::fits)
    }
}

/// A run of positions in one memory.
struct MemoryRun<'a> {
    scale: &'a Scale<'a>,
    /// By position, the bytes besides weights.
    slack: &'a [u64],
    memory: &'a MemoryModel,
    /// The nodes whose constants count, if not those of all nodes do.
    nodes: Option<&'a DeviceNodes>,
    start: usize,
    end: usize,
    /// How many positions of the run, and of the fixed ones, use this memory.
    users: usize,
    /// For each constant the number of positions of the run that read it.
    readers: Vec<u32>,
    weights: u64,
    /// Those of the weights that are there, and those that the client's token is charged for.
    present: u64,
    paid: u64,
    fixed_slack: u64,
    /// A monotonic queue of positions with falling slack: the front has the largest.
    largest: VecDeque<usize>,
}

impl<'a> MemoryRun<'a> {
    fn new(
        scale: &'a Scale<'a>,
        slack: &'a [u64],
        fixed: &[u32],
        memory: &'a MemoryModel,
        nodes: Option<&'a DeviceNodes>,
    ) -> MemoryRun<'a> {
        let mut run = MemoryRun {
            scale,
            slack,
            memory,
            nodes,
            start: 0,
            end: 0,
            users: 0,
            readers: vec![0; scale.work.const_value.len()],
            weights: 0,
            present: 0,
            paid: 0,
            fixed_slack: 0,
            largest: VecDeque::new(),
        };
        for p in fixed {
            run.add_position(*p as usize);
            run.fixed_slack = run.fixed_slack.max(slack[*p as usize]);
        }
        run
    }

    /// Returns whether a position uses this memory.
    fn uses(&self, position: usize) -> bool {
        self.nodes.is_none_or(|nodes| nodes.runs(position))
    }

    /// Returns the constants that a position keeps in this memory.
    fn kept(&self, position: usize) -> &'a [u32] {
        match self.uses(position) {
            true => self.scale.work.weights.row(position),
            false => &[],
        }
    }

    /// Returns the bytes of each constant in this memory.
    fn bytes_each(&self) -> &'a [u64] {
        let nodes = self.nodes.map(DeviceNodes::constant_bytes);
        nodes.unwrap_or(&self.scale.work.const_bytes)
    }

    fn add_position(&mut self, position: usize) {
        self.users += usize::from(self.uses(position));
        let (bytes, presence) = (self.bytes_each(), &self.memory.presence);
        for c in self.kept(position).iter().map(|c| *c as usize) {
            if self.readers[c] == 0 {
                let bytes = bytes[c];
                self.weights = self.weights.saturating_add(bytes);
                if presence.has(c) {
                    self.present = self.present.saturating_add(bytes);
                }
                if presence.is_paid(c) {
                    self.paid = self.paid.saturating_add(bytes);
                }
            }
            self.readers[c] += 1;
        }
    }

    fn slack_at(&self, index: usize) -> u64 {
        self.slack[self.scale.positions[index] as usize]
    }

    fn grow(&mut self) {
        self.add_position(self.scale.positions[self.end] as usize);
        while self
            .largest
            .back()
            .is_some_and(|i| self.slack_at(*i) <= self.slack_at(self.end))
        {
            self.largest.pop_back();
        }
        self.largest.push_back(self.end);
        self.end += 1;
    }

    fn shrink(&mut self) {
        let (bytes, presence) = (self.bytes_each(), &self.memory.presence);
        let position = self.scale.positions[self.start] as usize;
        self.users -= usize::from(self.uses(position));
        for c in self.kept(position).iter().map(|c| *c as usize) {
            self.readers[c] -= 1;
            if self.readers[c] == 0 {
                let bytes = bytes[c];
                self.weights -= bytes.min(self.weights);
                if presence.has(c) {
                    self.present -= bytes.min(self.present);
                }
                if presence.is_paid(c) {
                    self.paid -= bytes.min(self.paid);
                }
            }
        }
        if self.largest.front() == Some(&self.start) {
            self.largest.pop_front();
        }
        self.start += 1;
    }

    fn slack(&self) -> u64 {
        let slack = self.largest.front().map_or(0, |i| self.slack_at(*i));
        let unfilled = self.nodes.map_or(0, DeviceNodes::unfilled);
        slack.max(self.fixed_slack).saturating_add(unfilled)
    }

    /// Returns the bytes of the run and the fixed positions where none of the constants is there.
    fn bytes(&self) -> u64 {
        self.weights.saturating_add(self.slack())
    }

    fn fits(&self) -> bool {
        // A device that runs none of the positions reserves nothing.
        if self.users == 0 {
            return true;
        }
        let beyond =
            |present: u64| (self.weights - present.min(self.weights)).saturating_add(self.slack());
        self.memory.holds(&Need {
            memory: beyond(self.present),
            budget: beyond(self.paid),
        })
    }
}

fn own_bytes(work: &Work) -> Vec<u64> {
    let bytes = |flows: &[u32]| {
        flows
            .iter()
            .fold(0u64, |n, v| n.saturating_add(work.bound_bytes[*v as usize]))
    };
    let donated = |p| work.donor(p).map_or(0, |v| work.bound_bytes[v as usize]);
    (0..work.positions())
        .map(|p| bytes(work.reads.row(p)).saturating_add(bytes(work.writes.row(p))) - donated(p))
        .collect()
}

/// Returns the bytes that are live at each position when all positions run in order on one worker.
fn live_bytes(work: &Work) -> Vec<u64> {
    let mut change = vec![0i128; work.positions() + 1];
    for v in 0..work.flow_value.len() {
        let readers = work.readers.row(v);
        let from = if work.writer[v] == NONE {
            0
        } else {
            work.writer[v] as usize
        };
        let until = match (readers.last(), work.flow_is_result[v]) {
            (_, true) => work.positions(),
            (Some(last), _) => *last as usize + 1,
            (None, _) if work.writer[v] == NONE => continue,
            (None, _) => from + 1,
        };
        change[from] += i128::from(work.bound_bytes[v]);
        change[until] -= i128::from(work.bound_bytes[v]);
    }
    let mut live = 0i128;
    (0..work.positions())
        .map(|p| {
            live += change[p];
            u64::try_from(live).unwrap_or(u64::MAX)
        })
        .collect()
}

/// Returns for each constant the bytes of its inputs while it is computed.
fn transient_bytes(work: &Work) -> Vec<u64> {
    let mut transient = vec![0u64; work.const_value.len()];
    for i in 0..work.inits.len() {
        let reads = work.init_reads.row(i);
        let all = reads
            .iter()
            .fold(0u64, |n, c| n.saturating_add(work.const_bytes[*c as usize]));
        let before = reads
            .iter()
            .map(|c| transient[*c as usize])
            .max()
            .unwrap_or(0);
        for c in work.init_writes.row(i) {
            transient[*c as usize] = all.max(before);
        }
    }
    transient
}
