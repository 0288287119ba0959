//! Elementwise ops of two or more operands, with numpy's broadcasting.

use std::collections::BTreeSet;

use smallvec::{SmallVec, smallvec};

use crate::ops::attrs::{bad, flag};
use crate::ops::cost::per_element;
use crate::ops::def::*;
use crate::ops::host::{self, Arith};
use crate::ops::kind::{BinaryOp, Op};
use crate::ops::shapes::*;
use crate::tensor::{MAX_RANK, Shape};
use crate::{DType, Dim};

const fn two(dtypes: &'static [DType]) -> [OperandDef; 2] {
    [operand("A", dtypes).class(1), operand("B", dtypes).class(1)]
}

const AB_MOVED: &[OperandDef] = &two(MOVED);
const AB_NUMBER: &[OperandDef] = &two(NUMBERS);
const AB_INT: &[OperandDef] = &two(INTS);
const AB_BOOL: &[OperandDef] = &two(BOOL);
const MANY_NUMBER: &[OperandDef] = &[operand("data", NUMBERS).class(1).variadic()];
const MANY_FLOAT: &[OperandDef] = &[operand("data", FLOATS).class(1).variadic()];

/// The rule of an output of `dtype` whose elements are followed through `f`.
fn paired(i: &Infer<'_>, dtype: DType, f: impl Fn(&Dim, &Dim) -> Option<Dim>) -> Rule {
    let shape = broadcast(i.shape(0)?, i.shape(1)?)?;
    let mut out = InferredOutput::of(dtype, shape);
    let value = |k: usize| i.opt(k).and_then(|o| o.value);
    if let (Some(a), Some(b)) = (value(0), value(1)) {
        out.value = host::zip(a, b, &out.ty.shape, f);
    }
    Ok(vec![out])
}

fn arithmetic(i: &Infer<'_>, f: Arith) -> Rule {
    let dtype = i.dtype(0)?;
    paired(i, dtype, |a, b| f(a, b, dtype))
}

fn comparison(i: &Infer<'_>, f: impl Fn(&Dim, &Dim) -> Option<bool>) -> Rule {
    paired(i, Bool, |a, b| f(a, b).map(host::bit))
}

fn logic(i: &Infer<'_>, f: fn(i64, i64) -> i64) -> Rule {
    paired(i, Bool, |a, b| {
        Some(Dim::Const(f(a.as_const()?, b.as_const()?)))
    })
}

/// The rule of a bitwise op. The result on known integers always fits their dtype.
fn bits(i: &Infer<'_>, f: fn(i64, i64) -> i64) -> Rule {
    paired(i, i.dtype(0)?, |a, b| {
        Some(Dim::Const(f(a.as_const()?, b.as_const()?)))
    })
}

fn plain(i: &Infer<'_>) -> Rule {
    paired(i, i.dtype(0)?, |_, _| None)
}

fn shift(i: &Infer<'_>) -> Rule {
    match i.attrs.str("direction", "") {
        "LEFT" | "RIGHT" => plain(i),
        other => Err(bad(
            "direction",
            format!("must be LEFT or RIGHT, not '{other}'"),
        )),
    }
}

fn modulo(i: &Infer<'_>) -> Rule {
    let fmod = flag(i.attrs, "fmod", false);
    arithmetic(i, if fmod { host::fmod } else { host::modulo })
}

fn power(i: &Infer<'_>) -> Rule {
    let dtype = i.dtype(0)?;
    paired(i, dtype, |a, b| {
        let exponent = b
            .as_const()
            .and_then(|b| u32::try_from(b).ok())
            .filter(|b| *b <= 8)?;
        (0..exponent).try_fold(Dim::Const(1), |p, _| host::mul(&p, a, dtype))
    })
}

/// The weight from which on further operands are not added to an expression: it would be replaced by a symbol anyway, and
/// one of very many operands would be nested too deep.
const LONG: usize = 256;

/// The rule of an op on operands that are all broadcast together, and whose elements are followed through `f`.
fn many(i: &Infer<'_>, f: Option<Arith>) -> Rule {
    let dtype = i.dtype(0)?;
    let mut out = InferredOutput::of(dtype, i.shape(0)?.to_vec());
    out.value = i
        .opt(0)
        .and_then(|o| o.value)
        .filter(|_| f.is_some())
        .cloned();
    // Stands for dimensions that are too long expressions, if there are any. No axis has the number of its symbol.
    let mut unknown: Option<Dim> = None;
    let is_long = |d: &Dim| d.as_const().is_none() && d.weight(LONG) > LONG;
    for k in 1..i.inputs.len() {
        out.ty.shape = broadcast(&out.ty.shape, i.shape(k)?)?;
        let long = out.ty.shape.iter_mut().filter(|d| is_long(d));
        long.for_each(|d| {
            let unknown = unknown.get_or_insert_with(|| i.fresh(0, MAX_RANK));
            *d = unknown.clone();
        });
        let next = i.opt(k).and_then(|o| o.value);
        out.value = match (out.value, next, f) {
            (Some(a), Some(b), Some(f)) => host::zip(&a, b, &out.ty.shape, |a, b| f(a, b, dtype)),
            _ => None,
        };
        out.value = out.value.filter(|v| !v.elements.iter().any(is_long));
    }
    if let Some(unknown) = unknown.as_ref().and_then(Dim::as_symbol) {
        for (axis, d) in out.ty.shape.iter_mut().enumerate() {
            let mut symbols = BTreeSet::new();
            d.symbols(&mut symbols);
            if symbols.contains(unknown) {
                *d = i.fresh(0, axis);
            }
        }
    }
    Ok(vec![out])
}

fn prelu(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    check_broadcasts_to(i.shape(1)?, x, "slope")?;
    one(i.dtype(0)?, x.to_vec())
}

fn select(i: &Infer<'_>) -> Rule {
    let dtype = i.dtype(1)?;
    let shape = broadcast(&broadcast(i.shape(0)?, i.shape(1)?)?, i.shape(2)?)?;
    let mut out = InferredOutput::of(dtype, shape);
    let value = |k: usize| i.opt(k).and_then(|o| o.value);
    if let (Some(c), Some(x), Some(y)) = (value(0), value(1), value(2)) {
        // Each side has zeros at the positions that the other side fills; their sum is the result.
        let pick = |d: &Dim, side: bool| (d.as_const()? == i64::from(side)).then_some(());
        let shape = &out.ty.shape;
        let from_x = host::zip(c, x, shape, |c, x| {
            Some(pick(c, true).map_or(Dim::Const(0), |()| x.clone()))
        });
        let from_y = host::zip(c, y, shape, |c, y| {
            Some(pick(c, false).map_or(Dim::Const(0), |()| y.clone()))
        });
        let known = c.ints().is_some();
        if let (Some(a), Some(b), true) = (from_x, from_y, known) {
            out.value = host::zip(&a, &b, shape, |a, b| Some(a + b));
        }
    }
    Ok(vec![out])
}

/// The broadcast of two concrete shapes; `None` leaves the case to the general rule.
fn quick_shape(a: &[usize], b: &[usize]) -> Option<Shape> {
    if a == b {
        return Some(Shape::from_slice(a));
    }
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let mut out: Shape = SmallVec::from_slice(long);
    let lead = long.len() - short.len();
    for (o, s) in out[lead..].iter_mut().zip(short) {
        match (*o, *s) {
            (o, s) if o == s => {}
            (_, 1) => {}
            (1, s) => *o = s,
            // The general rule makes the error.
            _ => return None,
        }
    }
    crate::tensor::byte_size(F64, &out).map(|_| out)
}

fn quick_pair(inputs: &[Option<ConcreteOperand<'_>>]) -> Option<ConcreteOutputs> {
    match inputs {
        [Some(a), Some(b)] => Some(smallvec![(a.dtype, quick_shape(a.shape, b.shape)?)]),
        _ => None,
    }
}

fn quick_compare(inputs: &[Option<ConcreteOperand<'_>>]) -> Option<ConcreteOutputs> {
    match inputs {
        [Some(a), Some(b)] => Some(smallvec![(Bool, quick_shape(a.shape, b.shape)?)]),
        _ => None,
    }
}

/// Defines an op whose result has its operands' dtype, and may overwrite the first of them.
const fn same_type(
    op: BinaryOp,
    doc: &'static str,
    operands: &'static [OperandDef],
    infer: InferFn,
) -> OpDef {
    apart(op, doc, operands, infer).in_place()
}

/// Defines an op whose result has its operands' dtype.
const fn apart(
    op: BinaryOp,
    doc: &'static str,
    operands: &'static [OperandDef],
    infer: InferFn,
) -> OpDef {
    OpDef::of(Op::Binary(op), doc, operands, infer).cost(per_element::<1>)
}

/// Defines an op whose result is bool.
const fn compare(
    op: BinaryOp,
    doc: &'static str,
    operands: &'static [OperandDef],
    infer: InferFn,
) -> OpDef {
    OpDef::of(Op::Binary(op), doc, operands, infer)
        .quick(quick_compare)
        .cost(per_element::<1>)
}

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    same_type(BinaryOp::Add, "A + B, broadcast.", AB_NUMBER, |i| {
        arithmetic(i, host::add)
    })
    .quick(quick_pair),
    same_type(BinaryOp::Sub, "A - B, broadcast.", AB_NUMBER, |i| {
        arithmetic(i, host::sub)
    })
    .quick(quick_pair),
    same_type(BinaryOp::Mul, "A * B, broadcast.", AB_NUMBER, |i| {
        arithmetic(i, host::mul)
    })
    .quick(quick_pair),
    same_type(
        BinaryOp::Div,
        "A / B, broadcast; integers truncate.",
        AB_NUMBER,
        |i| arithmetic(i, host::div),
    )
    .quick(quick_pair),
    same_type(
        BinaryOp::Mod,
        "The remainder of A / B, of B's sign or with `fmod` of A's, broadcast.",
        AB_NUMBER,
        modulo,
    )
    .attrs(&[attr("fmod", AttrKind::Int)]),
    same_type(
        BinaryOp::Pow,
        "X to the power Y, broadcast, of X's dtype.",
        &[operand("X", NUMBERS), operand("Y", NUMBERS)],
        power,
    )
    .cost(per_element::<10>),
    same_type(
        BinaryOp::PRelu,
        "x, or slope * x below zero; the slope broadcasts to X.",
        &[
            operand("X", NUMBERS).class(1),
            operand("slope", NUMBERS).class(1),
        ],
        prelu,
    ),
    same_type(
        BinaryOp::Min,
        "The least of the operands, broadcast.",
        MANY_NUMBER,
        |i| many(i, Some(host::min)),
    ),
    same_type(
        BinaryOp::Max,
        "The greatest of the operands, broadcast.",
        MANY_NUMBER,
        |i| many(i, Some(host::max)),
    ),
    same_type(
        BinaryOp::Sum,
        "The sum of the operands, broadcast.",
        MANY_NUMBER,
        |i| many(i, None),
    ),
    same_type(
        BinaryOp::Mean,
        "The mean of the operands, broadcast.",
        MANY_FLOAT,
        |i| many(i, None),
    ),
    compare(BinaryOp::And, "A and B, broadcast.", AB_BOOL, |i| {
        logic(i, |a, b| a & b)
    }),
    compare(BinaryOp::Or, "A or B, broadcast.", AB_BOOL, |i| {
        logic(i, |a, b| a | b)
    }),
    compare(
        BinaryOp::Xor,
        "A exclusive-or B, broadcast.",
        AB_BOOL,
        |i| logic(i, |a, b| a ^ b),
    ),
    compare(BinaryOp::Equal, "A = B, broadcast.", AB_MOVED, |i| {
        comparison(i, host::equal)
    }),
    compare(BinaryOp::Less, "A < B, broadcast.", AB_NUMBER, |i| {
        comparison(i, host::less)
    }),
    compare(BinaryOp::Greater, "A > B, broadcast.", AB_NUMBER, |i| {
        comparison(i, |a, b| host::less(b, a))
    }),
    compare(
        BinaryOp::LessOrEqual,
        "A <= B, broadcast.",
        AB_NUMBER,
        |i| comparison(i, |a, b| host::less(b, a).map(|v| !v)),
    ),
    compare(
        BinaryOp::GreaterOrEqual,
        "A >= B, broadcast.",
        AB_NUMBER,
        |i| comparison(i, |a, b| host::less(a, b).map(|v| !v)),
    ),
    apart(
        BinaryOp::BitShift,
        "A shifted by B bits, broadcast.",
        AB_INT,
        shift,
    )
    .attrs(&[required("direction", AttrKind::Str)]),
    apart(
        BinaryOp::BitwiseAnd,
        "Bitwise A and B, broadcast.",
        AB_INT,
        |i| bits(i, |a, b| a & b),
    ),
    apart(
        BinaryOp::BitwiseOr,
        "Bitwise A or B, broadcast.",
        AB_INT,
        |i| bits(i, |a, b| a | b),
    ),
    apart(
        BinaryOp::BitwiseXor,
        "Bitwise A exclusive-or B, broadcast.",
        AB_INT,
        |i| bits(i, |a, b| a ^ b),
    ),
    OpDef::of(
        Op::Binary(BinaryOp::Where),
        "X where the condition holds, else Y, all broadcast.",
        &[
            operand("condition", BOOL),
            operand("X", MOVED).class(1),
            operand("Y", MOVED).class(1),
        ],
        select,
    )
    .cost(per_element::<1>),
];
