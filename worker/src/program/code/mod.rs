//! A program lowered for this machine: flat arrays in the order in which a step reads them.
//!
//! ```text
//! nodes ─ order by priority ─ sequences by what they wait for ─ chains fused ─ registers ─> instructions
//!
//! sequence        instructions first..end, run one after the other, once `missing` values are there
//! instruction     kernel, operands (slots), results (values and registers), ends (registers whose tensor goes)
//! value           waits[v] = sequences that wait for it     sends[v] = send slots that carry it
//! ```
//! A value that is made and read in one sequence has a register of that sequence, which later values use again. A value
//! that several sequences read is counted: the last sequence to have read it frees it.
//!
//! Invariants
//! 1. Code is made once, from a checked program, and is immutable afterwards.
//! 2. A constant is in no register. A register's tensor is freed after its last reader.
//! 3. Neither fusion nor the order of nodes changes any bit of a value.

mod assemble;
mod fusion;
mod graph;
mod schedule;
mod sequences;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use convoke_common::error::{Code, Error, Result};
use convoke_graph::Tensor;
use convoke_graph::ops::ConcreteOutputs;
use convoke_graph::program::{PARTITIONED, Program, ProgramNode};

use crate::cpu::{Kernel, MOST_SLOTS, OperandPlace, OperandRef};
use crate::device::DeviceNode;
use crate::executor::HandleAccess;
use crate::program::installed::Csr;
use graph::Graph;

/// Stands for no register, no counter, no kernel, or no sizes.
pub const NONE: u32 = u32::MAX;

/// The kinds of instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstrKind {
    /// The instruction launches its kernel.
    Kernel,
    /// The instruction reads or fills a handle of the caller.
    Handle(HandleAccess),
    /// The instruction concerns the worker's device.
    Device(DeviceInstr),
    /// The instruction drives partitioned bodies, whose results arrive later.
    Partitioned,
}

impl InstrKind {
    /// The kind of a node that no device runs.
    pub fn on_host(node: &ProgramNode) -> InstrKind {
        match HandleAccess::of(node) {
            Some(access) => InstrKind::Handle(access),
            None if node.attrs.get(PARTITIONED).is_some() => InstrKind::Partitioned,
            None => InstrKind::Kernel,
        }
    }
}

/// The instructions that concern a device with memory of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceInstr {
    /// Launches the device node of this number.
    Launch(u32),
    /// Copies a host tensor to the device.
    CopyIn,
    /// Copies a device tensor to the host, where it arrives later.
    CopyOut,
    /// Gives the shape of a device tensor, or the number of its elements, as a host tensor.
    Shape,
}

/// What lowering may assume about the tensors that a program gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputAssumption {
    /// They arrive one by one, with the types that are declared.
    OneByOne,
    /// All are there before the first node runs, with the types that are declared.
    Together,
    /// All are there before the first node runs, with the dtypes that are declared.
    Untyped,
}

/// One instruction. Its entries in the arrays of [`LoweredProgram`] reach from its indices to those of the next instruction.
#[derive(Debug, Clone, Copy)]
pub struct Instr {
    /// The first of the step nodes that the instruction computes.
    pub node: u32,
    kernel: u32,
    /// The index of the results' sizes; [`NONE`] where they are not known.
    sizes: u32,
    operands: u32,
    results: u32,
    ends: u32,
    members: u32,
    pub kind: InstrKind,
    /// Whether a result is sent, or another sequence waits for it.
    pub crosses: bool,
}

/// A result of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultRegister {
    pub value: u32,
    /// The register that keeps the result; [`NONE`] where no instruction reads it.
    pub register: u32,
}

/// A register whose tensor is freed once an instruction has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub register: u32,
    /// The counter of the sequences that have yet to read the register; [`NONE`] where only this sequence reads it.
    pub count: u32,
}

/// Instructions that run one after the other without waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    pub first: u32,
    pub end: u32,
}

/// The lowered step part of a program.
pub struct LoweredProgram {
    instrs: Vec<Instr>,
    /// The kernels, each once, so that instructions that do the same find it in the processor's cache.
    kernels: Vec<Arc<dyn Kernel>>,
    /// The dtypes and shapes of results that never change, each once.
    sizes: Vec<ConcreteOutputs>,
    priorities: Vec<u64>,
    operands: Vec<OperandRef>,
    results: Vec<ResultRegister>,
    /// The instructions whose results arrive later, with each of these values, in the order of the instructions.
    later: Vec<(u32, u32)>,
    ends: Vec<End>,
    members: Vec<u32>,
    pub sequences: Vec<Sequence>,
    /// By sequence, the number of values that it waits for.
    pub missing: Vec<u32>,
    /// By value, the sequences that wait for it.
    pub waits: Csr,
    /// By value, the send slots that carry it.
    pub sends: Csr,
    /// By value, the register of a tensor that arrives.
    homes: Vec<u32>,
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
    /// Lowers the step part of a checked program. `constants` are the values that outlive steps, by value; `kernels`
    /// are those of the step nodes, and `kinds` says where each of them runs.
    pub fn new(
        program: &Program,
        constants: &[Option<Tensor>],
        kernels: &[Arc<dyn Kernel>],
        kinds: Vec<InstrKind>,
    ) -> Result<LoweredProgram> {
        if program.values.len() >= MOST_SLOTS {
            let msg = format!("a program of {} values", program.values.len());
            return Err(Error::new(Code::ProtocolViolation, msg));
        }
        let mut graph = Graph::new(program, constants, kinds, InputAssumption::OneByOne);
        let sequences = graph.units(kernels);
        Ok(assemble::code(&graph, sequences))
    }

    /// Lowers a function that an op runs, as a program whose recv slots are the parameters and whose send slots are the
    /// results. All nodes form one sequence.
    pub fn of_function(
        program: &Program,
        constants: &[Option<Tensor>],
        kernels: &[Arc<dyn Kernel>],
        given: InputAssumption,
    ) -> LoweredProgram {
        let kinds = vec![InstrKind::Kernel; program.nodes.len()];
        let mut graph = Graph::new(program, constants, kinds, given);
        let sequences = graph.units(kernels);
        assemble::code(&graph, sequences)
    }

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
