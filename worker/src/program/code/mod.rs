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
mod instr;
mod lowered;
mod schedule;
mod sequences;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use convoke_common::error::{Code, Error, Result};
use convoke_graph::Tensor;
use convoke_graph::program::Program;

use self::graph::Graph;
pub use self::graph::InputAssumption;
pub use self::instr::{
    DeviceInstr, End, HandleAccess, Instr, InstrKind, NONE, ResultRegister, Sequence,
};
pub use self::lowered::LoweredProgram;
use crate::cpu::{Kernel, MOST_SLOTS};

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
}
