//! From units to instructions: assigns registers, finds last readers, and records which sequences wait for what.

use std::collections::HashMap;

use convoke_graph::csr::Csr;
use convoke_graph::ops::ConcreteOutputs;
use convoke_graph::program::NO_OPERAND;

use super::graph::{Graph, SameKernel, Unit};
use super::instr::{End, Instr, InstrKind, NONE, ResultRegister, Sequence};
use super::lowered::LoweredProgram;
use crate::cpu::{OperandPlace, OperandRef};

/// Stands for the sequence of a value that no sequence makes.
const OUTSIDE: u32 = u32::MAX;
/// Stands for the read count of a value whose end in the current unit is noted already.
const ENDED: u32 = u32::MAX;

/// Facts about the values, collected before any instruction is written.
struct Values {
    /// By value, the sequence that makes it, or [`OUTSIDE`].
    made_in: Vec<u32>,
    /// By value, the number of sequences that read it.
    readers: Vec<u32>,
    /// The waits as (value, sequence).
    waits: Vec<(u32, u32)>,
    /// By sequence, the number of values that it waits for.
    missing: Vec<u32>,
}

impl Values {
    fn new(graph: &Graph<'_>, sequences: &[Vec<Unit>]) -> Values {
        let values = graph.program.values.len();
        let mut all = Values {
            made_in: vec![OUTSIDE; values],
            readers: vec![0; values],
            waits: vec![],
            missing: vec![0; sequences.len()],
        };
        for (r, units) in sequences.iter().enumerate() {
            for v in units.iter().flat_map(|u| &u.results) {
                all.made_in[*v as usize] = r as u32;
            }
        }
        let mut reader = vec![OUTSIDE; values];
        for (r, units) in sequences.iter().enumerate() {
            let r = r as u32;
            for v in units.iter().flat_map(|u| &u.operands) {
                let i = *v as usize;
                if *v == NO_OPERAND || graph.is_constant(*v) || reader[i] == r {
                    continue;
                }
                reader[i] = r;
                all.readers[i] += 1;
                if all.made_in[i] != r {
                    all.waits.push((*v, r));
                    all.missing[r as usize] += 1;
                }
            }
        }
        all
    }
}

/// The code that is being written, with facts about its values.
struct Writer<'a> {
    graph: &'a Graph<'a>,
    values: Values,
    code: LoweredProgram,
    /// By value, its register and, where several sequences read it, its counter.
    registers: Vec<u32>,
    counted: Vec<u32>,
    constants: Vec<u32>,
    /// By value, the last unit of the current sequence that reads it.
    last: Vec<u32>,
    /// By value, how often the current unit reads it.
    reads: Vec<u32>,
    kernels: HashMap<SameKernel, u32>,
    sizes: HashMap<ConcreteOutputs, u32>,
}

/// Writes the units of all sequences, one sequence after the other.
pub(super) fn code(graph: &Graph<'_>, sequences: Vec<Vec<Unit>>) -> LoweredProgram {
    let program = graph.program;
    let values = Values::new(graph, &sequences);
    let sends = program.sends.iter().enumerate();
    let sends: Vec<(u32, u32)> = sends.map(|(i, s)| (s.value, i as u32)).collect();
    let count = program.values.len();
    let units: usize = sequences.iter().map(Vec::len).sum();
    let code = LoweredProgram {
        instrs: Vec::with_capacity(units + 1),
        kernels: vec![],
        sizes: vec![],
        priorities: Vec::with_capacity(units),
        operands: vec![],
        results: vec![],
        later: vec![],
        ends: vec![],
        members: vec![],
        sequences: Vec::with_capacity(sequences.len()),
        missing: values.missing.clone(),
        waits: Csr::group(count, &values.waits),
        sends: Csr::group(count, &sends),
        homes: vec![NONE; count],
        counts: vec![],
        constants: vec![],
        device: vec![],
        registers: 0,
        events: units + graph.arrivals().count(),
    };
    let mut w = Writer {
        graph,
        values,
        code,
        registers: vec![NONE; count],
        counted: vec![NONE; count],
        constants: vec![NONE; count],
        last: vec![NONE; count],
        reads: vec![0; count],
        kernels: HashMap::new(),
        sizes: HashMap::new(),
    };
    w.homes();
    for units in sequences {
        w.sequence(units);
    }
    w.begin_instr(None, false);
    w.code
}

impl Writer<'_> {
    /// Assigns a register of its own to each value that crosses sequences, and a counter if several sequences read it.
    fn homes(&mut self) {
        for v in 0..self.registers.len() {
            let readers = self.values.readers[v];
            let arrives = self.values.made_in[v] == OUTSIDE;
            if self.code.waits.row(v as u32).is_empty() {
                continue;
            }
            self.registers[v] = self.code.registers as u32;
            self.code.registers += 1;
            if arrives {
                self.code.homes[v] = self.registers[v];
            }
            if readers > 1 {
                self.counted[v] = self.code.counts.len() as u32;
                self.code.counts.push(readers);
            }
        }
    }

    fn sequence(&mut self, units: Vec<Unit>) {
        for (at, unit) in units.iter().enumerate() {
            for v in unit.operands.iter().filter(|v| **v != NO_OPERAND) {
                self.last[*v as usize] = at as u32;
            }
        }
        let first = self.code.instrs.len() as u32;
        let mut free = Vec::new();
        for (at, unit) in units.into_iter().enumerate() {
            self.unit(at as u32, unit, &mut free);
        }
        let end = self.code.instrs.len() as u32;
        self.code.sequences.push(Sequence { first, end });
    }

    /// Begins an instruction: records where its entries in the arrays start. Called with `None` it closes the last one.
    fn begin_instr(&mut self, unit: Option<&Unit>, crosses: bool) {
        let kernel = unit.map_or(NONE, |u| self.kernel(u));
        let sizes = unit.and_then(|u| u.sizes.as_ref());
        let sizes = sizes.map_or(NONE, |s| {
            let known = &mut self.code.sizes;
            *self.sizes.entry(s.clone()).or_insert_with(|| {
                known.push(s.clone());
                known.len() as u32 - 1
            })
        });
        let c = &mut self.code;
        c.instrs.push(Instr {
            node: unit.and_then(|u| u.members.first()).map_or(NONE, |n| *n),
            kernel,
            sizes,
            operands: c.operands.len() as u32,
            results: c.results.len() as u32,
            ends: c.ends.len() as u32,
            members: c.members.len() as u32,
            kind: unit.map_or(InstrKind::Kernel, |u| u.kind),
            crosses,
        });
    }

    /// The index of a unit's kernel. A kernel that infers the sizes of its results remembers them, and serves one
    /// instruction only; others are shared by equal nodes.
    fn kernel(&mut self, unit: &Unit) -> u32 {
        let next = self.code.kernels.len() as u32;
        let known = match (&unit.members[..], &unit.sizes) {
            ([node], Some(_)) => {
                let same = self.graph.same_kernel(*node);
                *self.kernels.entry(same).or_insert(next)
            }
            _ => next,
        };
        if known == next {
            self.code.kernels.push(unit.kernel.clone());
        }
        known
    }

    fn unit(&mut self, at: u32, unit: Unit, free: &mut Vec<u32>) {
        let heard =
            |v: &u32| !self.code.waits.row(*v).is_empty() || !self.code.sends.row(*v).is_empty();
        let crosses = unit.results.iter().any(heard);
        self.begin_instr(Some(&unit), crosses);
        let read = unit.operands.iter().filter(|v| **v != NO_OPERAND);
        read.for_each(|v| self.reads[*v as usize] += 1);
        for v in &unit.operands {
            let place = match *v {
                NO_OPERAND => OperandPlace::Nothing,
                v if self.graph.is_constant(v) => OperandPlace::Constant(self.constant(v)),
                v => self.read(at, v, free),
            };
            self.code.operands.push(OperandRef::new(place));
        }
        let read = unit.operands.iter().filter(|v| **v != NO_OPERAND);
        read.for_each(|v| self.reads[*v as usize] = 0);
        for v in &unit.results {
            let register = self.made(*v, free);
            self.code.results.push(ResultRegister {
                value: *v,
                register,
            });
        }
        let instr = self.code.instrs.len() as u32 - 1;
        let later = unit.later.iter().map(|v| (instr, *v));
        self.code.later.extend(later);
        self.code.members.extend(unit.members);
        self.code.priorities.push(unit.priority);
    }

    fn constant(&mut self, value: u32) -> u32 {
        let v = value as usize;
        if self.constants[v] == NONE
            && let Some(t) = &self.graph.constants[v]
        {
            self.constants[v] = self.code.constants.len() as u32;
            self.code.constants.push(t.clone());
        }
        self.constants[v]
    }

    /// The place of an operand, noting its end where the unit reads it last in the sequence.
    fn read(&mut self, at: u32, value: u32, free: &mut Vec<u32>) -> OperandPlace {
        let v = value as usize;
        let (register, count) = (self.registers[v], self.counted[v]);
        if self.last[v] != at {
            return OperandPlace::Read(register);
        }
        // A value that the unit reads several times ends once, and must not be overwritten.
        let times = std::mem::replace(&mut self.reads[v], ENDED);
        if times != ENDED {
            self.code.ends.push(End { register, count });
            if self.code.waits.row(value).is_empty() {
                free.push(register);
            }
        }
        match times == 1 && count == NONE {
            true => OperandPlace::Last(register),
            false => OperandPlace::Read(register),
        }
    }

    /// The register of a result. A register that this unit reads last is free for it: the tensor in it is dropped
    /// first.
    fn made(&mut self, value: u32, free: &mut Vec<u32>) -> u32 {
        let v = value as usize;
        if self.values.readers[v] > 0 && self.registers[v] == NONE {
            self.registers[v] = free.pop().unwrap_or_else(|| {
                self.code.registers += 1;
                self.code.registers as u32 - 1
            });
        }
        self.registers[v]
    }
}
