//! RotaryEmbedding, whose places may begin at one number for the whole batch.

use convoke_graph::DType;
use convoke_graph::graph::ValueId;

use super::super::super::super::builder::Builder;
use super::super::super::attention::finish_rotated;
use super::super::super::expansion::{Expansion, Made, axis_of};
use super::super::super::{ImportFailure, ImportedNode, Outputs, unsupported};

/// Imports RotaryEmbedding.
pub(in super::super) fn rotary_embedding(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let heads = c.take_int("num_heads")?.unwrap_or(0);
    let interleaved = c.take_flag("interleaved", false)?;
    let rotated = c.take_int("rotary_embedding_dim")?.unwrap_or(0);
    if c.take_float("scale")?.is_some_and(|scale| scale != 1.0) {
        return Err(unsupported("attribute 'scale'"));
    }
    if c.take_flag("is_packed_batching", false)? {
        return Err(unsupported("rows of different lengths"));
    }
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (x, places, cos, sin) = (c.need(0)?, c.need(1)?, c.need(2)?, c.need(3)?);
    let mut e = Expansion { b, c: &c };
    let half = half(&e, cos)?;
    if rotated != 0 && rotated != 2 * half {
        let reason = format!("caches of {half} columns for {rotated} rotated elements");
        return Err(c.error(reason).into());
    }
    let shape = e.shape(x)?;
    // The heads are the second axis of four, or the third one of columns that are divided into heads.
    let (by_heads, before_heads) = match shape.as_slice() {
        [_, _, _, _] => (x, true),
        [_, _, _] if heads > 0 => (e.by_heads(x, heads)?, false),
        [_, _, columns] => {
            let columns = columns.as_const();
            let heads = columns.filter(|c| half > 0 && c % (2 * half) == 0);
            let heads = heads.map(|c| c / (2 * half));
            let heads = heads.ok_or_else(|| unsupported("columns that are no whole heads"))?;
            (e.by_heads(x, heads)?, false)
        }
        _ => return Err(c.error("the operand must have rank 3 or 4").into()),
    };
    let places = match e.shape(places)?.len() {
        2 => places,
        1 => {
            let tokens = e.length(x, if before_heads { 2 } else { 1 })?;
            let tokens = e.scalar(tokens)?;
            let place = e.counted(tokens)?;
            let first = e.cast(places, DType::I64)?;
            let place = e.plain("Add", &[place, first])?;
            e.unsqueezed(place, &[0])?
        }
        rank => {
            let reason = format!("position_ids must have rank 1 or 2, not {rank}");
            return Err(c.error(reason).into());
        }
    };
    let axis = if before_heads { 1 } else { 2 };
    let angles = (
        angles(&mut e, cos, places, axis)?,
        angles(&mut e, sin, places, axis)?,
    );
    Ok(vec![finish_rotated(
        &mut e,
        by_heads,
        angles,
        interleaved,
        half,
    )?])
}

/// The most columns of a cache of cosines, so that the elements of a head can be counted.
const MOST_COLUMNS: i64 = 1 << 32;

/// The columns of a cache of cosines, which are half of the elements that are rotated.
pub(super) fn half(e: &Expansion<'_>, cache: ValueId) -> Result<i64, ImportFailure> {
    match e.shape(cache)?.as_slice() {
        [_, half] => match half.as_const() {
            Some(half) if (0..=MOST_COLUMNS).contains(&half) => Ok(half),
            Some(half) => Err(e.c.error(format!("a cache of {half} columns")).into()),
            None => Err(unsupported("caches of a width that is not known")),
        },
        shape => {
            let reason = format!("a cache must have rank 2, not {}", shape.len());
            Err(e.c.error(reason).into())
        }
    }
}

/// The rows of a cache at `places` [batch, tokens], with an axis of length 1 for the heads.
pub(super) fn angles(e: &mut Expansion<'_>, cache: ValueId, places: ValueId, axis: i64) -> Made {
    let rows = e.op("Gather", axis_of(0), &[cache, places])?;
    e.unsqueezed(rows, &[axis])
}
