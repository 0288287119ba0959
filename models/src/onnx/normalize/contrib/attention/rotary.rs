//! RotaryEmbedding, whose places may begin at one number for the whole batch.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::super::builder::Builder;
use super::super::super::expansion::{Expansion, Made};
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
        1 => {
            let tokens = e.length(x, tokens)?;
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
    let operands = rotation.operands(&mut e, x, [cos, sin], places)?;
    let y = e.last(0, "RotaryEmbedding", rotation.0, &operands)?;
    Ok(vec![y])
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
