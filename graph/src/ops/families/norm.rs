//! Normalisations and softmax.

use crate::ops::attrs::{LrnAttrs, axis, bad, mvn_axes};
use crate::ops::cost::per_element;
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{NormOp, Op};
use crate::ops::shapes::*;
use crate::{DType, Dim};

const X_FLOAT: &[OperandDef] = &[operand("X", FLOATS)];
const AXIS: AttrDef = attr("axis", AttrKind::Int);
const EPSILON: AttrDef = attr("epsilon", AttrKind::Float);
const STASH: AttrDef = attr("stash_type", AttrKind::Int);

/// The rule of an output like X. Attribute `axis`, -1 where it is absent, must be one of X's axes.
fn along_axis(i: &Infer<'_>) -> Rule {
    axis(i.attrs, -1, i.shape(0)?.len())?;
    one(i.dtype(0)?, i.shape(0)?.to_vec())
}

fn lp(i: &Infer<'_>) -> Rule {
    match i.attrs.int("p", 2) {
        1 | 2 => along_axis(i),
        p => Err(bad("p", format!("must be 1 or 2, not {p}"))),
    }
}

/// Checks that the operands from `from` on are vectors with one element for each channel of X.
fn check_channels(i: &Infer<'_>, from: usize, least_rank: usize) -> Result<(), OpError> {
    let x = i.shape(0)?;
    if x.len() < least_rank {
        return Err(OpError::shape(format!(
            "X must have rank {least_rank} or more, not {}",
            x.len()
        )));
    }
    for k in from..i.inputs.len() {
        let c = &i.ranked(k, "parameter", 1)?[0];
        unify(c, &x[1], "parameter and channels")?;
    }
    Ok(())
}

fn batch(i: &Infer<'_>) -> Rule {
    if i.attrs.int("training_mode", 0) != 0 {
        return Err(bad(
            "training_mode",
            "training is not supported; export for inference",
        ));
    }
    check_channels(i, 1, 2)?;
    one(i.dtype(0)?, i.shape(0)?.to_vec())
}

fn instance(i: &Infer<'_>) -> Rule {
    check_channels(i, 1, 3)?;
    one(i.dtype(0)?, i.shape(0)?.to_vec())
}

fn group(i: &Infer<'_>) -> Rule {
    check_channels(i, 1, 2)?;
    let groups = i.attrs.int("num_groups", 0);
    if groups < 1 {
        return Err(bad("num_groups", "must be above zero"));
    }
    if i.shape(0)?[1].as_const().is_some_and(|c| c % groups != 0) {
        return Err(bad(
            "num_groups",
            format!("{groups} does not divide {} channels", i.shape(0)?[1]),
        ));
    }
    one(i.dtype(0)?, i.shape(0)?.to_vec())
}

fn layer(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    let axis = axis(i.attrs, -1, x.len())?;
    for (k, name) in [(1, "Scale"), (2, "B")] {
        if let Some(o) = i.opt(k) {
            check_broadcasts_to(&o.ty.shape, x, name)?;
        }
    }
    let kept = x[..axis].iter().cloned();
    let stats: Vec<Dim> = kept
        .chain(x[axis..].iter().map(|_| Dim::Const(1)))
        .collect();
    let stash = stash_type(i)?;
    Ok(vec![
        InferredOutput::of(i.dtype(0)?, x.to_vec()),
        InferredOutput::of(stash, stats.clone()),
        InferredOutput::of(stash, stats),
    ])
}

/// The dtype in which a mean is kept, by ONNX's number.
fn stash_type(i: &Infer<'_>) -> Result<DType, OpError> {
    match i.attrs.int("stash_type", 1) {
        1 => Ok(F32),
        10 => Ok(F16),
        11 => Ok(F64),
        16 => Ok(BF16),
        t => Err(bad(
            "stash_type",
            format!("{t} is not a floating-point type"),
        )),
    }
}

fn rms(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    axis(i.attrs, -1, x.len())?;
    stash_type(i)?;
    check_broadcasts_to(i.shape(1)?, x, "scale")?;
    one(i.dtype(1)?, x.to_vec())
}

fn lrn(i: &Infer<'_>) -> Rule {
    LrnAttrs::new(i.attrs)?;
    if i.shape(0)?.len() < 2 {
        return Err(OpError::shape("X must have rank 2 or more"));
    }
    one(i.dtype(0)?, i.shape(0)?.to_vec())
}

fn mean_variance(i: &Infer<'_>) -> Rule {
    mvn_axes(i.attrs, i.shape(0)?.len())?;
    one(i.dtype(0)?, i.shape(0)?.to_vec())
}

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(Op::Norm(NormOp::Softmax), "e^x over its sum along an axis, any shape.", X_FLOAT, along_axis)
        .attrs(&[AXIS])
        .cost(per_element::<12>),
    OpDef::of(Op::Norm(NormOp::LogSoftmax), "x minus ln of the sum of e^x along an axis, any shape.", X_FLOAT, along_axis)
        .attrs(&[AXIS])
        .cost(per_element::<12>),
    OpDef::of(Op::Norm(NormOp::Hardmax), "1 at the first maximum along an axis, else 0, any shape.", X_FLOAT, along_axis)
        .attrs(&[AXIS])
        .cost(per_element::<2>),
    OpDef::of(Op::Norm(NormOp::LpNormalization), "X over its p-norm along an axis, any shape.", X_FLOAT, lp)
        .attrs(&[AXIS, attr("p", AttrKind::Int)])
        .cost(per_element::<3>),
    OpDef::of(
        Op::Norm(NormOp::LayerNormalization),
        "X normalised over the axes from `axis`, times Scale plus B; optionally mean and 1/deviation.",
        &[
            operand("X", FLOATS).class(1),
            operand("Scale", FLOATS).class(1),
            operand("B", FLOATS).class(1).optional(),
        ],
        layer,
    )
    .attrs(&[AXIS, EPSILON, STASH])
    .outputs(1, 3)
    .cost(per_element::<8>),
    OpDef::of(
        Op::Norm(NormOp::RMSNormalization),
        "X over its root mean square over the axes from `axis`, times scale.",
        &[operand("X", FLOATS), operand("scale", FLOATS)],
        rms,
    )
    .attrs(&[AXIS, EPSILON, STASH])
    .cost(per_element::<5>),
    OpDef::of(
        Op::Norm(NormOp::BatchNormalization),
        "X [N, C, ..] normalised per channel by given mean and variance, times scale plus B.",
        &[
            operand("X", FLOATS),
            operand("scale", FLOATS).class(2),
            operand("B", FLOATS).class(2),
            operand("mean", FLOATS).class(3),
            operand("var", FLOATS).class(3),
        ],
        batch,
    )
    .attrs(&[EPSILON, attr("momentum", AttrKind::Float), attr("training_mode", AttrKind::Int)])
    .cost(per_element::<4>)
    .in_place(),
    OpDef::of(
        Op::Norm(NormOp::InstanceNormalization),
        "X [N, C, ..] normalised per instance and channel, times scale plus B.",
        &[
            operand("X", FLOATS).class(1),
            operand("scale", FLOATS).class(1),
            operand("B", FLOATS).class(1),
        ],
        instance,
    )
    .attrs(&[EPSILON])
    .cost(per_element::<8>),
    OpDef::of(
        Op::Norm(NormOp::GroupNormalization),
        "X [N, C, ..] normalised per instance and group of channels, times scale [C] plus bias [C].",
        &[
            operand("X", FLOATS).class(1),
            operand("scale", FLOATS).class(1),
            operand("bias", FLOATS).class(1),
        ],
        group,
    )
    .attrs(&[EPSILON, required("num_groups", AttrKind::Int), STASH])
    .cost(per_element::<8>),
    OpDef::of(Op::Norm(NormOp::LRN), "X [N, C, ..] over a power of the squares of neighbouring channels.", X_FLOAT, lrn)
        .attrs(&[
            attr("alpha", AttrKind::Float),
            attr("beta", AttrKind::Float),
            attr("bias", AttrKind::Float),
            required("size", AttrKind::Int),
        ])
        .cost(per_element::<15>),
    OpDef::of(
        Op::Norm(NormOp::MeanVarianceNormalization),
        "X minus its mean over `axes`, over its deviation, any shape.",
        X_FLOAT,
        mean_variance,
    )
    .attrs(&[attr("axes", AttrKind::Ints)])
    .cost(per_element::<8>),
];
