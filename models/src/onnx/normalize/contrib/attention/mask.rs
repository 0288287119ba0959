//! The tensor that is added to the scores, for masks of keys in their various forms and for the order of the keys.

use convoke_graph::DType;
use convoke_graph::graph::ValueId;
use half::f16;

use super::super::super::attention::where_allowed;
use super::super::super::node::{Expansion, ImportFailure, Made};

/// The lengths of a batch of attention.
pub(super) struct Lengths {
    /// A value whose first axis is the batch.
    pub batch: ValueId,
    /// How many queries there are, as a scalar.
    pub queries: ValueId,
    /// How many keys there are with those that came before, as a scalar.
    pub keys: ValueId,
}

impl Lengths {
    /// The lengths of Q and K, which are [batch, heads, tokens, size].
    pub(super) fn of(
        e: &mut Expansion<'_>,
        q: ValueId,
        k: ValueId,
    ) -> Result<Lengths, ImportFailure> {
        let (queries, keys) = (e.length(q, 2)?, e.length(k, 2)?);
        Ok(Lengths {
            batch: q,
            queries: e.scalar(queries)?,
            keys: e.scalar(keys)?,
        })
    }

    /// The places of the keys, a row.
    pub(super) fn key_places(&self, e: &mut Expansion<'_>) -> Made {
        e.counted(self.keys)
    }

    /// The places of the queries behind the keys that came before, a column.
    pub(super) fn query_places(&self, e: &mut Expansion<'_>) -> Made {
        let place = e.counted(self.queries)?;
        let before = e.plain("Sub", &[self.keys, self.queries])?;
        let place = e.plain("Add", &[place, before])?;
        e.unsqueezed(place, &[1])
    }

    /// The places of the queries, a column, where there may be another number of keys than of queries. `before` keys came
    /// before, a scalar. As in ONNX Runtime, the last query attends to all keys.
    pub(super) fn last_sees_all(&self, e: &mut Expansion<'_>, before: Option<ValueId>) -> Made {
        let query = e.counted(self.queries)?;
        let one = e.int("one", 1)?;
        let last = e.plain("Sub", &[self.queries, one])?;
        let place = match before {
            Some(before) => e.plain("Add", &[query, before])?,
            None => query,
        };
        let is_last = e.plain("Equal", &[query, last])?;
        let place = e.plain("Where", &[is_last, self.keys, place])?;
        e.unsqueezed(place, &[1])
    }

    /// The least number where a key comes after a query, of which `query` has the places.
    pub(super) fn causal(&self, e: &mut Expansion<'_>, dtype: DType, query: ValueId) -> Made {
        let key = self.key_places(e)?;
        let allowed = e.plain("LessOrEqual", &[key, query])?;
        let least = if dtype == DType::F16 {
            f16::MIN.to_f64()
        } else {
            f32::MIN.into()
        };
        where_allowed(e, allowed, dtype, least)
    }

    /// `filter` where a mask of keys says that there is padding. The mask has one number for each key, which is zero for
    /// padding, or each row's end and perhaps its beginning:
    ///
    /// ```text
    /// [batch, keys]   [batch, queries, keys]   [batch, 1, most keys, most keys]
    /// [batch]   [2 * batch], ends before beginnings   [3 * batch + 2], of which the first are the ends
    /// ```
    pub(super) fn padding(
        &self,
        e: &mut Expansion<'_>,
        mask: ValueId,
        dtype: DType,
        filter: f32,
    ) -> Made {
        let ty = e.ty(mask)?;
        let allowed = match ty.shape.as_slice() {
            [_, _] => {
                let mask = positive(e, mask)?;
                e.unsqueezed(mask, &[1, 2])?
            }
            [_, _, _] => {
                let mask = positive(e, mask)?;
                e.unsqueezed(mask, &[1])?
            }
            [_, _, _, _] => {
                let mask = positive(e, mask)?;
                self.part_of_largest(e, mask)?
            }
            [length] => {
                let batch = e.shape(self.batch)?[0].clone();
                let begins = match (length.as_const(), batch.as_const()) {
                    (Some(length), Some(batch)) => {
                        Some(batch > 0 && batch.checked_mul(2) == Some(length))
                    }
                    _ => (*length == batch).then_some(false),
                };
                self.between(e, mask, begins)?
            }
            shape => {
                let reason = format!("a mask has rank 1 to 4, not {}", shape.len());
                return Err(e.c.error(reason).into());
            }
        };
        where_allowed(e, allowed, dtype, filter.into())
    }

    /// The rows of the queries and the columns of the keys of a mask for the largest numbers of both.
    fn part_of_largest(&self, e: &mut Expansion<'_>, mask: ValueId) -> Made {
        let before = e.plain("Sub", &[self.keys, self.queries])?;
        let none = e.int("none", 0)?;
        let parts = [(before, self.keys, 2), (none, self.keys, 3)];
        let mut mask = mask;
        for (from, to, axis) in parts {
            let (from, to) = (e.reshaped(from, &[1])?, e.reshaped(to, &[1])?);
            let axis = e.ints("axes", &[axis])?;
            mask = e.plain("Slice", &[mask, from, to, axis])?;
        }
        Ok(mask)
    }

    /// Extends a term that is added to the scores of some keys, with zeros for the others.
    pub(super) fn up_to_keys(&self, e: &mut Expansion<'_>, bias: ValueId) -> Made {
        let own = e.shape(bias)?.last().cloned();
        if own.is_some_and(|own| own.is_one_or_none() || Some(own) == e.b.dim(self.keys)) {
            return Ok(bias);
        }
        let own = e.length(bias, -1)?;
        let keys = e.unsqueezed(self.keys, &[0])?;
        let missing = e.plain("Sub", &[keys, own])?;
        let none = e.ints("first", &[0])?;
        let pads = e.joined(0, &[none, missing])?;
        let axes = e.ints("axes", &[-1])?;
        let dtype = e.ty(bias)?.dtype;
        let zero = e.float("zero", dtype, 0.0)?;
        e.plain("Pad", &[bias, pads, zero, axes])
    }

    /// Whether each key lies before the end of its row and not before its beginning. `begins` says whether beginnings are
    /// given; only a run knows, where it is `None`.
    fn between(&self, e: &mut Expansion<'_>, bounds: ValueId, begins: Option<bool>) -> Made {
        let batch = e.length(self.batch, 0)?;
        let key = self.key_places(e)?;
        let first = e.ints("first", &[0])?;
        let bounds = e.cast(bounds, DType::I64)?;
        let end = e.plain("Slice", &[bounds, first, batch])?;
        let end = e.unsqueezed(end, &[1, 2, 3])?;
        let before_end = e.plain("Less", &[key, end])?;
        if begins == Some(false) {
            return Ok(before_end);
        }
        let twice = e.plain("Add", &[batch, batch])?;
        let (mut bounds, mut given) = (bounds, None);
        if begins.is_none() {
            // The list may be too short to have beginnings, or longer, with other numbers in their place.
            let own = e.length(bounds, 0)?;
            given = Some(e.plain("Equal", &[own, twice])?);
            let pads = e.joined(0, &[first, batch])?;
            bounds = e.plain("Pad", &[bounds, pads])?;
        }
        let mut begin = e.plain("Slice", &[bounds, batch, twice])?;
        if let Some(given) = given {
            begin = e.plain("Where", &[given, begin, first])?;
        }
        let begin = e.unsqueezed(begin, &[1, 2, 3])?;
        let from_begin = e.plain("GreaterOrEqual", &[key, begin])?;
        e.plain("And", &[before_end, from_begin])
    }
}

fn positive(e: &mut Expansion<'_>, mask: ValueId) -> Made {
    let dtype = e.ty(mask)?.dtype;
    if dtype == DType::Bool {
        return Ok(mask);
    }
    let zero = e.int("none", 0)?;
    let zero = e.cast(zero, dtype)?;
    e.plain("Greater", &[mask, zero])
}
