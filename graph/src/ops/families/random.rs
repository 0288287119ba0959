//! Random tensors without state: the drawn elements follow from operands and attributes alone.
//!
//! `seed` is two integers, a key and a stream; another of either gives unrelated numbers. The generator is
//! Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011), a function from
//! a key of two words and a counter of four words to a block of four words, all of 32 bits. The key is that of `seed`;
//! the counter is the block's number and the stream. All three have 64 bits, low word first. In row-major order, a
//! block gives the next
//!
//! - four elements of f32, f16 and bf16, which are computed in f32;
//! - two elements of f64, one from the first two words and one from the last two, low word first.
//!
//! Uniform: the top 24 bits of a word (53 of two words) are a fraction u in [0, 1). The element is
//! `fma(high - low, u, low)`, at most the largest number below `high`. Results lie in [low, high), with the bounds
//! rounded to the dtype; if the rounded bounds are equal, all elements equal them.
//!
//! Normal: neighbours are the cosine and the sine of a pair (Box and Muller) `sqrt(-2 ln u)`, `2 pi v`, times `scale`
//! plus `mean` in one fma. In f32, u is `fma(w, 2^-32, 2^-33)` of a word w and v the top 24 bits of the next, so that
//! results stay within 6.8 scales of the mean; in f64, u is a fraction of 53 bits plus 2^-53, and they stay within
//! 8.6.
//!
//! Invariants
//! 1. An element depends on key, stream, its index, dtype and attributes only: not on the shape's other elements,
//!    thread counts, partitions or instruction sets.
//! 2. The ops of ONNX that draw have no seed as an operand; ours have names of their own, and the importer gives each
//!    node a seed.

use crate::DType;
use crate::ops::attrs::{NormalAttrs, UniformAttrs};
use crate::ops::cost::per_element;
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{Op, RandomOp};
use crate::ops::shapes::*;

/// A tensor of `dtype` whose dimensions are the elements of operand 0.
fn drawn(i: &Infer<'_>, dtype: DType) -> Rule {
    let seed = i.ranked(1, "seed", 1)?;
    if let Some(n) = seed.iter().find(|n| known_other(n, 2)) {
        return Err(OpError::shape(format!(
            "'seed' must be a key and a stream, not {n} elements"
        )));
    }
    let rank = i.vector_len(0, "shape")?;
    check_rank(rank)?;
    match i.dims(0) {
        Some(dims) => one(dtype, dims.to_vec()),
        None => one(dtype, i.unknown(Some(rank))?),
    }
}

fn uniform(i: &Infer<'_>) -> Rule {
    drawn(i, UniformAttrs::new(i.attrs)?.dtype)
}

fn normal(i: &Infer<'_>) -> Rule {
    drawn(i, NormalAttrs::new(i.attrs)?.dtype)
}

const SHAPE: OperandDef = operand("shape", LONG).host();
const SEED: OperandDef = operand("seed", LONG).host();
const TO: AttrDef = required("dtype", AttrKind::DType);

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Random(RandomOp::PhiloxUniform),
        "A tensor of the given shape, uniform in [low, high), drawn from `seed`, an i64 key and stream of shape [2].",
        &[SHAPE, SEED],
        uniform,
    )
    .attrs(&[
        TO,
        attr("low", AttrKind::Float),
        attr("high", AttrKind::Float),
    ])
    .cost(per_element::<30>),
    OpDef::of(
        Op::Random(RandomOp::PhiloxNormal),
        "A tensor of the given shape, normal around `mean` with standard deviation `scale`, drawn as `PhiloxUniform`.",
        &[SHAPE, SEED],
        normal,
    )
    .attrs(&[
        TO,
        attr("mean", AttrKind::Float),
        attr("scale", AttrKind::Float),
    ])
    .cost(per_element::<45>),
];
