//! Elementwise ops of one operand, and casts.

use convoke_functions::{FloatUnary, float_functions};
use smallvec::smallvec;

use crate::graph::Attrs;
use crate::ops::attrs::{CastAttrs, bad, gelu_tanh};
use crate::ops::cost::{free, per_element};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::host;
use crate::ops::kind::{Op, UnaryOp};
use crate::ops::shapes::*;
use crate::tensor::Shape;
use crate::{DType, Dim};

const fn x(dtypes: &'static [DType]) -> OperandDef {
    operand("X", dtypes)
}

const X_FLOAT: &[OperandDef] = &[x(FLOATS)];
const X_NUMBER: &[OperandDef] = &[x(NUMBERS)];
const X_INT: &[OperandDef] = &[x(INTS)];
const X_BOOL: &[OperandDef] = &[x(BOOL)];
const X_STORED: &[OperandDef] = &[x(STORED)];

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
    op: UnaryOp,
    doc: &'static str,
    operands: &'static [OperandDef],
) -> OpDef {
    OpDef::of(Op::Unary(op), doc, operands, same)
        .quick(quick_same)
        .cost(per_element::<N>)
        .in_place()
}

/// As `elementwise`, with a rule that follows the elements of small integer tensors.
const fn integral(
    op: UnaryOp,
    doc: &'static str,
    operands: &'static [OperandDef],
    infer: InferFn,
) -> OpDef {
    OpDef::of(Op::Unary(op), doc, operands, infer)
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
    CastAttrs::new(i.attrs)?;
    let mut out = InferredOutput::of(to, i.shape(0)?.to_vec());
    let value = i.opt(0).and_then(|o| o.value);
    out.value = value
        .filter(|_| !to.is_float() && !to.is_narrow() && to != Str)
        .and_then(|v| v.map(|d| cast_element(d, to)));
    Ok(vec![out])
}

fn cast_element(d: &Dim, to: DType) -> Option<Dim> {
    match (d, to) {
        (Dim::Const(c), Bool) => Some(host::bit(*c != 0)),
        (Dim::Const(c), _) => host::fits(to, (*c).into()).then(|| d.clone()),
        (_, Bool) => host::less(&Dim::Const(0), d).filter(|b| *b).map(host::bit),
        _ => host::holds(to, d).then(|| d.clone()),
    }
}

fn cast(i: &Infer<'_>) -> Rule {
    match i.attrs.dtype("to") {
        Some(to) => cast_to(i, to),
        None => Err(bad("to", "is required")),
    }
}

fn bit_cast(i: &Infer<'_>) -> Rule {
    let (from, to) = (i.dtype(0)?, i.attrs.dtype("to"));
    let to = to.ok_or_else(|| bad("to", "is required"))?;
    if from.bits() != to.bits() || to == Str {
        return Err(bad("to", format!("{to} is not of the size of {from}")));
    }
    one(to, i.shape(0)?.to_vec())
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

/// The rule of a function with parameters, which have to be numbers.
fn checked(i: &Infer<'_>, op: UnaryOp, parameters: &[f32]) -> Rule {
    let divides_by_zero = op == UnaryOp::Celu && parameters == [0.];
    match parameters.iter().find(|p| p.is_nan() || divides_by_zero) {
        Some(p) => Err(bad("alpha", format!("{p} is not possible"))),
        None => same(i),
    }
}

/// Defines the ops that compute a function of one float and nothing else.
macro_rules! functions {
    ($($cost:literal $name:ident $({ $($parameter:ident = $default:literal),* })? $doc:literal;)*) => {
        /// Definitions of the ops that compute a function of one float and nothing else.
        pub(in crate::ops) const FUNCTIONS: &[OpDef] = &[
            $(function!($cost $name $({ $($parameter = $default),* })? $doc)),*
        ];

        /// The function of floats that `op` computes with these attributes; `None` where it computes none.
        pub fn float_function(op: UnaryOp, attrs: &Attrs) -> Result<Option<FloatUnary>, OpError> {
            Ok(Some(match op {
                $(UnaryOp::$name => FloatUnary::$name $({
                    $($parameter: attrs.float(stringify!($parameter), $default).into()),*
                })?,)*
                UnaryOp::Abs => FloatUnary::Abs,
                UnaryOp::Neg => FloatUnary::Neg,
                UnaryOp::Sign => FloatUnary::Sign,
                UnaryOp::Relu => FloatUnary::Relu,
                UnaryOp::Erf => FloatUnary::Erf,
                UnaryOp::Gelu if gelu_tanh(attrs)? => FloatUnary::GeluTanh,
                UnaryOp::Gelu => FloatUnary::Gelu,
                UnaryOp::Not | UnaryOp::BitwiseNot | UnaryOp::IsNaN | UnaryOp::IsInf | UnaryOp::Clip
                | UnaryOp::BitCast | UnaryOp::Cast | UnaryOp::CastLike | UnaryOp::Identity | UnaryOp::Dropout => return Ok(None),
            }))
        }

        /// The default of a parameter of a function of one float; `None` where `op` has no such parameter.
        pub fn parameter_default(op: UnaryOp, parameter: &str) -> Option<f32> {
            match op {
                $(UnaryOp::$name => {
                    let defaults: &[(&str, f32)] = &[$($((stringify!($parameter), $default)),*)?];
                    let found = defaults.iter().find(|(name, _)| *name == parameter);
                    found.map(|(_, default)| *default)
                })*
                _ => None,
            }
        }
    };
}

/// The definition of one op that computes a function of one float.
macro_rules! function {
    ($cost:literal $name:ident $doc:literal) => {
        elementwise::<$cost>(UnaryOp::$name, $doc, X_FLOAT)
    };
    ($cost:literal $name:ident { $($parameter:ident = $default:literal),* } $doc:literal) => {
        OpDef::of(Op::Unary(UnaryOp::$name), $doc, X_FLOAT, |i| {
            checked(i, UnaryOp::$name, &[$(i.attrs.float(stringify!($parameter), $default)),*])
        })
        .attrs(&[$(attr(stringify!($parameter), AttrKind::Float)),*])
        .cost(per_element::<$cost>)
        .in_place()
    };
}
float_functions!(functions);

/// Definitions of the other ops of the family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    integral(UnaryOp::Abs, "|x| of X, any shape.", X_NUMBER, |i| {
        followed(i, absolute)
    }),
    integral(
        UnaryOp::Neg,
        "-x of X, any shape; unsigned integers wrap.",
        X_NUMBER,
        |i| followed(i, negate),
    ),
    integral(
        UnaryOp::Sign,
        "-1, 0 or 1 by the sign of x, any shape.",
        X_NUMBER,
        |i| followed(i, sign),
    ),
    integral(UnaryOp::Relu, "max(x, 0) of X, any shape.", X_NUMBER, |i| {
        followed(i, relu)
    }),
    integral(UnaryOp::Not, "Logical not of X, any shape.", X_BOOL, |i| {
        followed(i, not)
    }),
    integral(
        UnaryOp::BitwiseNot,
        "Bitwise complement of X, any shape.",
        X_INT,
        |i| followed(i, |d, t| host::sub(&Dim::Const(-1), d, t)),
    ),
    elementwise::<10>(UnaryOp::Erf, "Error function of X, any shape.", X_NUMBER),
    OpDef::of(
        Op::Unary(UnaryOp::Gelu),
        "x times the normal distribution's cumulative function, any shape.",
        X_FLOAT,
        gelu,
    )
    .cost(per_element::<10>)
    .in_place()
    .attrs(&[attr("approximate", AttrKind::Str)]),
    OpDef::of(
        Op::Unary(UnaryOp::IsNaN),
        "Whether x is not a number, any shape.",
        X_FLOAT,
        predicate,
    )
    .cost(per_element::<1>),
    OpDef::of(
        Op::Unary(UnaryOp::IsInf),
        "Whether x is infinite, by sign, any shape.",
        X_FLOAT,
        predicate,
    )
    .attrs(&[
        attr("detect_negative", AttrKind::Int),
        attr("detect_positive", AttrKind::Int),
    ])
    .cost(per_element::<1>),
    OpDef::of(
        Op::Unary(UnaryOp::Clip),
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
    OpDef::of(
        Op::Unary(UnaryOp::BitCast),
        "The bits of X as elements of another dtype of the same size, any shape.",
        &[x(BITS)],
        bit_cast,
    )
    .attrs(&[required("to", AttrKind::DType)]),
    OpDef::of(
        Op::Unary(UnaryOp::Cast),
        "X with elements of dtype `to`, any shape.",
        X_STORED,
        cast,
    )
    .attrs(&[
        required("to", AttrKind::DType),
        attr("saturate", AttrKind::Int),
        attr("round_mode", AttrKind::Str),
    ])
    .cost(per_element::<1>),
    OpDef::of(
        Op::Unary(UnaryOp::CastLike),
        "X with elements of the dtype of a second operand, any shape.",
        &[x(STORED), operand("target_type", STORED)],
        |i| cast_to(i, i.dtype(1)?),
    )
    .attrs(&[
        attr("saturate", AttrKind::Int),
        attr("round_mode", AttrKind::Str),
    ])
    .cost(per_element::<1>),
    OpDef::of(
        Op::Unary(UnaryOp::Identity),
        "X itself.",
        X_STORED,
        identity,
    )
    .quick(quick_same)
    .cost(free)
    .in_place(),
    OpDef::of(
        Op::Unary(UnaryOp::Dropout),
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
