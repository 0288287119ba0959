//! RotaryEmbedding, whose places may begin at one number for the whole batch, and MRotaryEmbedding, whose places have
//! several coordinates.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::super::builder::Builder;
use super::super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, unsupported,
};

/// Takes the attributes of a rotation: the number of heads, whether pairs of elements are neighbours, and how many elements are
/// rotated. The first and the last are 0 where the node does not say them.
fn take_rotation(c: &mut ImportedNode) -> Result<(i64, bool, i64), ImportFailure> {
    let heads = c.take_int("num_heads")?.unwrap_or(0);
    let interleaved = c.take_flag("interleaved", false)?;
    let rotated = c.take_int("rotary_embedding_dim")?.unwrap_or(0);
    if c.take_float("scale")?.is_some_and(|scale| scale != 1.0) {
        return Err(unsupported("attribute 'scale'"));
    }
    // Where it is set, there may be more tokens than the caches have places.
    c.take_flag("is_packed_batching", false)?;
    Ok((heads, interleaved, rotated))
}

/// Imports RotaryEmbedding.
pub(in super::super) fn rotary_embedding(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let (heads, interleaved, rotated) = take_rotation(&mut c)?;
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
    let (rotation, tokens) = match e.shape(x)?.as_slice() {
        [_, _, _, _] => (Rotation::new(interleaved, half), 2),
        [_, _, columns] => {
            let heads = match (heads, columns.as_const()) {
                (0, Some(columns)) if columns % (2 * half) == 0 => columns / (2 * half),
                (0, _) => return Err(unsupported("columns that are no whole heads")),
                (heads, _) => heads,
            };
            let attrs = Rotation::new(interleaved, half).0;
            let attrs = attrs.with("num_heads", Attr::Int(heads));
            (Rotation(attrs), 1)
        }
        _ => return Err(c.error("the operand must have rank 3 or 4").into()),
    };
    let places = match e.shape(places)?.len() {
        2 => places,
        0 | 1 => {
            let tokens = e.length(x, tokens)?;
            let tokens = e.scalar(tokens)?;
            let place = e.counted(tokens)?;
            let first = e.cast(places, DType::I64)?;
            let place = e.plain("Add", &[place, first])?;
            e.unsqueezed(place, &[0])?
        }
        rank => {
            let reason = format!("position_ids must have rank 2 or less, not {rank}");
            return Err(c.error(reason).into());
        }
    };
    let operands = rotation.operands(&mut e, x, [cos, sin], places)?;
    let y = e.last(0, "RotaryEmbedding", rotation.0, &operands)?;
    Ok(vec![y])
}

/// Imports MRotaryEmbedding, whose tokens have three places each: parts of a head's elements are rotated by one of them. The
/// parts follow each other, or they alternate until one of them has ended.
pub(in super::super) fn sectioned_rotary(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let (heads, interleaved, rotated) = take_rotation(&mut c)?;
    let sections = c.take_ints("mrope_section")?.unwrap_or_default();
    let alternating = match c.take_int("mrope_layout")?.unwrap_or(0) {
        0 => false,
        1 => true,
        _ => return Err(c.wrong("mrope_layout", "0 or 1").into()),
    };
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (x, places, cos, sin) = (c.need(0)?, c.need(1)?, c.need(2)?, c.need(3)?);
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    let half = half(e, cos)?;
    let sum = sections.iter().try_fold(0i64, |sum, s| sum.checked_add(*s));
    if sections.len() != 3 || sections.iter().any(|s| *s < 0) || sum != Some(half) {
        return Err(c
            .wrong("mrope_section", "three lengths that fill the cache")
            .into());
    }
    if rotated != 0 && rotated != 2 * half {
        let reason = format!("caches of {half} columns for {rotated} rotated elements");
        return Err(c.error(reason).into());
    }
    match e.shape(places)?.as_slice() {
        [streams, _, _] if streams.as_const().is_none_or(|n| n == 3) => {}
        _ => {
            return Err(c
                .error("position_ids must be of shape [3, batch, tokens]")
                .into());
        }
    }
    let mut rotation = Rotation::new(interleaved, half).0;
    match (e.shape(x)?.len(), heads) {
        (4, _) => {}
        (3, 1..) => rotation = rotation.with("num_heads", Attr::Int(heads)),
        (3, _) => {
            return Err(c
                .wrong("num_heads", "above zero for an operand of rank 3")
                .into());
        }
        _ => return Err(c.error("the operand must have rank 3 or 4").into()),
    }
    // The element of a half belongs to the second stream, or to the third.
    let column = e.int("columns", half)?;
    let column = e.counted(column)?;
    let three = e.int("three", 3)?;
    let phase = e.plain("Mod", &[column, three])?;
    let belongs = |e: &mut Expansion<'_>, stream: usize| -> Made {
        let (of, from, to) = match alternating {
            true => (phase, stream as i64, sections[stream].saturating_mul(3)),
            false => {
                let from = sections[..stream].iter().sum();
                (column, from, sections[..=stream].iter().sum())
            }
        };
        let (from, to) = (e.int("from", from)?, e.int("to", to)?);
        let begun = match alternating {
            true => e.plain("Equal", &[of, from])?,
            false => e.plain("GreaterOrEqual", &[of, from])?,
        };
        let not_ended = e.plain("Less", &[column, to])?;
        e.plain("And", &[begun, not_ended])
    };
    let (second, third) = (belongs(e, 1)?, belongs(e, 2)?);
    let dtype = e.ty(x)?.dtype;
    let by_token = |e: &mut Expansion<'_>, cache: ValueId| -> Made {
        let cache = e.cast(cache, dtype)?;
        let mut streams = Vec::new();
        for stream in 0..3 {
            let at = e.int("stream", stream)?;
            let own = e.op("Gather", axis_of(0), &[places, at])?;
            streams.push(e.op("Gather", axis_of(0), &[cache, own])?);
        }
        let y = e.plain("Where", &[second, streams[1], streams[0]])?;
        e.plain("Where", &[third, streams[2], y])
    };
    let operands = [x, by_token(e, cos)?, by_token(e, sin)?];
    Ok(vec![e.last(0, "RotaryEmbedding", rotation, &operands)?])
}

/// The attributes of a rotation.
pub(super) struct Rotation(Attrs);

impl Rotation {
    /// The rotation of the first `half` pairs of heads that are an axis before the tokens.
    pub(super) fn new(interleaved: bool, half: i64) -> Rotation {
        let attrs = Attrs::default()
            .with("interleaved", Attr::Int(i64::from(interleaved)))
            .with("rotary_embedding_dim", Attr::Int(2 * half));
        Rotation(attrs)
    }

    /// Heads `x` that are rotated by the rows of `caches` at `places` [batch, tokens].
    pub(super) fn of(
        &self,
        e: &mut Expansion<'_>,
        x: ValueId,
        caches: [ValueId; 2],
        places: ValueId,
    ) -> Made {
        let operands = self.operands(e, x, caches, places)?;
        e.op("RotaryEmbedding", self.0.clone(), &operands)
    }

    /// The operands in the order and the dtypes of the op.
    fn operands(
        &self,
        e: &mut Expansion<'_>,
        x: ValueId,
        caches: [ValueId; 2],
        places: ValueId,
    ) -> Result<[ValueId; 4], ImportFailure> {
        let dtype = e.ty(x)?.dtype;
        let [cos, sin] = caches;
        let (cos, sin) = (e.cast(cos, dtype)?, e.cast(sin, dtype)?);
        Ok([x, cos, sin, e.cast(places, DType::I64)?])
    }
}

/// The most columns of a cache of cosines, so that the elements of a head can be counted.
const MOST_COLUMNS: i64 = 1 << 32;

/// The columns of a cache of cosines, which are half of the elements that are rotated.
pub(super) fn half(e: &Expansion<'_>, cache: ValueId) -> Result<i64, ImportFailure> {
    match e.shape(cache)?.as_slice() {
        [_, half] => match half.as_const() {
            Some(half) if (1..=MOST_COLUMNS).contains(&half) => Ok(half),
            Some(half) => Err(e.c.error(format!("a cache of {half} columns")).into()),
            None => Err(unsupported("caches of a width that is not known")),
        },
        shape => {
            let reason = format!("a cache must have rank 2, not {}", shape.len());
            Err(e.c.error(reason).into())
        }
    }
}
