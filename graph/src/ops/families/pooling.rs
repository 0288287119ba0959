//! Pooling over spatial windows.

use crate::graph::{Attrs, TensorType};
use crate::ops::attrs::PoolAttrs;
use crate::ops::cost::{Cost, elements, per_input_element, with_flops};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{Op, PoolOp};
use crate::ops::shapes::*;
use crate::{DType, Dim};

const KERNEL: AttrDef = required("kernel_shape", AttrKind::Ints);
const AUTO_PAD: AttrDef = attr("auto_pad", AttrKind::Str);
const CEIL: AttrDef = attr("ceil_mode", AttrKind::Int);
const DILATIONS: AttrDef = attr("dilations", AttrKind::Ints);
const PADS: AttrDef = attr("pads", AttrKind::Ints);
const STRIDES: AttrDef = attr("strides", AttrKind::Ints);

const X_FLOAT: &[OperandDef] = &[operand("X", FLOATS)];

fn pooled(i: &Infer<'_>) -> Result<Vec<Dim>, OpError> {
    let x = i.shape(0)?;
    if x.len() < 3 {
        return Err(OpError::shape(format!(
            "the input must have rank 3 or more, not {}",
            x.len()
        )));
    }
    let attrs = PoolAttrs::new(i.attrs, x.len() - 2)?;
    let mut out = x[..2].to_vec();
    for (axis, d) in x[2..].iter().enumerate() {
        out.push(attrs.window.output_dim(axis, d)?);
    }
    Ok(out)
}

fn pool(i: &Infer<'_>) -> Rule {
    one(i.dtype(0)?, pooled(i)?)
}

fn max_pool(i: &Infer<'_>) -> Rule {
    let shape = pooled(i)?;
    Ok(vec![
        InferredOutput::of(i.dtype(0)?, shape.clone()),
        InferredOutput::of(I64, shape),
    ])
}

fn global(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    if x.len() < 3 {
        return Err(OpError::shape(format!(
            "the input must have rank 3 or more, not {}",
            x.len()
        )));
    }
    if i.attrs.int("p", 2) < 1 {
        return Err(crate::ops::attrs::bad("p", "must be above zero"));
    }
    let spatial = x[2..].iter().map(|_| Dim::Const(1));
    one(i.dtype(0)?, x[..2].iter().cloned().chain(spatial).collect())
}

fn pool_cost(attrs: &Attrs, inputs: &[Option<&TensorType>], outputs: &[&TensorType]) -> Cost {
    let window: f64 = attrs
        .ints("kernel_shape")
        .unwrap_or(&[])
        .iter()
        .map(|k| *k as f64)
        .product();
    with_flops(
        window * outputs.first().map_or(0., |t| elements(t)),
        inputs,
        outputs,
    )
}

const POOLABLE: &[DType] = &[F32, F64, F16, BF16, I8, U8];

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Pool(PoolOp::MaxPool),
        "Greatest element of every window of X [N, C, ..]; optionally its flat index.",
        &[operand("X", POOLABLE)],
        max_pool,
    )
    .attrs(&[
        KERNEL,
        AUTO_PAD,
        CEIL,
        DILATIONS,
        PADS,
        STRIDES,
        attr("storage_order", AttrKind::Int),
    ])
    .outputs(1, 2)
    .cost(pool_cost),
    OpDef::of(
        Op::Pool(PoolOp::AveragePool),
        "Mean of every window of X [N, C, ..].",
        X_FLOAT,
        pool,
    )
    .attrs(&[
        KERNEL,
        AUTO_PAD,
        CEIL,
        DILATIONS,
        PADS,
        STRIDES,
        attr("count_include_pad", AttrKind::Int),
    ])
    .cost(pool_cost),
    OpDef::of(
        Op::Pool(PoolOp::LpPool),
        "p-norm of every window of X [N, C, ..].",
        X_FLOAT,
        pool,
    )
    .attrs(&[
        KERNEL,
        AUTO_PAD,
        CEIL,
        DILATIONS,
        PADS,
        STRIDES,
        attr("p", AttrKind::Int),
    ])
    .cost(pool_cost),
    OpDef::of(
        Op::Pool(PoolOp::GlobalAveragePool),
        "Mean over the spatial axes: [N, C, 1, ..].",
        X_FLOAT,
        global,
    )
    .cost(per_input_element::<1>),
    OpDef::of(
        Op::Pool(PoolOp::GlobalMaxPool),
        "Maximum over the spatial axes: [N, C, 1, ..].",
        X_FLOAT,
        global,
    )
    .cost(per_input_element::<1>),
    OpDef::of(
        Op::Pool(PoolOp::GlobalLpPool),
        "p-norm over the spatial axes: [N, C, 1, ..].",
        X_FLOAT,
        global,
    )
    .attrs(&[attr("p", AttrKind::Int)])
    .cost(per_input_element::<3>),
];
