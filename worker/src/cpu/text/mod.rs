//! Kernels that read or make strings. They run on the host, whatever the device.
//!
//! ```text
//! strings ──> numbers 1, 2, .. (u64) ──> the kernel that moves numbers ──> strings gathered by number   (`moved`)
//! strings ──> numbers, or numbers ──> strings                                                           (`cast`)
//! ```
//!
//! Invariants
//! 1. The bytes of a result are known, and reserved in the pool, before the first of them is written.
//! 2. Strings are checked by each kernel that reads them, so that none relies on whoever made the tensor.

mod cast;
mod compare;
mod grams;
mod moved;
pub(super) mod ops;
mod pattern;
mod sort;
mod tokens;

use convoke_common::Error;
use convoke_common::memory::Pool;
use convoke_graph::ops::attrs::Reduction;
use convoke_graph::ops::{BinaryOp, IndexOp, Op, UnaryOp, VisionOp};
use convoke_graph::tensor::{TensorError, element_count};
use convoke_graph::text::{MOST_BYTES, Strings, Writer, table_len};
use convoke_graph::{DType, Tensor};
use convoke_kernels::Exec;
use convoke_kernels::movement::expand;

use super::call::{FamilyAnswer, OpLaunch, Spec, body, one, write};
use super::{KernelFailure, families};

/// Elements between two checks of the cancel flag.
const PIECE: usize = 1 << 12;

/// Whether an op reads strings, or converts numbers to strings.
pub(super) fn has_strings(spec: &Spec<'_>) -> bool {
    let makes = match spec.def.op {
        Op::Unary(op) => matches!(families::cast_target(op, spec), Ok(Some(DType::Str))),
        _ => false,
    };
    makes || spec.operands.contains(&Some(DType::Str))
}

/// Finds the implementation of an op that reads or makes strings.
pub(super) fn find(spec: &Spec<'_>) -> FamilyAnswer {
    match spec.def.op {
        Op::Unary(UnaryOp::Identity) => body(|mut call| one(call.take(0)?)),
        Op::Unary(op) => match families::cast_target(op, spec)? {
            Some(to) => cast::find(spec, to),
            None => Err(spec.no_dtype(DType::Str)),
        },
        Op::Binary(BinaryOp::Equal) => body(|call| compare::equal(&call)),
        Op::Binary(BinaryOp::Where)
        | Op::Movement(_)
        | Op::Resize(_)
        | Op::Slice(_)
        | Op::Vision(VisionOp::GridSample) => moved::find(spec),
        Op::Index(IndexOp::Unique) => compare::unique(spec),
        Op::Index(_) if Reduction::new(spec.attrs)? != Reduction::None => {
            Err(spec.bad_attr("reduction", "cannot be computed of strings"))
        }
        Op::Index(_) => moved::find(spec),
        // These read shapes only, keep their operand, are made for strings, or belong to the user.
        Op::Shape(_) | Op::Text(_) | Op::Learn(_) | Op::Handle(_) | Op::Custom => {
            families::of_numbers(spec)
        }
        _ => Err(spec.no_dtype(DType::Str)),
    }
}

/// Takes the parts of one string.
pub(super) type Sink<'s> = &'s mut dyn FnMut(&str) -> Result<(), TensorError>;

/// Makes a tensor of strings. `give` passes on the parts of string `i`; it is called twice for each, first for the
/// lengths, and does the same both times.
pub(super) fn made(
    exec: &Exec<'_>,
    pool: &Pool,
    shape: &[usize],
    mut give: impl FnMut(usize, Sink<'_>) -> Result<(), KernelFailure>,
) -> Result<Tensor, KernelFailure> {
    let count = element_count(shape).unwrap_or(usize::MAX);
    let mut bytes = table_len(count).unwrap_or(usize::MAX);
    for i in 0..count {
        if i.is_multiple_of(PIECE) {
            exec.check()?;
            if bytes > MOST_BYTES {
                return Err(TensorError::TooMuchText { bytes }.into());
            }
        }
        give(i, &mut |part| {
            bytes = bytes.saturating_add(part.len());
            Ok(())
        })?;
    }
    let mut y = pool.sized(DType::Str, shape, bytes)?;
    let shared = || Error::internal("an output's buffer is shared");
    let mut writer = Writer::new(y.bytes_mut().ok_or_else(shared)?, count)?;
    for i in 0..count {
        if i.is_multiple_of(PIECE) {
            exec.check()?;
        }
        give(i, &mut |part| writer.part(part))?;
        writer.end()?;
    }
    writer.finish()?;
    Ok(y)
}

/// The strings of operand `i`.
fn strings<'c>(call: &'c OpLaunch<'_, '_>, i: usize) -> Result<Strings<'c>, KernelFailure> {
    Ok(call.input(i)?.strings()?)
}

/// For each element of the output, the place of the string of operand `i` that it is broadcast from.
fn places(call: &OpLaunch<'_, '_>, i: usize) -> Result<Tensor, KernelFailure> {
    let x = call.input(i)?;
    let elements = element_count(call.out_shape(0)).unwrap_or(usize::MAX);
    let mut own = call.scratch::<u64>(x.elements())?;
    for (at, place) in write::<u64>(&mut own)?.iter_mut().enumerate() {
        *place = at as u64;
    }
    let mut all = call.scratch::<u64>(elements)?;
    let (from, shape) = (own.as_slice::<u64>()?, call.out_shape(0));
    if elements > 0 {
        expand::<u64>(&call.launch.exec, from, x.shape(), write(&mut all)?, shape)?;
    }
    Ok(all)
}

/// The tensors one after the other, as one tensor of this shape.
pub(super) fn joined(
    parts: &[Tensor],
    shape: &[usize],
    exec: Exec<'_>,
    pool: &Pool,
) -> Result<Tensor, KernelFailure> {
    let all = moved::Numbered::new(parts.iter().map(Some))?;
    made(&exec, pool, shape, |i, sink| {
        Ok(sink(all.get(i as u64 + 1))?)
    })
}

/// Makes the kernel of an op with one output of strings.
fn of_strings(
    kernel: impl Fn(&OpLaunch<'_, '_>) -> Result<Tensor, KernelFailure> + Send + Sync + 'static,
) -> FamilyAnswer {
    body(move |call| one(kernel(&call)?))
}

#[cfg(test)]
mod tests;
