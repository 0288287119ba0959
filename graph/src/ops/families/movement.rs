//! Rearranging elements: `Transpose`, `Trilu`, blocks between depth and space.

use crate::Dim;
use crate::ops::attrs::{bad, column_row_depth, normalize_axis, transpose_perm};
use crate::ops::cost::output_traffic;
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::host;
use crate::ops::kind::{MovementOp, Op};
use crate::ops::shapes::*;

fn transpose(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    let perm = transpose_perm(i.attrs, x.len())?;
    let mut out = InferredOutput::of(i.dtype(0)?, perm.iter().map(|p| x[*p].clone()).collect());
    if let (Some(v), Some(shape)) = (i.opt(0).and_then(|o| o.value), host::fixed(&out.ty.shape)) {
        out.value = v.reindex(&shape, |at| {
            let source = |axis: usize| at.get(perm.iter().position(|p| *p == axis)?);
            v.shape
                .iter()
                .enumerate()
                .try_fold(0, |flat, (axis, d)| Some(flat * d + source(axis)?))
        });
    }
    Ok(vec![out])
}

fn trilu(i: &Infer<'_>) -> Rule {
    i.check_scalar(1, "k")?;
    let x = i.shape(0)?;
    if x.len() < 2 {
        return Err(OpError::shape("the operand must have rank 2 or more"));
    }
    one(i.dtype(0)?, x.to_vec())
}

/// Attribute `blocksize`, in a range in which its square does not overflow.
fn block(i: &Infer<'_>) -> Result<i64, OpError> {
    match i.attrs.int("blocksize", 0) {
        b @ 1..=0xffff => Ok(b),
        b => Err(bad("blocksize", format!("{b} is outside 1 to 65535"))),
    }
}

/// `d / by`, which must leave no remainder.
fn divided(d: &Dim, by: i64, what: &str) -> Result<Dim, OpError> {
    match d.as_const() {
        Some(d) if d % by != 0 => Err(OpError::shape(format!(
            "{what} {d} is not a multiple of {by}"
        ))),
        _ => Ok(d.floor_div(&Dim::Const(by))),
    }
}

fn depth_to_space(i: &Infer<'_>) -> Rule {
    let (x, b) = (i.ranked(0, "input", 4)?, block(i)?);
    column_row_depth(i.attrs)?;
    let by = Dim::Const(b);
    let c = divided(&x[1], b * b, "the number of channels")?;
    one(i.dtype(0)?, vec![x[0].clone(), c, &x[2] * &by, &x[3] * &by])
}

fn space_to_depth(i: &Infer<'_>) -> Rule {
    let (x, b) = (i.ranked(0, "input", 4)?, block(i)?);
    column_row_depth(i.attrs)?;
    let (h, w) = (
        divided(&x[2], b, "the height")?,
        divided(&x[3], b, "the width")?,
    );
    one(
        i.dtype(0)?,
        vec![x[0].clone(), &x[1] * &Dim::Const(b * b), h, w],
    )
}

fn reverse_sequence(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    let batch = normalize_axis(i.attrs.int("batch_axis", 1), x.len())?;
    let time = normalize_axis(i.attrs.int("time_axis", 0), x.len())?;
    if batch == time || batch > 1 || time > 1 {
        return Err(OpError::shape(
            "'batch_axis' and 'time_axis' must be 0 and 1, or 1 and 0",
        ));
    }
    unify(
        &i.ranked(1, "sequence_lens", 1)?[0],
        &x[batch],
        "sequence lengths and batch",
    )?;
    one(i.dtype(0)?, x.to_vec())
}

const DATA: OperandDef = operand("input", MOVED);
const BLOCK: AttrDef = required("blocksize", AttrKind::Int);

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Movement(MovementOp::Transpose),
        "The operand with its axes permuted, reversed by default.",
        &[operand("input", STORED)],
        transpose,
    )
    .attrs(&[attr("perm", AttrKind::Ints)]),
    OpDef::of(
        Op::Movement(MovementOp::Trilu),
        "The triangle above (or below) diagonal k of the last two axes; the rest is zero.",
        &[DATA, operand("k", LONG).host().optional()],
        trilu,
    )
    .attrs(&[attr("upper", AttrKind::Int)]),
    OpDef::of(
        Op::Movement(MovementOp::DepthToSpace),
        "[N, C, H, W] to [N, C/b/b, H*b, W*b] for blocks of b by b.",
        &[DATA],
        depth_to_space,
    )
    .attrs(&[BLOCK, attr("mode", AttrKind::Str)])
    .cost(output_traffic),
    OpDef::of(
        Op::Movement(MovementOp::SpaceToDepth),
        "[N, C, H, W] to [N, C*b*b, H/b, W/b] for blocks of b by b.",
        &[DATA],
        space_to_depth,
    )
    .attrs(&[BLOCK, attr("mode", AttrKind::Str)])
    .cost(output_traffic),
    OpDef::of(
        Op::Movement(MovementOp::ReverseSequence),
        "The first sequence_lens[b] steps of every sequence reversed, same shape.",
        &[DATA, operand("sequence_lens", LONG)],
        reverse_sequence,
    )
    .attrs(&[
        attr("batch_axis", AttrKind::Int),
        attr("time_axis", AttrKind::Int),
    ]),
];
