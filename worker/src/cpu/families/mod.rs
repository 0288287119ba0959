//! The kernels by family of ops: each module has the kernels of one family, or of some ops of it.

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
mod resize;
mod shape;
mod softmax;
mod unary;
mod views;

pub(crate) use shape::{shape_between, shape_range};

use convoke_graph::DType;
use convoke_graph::ops::attrs::ReduceAttrs;
use convoke_graph::ops::{Op, OpError, float_function};
use convoke_kernels::binary::Arith;
use convoke_kernels::reduce::Reduce;
use convoke_kernels::unary::FloatUnary;

use super::call::{FamilyAnswer, Spec};

/// The function of one float that an op computes, if it is such an op.
pub(super) fn unary_of(spec: &Spec<'_>) -> Option<FloatUnary> {
    match spec.def.op {
        Op::Unary(op) => float_function(op, spec.attrs).ok().flatten(),
        _ => None,
    }
}

/// The function of two floats that an op computes, or folds over its operands.
pub(super) fn fold_of(spec: &Spec<'_>) -> Option<Arith> {
    match spec.def.op {
        Op::Binary(op) => binary::fold_of(op, spec.operands.len()),
        _ => None,
    }
}

/// The dtypes that an op converts between, if it does nothing else and they differ.
pub(super) fn conversion_of(spec: &Spec<'_>) -> Option<(DType, DType)> {
    let Op::Unary(op) = spec.def.op else {
        return None;
    };
    let (from, to) = (spec.dtype(0).ok()?, cast::target(op, spec).ok()??);
    (from != to).then_some((from, to))
}

/// The reduction that an op computes, with its attributes.
pub(super) fn reduction_of(spec: &Spec<'_>) -> Option<(Reduce, ReduceAttrs)> {
    match spec.def.op {
        Op::Reduce(op) => Some((reduce::reduction(op).ok()?, ReduceAttrs::new(spec.attrs))),
        _ => None,
    }
}

/// Finds the implementation of an op for these attributes and dtypes.
pub(super) fn find(spec: &Spec<'_>) -> FamilyAnswer {
    match spec.def.op {
        Op::Unary(op) => unary::find(op, spec),
        Op::Binary(op) => binary::find(op, spec),
        Op::Shape(op) => shape::find(op, spec),
        Op::MatMul(op) => matmul::find(op, spec),
        Op::Fused(op) => fused::find(op, spec),
        Op::Conv(op) => conv::find(op, spec),
        Op::Reduce(op) => reduce::find(op, spec),
        Op::Resize(op) => resize::find(op, spec),
        Op::Scan(op) => reduce::find_scan(op, spec),
        Op::Norm(op) => norm::find(op, spec),
        Op::Pool(op) => pooling::find(op, spec),
        Op::Movement(op) => movement::find(op, spec),
        Op::Slice(op) => movement::find_slice(op, spec),
        Op::Index(op) => index::find(op, spec),
        Op::Random(op) => random::find(op, spec),
        Op::Handle(op) => handle::find(op),
        Op::Custom => crate::ops::find(spec),
        // Kernels that run functions are resolved before this, with the functions.
        Op::Control(op) => Err(OpError::Unknown {
            op: op.name().into(),
        }),
    }
}
