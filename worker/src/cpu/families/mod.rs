//! The kernels by family of ops: each module has the kernels of one family, or of some ops of it.

mod attention;
mod binary;
mod conv;
mod conv_f64;
mod fused;
mod handle;
mod index;
mod learn;
mod matmul;
mod movement;
mod norm;
mod pooling;
mod position;
mod quantised;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod shape;
mod signal;
mod softmax;
mod unary;
mod unique;
mod views;
mod vision;

pub(crate) use shape::{shape_between, shape_range};

use convoke_graph::graph::Attrs;
use convoke_graph::ops::attrs::ReduceAttrs;
use convoke_graph::ops::{IndexOp, Op, OpError, QuantisedOp, UnaryOp, float_function};
use convoke_graph::{DType, Tensor};
use convoke_kernels::binary::Arith;
use convoke_kernels::fused::Coding;
use convoke_kernels::reduce::Reduce;
use convoke_kernels::unary::FloatUnary;

use super::kernel::{FamilyAnswer, Spec};
use super::{cast, packed, text};

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

/// The dtypes that an op converts between, if it does nothing else, they differ, and neither is narrow or that of
/// strings.
pub(super) fn conversion_of(spec: &Spec<'_>) -> Option<(DType, DType)> {
    let Op::Unary(op) = spec.def.op else {
        return None;
    };
    let (from, to) = (spec.dtype(0).ok()?, cast::target(op, spec).ok()??);
    let plain = |d: DType| !d.is_narrow() && d != DType::Str;
    (from != to && plain(from) && plain(to)).then_some((from, to))
}

/// The function of single elements that an op between numbers and codes computes, with the dtype of the codes, where one scale
/// and one zero point serve all elements. Both are given where they are known.
pub(super) fn coding_of(
    spec: &Spec<'_>,
    scale: Option<&Tensor>,
    zero: Option<&Tensor>,
) -> Option<(Coding, DType)> {
    match spec.def.op {
        Op::Quantised(op) => quantised::coding_of(op, spec, scale?, zero),
        _ => None,
    }
}

/// The reduction that an op computes, with its attributes.
pub(super) fn reduction_of(spec: &Spec<'_>) -> Option<(Reduce, ReduceAttrs)> {
    match spec.def.op {
        Op::Reduce(op) => Some((reduce::reduction(op).ok()?, ReduceAttrs::new(spec.attrs))),
        _ => None,
    }
}

/// The place that nodes of an op may have in a chain; `None` where they have none.
pub fn chain_role(op: Op) -> Option<ChainRole> {
    match op {
        Op::Unary(UnaryOp::Cast | UnaryOp::CastLike) => Some(ChainRole::End),
        Op::Unary(op) => {
            let function = float_function(op, &Attrs::default());
            function.ok().flatten().map(|_| ChainRole::Function)
        }
        Op::Binary(op) => binary::fold_of(op, 2).map(|_| ChainRole::Function),
        Op::Quantised(QuantisedOp::QuantizeLinear | QuantisedOp::DequantizeLinear) => {
            Some(ChainRole::End)
        }
        Op::Reduce(op) => {
            let reduction = reduce::reduction(op).ok();
            reduction
                .filter(|r| r.is_single_pass())
                .map(|_| ChainRole::End)
        }
        _ => None,
    }
}

/// A place in a chain of nodes that run as one kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainRole {
    /// Anywhere, since the op is a function of single floats.
    Function,
    /// At an end: a conversion in front of a chain or behind it, or a reduction behind it.
    End,
}

/// Whether operand 0 has several elements in a byte.
fn is_packed(spec: &Spec<'_>) -> bool {
    spec.dtype(0).is_ok_and(DType::is_packed)
}

/// Finds the implementation of an op for these attributes and dtypes.
pub(super) fn find(spec: &Spec<'_>) -> FamilyAnswer {
    match text::has_strings(spec) {
        true => text::find(spec, of_numbers),
        false => of_numbers(spec),
    }
}

/// Finds the implementation of an op that neither reads nor makes strings.
pub(super) fn of_numbers(spec: &Spec<'_>) -> FamilyAnswer {
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
        Op::Position(op) => position::find(op, spec),
        Op::Quantised(op) => quantised::find(op, spec),
        Op::Movement(_) | Op::Slice(_) if is_packed(spec) => packed::moved(spec, of_numbers),
        Op::Movement(op) => movement::find(op, spec),
        Op::Signal(op) => signal::find(op, spec),
        Op::Slice(op) => movement::find_slice(op, spec),
        Op::Index(IndexOp::TensorScatter) if is_packed(spec) => packed::moved(spec, find),
        Op::Index(op) => index::find(op, spec),
        Op::Learn(op) => learn::find(op, spec),
        Op::Text(op) => text::ops::find(op, spec),
        Op::Random(op) => random::find(op, spec),
        Op::Recurrent(op) => recurrent::find(op, spec),
        Op::Vision(op) => vision::find(op, spec),
        Op::Handle(op) => handle::find(op),
        Op::Custom => crate::ops::find(spec),
        // Kernels that run functions are resolved before this, with the functions.
        Op::Control(op) => Err(OpError::Unknown {
            op: op.name().into(),
        }),
    }
}
