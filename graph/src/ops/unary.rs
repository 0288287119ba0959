//! Elementwise ops of one operand, and casts.

use smallvec::smallvec;

use super::attrs::{alpha_beta, bad, gelu_tanh, selu};
use super::cost::{free, per_element};
use super::def::*;
use super::host;
use super::shapes::*;
use crate::tensor::Shape;
use crate::{DType, Dim};

const fn x(dtypes: &'static [DType]) -> OperandDef {
    operand("X", dtypes)
}

const X_FLOAT: &[OperandDef] = &[x(FLOATS)];
const X_NUMBER: &[OperandDef] = &[x(NUMBERS)];
const X_INT: &[OperandDef] = &[x(INTS)];
const X_BOOL: &[OperandDef] = &[x(BOOL)];
const X_ANY: &[OperandDef] = &[x(ANY)];
const ALPHA: AttrDef = attr("alpha", AttrKind::Float);

/// The rule of an output with X's dtype and shape.
fn same(i: &Infer<'_>) -> Rule {
    one(i.dtype(0)?, i.shape(0)?.to_vec())
}

fn quick_same(inputs: &[Option<ConcreteOperand<'_>>]) -> Option<ConcreteOutputs> {
    let x = inputs.first()?.as_ref()?;
    Some(smallvec![(x.dtype, Shape::from_slice(x.shape))])
}

/// The rule of a bool output with X's shape.
fn predicate(i: &Infer<'_>) -> Rule {
    one(Bool, i.shape(0)?.to_vec())
}

/// As `same`, with elements followed through `f`.
fn followed(i: &Infer<'_>, f: fn(&Dim, DType) -> Option<Dim>) -> Rule {
    let mut out = same(i)?;
    let dtype = i.dtype(0)?;
    let value = i.opt(0).and_then(|o| o.value);
    out[0].value = value.and_then(|v| v.map(|d| f(d, dtype)));
    Ok(out)
}

fn negate(d: &Dim, t: DType) -> Option<Dim> {
    host::sub(&Dim::Const(0), d, t)
}

fn absolute(d: &Dim, t: DType) -> Option<Dim> {
    match host::less(d, &Dim::Const(0))? {
        true => negate(d, t),
        false => Some(d.clone()),
    }
}

fn sign(d: &Dim, _: DType) -> Option<Dim> {
    let zero = Dim::Const(0);
    match (host::less(d, &zero), host::less(&zero, d)) {
        (Some(true), _) => Some(Dim::Const(-1)),
        (_, Some(true)) => Some(Dim::Const(1)),
        (Some(false), Some(false)) => Some(zero),
        _ => None,
    }
}

fn not(d: &Dim, _: DType) -> Option<Dim> {
    d.as_const().map(|b| host::bit(b == 0))
}

fn relu(d: &Dim, t: DType) -> Option<Dim> {
    host::max(d, &Dim::Const(0), t)
}

/// Defines an elementwise op on `operands`, of about `N` operations per element.
const fn elementwise<const N: u32>(
    name: &'static str,
    doc: &'static str,
    operands: &'static [OperandDef],
) -> OpDef {
    OpDef::new(name, doc, operands, same)
        .quick(quick_same)
        .cost(per_element::<N>)
        .in_place()
}

/// As `elementwise`, with a rule that follows the elements of small integer tensors.
const fn integral(
    name: &'static str,
    doc: &'static str,
    operands: &'static [OperandDef],
    infer: InferFn,
) -> OpDef {
    OpDef::new(name, doc, operands, infer)
        .quick(quick_same)
        .cost(per_element::<1>)
        .in_place()
}

/// The rule of `Gelu`. It reads the attributes, so that a wrong one is found before the run.
fn gelu(i: &Infer<'_>) -> Rule {
    gelu_tanh(i.attrs)?;
    same(i)
}

fn cast_to(i: &Infer<'_>, to: DType) -> Rule {
    let mut out = InferredOutput::of(to, i.shape(0)?.to_vec());
    let value = i.opt(0).and_then(|o| o.value);
    out.value = value
        .filter(|_| !to.is_float())
        .and_then(|v| v.map(|d| cast_element(d, to)));
    Ok(vec![out])
}

fn cast_element(d: &Dim, to: DType) -> Option<Dim> {
    match (d, to) {
        (Dim::Const(c), Bool) => Some(host::bit(*c != 0)),
        (Dim::Const(c), _) => host::fits(to, (*c).into()).then(|| d.clone()),
        (_, Bool) => host::less(&Dim::Const(0), d).filter(|b| *b).map(host::bit),
        // A symbolic length is taken to fit whatever the model casts it to.
        _ => Some(d.clone()),
    }
}

fn cast(i: &Infer<'_>) -> Rule {
    match i.attrs.dtype("to") {
        Some(to) => cast_to(i, to),
        None => Err(bad("to", "is required")),
    }
}

fn identity(i: &Infer<'_>) -> Rule {
    let mut out = same(i)?;
    out[0].value = i.opt(0).and_then(|o| o.value.cloned());
    Ok(out)
}

fn dropout(i: &Infer<'_>) -> Rule {
    i.check_scalar(1, "ratio")?;
    i.check_scalar(2, "training_mode")?;
    if i.scalar(2).is_some_and(|d| d.is(1)) {
        return Err(OpError::shape(
            "training mode is not supported: its result is random",
        ));
    }
    let mut out = same(i)?;
    out.extend(predicate(i)?);
    Ok(out)
}

/// The rule of `Clip`, whose bounds must be scalars.
fn clip(i: &Infer<'_>) -> Rule {
    i.check_scalar(1, "min")?;
    i.check_scalar(2, "max")?;
    let mut out = same(i)?;
    let dtype = i.dtype(0)?;
    let bound = |k: usize| match i.opt(k) {
        None => Some(None),
        Some(_) => i.scalar(k).map(Some),
    };
    if let (Some(v), Some(min), Some(max)) = (i.opt(0).and_then(|o| o.value), bound(1), bound(2)) {
        out[0].value = v.map(|d| {
            let low = min.map_or_else(|| Some(d.clone()), |m| host::max(d, m, dtype))?;
            max.map_or_else(|| Some(low.clone()), |m| host::min(&low, m, dtype))
        });
    }
    Ok(out)
}

/// The rule of an activation, which checks that its parameters are numbers.
fn finite(i: &Infer<'_>, op: &str) -> Rule {
    let (alpha, beta) = if op == "Selu" {
        selu(i.attrs)
    } else {
        alpha_beta(op, i.attrs)
    };
    if alpha.is_nan() || beta.is_nan() || (op == "Celu" && alpha == 0.) {
        return Err(bad("alpha", format!("{alpha} is not possible")));
    }
    same(i)
}

/// Definitions of this family.
pub(super) const OPS: &[OpDef] = &[
    integral("Abs", "|x| of X, any shape.", X_NUMBER, |i| {
        followed(i, absolute)
    }),
    integral(
        "Neg",
        "-x of X, any shape; unsigned integers wrap.",
        X_NUMBER,
        |i| followed(i, negate),
    ),
    integral(
        "Sign",
        "-1, 0 or 1 by the sign of x, any shape.",
        X_NUMBER,
        |i| followed(i, sign),
    ),
    integral("Relu", "max(x, 0) of X, any shape.", X_NUMBER, |i| {
        followed(i, relu)
    }),
    integral("Not", "Logical not of X, any shape.", X_BOOL, |i| {
        followed(i, not)
    }),
    integral(
        "BitwiseNot",
        "Bitwise complement of X, any shape.",
        X_INT,
        |i| followed(i, |d, t| host::sub(&Dim::Const(-1), d, t)),
    ),
    elementwise::<1>("Reciprocal", "1 / x of X, any shape.", X_FLOAT),
    elementwise::<1>(
        "Floor",
        "Rounds x towards minus infinity, any shape.",
        X_FLOAT,
    ),
    elementwise::<1>(
        "Ceil",
        "Rounds x towards plus infinity, any shape.",
        X_FLOAT,
    ),
    elementwise::<1>(
        "Round",
        "Rounds x to the nearest, ties to even, any shape.",
        X_FLOAT,
    ),
    elementwise::<2>("Sqrt", "Square root of X, any shape.", X_FLOAT),
    elementwise::<10>("Exp", "e to the power x, any shape.", X_FLOAT),
    elementwise::<10>("Log", "Natural logarithm of X, any shape.", X_FLOAT),
    elementwise::<10>("Sin", "Sine of X, any shape.", X_FLOAT),
    elementwise::<10>("Cos", "Cosine of X, any shape.", X_FLOAT),
    elementwise::<10>("Tan", "Tangent of X, any shape.", X_FLOAT),
    elementwise::<10>("Asin", "Arcsine of X, any shape.", X_FLOAT),
    elementwise::<10>("Acos", "Arccosine of X, any shape.", X_FLOAT),
    elementwise::<10>("Atan", "Arctangent of X, any shape.", X_FLOAT),
    elementwise::<10>("Sinh", "Hyperbolic sine of X, any shape.", X_FLOAT),
    elementwise::<10>("Cosh", "Hyperbolic cosine of X, any shape.", X_FLOAT),
    elementwise::<10>("Tanh", "Hyperbolic tangent of X, any shape.", X_FLOAT),
    elementwise::<10>("Asinh", "Inverse hyperbolic sine of X, any shape.", X_FLOAT),
    elementwise::<10>(
        "Acosh",
        "Inverse hyperbolic cosine of X, any shape.",
        X_FLOAT,
    ),
    elementwise::<10>(
        "Atanh",
        "Inverse hyperbolic tangent of X, any shape.",
        X_FLOAT,
    ),
    elementwise::<10>("Erf", "Error function of X, any shape.", X_NUMBER),
    elementwise::<10>("Sigmoid", "1 / (1 + e^-x) of X, any shape.", X_FLOAT),
    elementwise::<10>("Softplus", "ln(1 + e^x) of X, any shape.", X_FLOAT),
    elementwise::<2>("Softsign", "x / (1 + |x|) of X, any shape.", X_FLOAT),
    elementwise::<10>("Mish", "x * tanh(softplus(x)) of X, any shape.", X_FLOAT),
    elementwise::<4>(
        "HardSwish",
        "x * clamp(x / 6 + 0.5, 0, 1) of X, any shape.",
        X_FLOAT,
    ),
    parametric("LeakyRelu", "x, or alpha * x below zero, any shape.", |i| {
        finite(i, "LeakyRelu")
    })
    .attrs(&[ALPHA]),
    parametric(
        "Elu",
        "x, or alpha * (e^x - 1) below zero, any shape.",
        |i| finite(i, "Elu"),
    )
    .attrs(&[ALPHA]),
    parametric(
        "Celu",
        "max(0, x) + min(0, alpha * (e^(x/alpha) - 1)), any shape.",
        |i| finite(i, "Celu"),
    )
    .attrs(&[ALPHA]),
    parametric(
        "Selu",
        "gamma * x, or gamma * alpha * (e^x - 1) below zero, any shape.",
        |i| finite(i, "Selu"),
    )
    .attrs(&[ALPHA, attr("gamma", AttrKind::Float)]),
    parametric(
        "HardSigmoid",
        "clamp(alpha * x + beta, 0, 1), any shape.",
        |i| finite(i, "HardSigmoid"),
    )
    .attrs(&[ALPHA, attr("beta", AttrKind::Float)]),
    parametric(
        "ThresholdedRelu",
        "x above alpha, else 0, any shape.",
        |i| finite(i, "ThresholdedRelu"),
    )
    .attrs(&[ALPHA]),
    parametric("Swish", "x * sigmoid(alpha * x), any shape.", |i| {
        finite(i, "Swish")
    })
    .attrs(&[ALPHA]),
    parametric(
        "Gelu",
        "x times the normal distribution's cumulative function, any shape.",
        gelu,
    )
    .attrs(&[attr("approximate", AttrKind::Str)]),
    OpDef::new(
        "IsNaN",
        "Whether x is not a number, any shape.",
        X_FLOAT,
        predicate,
    )
    .cost(per_element::<1>),
    OpDef::new(
        "IsInf",
        "Whether x is infinite, by sign, any shape.",
        X_FLOAT,
        predicate,
    )
    .attrs(&[
        attr("detect_negative", AttrKind::Int),
        attr("detect_positive", AttrKind::Int),
    ])
    .cost(per_element::<1>),
    OpDef::new(
        "Clip",
        "X limited to min and max, scalars, any shape.",
        &[
            x(NUMBERS).class(1),
            operand("min", NUMBERS).class(1).optional(),
            operand("max", NUMBERS).class(1).optional(),
        ],
        clip,
    )
    .cost(per_element::<2>)
    .in_place(),
    OpDef::new(
        "Cast",
        "X with elements of dtype `to`, any shape.",
        X_ANY,
        cast,
    )
    .attrs(&[
        required("to", AttrKind::DType),
        attr("saturate", AttrKind::Int),
        attr("round_mode", AttrKind::Str),
    ])
    .cost(per_element::<1>),
    OpDef::new(
        "CastLike",
        "X with elements of the dtype of a second operand, any shape.",
        &[x(ANY), operand("target_type", ANY)],
        |i| cast_to(i, i.dtype(1)?),
    )
    .attrs(&[
        attr("saturate", AttrKind::Int),
        attr("round_mode", AttrKind::Str),
    ])
    .cost(per_element::<1>),
    OpDef::new("Identity", "X itself.", X_ANY, identity)
        .quick(quick_same)
        .cost(free)
        .in_place(),
    OpDef::new(
        "Dropout",
        "X itself, as in inference; optionally a mask of all true.",
        &[
            x(FLOATS),
            operand("ratio", FLOATS).optional(),
            operand("training_mode", BOOL).optional().host(),
        ],
        dropout,
    )
    .attrs(&[attr("seed", AttrKind::Int)])
    .outputs(1, 2)
    .cost(free)
    .in_place(),
];

/// Defines an activation with parameters.
const fn parametric(name: &'static str, doc: &'static str, infer: InferFn) -> OpDef {
    OpDef::new(name, doc, X_FLOAT, infer)
        .cost(per_element::<10>)
        .in_place()
}
