//! Positions of tokens in sequences.

use crate::graph::{Attrs, TensorType};
use crate::ops::attrs::{RotaryAttrs, bad};
use crate::ops::cost::{Cost, elements, moved};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{Op, PositionOp};
use crate::ops::shapes::*;

fn rotary(i: &Infer<'_>) -> Rule {
    let attrs = RotaryAttrs::new(i.attrs)?;
    let x = i.shape(0)?;
    let (batch, tokens, size) = match x {
        [batch, _, tokens, size] => (batch, tokens, size.as_const()),
        [batch, tokens, columns] => {
            let heads = attrs.heads_of_columns()?;
            let size = match columns.as_const() {
                Some(columns) if columns % heads != 0 => {
                    let why = format!("{heads} does not divide {columns} columns");
                    return Err(bad("num_heads", why));
                }
                columns => columns.map(|columns| columns / heads),
            };
            (batch, tokens, size)
        }
        _ => return Err(OpError::shape("X must have rank 3 or 4")),
    };
    let half = size.map(|size| attrs.half(size)).transpose()?;
    let positions = i.opt(3).map(|_| i.ranked(3, "position_ids", 2));
    let rank = match positions.transpose()? {
        None => 3,
        Some(positions) => {
            check_broadcasts_to(positions, &[batch.clone(), tokens.clone()], "position_ids")?;
            2
        }
    };
    let cos = i.ranked(1, "cos_cache", rank)?;
    let sin = i.ranked(2, "sin_cache", rank)?;
    for (cos, sin) in cos.iter().zip(sin) {
        unify(cos, sin, "dimensions of cos_cache and sin_cache")?;
    }
    if let [batches, rows, _] = cos {
        let rows = [batches.clone(), rows.clone()];
        check_broadcasts_to(&rows, &[batch.clone(), tokens.clone()], "cos_cache")?;
    }
    if let (Some(half), Some(columns)) = (half, cos.last()) {
        unify(columns, &half.into(), "columns of caches and rotated pairs")?;
    }
    one(i.dtype(0)?, x.to_vec())
}

/// Three operations for each element, and the rows of the caches that are read.
fn rotary_cost(_: &Attrs, inputs: &[Option<&TensorType>], outputs: &[&TensorType]) -> Cost {
    let of = |k: usize| inputs.get(k).copied().flatten();
    let caches = moved(&[of(1), of(2)], &[]);
    let read = match (of(1), of(3)) {
        (Some(cos), Some(positions)) => {
            let rows = cos.shape.first().and_then(|d| d.as_const()).unwrap_or(0);
            caches / (rows.max(1) as f64) * elements(positions)
        }
        _ => caches,
    };
    Cost {
        flops: 3. * outputs.first().map_or(0., |t| elements(t)),
        bytes: moved(&[of(0), of(3)], outputs) + read,
    }
}

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[OpDef::of(
    Op::Position(PositionOp::RotaryEmbedding),
    "X [B, H, S, D], or [B, S, H * D] with `num_heads`, whose pairs of elements are rotated by the angles of their tokens: those of the rows of the caches [P, R / 2] at position_ids [B, S], or of caches [B, S, R / 2] without them.",
    &[
        operand("X", FLOATS).class(1),
        operand("cos_cache", FLOATS).class(1),
        operand("sin_cache", FLOATS).class(1),
        operand("position_ids", LONG).optional(),
    ],
    rotary,
)
.attrs(&[
    attr("interleaved", AttrKind::Int),
    attr("num_heads", AttrKind::Int),
    attr("rotary_embedding_dim", AttrKind::Int),
])
.cost(rotary_cost)];
