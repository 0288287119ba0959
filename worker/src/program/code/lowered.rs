//! The lowered step part of a program, as the executor reads it.

use std::sync::Arc;

use convoke_graph::Tensor;
use convoke_graph::csr::Csr;
use convoke_graph::ops::ConcreteOutputs;

use super::instr::{DeviceInstr, End, Instr, InstrKind, NONE, ResultRegister, Sequence};
use crate::cpu::{Kernel, OperandPlace, OperandRef};
use crate::device::DeviceNode;

/// The lowered step part of a program.
pub struct LoweredProgram {
    pub(super) instrs: Vec<Instr>,
    /// The kernels, each once, so that instructions that do the same find it in the processor's cache.
    pub(super) kernels: Vec<Arc<dyn Kernel>>,
    /// The dtypes and shapes of results that never change, each once.
    pub(super) sizes: Vec<ConcreteOutputs>,
    pub(super) priorities: Vec<u64>,
    pub(super) operands: Vec<OperandRef>,
    pub(super) results: Vec<ResultRegister>,
    /// The instructions whose results arrive later, with each of these values, in the order of the instructions.
    pub(super) later: Vec<(u32, u32)>,
    pub(super) ends: Vec<End>,
    pub(super) members: Vec<u32>,
    pub sequences: Vec<Sequence>,
    /// By sequence, the number of values that it waits for.
    pub missing: Vec<u32>,
    /// By value, the sequences that wait for it.
    pub waits: Csr,
    /// By value, the send slots that carry it.
    pub sends: Csr,
    /// By value, the register of a tensor that arrives.
    pub(super) homes: Vec<u32>,
    /// By counter, the number of sequences that read its value.
    pub counts: Vec<u32>,
    pub constants: Vec<Tensor>,
    /// The nodes that the worker's device runs, as [`DeviceInstr::Launch`] numbers them.
    pub device: Vec<DeviceNode>,
    pub registers: usize,
    /// Number of a step's instructions and arriving tensors; the step is over once all of them have ended.
    pub events: usize,
}

impl LoweredProgram {
    /// Whether the worker's device runs any of the nodes.
    #[inline]
    pub fn uses_device(&self) -> bool {
        !self.device.is_empty()
    }

    /// The constants that device nodes read on the device, by number, in ascending order.
    pub fn constants_on_device(&self) -> Vec<u32> {
        let instrs = 0..self.instrs.len().saturating_sub(1) as u32;
        let mut read: Vec<u32> = instrs
            .flat_map(|i| {
                let host = match self.instr(i).kind {
                    InstrKind::Device(DeviceInstr::Launch(at)) => {
                        Some(&self.device[at as usize].host)
                    }
                    _ => None,
                };
                let operands = self.operands(i).iter().enumerate();
                operands.filter_map(move |(o, slot)| match slot.place() {
                    OperandPlace::Constant(c) if !*host?.get(o)? => Some(c),
                    _ => None,
                })
            })
            .collect();
        read.sort_unstable();
        read.dedup();
        read
    }

    /// Instruction `i`.
    #[inline]
    pub fn instr(&self, i: u32) -> &Instr {
        &self.instrs[i as usize]
    }

    #[inline]
    fn span(&self, i: u32, of: impl Fn(&Instr) -> u32) -> std::ops::Range<usize> {
        let i = i as usize;
        of(&self.instrs[i]) as usize..of(&self.instrs[i + 1]) as usize
    }

    /// The places of instruction `i`'s operands.
    #[inline]
    pub fn operands(&self, i: u32) -> &[OperandRef] {
        &self.operands[self.span(i, |i| i.operands)]
    }

    /// The results of instruction `i`.
    #[inline]
    pub fn results(&self, i: u32) -> &[ResultRegister] {
        &self.results[self.span(i, |i| i.results)]
    }

    /// Instruction `i` with each value that arrives some time after it has run.
    pub fn later(&self, i: u32) -> &[(u32, u32)] {
        let first = self.later.partition_point(|(instr, _)| *instr < i);
        let end = self.later.partition_point(|(instr, _)| *instr <= i);
        &self.later[first..end]
    }

    /// The registers that instruction `i` reads last; their tensors are freed after it.
    #[inline]
    pub fn ends(&self, i: u32) -> &[End] {
        &self.ends[self.span(i, |i| i.ends)]
    }

    /// The step nodes that instruction `i` computes, in order.
    #[inline]
    pub fn members(&self, i: u32) -> &[u32] {
        &self.members[self.span(i, |i| i.members)]
    }

    /// The kernel of instruction `i`.
    #[inline]
    pub fn kernel(&self, i: u32) -> &Arc<dyn Kernel> {
        &self.kernels[self.instr(i).kernel as usize]
    }

    /// All kernels, so that a test can wrap them.
    #[doc(hidden)]
    pub fn kernels_mut(&mut self) -> &mut [Arc<dyn Kernel>] {
        &mut self.kernels
    }

    /// The sizes of instruction `i`'s results, if they never change.
    #[inline]
    pub fn sizes(&self, i: u32) -> Option<&ConcreteOutputs> {
        self.sizes.get(self.instr(i).sizes as usize)
    }

    /// The priority of instruction `i`; higher ones run first.
    #[inline]
    pub fn priority(&self, i: u32) -> u64 {
        self.priorities[i as usize]
    }

    /// The register of a value that arrives; `None` where no instruction reads it.
    #[inline]
    pub fn home(&self, value: u32) -> Option<u32> {
        self.homes
            .get(value as usize)
            .copied()
            .filter(|r| *r != NONE)
    }
}
