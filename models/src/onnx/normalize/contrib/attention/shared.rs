//! Caches of a fixed length, into which keys and values are written at a place that data decides. The rows of a batch may be
//! beams of one search, each of which reads a token from the row that it came from:
//!
//! ```text
//! cache [rows, heads, length, size] ── TensorScatter of the new tokens ── present
//!                                            └── rows by `beams` [batch, beams, length] ── attended
//! ```

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::attention::where_allowed;
use super::super::super::node::{Expansion, ImportFailure, Made, axis_of, exact};
use super::mask::Lengths;

/// The keys and values that are attended to, and those that are kept.
pub(super) struct Attended {
    pub keys_and_values: [ValueId; 2],
    pub kept: [ValueId; 2],
    /// How many of the keys are tokens, a list of one number, where those are not all.
    pub tokens: Option<ValueId>,
    /// Whether each key is a token, where those are not all.
    pub written: Option<ValueId>,
}

impl Attended {
    /// Keys and values that are all attended to and kept.
    pub fn all(keys_and_values: [ValueId; 2]) -> Attended {
        Attended {
            keys_and_values,
            kept: keys_and_values,
            tokens: None,
            written: None,
        }
    }

    /// A term of the scores for all keys, of which `x` may be that of the tokens alone.
    pub fn term(&self, e: &mut Expansion<'_>, lengths: &Lengths, x: ValueId) -> Made {
        match self.written {
            Some(_) => lengths.up_to_keys(e, x),
            None => Ok(x),
        }
    }

    /// The term of the scores by which no query attends to what is not written.
    pub fn mask(
        &self,
        e: &mut Expansion<'_>,
        dtype: DType,
    ) -> Result<Option<ValueId>, ImportFailure> {
        let mask = self.written;
        mask.map(|written| where_allowed(e, written, dtype, f64::NEG_INFINITY))
            .transpose()
    }
}

/// Caches of keys and values.
pub(super) struct SharedCache {
    pub caches: [ValueId; 2],
    /// How many tokens the caches hold.
    pub at: ValueId,
    /// The beam that each token of each beam came from.
    pub beams: Option<ValueId>,
}

impl SharedCache {
    /// Writes new keys and values [rows, heads, tokens, size], as outputs 1 and 2. Returns also how many tokens came before, a
    /// scalar.
    pub fn write(
        self,
        e: &mut Expansion<'_>,
        [k, v]: [ValueId; 2],
    ) -> Result<(Attended, ValueId), ImportFailure> {
        let at = e.reshaped(self.at, &[1])?;
        let at = e.cast(at, DType::I64)?;
        let new = e.length(k, 2)?;
        let tokens = e.plain("Add", &[at, new])?;
        let [cached_keys, cached_values] = self.caches;
        let rows = e.length(cached_keys, 0)?;
        let places = e.plain("Expand", &[at, rows])?;
        let mut stored = |o: usize, cache, x| {
            let attrs = axis_of(2).with("mode", Attr::Str("linear".into()));
            match e.is_read(o) {
                true => e.last(o, "TensorScatter", attrs, &[cache, x, places]),
                false => e.op("TensorScatter", attrs, &[cache, x, places]),
            }
        };
        let kept = [stored(1, cached_keys, k)?, stored(2, cached_values, v)?];
        let length = e.length(cached_keys, 2)?;
        let length = e.scalar(length)?;
        let place = e.counted(length)?;
        let is_token = e.plain("Less", &[place, tokens])?;
        let keys_and_values = match self.beams {
            None => kept,
            Some(beams) => {
                let is_old = e.plain("Less", &[place, at])?;
                let sources = sources(e, beams, rows, place, is_old)?;
                [
                    came_from(e, kept[0], beams, sources)?,
                    came_from(e, kept[1], beams, sources)?,
                ]
            }
        };
        let attended = Attended {
            keys_and_values,
            kept,
            tokens: Some(tokens),
            written: Some(is_token),
        };
        Ok((attended, e.scalar(at)?))
    }
}

/// The sequence, the beam and the place of each token that a row attends to: [rows, length, 3]. A new token is the row's own.
/// An old token of a beam that the sequence does not have is an error when the step runs.
fn sources(
    e: &mut Expansion<'_>,
    beams: ValueId,
    rows: ValueId,
    place: ValueId,
    is_old: ValueId,
) -> Made {
    let (each, length) = (e.length(beams, 1)?, e.length(beams, 2)?);
    let shape = e.joined(0, &[rows, length])?;
    let beams = e.cast(beams, DType::I64)?;
    let beams = e.op("Reshape", exact(), &[beams, shape])?;
    // An index below zero would count from the end of the beams.
    let zero = e.int("zero", 0)?;
    let is_negative = e.plain("Less", &[beams, zero])?;
    let beams = e.plain("Where", &[is_negative, each, beams])?;
    let count = e.scalar(rows)?;
    let row = e.counted(count)?;
    let sequence = e.plain("Div", &[row, each])?;
    let first = e.plain("Mul", &[sequence, each])?;
    let own = e.plain("Sub", &[row, first])?;
    let (sequence, own) = (e.unsqueezed(sequence, &[1])?, e.unsqueezed(own, &[1])?);
    let beam = e.plain("Where", &[is_old, beams, own])?;
    let mut parts = vec![];
    for part in [sequence, beam, place] {
        let part = e.plain("Expand", &[part, shape])?;
        parts.push(e.unsqueezed(part, &[2])?);
    }
    e.joined(2, &parts)
}

/// The tokens of a cache [rows, heads, length, size] that each row attends to. `beams` has a beam for each token of each of the
/// rows, as [sequences, beams of each, length].
fn came_from(e: &mut Expansion<'_>, cache: ValueId, beams: ValueId, sources: ValueId) -> Made {
    let by_token = e.transposed(cache, &[0, 2, 1, 3])?;
    let mut lengths = vec![];
    for (x, axis) in [
        (beams, 0),
        (beams, 1),
        (by_token, 1),
        (by_token, 2),
        (by_token, 3),
    ] {
        lengths.push(e.length(x, axis)?);
    }
    let shape = e.joined(0, &lengths)?;
    let by_beam = e.op("Reshape", exact(), &[by_token, shape])?;
    let gathered = e.op("GatherND", Attrs::default(), &[by_beam, sources])?;
    e.transposed(gathered, &[0, 2, 1, 3])
}
