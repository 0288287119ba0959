//! Ops that move strings: their numbers are moved in their place.

use convoke_common::Error;
use convoke_common::memory::Pool;
use convoke_graph::ops::ConcreteOutputs;
use convoke_graph::text::Strings;
use convoke_graph::{DType, Outputs, Tensor};
use convoke_kernels::Exec;

use super::strings::made;
use crate::cpu::kernel::{
    FamilyAnswer, KernelFailure, Launch, OpLaunch, Operands, Register, Spec, body, write,
};

/// The strings of several tensors, counted from 1 on. Number 0 is the empty string, with which ops fill places that
/// they move nothing to.
pub(super) struct Numbered<'a> {
    /// The number of each tensor's first string, in ascending order, with its strings.
    tensors: Vec<(u64, Strings<'a>)>,
}

impl<'a> Numbered<'a> {
    /// Counts the strings of the tensors that have strings.
    pub fn new(all: impl Iterator<Item = Option<&'a Tensor>>) -> Result<Self, KernelFailure> {
        let (mut next, mut tensors) = (1, vec![]);
        for t in all.flatten().filter(|t| t.dtype() == DType::Str) {
            let strings = t.strings()?;
            tensors.push((next, strings));
            next += strings.len() as u64;
        }
        Ok(Numbered { tensors })
    }

    /// The string with this number.
    pub fn get(&self, number: u64) -> &'a str {
        let after = self.tensors.partition_point(|(first, _)| *first <= number);
        let Some((first, strings)) = after.checked_sub(1).and_then(|at| self.tensors.get(at))
        else {
            return "";
        };
        strings.get(usize::try_from(number - first).unwrap_or(usize::MAX))
    }
}

fn numbered(dtype: DType) -> DType {
    match dtype {
        DType::Str => DType::U64,
        other => other,
    }
}

/// The tensors one after the other, as one tensor of this shape.
pub(in crate::cpu) fn joined(
    parts: &[Tensor],
    shape: &[usize],
    exec: Exec<'_>,
    pool: &Pool,
) -> Result<Tensor, KernelFailure> {
    let all = Numbered::new(parts.iter().map(Some))?;
    made(&exec, pool, shape, |i, sink| {
        Ok(sink(all.get(i as u64 + 1))?)
    })
}

/// Makes the kernel of an op that moves strings. `of_numbers` finds the kernel that moves their numbers.
pub(super) fn find(
    spec: &Spec<'_>,
    of_numbers: impl Fn(&Spec<'_>) -> FamilyAnswer,
) -> FamilyAnswer {
    let operands: Vec<_> = spec.operands.iter().map(|d| d.map(numbered)).collect();
    let kernel = of_numbers(&Spec {
        def: spec.def,
        attrs: spec.attrs,
        operands: &operands,
    })?;
    body(move |call| {
        let (exec, pool) = (call.launch.exec, call.launch.pool);
        let mut next = 1;
        let mut operands: Vec<Register> = vec![];
        for t in call.launch.inputs.iter() {
            operands.push(match t {
                Some(t) if t.dtype() == DType::Str => {
                    let mut numbers = pool.tensor(DType::U64, t.shape())?;
                    for number in write::<u64>(&mut numbers)? {
                        *number = next;
                        next += 1;
                    }
                    Some(numbers)
                }
                other => other.cloned(),
            });
        }
        let outputs = call.outputs.iter();
        let outputs: ConcreteOutputs = outputs.map(|(d, s)| (numbered(*d), s.clone())).collect();
        let mut launch = Launch {
            inputs: Operands::given(&mut operands),
            sizes: None,
            exec,
            pool,
        };
        let moved = kernel.run(OpLaunch {
            attrs: call.attrs,
            outputs: &outputs,
            launch: &mut launch,
        })?;
        let all = Numbered::new(call.launch.inputs.iter())?;
        let moved = moved.into_iter().zip(call.outputs);
        moved
            .map(|(t, (dtype, _))| {
                if *dtype != DType::Str {
                    return Ok(t);
                }
                let numbers = t.as_slice::<u64>()?;
                made(&exec, pool, t.shape(), |i, sink| {
                    let number = numbers.get(i).copied();
                    let number = number.ok_or_else(|| Error::internal("a string of no number"))?;
                    Ok(sink(all.get(number))?)
                })
            })
            .collect::<Result<Outputs, KernelFailure>>()
    })
}
