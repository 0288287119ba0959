//! Ops by which a function takes and gives tensors that an eager session of the caller holds.
//!
//! A handle's number is an ordinary value that the caller feeds, so that a function whose operands live on workers is
//! placed, partitioned and driven as any other. The executor itself runs the two ops, on the worker of the session.

use crate::ops::attrs::bad;
use crate::ops::cost::free;
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{HandleOp, Op};
use crate::ops::shapes::*;
use crate::{DType, Dim};

const NUMBER: &[DType] = &[DType::U64];

/// The dimensions in attribute `dims`, each a number or a symbol.
fn declared(i: &Infer<'_>) -> Result<Vec<Dim>, OpError> {
    let Some(crate::graph::Attr::Strs(dims)) = i.attrs.get("dims") else {
        return Err(bad("dims", "is required"));
    };
    check_rank(dims.len())?;
    let dim = |d: &std::sync::Arc<str>| match d.parse::<i64>() {
        Ok(n) if n >= 0 => Ok(Dim::Const(n)),
        Ok(n) => Err(bad("dims", format!("{n} is no dimension"))),
        Err(_) if d.is_empty() => Err(bad("dims", "an empty symbol")),
        Err(_) => Ok(Dim::sym(d)),
    };
    dims.iter().map(dim).collect()
}

fn handle_in(i: &Infer<'_>) -> Rule {
    i.ranked(0, "number", 0)?;
    let dtype = i.attrs.dtype("dtype");
    one(
        dtype.ok_or_else(|| bad("dtype", "is required"))?,
        declared(i)?,
    )
}

fn handle_out(i: &Infer<'_>) -> Rule {
    i.ranked(1, "number", 0)?;
    one(DType::U8, vec![Dim::Const(0)])
}

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Handle(HandleOp::HandleIn),
        "The tensor of the caller's handle of this number, given up by the handle where it is donated.",
        &[operand("number", NUMBER)],
        handle_in,
    )
    .attrs(&[
        required("dtype", AttrKind::DType),
        required("dims", AttrKind::Strs),
        attr("donate", AttrKind::Int),
    ])
    .cost(free)
    .impure(),
    OpDef::of(
        Op::Handle(HandleOp::HandleOut),
        "X becomes the caller's handle of this number; the result, u8 [0], says that it has.",
        &[operand("X", STORED), operand("number", NUMBER)],
        handle_out,
    )
    .cost(free)
    .impure(),
];
