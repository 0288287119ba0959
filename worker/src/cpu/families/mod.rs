//! The kernels by family of ops: each module finds its own ops by name.

mod binary;
mod cast;
mod conv;
mod conv_f64;
mod fused;
mod handle;
mod index;
mod matmul;
mod movement;
mod norm;
mod pooling;
mod random;
mod reduce;
mod shape;
mod softmax;
mod unary;
mod views;

use convoke_graph::DType;
use convoke_graph::ops::attrs::ReduceAttrs;
use convoke_kernels::binary::Arith;
use convoke_kernels::reduce::Reduce;
use convoke_kernels::unary::FloatUnary;

use super::call::{FamilyAnswer, Spec};

/// The function of one float that an op computes, if it is such an op.
pub(super) fn unary_of(spec: &Spec<'_>) -> Option<FloatUnary> {
    unary::float_op(spec).ok().flatten()
}

/// The function of two floats that an op computes, or folds over its operands.
pub(super) fn fold_of(spec: &Spec<'_>) -> Option<Arith> {
    binary::fold_of(spec.op, spec.operands.len())
}

/// The dtypes that an op converts between, if it does nothing else and they differ.
pub(super) fn conversion_of(spec: &Spec<'_>) -> Option<(DType, DType)> {
    cast::conversion(spec)
        .ok()
        .flatten()
        .filter(|(a, b)| a != b)
}

/// The reduction that an op computes, with its attributes.
pub(super) fn reduction_of(spec: &Spec<'_>) -> Option<(Reduce, ReduceAttrs)> {
    Some((reduce::reduction(spec.op)?, ReduceAttrs::new(spec.attrs)))
}

/// Finds the implementation for `spec` in the family that knows the op.
pub(super) fn find(spec: &Spec<'_>) -> FamilyAnswer {
    let families = [
        unary::find,
        binary::find,
        cast::find,
        views::find,
        shape::find,
        matmul::find,
        fused::find,
        conv::find,
        reduce::find,
        softmax::find,
        norm::find,
        pooling::find,
        movement::find,
        index::find,
        random::find,
        handle::find,
        crate::ops::find,
    ];
    for family in families {
        if let Some(body) = family(spec)? {
            return Ok(Some(body));
        }
    }
    Ok(None)
}
