//! An installed program: its kernels are resolved, its constants in place, and its step part lowered.
//!
//! Invariant: an installed program is built once, from a checked program, and is immutable afterwards.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::error::{Code, Error, Result, Site};
use convoke_common::memory::Charge;
use convoke_graph::program::{NO_OPERAND, Program, ProgramNode};
use convoke_graph::{DType, Tensor, ops};

use crate::cpu::{self, Kernel};
use crate::device::{self, Device, DeviceTensor};
use crate::program::code::{InstrKind, LoweredProgram};

/// A program with all that its steps need, made by its install.
pub struct InstalledProgram {
    /// The program; where the worker's device runs some of it, with the nodes that copy values.
    pub program: Arc<Program>,
    /// The step part, lowered.
    pub code: LoweredProgram,
    /// Predicted time of a step. `None` for a program with a dynamic size, of which the prediction counts nothing, and
    /// for one with custom ops or loops.
    pub predicted: Option<PredictedTime>,
    /// Sends of values that outlive steps, as (send slot, tensor); every step begins with them.
    pub constant_sends: Vec<(u32, Tensor)>,
    /// By number of a constant, its copy on the worker's device, where device nodes read it.
    pub device_constants: Vec<Option<DeviceTensor>>,
    /// The charges of the lease's token for constants in the weight store. They must be dropped after the constants.
    pub charges: Vec<Charge>,
}

/// The predicted time of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PredictedTime {
    /// The time that all nodes take outside of their kernels.
    overhead: Duration,
    /// The time that the kernels take on all of the worker's threads.
    kernels: Duration,
}

impl PredictedTime {
    /// The time of `nodes` nodes whose costs, in nanoseconds, are `cost` together. Threads are nothing to kernels `on_device`.
    fn new(cost: u64, nodes: usize, on_device: bool) -> PredictedTime {
        let overhead = match on_device {
            true => cost,
            false => ProgramNode::OVERHEAD_NS.saturating_mul(nodes as u64),
        };
        PredictedTime {
            overhead: Duration::from_nanos(overhead.min(cost)),
            kernels: Duration::from_nanos(cost.saturating_sub(overhead)),
        }
    }

    /// The time on one of the worker's `threads` threads.
    pub fn alone(self, threads: usize) -> Duration {
        let threads = u32::try_from(threads).unwrap_or(u32::MAX);
        self.overhead
            .saturating_add(self.kernels.saturating_mul(threads))
    }
}

/// The place of a node, for errors.
pub fn site(node: &ProgramNode, operands: Vec<String>) -> Site {
    Site {
        node: Some(node.name.to_string()),
        op: Some(node.op.to_string()),
        operands,
        ..Site::default()
    }
}

/// Resolves the kernel of a node from its operands' declared dtypes.
pub fn kernel(program: &Program, node: &ProgramNode) -> Result<Arc<dyn Kernel>> {
    let dtypes: Vec<Option<DType>> = node
        .inputs
        .iter()
        .map(|v| (*v != NO_OPERAND).then(|| program.values[*v as usize].ty.dtype))
        .collect();
    cpu::resolve(&node.op, &node.attrs, &dtypes, node.outputs.len()).map_err(|e| {
        Error::new(Code::UnsupportedOp, e.to_string()).at(site(node, declared(program, node)))
    })
}

/// The declared types of a node's operands, for errors.
pub fn declared(program: &Program, node: &ProgramNode) -> Vec<String> {
    let operands = node.inputs.iter().filter(|v| **v != NO_OPERAND);
    operands
        .map(|v| program.values[*v as usize].ty.to_string())
        .collect()
}

impl InstalledProgram {
    /// Installs a checked program; `constants` are the values that its init part left, by value. The nodes that `device`
    /// has kernels for run there; their constants have yet to be copied.
    pub fn new(
        program: Arc<Program>,
        mut constants: Vec<Option<Tensor>>,
        device: Option<&dyn Device>,
    ) -> Result<InstalledProgram> {
        let outlive: Vec<bool> = constants.iter().map(Option::is_some).collect();
        let split = device.map(|device| device::split(&program, &outlive, device));
        let split = split.transpose()?.flatten();
        let (program, kinds, launched) = match split {
            Some(split) => (split.program, split.kinds, split.nodes),
            None => {
                let steps = &program.nodes[program.init_nodes as usize..];
                let kinds = steps.iter().map(InstrKind::on_host).collect();
                (program, kinds, vec![])
            }
        };
        constants.resize(program.values.len(), None);
        let steps = &program.nodes[program.init_nodes as usize..];
        let kernels: Vec<Arc<dyn Kernel>> = steps
            .iter()
            .map(|n| kernel(&program, n))
            .collect::<Result<_>>()?;
        let sends = program.sends.iter().enumerate();
        let constant_sends = sends
            .filter_map(|(i, s)| Some((i as u32, constants[s.value as usize].clone()?)))
            .collect();
        let cost = steps.iter().try_fold(0u64, |sum, n| {
            // The time of a loop depends on its data.
            let known = n.cost > 0 && n.attrs.functions().next().is_none();
            sum.checked_add(n.cost).filter(|_| known)
        });
        // The time of a custom op is unknown.
        let known = !steps.iter().any(|n| ops::is_custom(&n.op));
        let mut code = LoweredProgram::new(&program, &constants, &kernels, kinds)?;
        code.device = launched;
        let made = steps.iter().flat_map(|n| &n.outputs);
        let mut dims = made.flat_map(|v| &program.values[*v as usize].ty.shape);
        Ok(InstalledProgram {
            predicted: cost
                .filter(|_| known && dims.all(|d| d.as_const().is_some()))
                .map(|cost| PredictedTime::new(cost, steps.len(), code.uses_device())),
            code,
            device_constants: vec![],
            constant_sends,
            charges: vec![],
            program,
        })
    }

    /// Bytes of the constants that others use as well.
    pub fn shared_bytes(&self) -> u64 {
        let all = self.charges.iter().map(Charge::reservation);
        let shared = all.filter(|reservation| reservation.users() > 1);
        shared.map(|reservation| reservation.bytes()).sum()
    }

    /// The nodes of the step part.
    pub fn nodes(&self) -> &[ProgramNode] {
        &self.program.nodes[self.program.init_nodes as usize..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_takes_as_long_as_all_together() {
        let check = |cost, nodes, on_device, threads, want| {
            let alone = PredictedTime::new(cost, nodes, on_device).alone(threads);
            assert_eq!(alone, Duration::from_nanos(want));
        };
        check(7_000, 3, false, 1, 7_000);
        check(7_000, 3, false, 4, 3_000 + 4 * 4_000);
        check(7_000, 3, true, 4, 7_000);
        check(2_000, 3, false, 4, 2_000);
    }
}
