//! Running sums and products, and the k largest.

use crate::ops::attrs::{axis, normalize_axis};
use crate::ops::cost::per_input_element;
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{Op, ScanOp};
use crate::ops::shapes::*;

fn cumulative(i: &Infer<'_>) -> Rule {
    i.check_scalar(1, "axis")?;
    let x = i.shape(0)?;
    if let Some(axis) = i.scalar(1).and_then(|d| d.as_const()) {
        normalize_axis(axis, x.len())?;
    }
    one(i.dtype(0)?, x.to_vec())
}

fn top_k(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    let axis = axis(i.attrs, -1, x.len())?;
    i.check_scalar(1, "K")?;
    let k = i.scalar(1).cloned().unwrap_or_else(|| i.fresh(0, axis));
    if let (Some(k), Some(n)) = (k.as_const(), x[axis].as_const())
        && k > n
    {
        return Err(OpError::shape(format!(
            "'K' is {k}, but axis {axis} has {n} elements"
        )));
    }
    let mut shape = x.to_vec();
    shape[axis] = k;
    Ok(vec![
        InferredOutput::of(i.dtype(0)?, shape.clone()),
        InferredOutput::of(I64, shape),
    ])
}

const CUMULATED: &[OperandDef] = &[operand("x", NUMBERS), operand("axis", INDEX).host()];
const COVERED: &[AttrDef] = &[
    attr("exclusive", AttrKind::Int),
    attr("reverse", AttrKind::Int),
];

const fn running(op: ScanOp, doc: &'static str) -> OpDef {
    OpDef::of(Op::Scan(op), doc, CUMULATED, cumulative)
        .attrs(COVERED)
        .cost(per_input_element::<1>)
}

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    running(
        ScanOp::CumProd,
        "Running product along an axis, same shape.",
    ),
    running(ScanOp::CumSum, "Running sum along an axis, same shape."),
    OpDef::of(
        Op::Scan(ScanOp::TopK),
        "The K largest (or smallest) elements along `axis`, and their indices.",
        &[operand("X", NUMBERS), operand("K", LONG).host()],
        top_k,
    )
    .attrs(&[
        attr("axis", AttrKind::Int),
        attr("largest", AttrKind::Int),
        attr("sorted", AttrKind::Int),
    ])
    .outputs(1, 2)
    .cost(per_input_element::<8>),
];
