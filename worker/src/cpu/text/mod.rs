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
mod strings;
mod tokens;

use convoke_graph::DType;
use convoke_graph::ops::attrs::Reduction;
use convoke_graph::ops::{BinaryOp, IndexOp, Op, UnaryOp, VisionOp};

pub(super) use moved::joined;
pub(super) use strings::made;

use super::cast::target;
use super::kernel::{FamilyAnswer, Spec, body, one};

/// Whether an op reads strings, or converts numbers to strings.
pub(super) fn has_strings(spec: &Spec<'_>) -> bool {
    let makes = match spec.def.op {
        Op::Unary(op) => matches!(target(op, spec), Ok(Some(DType::Str))),
        _ => false,
    };
    makes || spec.operands.contains(&Some(DType::Str))
}

/// Finds the implementation of an op that reads or makes strings. `of_numbers` finds that of an op that does neither.
pub(super) fn find(
    spec: &Spec<'_>,
    of_numbers: impl Fn(&Spec<'_>) -> FamilyAnswer,
) -> FamilyAnswer {
    match spec.def.op {
        Op::Unary(UnaryOp::Identity) => body(|mut call| one(call.take(0)?)),
        Op::Unary(op) => match target(op, spec)? {
            Some(to) => cast::find(spec, to),
            None => Err(spec.no_dtype(DType::Str)),
        },
        Op::Binary(BinaryOp::Equal) => body(|call| compare::equal(&call)),
        Op::Binary(BinaryOp::Where)
        | Op::Movement(_)
        | Op::Resize(_)
        | Op::Slice(_)
        | Op::Vision(VisionOp::GridSample) => moved::find(spec, of_numbers),
        Op::Index(IndexOp::Unique) => compare::unique(spec),
        Op::Index(_) if Reduction::new(spec.attrs)? != Reduction::None => {
            Err(spec.bad_attr("reduction", "cannot be computed of strings"))
        }
        Op::Index(_) => moved::find(spec, of_numbers),
        // These read shapes only, keep their operand, are made for strings, or belong to the user.
        Op::Shape(_) | Op::Text(_) | Op::Learn(_) | Op::Handle(_) | Op::Custom => of_numbers(spec),
        _ => Err(spec.no_dtype(DType::Str)),
    }
}

#[cfg(test)]
mod tests;
