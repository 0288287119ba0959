//! RotaryEmbedding.

use convoke_graph::DType;
use convoke_graph::graph::{Attrs, ValueId};

use super::super::super::builder::Builder;
use super::super::expansion::{Expansion, Made, axis_of, is_half};
use super::super::{ImportFailure, ImportedNode, Outputs, unsupported};

/// Imports RotaryEmbedding: pairs of elements of each head are rotated by the angles of their place.
pub(in super::super) fn rotary_embedding(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let heads = c.take_int("num_heads")?.unwrap_or(0);
    let interleaved = c.take_flag("interleaved", false)?;
    let rotated = c.take_int("rotary_embedding_dim")?.unwrap_or(0);
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let x = c.need(0)?;
    let mut e = Expansion { b, c: &c };
    let rank = e.shape(x)?.len();
    // The heads are an axis of their own: the second of four, or the third where the operand has rank 3.
    let (by_heads, axis) = match rank {
        4 => (x, 1),
        3 if heads > 0 => (e.by_heads(x, heads)?, 2),
        3 => return Err(c.error("an operand of rank 3 needs num_heads").into()),
        _ => return Err(c.error("the operand must have rank 3 or 4").into()),
    };
    let size = e.shape(by_heads)?[3].as_const();
    let half = match (rotated, size) {
        (r, size) if r < 0 || r % 2 != 0 || size.is_some_and(|size| r > size) => {
            return Err(c
                .wrong("rotary_embedding_dim", "even and within a head")
                .into());
        }
        (0, Some(size)) if size % 2 == 0 => size / 2,
        (0, Some(_)) => return Err(c.error("a head must have an even size").into()),
        (0, None) => return Err(unsupported("heads of a size that is not known")),
        (r, _) => r / 2,
    };
    let cos = angles(&mut e, 1, axis, half)?;
    let sin = angles(&mut e, 2, axis, half)?;
    Ok(vec![finish(
        &mut e,
        by_heads,
        (cos, sin),
        interleaved,
        half,
    )?])
}

/// Heads of which the first `2 * half` elements are rotated, as output 0 in the rank of operand 0.
pub(in super::super) fn finish(
    e: &mut Expansion<'_>,
    by_heads: ValueId,
    angles: (ValueId, ValueId),
    interleaved: bool,
    half: i64,
) -> Made {
    let parts = rotated_parts(e, by_heads, angles, interleaved, half)?;
    if e.operand(0).is_some_and(|x| x.shape.len() == 4) {
        return match parts.len() {
            1 => e.last(0, "Identity", Attrs::default(), &parts),
            _ => e.last(0, "Concat", axis_of(3), &parts),
        };
    }
    let y = e.joined(3, &parts)?;
    let shape = e.shape(by_heads)?;
    let columns = shape[2].as_const().zip(shape[3].as_const());
    let columns = columns.and_then(|(heads, size)| heads.checked_mul(size));
    let shape = e.ints("shape", &[0, 0, columns.unwrap_or(-1)])?;
    e.last(0, "Reshape", Attrs::default(), &[y, shape])
}

/// The parts of heads along their last axis, of which the first `2 * half` elements are rotated; `cos` and `sin`
/// broadcast to half of that. `by_heads` has rank 4, and its heads lie along its last axis.
pub(in super::super) fn rotated_parts(
    e: &mut Expansion<'_>,
    by_heads: ValueId,
    (cos, sin): (ValueId, ValueId),
    interleaved: bool,
    half: i64,
) -> Result<Vec<ValueId>, ImportFailure> {
    let size = e.shape(by_heads)?[3].as_const();
    if let Some(size) = size.filter(|size| *size / 2 < half) {
        let reason = format!("caches of {half} columns for heads of {size} elements");
        return Err(e.c.error(reason).into());
    }
    // Halves are rotated in f32, so that a result is rounded once.
    let dtype = e.ty(by_heads)?.dtype;
    let precise = if is_half(dtype) { DType::F32 } else { dtype };
    let (cos, sin) = (e.cast(cos, precise)?, e.cast(sin, precise)?);
    let part = |e: &mut Expansion<'_>, first: bool| {
        let part = match (interleaved, first) {
            (true, first) => e.slice(by_heads, 3, i64::from(!first), 2 * half, 2),
            (false, true) => e.slice(by_heads, 3, 0, half, 1),
            (false, false) => e.slice(by_heads, 3, half, 2 * half, 1),
        };
        e.cast(part?, precise)
    };
    let (x1, x2) = (part(e, true)?, part(e, false)?);
    let (c1, s2) = (e.plain("Mul", &[cos, x1])?, e.plain("Mul", &[sin, x2])?);
    let real = e.plain("Sub", &[c1, s2])?;
    let (s1, c2) = (e.plain("Mul", &[sin, x1])?, e.plain("Mul", &[cos, x2])?);
    let imaginary = e.plain("Add", &[s1, c2])?;
    let (real, imaginary) = (e.cast(real, dtype)?, e.cast(imaginary, dtype)?);
    let mut parts = match interleaved {
        false => vec![real, imaginary],
        true => {
            let (real, imaginary) = (e.unsqueezed(real, &[4])?, e.unsqueezed(imaginary, &[4])?);
            let pairs = e.joined(4, &[real, imaginary])?;
            vec![e.reshaped(pairs, &[0, 0, 0, 2 * half])?]
        }
    };
    if size != Some(2 * half) {
        parts.push(e.slice(by_heads, 3, 2 * half, i64::MAX, 1)?);
    }
    Ok(parts)
}

/// The cosines or sines of all places, with an axis of length 1 for the heads.
fn angles(e: &mut Expansion<'_>, operand: usize, axis: i64, half: i64) -> Made {
    let mut cache: ValueId = e.c.need(operand)?;
    let rank = match e.c.input(3) {
        None => 3,
        Some(_) => 2,
    };
    let shape = e.shape(cache)?;
    let of_size = shape.last().and_then(|d| d.as_const());
    if shape.len() != rank || of_size.is_some_and(|size| size != half) {
        let reason = format!("caches must have rank {rank} and {half} columns, not {shape:?}");
        return Err(ImportFailure::from(e.c.error(reason)));
    }
    if let Some(places) = e.c.input(3) {
        cache = e.op("Gather", axis_of(0), &[cache, places])?;
    }
    e.unsqueezed(cache, &[axis])
}
