//! Reductions over axes.

use crate::ops::attrs::{ReduceAttrs, axis, flag};
use crate::ops::cost::per_input_element;
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::host::{self, Arith};
use crate::ops::kind::{Op, ReduceOp};
use crate::ops::shapes::*;
use crate::{DType, Dim};

/// The dtypes that means are defined for. A mean of narrower integers would divide a sum that wrapped.
const MEANS: &[DType] = &[F32, F64, F16, BF16, I32, I64, U32, U64];
const AXES: OperandDef = operand("axes", LONG).host().optional();
const REDUCE_ATTRS: &[AttrDef] = &[
    attr("keepdims", AttrKind::Int),
    attr("noop_with_empty_axes", AttrKind::Int),
];
/// `refuse_empty` is not ONNX's: with it, the op refuses an axis without elements, as numpy does, instead of reducing
/// it to the identity.
const EXTREMUM_ATTRS: &[AttrDef] = &[
    attr("keepdims", AttrKind::Int),
    attr("noop_with_empty_axes", AttrKind::Int),
    attr("refuse_empty", AttrKind::Int),
];
const ARG_ATTRS: &[AttrDef] = &[
    attr("axis", AttrKind::Int),
    attr("keepdims", AttrKind::Int),
    attr("select_last_index", AttrKind::Int),
];
const ARG_DATA: &[OperandDef] = &[operand("data", NUMBERS)];
const DATA: &[OperandDef] = &[operand("data", NUMBERS), AXES];
const DATA_ORDERED: &[OperandDef] = &[operand("data", ANY), AXES];
const DATA_MEAN: &[OperandDef] = &[operand("data", MEANS), AXES];

/// `shape` with `axes` reduced.
fn reduced(shape: &[Dim], axes: &[usize], keep: bool) -> Vec<Dim> {
    let mut out = Vec::with_capacity(shape.len());
    for (k, d) in shape.iter().enumerate() {
        match (axes.contains(&k), keep) {
            (false, _) => out.push(d.clone()),
            (true, true) => out.push(Dim::Const(1)),
            (true, false) => {}
        }
    }
    out
}

/// The rule of a reduction. `follow` folds known elements where all of them are reduced into one. `none` says why an
/// axis without elements is refused, for ops that refuse it.
fn reduce(i: &Infer<'_>, follow: Option<Arith>, none: Option<&str>) -> Rule {
    let attrs = ReduceAttrs::new(i.attrs);
    let shape = i.shape(0)?;
    let given = match i.opt(1) {
        None => vec![],
        Some(_) if attrs.keep_dims && i.has_open_length(1) => {
            return one(i.dtype(0)?, i.unknown(Some(shape.len()))?);
        }
        Some(_) => match (i.ints(1), i.vector_len(1, "axes")?) {
            (Some(axes), _) => axes,
            (None, 0) => vec![],
            // It is unknown which axes stay, but not how many.
            (None, n) => {
                let gone = if attrs.keep_dims { 0 } else { n };
                return one(i.dtype(0)?, i.unknown(shape.len().checked_sub(gone))?);
            }
        },
    };
    let axes = attrs.axes(&given, shape.len())?;
    if let (Some(why), Some(axis)) = (none, axes.iter().find(|a| shape[**a].is(0))) {
        return Err(OpError::shape(format!("axis {axis} is empty: {why}")));
    }
    let dtype = i.dtype(0)?;
    let mut out = InferredOutput::of(dtype, reduced(shape, &axes, attrs.keep_dims));
    if let (Some(f), Some(v)) = (follow, i.opt(0).and_then(|o| o.value)) {
        let all = axes.len() == shape.len();
        let total = v
            .elements
            .split_first()
            .filter(|_| all)
            .and_then(|(first, rest)| rest.iter().try_fold(first.clone(), |a, b| f(&a, b, dtype)));
        let rank = out.ty.shape.len();
        out.value = total.map(|d| HostValue {
            shape: vec![1; rank],
            elements: vec![d],
        });
    }
    Ok(vec![out])
}

fn plain(i: &Infer<'_>) -> Rule {
    reduce(i, None, None)
}

fn extreme(i: &Infer<'_>, follow: Arith, none: &str) -> Rule {
    let refused = flag(i.attrs, "refuse_empty", false);
    reduce(i, Some(follow), refused.then_some(none))
}

/// For integers, an axis without elements is refused: the mean of no elements is NaN, which is no integer.
fn mean(i: &Infer<'_>) -> Rule {
    let none = "the mean of no elements is no integer; cast to a float";
    reduce(i, None, i.dtype(0)?.is_int().then_some(none))
}

fn arg(i: &Infer<'_>) -> Rule {
    let shape = i.shape(0)?;
    let axis = axis(i.attrs, 0, shape.len())?;
    if shape[axis].is(0) {
        return Err(OpError::shape(format!(
            "axis {axis} is empty: no elements have no extremum"
        )));
    }
    one(
        I64,
        reduced(shape, &[axis], ReduceAttrs::new(i.attrs).keep_dims),
    )
}

const fn reduction(
    op: ReduceOp,
    doc: &'static str,
    operands: &'static [OperandDef],
    infer: InferFn,
) -> OpDef {
    OpDef::of(Op::Reduce(op), doc, operands, infer)
        .attrs(REDUCE_ATTRS)
        .cost(per_input_element::<1>)
}

const fn extremum(op: ReduceOp, doc: &'static str) -> OpDef {
    OpDef::of(Op::Reduce(op), doc, ARG_DATA, arg)
        .attrs(ARG_ATTRS)
        .cost(per_input_element::<1>)
}

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    reduction(ReduceOp::ReduceSum, "Sum over axes.", DATA, |i| {
        reduce(i, Some(host::add), None)
    }),
    reduction(ReduceOp::ReduceProd, "Product over axes.", DATA, |i| {
        reduce(i, Some(host::mul), None)
    }),
    reduction(
        ReduceOp::ReduceMax,
        "Maximum over axes.",
        DATA_ORDERED,
        |i| extreme(i, host::max, "no elements have no maximum"),
    )
    .attrs(EXTREMUM_ATTRS),
    reduction(
        ReduceOp::ReduceMin,
        "Minimum over axes.",
        DATA_ORDERED,
        |i| extreme(i, host::min, "no elements have no minimum"),
    )
    .attrs(EXTREMUM_ATTRS),
    reduction(ReduceOp::ReduceMean, "Mean over axes.", DATA_MEAN, mean),
    reduction(
        ReduceOp::ReduceL1,
        "Sum of magnitudes over axes.",
        DATA,
        plain,
    )
    .cost(per_input_element::<2>),
    reduction(
        ReduceOp::ReduceL2,
        "Root of the sum of squares over axes.",
        DATA,
        plain,
    )
    .cost(per_input_element::<2>),
    reduction(
        ReduceOp::ReduceLogSum,
        "Logarithm of the sum over axes.",
        DATA,
        plain,
    ),
    reduction(
        ReduceOp::ReduceLogSumExp,
        "Logarithm of the sum of e^x over axes.",
        DATA,
        plain,
    )
    .cost(per_input_element::<12>),
    reduction(
        ReduceOp::ReduceSumSquare,
        "Sum of squares over axes.",
        DATA,
        plain,
    )
    .cost(per_input_element::<2>),
    extremum(ReduceOp::ArgMax, "Index of the maximum along an axis."),
    extremum(ReduceOp::ArgMin, "Index of the minimum along an axis."),
];
