//! On which side of a worker an op runs: on its host, or on its device.

use convoke_common::error::Error;
use convoke_common::memory::Pool;
use convoke_graph::graph::Attrs;
use convoke_graph::ops::{Op, OpDef, ShapeOp};
use convoke_graph::{DType, Tensor};

use crate::cpu::{KernelFailure, shape_between, shape_range};

/// The side of a worker on which an op runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// On the host, which all operands are copied to.
    Host,
    /// On the host, which only needs the shape of the operand.
    Shape,
    /// On the device, if it has a kernel for the op.
    Device,
}

/// What decides on which side an op runs, besides the op itself.
pub(crate) struct SideFacts {
    /// Whether an operand or a result has strings. Their lengths are in their tensors, which no device looks into.
    pub text: bool,
    /// Whether all operands lie in the host's memory.
    pub on_host: bool,
    /// Whether all results are values that shapes are computed from, see [`is_arithmetic`].
    pub arithmetic: bool,
}

/// The side on which an op runs.
pub(crate) fn side(def: &OpDef, facts: &SideFacts) -> Side {
    if facts.text {
        return Side::Host;
    }
    if matches!(def.op, Op::Shape(ShapeOp::Shape | ShapeOp::Size)) {
        return match facts.on_host {
            true => Side::Host,
            false => Side::Shape,
        };
    }
    // Sizes that only a kernel can tell are not known when it is enqueued.
    match facts.on_host && facts.arithmetic || def.sized_by_data {
        true => Side::Host,
        false => Side::Device,
    }
}

/// Whether values of this dtype and number of dimensions are those that shapes are computed from: integers in at most one
/// dimension.
pub(crate) fn is_arithmetic(dtype: DType, dims: usize) -> bool {
    matches!(dtype, DType::I32 | DType::I64 | DType::Bool) && dims <= 1
}

/// The result of an op that reads nothing but the shape of its operand, in memory of `pool`.
pub(crate) fn read_shape(
    def: Option<&OpDef>,
    attrs: &Attrs,
    shape: &[usize],
    pool: &Pool,
) -> Result<Tensor, KernelFailure> {
    let (dims, elements);
    let (made, values): (&[usize], &[i64]) = match def.map(|def| def.op) {
        Some(Op::Shape(ShapeOp::Size)) => {
            elements = [shape.iter().product::<usize>() as i64];
            (&[], &elements)
        }
        _ => {
            dims = shape_between(shape_range(attrs), shape);
            (&[dims.len()], &dims)
        }
    };
    let mut tensor = pool.tensor(DType::I64, made)?;
    let elements = tensor.as_mut_slice();
    let elements = elements.ok_or_else(|| Error::internal("a new tensor is shared"))?;
    elements.copy_from_slice(values);
    Ok(tensor)
}
