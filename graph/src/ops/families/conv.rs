//! Convolution.

use crate::Dim;
use crate::graph::{Attrs, TensorType};
use crate::ops::attrs::ConvAttrs;
use crate::ops::cost::{Cost, elements, with_flops};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{ConvOp, Op};
use crate::ops::shapes::*;

/// Attributes of every convolution.
pub(super) const CONV_ATTRS: &[AttrDef] = &[
    attr("auto_pad", AttrKind::Str),
    attr("dilations", AttrKind::Ints),
    attr("group", AttrKind::Int),
    attr("kernel_shape", AttrKind::Ints),
    attr("pads", AttrKind::Ints),
    attr("strides", AttrKind::Ints),
];

/// Shape of the convolution of `x` [N, C, ..] with a weight of shape `w` [M, C/group, ..].
pub(super) fn conv_shape(attrs: &Attrs, x: &[Dim], w: &[Dim]) -> Result<Vec<Dim>, OpError> {
    if x.len() < 3 || x.len() != w.len() {
        return Err(OpError::shape(format!(
            "input {x:?} and weight {w:?} must have the same rank of at least 3"
        )));
    }
    let kernel: Option<Vec<usize>> = w[2..]
        .iter()
        .map(|d| usize::try_from(d.as_const()?).ok())
        .collect();
    let kernel = kernel.ok_or(OpError::ValueNeeded { operand: "W" })?;
    let attrs = ConvAttrs::new(attrs, &kernel)?;
    let group = Dim::from(attrs.group);
    unify(&x[1], &(&w[1] * &group), "channels of input and weight")?;
    if w[0].as_const().is_some_and(|m| m % attrs.group as i64 != 0) {
        return Err(OpError::shape(format!(
            "{} output channels do not fall into {group} groups",
            w[0]
        )));
    }
    let mut out = vec![x[0].clone(), w[0].clone()];
    for (axis, d) in x[2..].iter().enumerate() {
        out.push(attrs.window.output_dim(axis, d)?);
    }
    Ok(out)
}

/// Checks the bias of `m` output channels, where it is given.
pub(super) fn check_bias(bias: Option<Operand<'_>>, m: &Dim) -> Result<(), OpError> {
    match bias.map(|b| b.ty.shape.as_slice()) {
        None => Ok(()),
        Some([n]) => unify(n, m, "bias and output channels").map(drop),
        Some(s) => Err(OpError::shape(format!(
            "the bias must have rank 1, not {}",
            s.len()
        ))),
    }
}

fn conv(i: &Infer<'_>) -> Rule {
    let w = i.shape(1)?;
    let out = conv_shape(i.attrs, i.shape(0)?, w)?;
    check_bias(i.opt(2), &w[0])?;
    one(i.dtype(0)?, out)
}

fn conv_cost(_: &Attrs, inputs: &[Option<&TensorType>], outputs: &[&TensorType]) -> Cost {
    // Each output element is a dot product of one filter: [C/group, kernel..].
    let filter = inputs.get(1).copied().flatten().map_or(0., |w| {
        w.shape
            .iter()
            .skip(1)
            .map(|d| d.as_const().unwrap_or(0) as f64)
            .product()
    });
    with_flops(
        2. * filter * outputs.first().map_or(0., |t| elements(t)),
        inputs,
        outputs,
    )
}

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[OpDef::of(
    Op::Conv(ConvOp::Conv),
    "X [N, C, ..] convolved with W [M, C/group, ..], plus bias [M]: [N, M, ..].",
    &[
        operand("X", FLOATS).class(1),
        operand("W", FLOATS).class(1),
        operand("B", FLOATS).class(1).optional(),
    ],
    conv,
)
.attrs(CONV_ATTRS)
.cost(conv_cost)];
