//! This module decides which nodes of a function run on a worker's device and which run on its host, and counts the bytes
//! that constants take on each.
//!
//! A worker divides its program at install, and asks the device for each kernel. The set that the device registered is
//! coarser ([`KernelSet`]): nodes that it has may still run on the host, and others never run on the device. So memory
//! that is predicted for the device is never too little.

use convoke_common::memory::SharedBlocks;
use convoke_graph::DType;
use convoke_graph::graph::{Function, Node};
use convoke_graph::ops::{self, Cost, KernelSet, Op};

use super::work::Work;

/// The positions that a device runs. The default is that it runs all of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceNodes {
    /// By position; empty where the device runs all.
    runs: Vec<bool>,
    /// The cost of the positions that it does not run.
    on_host: Cost,
    /// The most bytes that each constant takes in the memory of the device.
    constant_bytes: Vec<u64>,
    /// The most bytes that constants take beside these.
    unfilled: u64,
}

impl DeviceNodes {
    /// Finds the positions of `f` whose ops `kernels`, the set of a device with memory of its own, has. Its small
    /// constants share `blocks`.
    pub fn new(
        f: &Function,
        work: &Work,
        kernels: &KernelSet,
        blocks: SharedBlocks,
    ) -> DeviceNodes {
        let steps = work.steps.iter();
        let runs = steps.map(|i| runs(f, &f.nodes[*i as usize], kernels));
        let runs: Vec<bool> = runs.collect();
        let mut on_host = Cost::default();
        for (cost, _) in work.cost.iter().zip(&runs).filter(|(_, runs)| !**runs) {
            on_host.flops += cost.flops;
            on_host.bytes += cost.bytes;
        }
        let each = work.const_bytes.iter();
        DeviceNodes {
            runs,
            on_host,
            constant_bytes: each.map(|bytes| blocks.bytes_of(*bytes)).collect(),
            unfilled: blocks.unfilled(),
        }
    }

    /// Returns whether the device runs a position.
    pub fn runs(&self, position: usize) -> bool {
        self.runs.get(position).is_none_or(|runs| *runs)
    }

    /// Returns the most bytes that each constant takes on the device.
    pub fn constant_bytes(&self) -> &[u64] {
        &self.constant_bytes
    }

    /// Returns the most bytes that constants take there beside these.
    pub fn unfilled(&self) -> u64 {
        self.unfilled
    }

    /// Returns the cost of the positions that the device does not run.
    pub fn on_host(&self) -> &Cost {
        &self.on_host
    }
}

/// Returns the dtype by which a set of kernels knows a node: that of its first operand.
pub fn first_dtype(f: &Function, node: &Node) -> Option<DType> {
    let first = node.inputs.iter().flatten().next();
    first.map(|v| f.ty(*v).dtype)
}

/// Returns whether a device with these kernels runs a node. Control flow, handles, custom ops, strings, and results whose
/// size data decides are the host's, as in `worker::device::split`.
fn runs(f: &Function, node: &Node, kernels: &KernelSet) -> bool {
    let Some(def) = ops::lookup(&node.op) else {
        return false;
    };
    let mut values = node.inputs.iter().flatten().chain(&node.outputs);
    !matches!(def.op, Op::Control(_) | Op::Handle(_) | Op::Custom)
        && !def.sized_by_data
        && !values.any(|v| f.ty(*v).dtype == DType::Str)
        && kernels.contains(&node.op, first_dtype(f, node))
}
