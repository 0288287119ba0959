//! A program lowered for this machine: flat arrays in the order in which a step reads them.
//!
//! ```text
//! nodes ─ order by priority ─ regions by what they wait for ─ chains fused ─ registers ─> instructions
//!
//! region          instructions first..end, run one after the other, once `missing` values are there
//! instruction     kernel, operands (slots), results (values and registers), ends (registers whose tensor goes)
//! value           waits[v] = regions that wait for it     sends[v] = send slots that carry it
//! ```
//! Values that one region makes and reads have registers of its own, used again and again. Values that several regions read
//! are counted: the last of them to have read one lets it go.
//!
//! Invariants
//! 1. Made once, from a checked program; immutable afterwards.
//! 2. A constant is in no register. A register's tensor goes with its last reader.
//! 3. No value changes in any bit by what is fused, or by the order.

mod assemble;
mod fusion;
mod graph;
mod regions;
mod schedule;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use convoke_common::Tensor;
use convoke_common::error::{Code, Error, Result};
use convoke_common::ops::ConcreteOutputs;
use convoke_common::program::Program;

use crate::cpu::{Kernel, MOST_SLOTS, Slot};
use crate::executor::HandleOp;
use crate::installed::Csr;
use graph::Graph;

/// No register, or no count.
pub const NONE: u32 = u32::MAX;

/// What an instruction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstrKind {
    /// Launches its kernel.
    Kernel,
    /// Something about a handle.
    Handle(HandleOp),
}

/// One instruction. What belongs to it in the arrays reaches up to where the next one's begins.
#[derive(Debug, Clone, Copy)]
pub struct Instr {
    /// The first of its step nodes.
    pub node: u32,
    kernel: u32,
    /// Of its results; [`NONE`] where they are not known.
    sizes: u32,
    operands: u32,
    results: u32,
    ends: u32,
    members: u32,
    pub kind: InstrKind,
    /// Whether anything but its own region waits for a result.
    pub crosses: bool,
}

/// A result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    pub value: u32,
    /// Where it is kept; [`NONE`] where no instruction reads it.
    pub register: u32,
}

/// A register whose tensor goes once an instruction has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub register: u32,
    /// What counts the regions that have yet to read it; [`NONE`] where there is only this one.
    pub count: u32,
}

/// Instructions that run in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    pub first: u32,
    pub end: u32,
}

/// See the module.
pub struct Lowered {
    instrs: Vec<Instr>,
    /// Each once, so that instructions that do the same find it in the cache.
    kernels: Vec<Arc<dyn Kernel>>,
    /// Dtypes and shapes of results, each once.
    sizes: Vec<ConcreteOutputs>,
    priorities: Vec<u64>,
    operands: Vec<Slot>,
    results: Vec<Made>,
    ends: Vec<End>,
    members: Vec<u32>,
    pub regions: Vec<Region>,
    /// Of each region, the values that it waits for.
    pub missing: Vec<u32>,
    /// Regions that wait for a value.
    pub waits: Csr,
    /// Send slots that carry a value.
    pub sends: Csr,
    /// By value, where one that arrives is kept.
    homes: Vec<u32>,
    /// Regions that read each counted value.
    pub counts: Vec<u32>,
    pub constants: Vec<Tensor>,
    pub registers: usize,
    /// What ends in a step: instructions, and tensors that arrive.
    pub events: usize,
}

impl Lowered {
    /// Lowers the step part of a checked program. `constants` are the values that outlive steps, `kernels` those of its step
    /// nodes.
    pub fn new(
        program: &Program,
        constants: &[Option<Tensor>],
        kernels: &[Arc<dyn Kernel>],
    ) -> Result<Lowered> {
        if program.values.len() >= MOST_SLOTS {
            let msg = format!("a program of {} values", program.values.len());
            return Err(Error::new(Code::ProtocolViolation, msg));
        }
        let mut graph = Graph::new(program, constants);
        let regions = graph.units(kernels);
        Ok(assemble::code(&graph, regions))
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

    /// Where instruction `i` has its operands.
    #[inline]
    pub fn operands(&self, i: u32) -> &[Slot] {
        &self.operands[self.span(i, |i| i.operands)]
    }

    /// What it makes.
    #[inline]
    pub fn results(&self, i: u32) -> &[Made] {
        &self.results[self.span(i, |i| i.results)]
    }

    /// Whose last reader it is.
    #[inline]
    pub fn ends(&self, i: u32) -> &[End] {
        &self.ends[self.span(i, |i| i.ends)]
    }

    /// The step nodes that it is, in order.
    #[inline]
    pub fn members(&self, i: u32) -> &[u32] {
        &self.members[self.span(i, |i| i.members)]
    }

    /// Its kernel.
    #[inline]
    pub fn kernel(&self, i: u32) -> &Arc<dyn Kernel> {
        &self.kernels[self.instr(i).kernel as usize]
    }

    /// Its kernel, to be wrapped into another.
    #[doc(hidden)]
    pub fn kernels_mut(&mut self) -> &mut [Arc<dyn Kernel>] {
        &mut self.kernels
    }

    /// Sizes of its results, where they never change.
    #[inline]
    pub fn sizes(&self, i: u32) -> Option<&ConcreteOutputs> {
        self.sizes.get(self.instr(i).sizes as usize)
    }

    /// How urgent it is.
    #[inline]
    pub fn priority(&self, i: u32) -> u64 {
        self.priorities[i as usize]
    }

    /// Where a value that arrives is kept; none where no instruction reads it.
    #[inline]
    pub fn home(&self, value: u32) -> Option<u32> {
        self.homes
            .get(value as usize)
            .copied()
            .filter(|r| *r != NONE)
    }
}
