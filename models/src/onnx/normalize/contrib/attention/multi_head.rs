//! MultiHeadAttention and DecoderMaskedMultiHeadAttention.

use convoke_graph::graph::{Attrs, ValueId};

use super::super::super::super::builder::Builder;
use super::super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, unsupported,
};
use super::mask::Lengths;
use super::packed::split;
use super::shared::{Attended, SharedCache};
use super::{
    AttentionScores, Heads, added, behind, heads_of, joined_heads, take_heads, take_scale,
};

/// Imports MultiHeadAttention.
pub(in super::super) fn multi_head_attention(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let heads = take_heads(&mut c, "num_heads")?;
    let scale = take_scale(&mut c)?;
    let filter = c.take_float("mask_filter_value")?.unwrap_or(-10000.0);
    let causal = c.take_flag("unidirectional", false)?;
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let operands = Operands {
        query: c.need(0)?,
        key: c.input(1),
        value: c.input(2),
        bias: c.input(3),
    };
    let mut e = Expansion { b, c: &c };
    let [q, k, v] = operands.by_heads(&mut e, heads)?;
    let (past_key, past_value) = (c.input(6), c.input(7));
    if past_key.is_some() != past_value.is_some() {
        return Err(c.error("past_key and past_value go together").into());
    }
    let as_many = e.shape(q)?[2] == e.shape(k)?[2];
    let dtype = e.ty(q)?.dtype;
    let caches = past_key.zip(past_value).map(|(k, v)| [k, v]);
    let shared = match (c.input(8), caches) {
        (Some(at), Some(caches)) => Some(SharedCache {
            caches,
            at,
            beams: c.input(9),
        }),
        (None, _) if c.input(9).is_none() => None,
        _ => return Err(unsupported("beams or lengths without a cache")),
    };
    let (attended, before) = match shared {
        Some(shared) => {
            let (attended, before) = shared.write(&mut e, [k, v])?;
            (attended, Some(before))
        }
        None => {
            let before = match past_key {
                Some(past) => {
                    let before = e.length(past, 2)?;
                    Some(e.scalar(before)?)
                }
                None => None,
            };
            let k = behind(&mut e, 1, past_key, k)?;
            let v = behind(&mut e, 2, past_value, v)?;
            (Attended::all([k, v]), before)
        }
    };
    let [k, v] = attended.keys_and_values;
    let lengths = Lengths::of(&mut e, q, k)?;
    let mut padding = None;
    if let Some(mask) = c.input(4) {
        let mask = lengths.padding(&mut e, mask, dtype, filter)?;
        padding = Some(attended.term(&mut e, &lengths, mask)?);
    }
    let mut given = None;
    if let Some(bias) = c.input(5) {
        given = Some(attended.term(&mut e, &lengths, bias)?);
    }
    let order = match causal {
        true => {
            let query = match as_many && attended.written.is_none() {
                true => lengths.query_places(&mut e)?,
                false => lengths.last_sees_all(&mut e, before)?,
            };
            Some(lengths.causal(&mut e, dtype, query)?)
        }
        false => None,
    };
    let unwritten = attended.mask(&mut e, dtype)?;
    let bias = added(&mut e, &[given, padding, order, unwritten])?;
    let attention = Heads {
        q,
        k,
        v,
        scale,
        softcap: 0.0,
        bias,
    };
    finish(&mut e, &attention, &attended)
}

/// The outputs of attention: its result, keys and values, and the scores.
fn finish(e: &mut Expansion<'_>, attention: &Heads, attended: &Attended) -> Outputs {
    let shown = e.is_read(3);
    let (y, shown) = attention.attend(e, shown)?;
    let [key, value] = attended.kept;
    let mut out = vec![joined_heads(e, y)?, key, value];
    if let Some(AttentionScores { scores, .. }) = shown {
        out.push(match attended.tokens {
            None => e.last(3, "Identity", Attrs::default(), &[scores])?,
            Some(keys) => {
                let (first, axes) = (e.ints("first", &[0])?, e.ints("axes", &[3])?);
                e.last(3, "Slice", Attrs::default(), &[scores, first, keys, axes])?
            }
        });
    }
    out.truncate(e.c.outputs.len());
    Ok(out)
}

/// Queries, keys and values in one of their forms:
///
/// ```text
/// query [batch, tokens, columns], key and value alike, or [batch, heads, tokens, size] without their bias
/// query [batch, tokens, heads, 3, size] of all three
/// query [batch, tokens, columns], key [batch, tokens, heads, 2, size] of keys and values, without a bias
/// query [batch, tokens, three times the columns] of all three
/// ```
struct Operands {
    query: ValueId,
    key: Option<ValueId>,
    value: Option<ValueId>,
    bias: Option<ValueId>,
}

impl Operands {
    /// Queries, keys and values as [batch, heads, tokens, size].
    fn by_heads(&self, e: &mut Expansion<'_>, heads: i64) -> Result<[ValueId; 3], ImportFailure> {
        let ranks = [Some(self.query), self.key, self.value]
            .map(|x| x.map(|x| e.shape(x).map(|s| s.len())).transpose());
        let [Ok(query), Ok(key), Ok(value)] = ranks else {
            return Err(unsupported("an operand of a type that is not known"));
        };
        let parts = match (query, key, value) {
            (Some(5), None, None) => {
                let mut parts = packed::<3>(e, self.query)?;
                if let Some(bias) = self.bias {
                    let bias = e.reshaped(bias, &[3, heads, 1, -1])?;
                    for (i, part) in parts.iter_mut().enumerate() {
                        let own = picked(e, bias, 0, i)?;
                        *part = e.plain("Add", &[*part, own])?;
                    }
                }
                parts
            }
            (Some(3), Some(5), None) if self.bias.is_some() => {
                return Err(unsupported("a bias beside packed keys and values"));
            }
            (Some(3), None, None) => {
                let columns = e.shape(self.query)?[2].as_const();
                let third = columns.filter(|c| c % 3 == 0).map(|c| c / 3);
                let third = third.ok_or_else(|| unsupported("a packed operand of this width"))?;
                let parts = split(e, self.query, &[third; 3])?;
                self.biased(e, parts, heads)?
            }
            (Some(3), Some(5), None) => {
                let Some(key) = self.key else {
                    return Err(unsupported("this form of its operands"));
                };
                let [k, v] = packed::<2>(e, key)?;
                [heads_of(e, self.query, heads)?, k, v]
            }
            (Some(3), Some(3), Some(3)) => match (self.key, self.value) {
                (Some(key), Some(value)) => self.biased(e, [self.query, key, value], heads)?,
                _ => return Err(unsupported("this form of its operands")),
            },
            (Some(3), Some(4), Some(4)) => match (self.key, self.value) {
                (Some(key), Some(value)) => {
                    let q = self.biased_part(e, self.query, 0, heads)?;
                    [q, key, value]
                }
                _ => return Err(unsupported("this form of its operands")),
            },
            _ => return Err(unsupported("this form of its operands")),
        };
        Ok(parts)
    }

    fn biased(
        &self,
        e: &mut Expansion<'_>,
        parts: [ValueId; 3],
        heads: i64,
    ) -> Result<[ValueId; 3], ImportFailure> {
        let [q, k, v] = parts;
        let columns = |e: &Expansion<'_>, x: ValueId| {
            let columns = e.shape(x)?[2].as_const();
            columns.ok_or_else(|| unsupported("operands of a width that is not known"))
        };
        let (of_q, of_k) = match self.bias {
            Some(_) => (columns(e, q)?, columns(e, k)?),
            None => (0, 0),
        };
        let before_v = of_q.checked_add(of_k);
        let before_v = before_v.ok_or_else(|| e.c.error("has too many columns"))?;
        Ok([
            self.biased_part(e, q, 0, heads)?,
            self.biased_part(e, k, of_q, heads)?,
            self.biased_part(e, v, before_v, heads)?,
        ])
    }

    /// `x` with its part of the bias, which begins at `from`, as heads.
    fn biased_part(&self, e: &mut Expansion<'_>, x: ValueId, from: i64, heads: i64) -> Made {
        let mut x = x;
        if let Some(bias) = self.bias {
            let columns = e.shape(x)?[2].as_const();
            let columns =
                columns.ok_or_else(|| unsupported("operands of a width that is not known"))?;
            let bias = e.slice(bias, 0, from, from.saturating_add(columns), 1)?;
            x = e.plain("Add", &[x, bias])?;
        }
        heads_of(e, x, heads)
    }
}

/// The `N` parts of `x` [batch, tokens, heads, N, size] as [batch, heads, tokens, size].
fn packed<const N: usize>(
    e: &mut Expansion<'_>,
    x: ValueId,
) -> Result<[ValueId; N], ImportFailure> {
    let mut parts = Vec::with_capacity(N);
    for i in 0..N {
        let part = picked(e, x, 3, i)?;
        parts.push(e.transposed(part, &[0, 2, 1, 3])?);
    }
    parts
        .try_into()
        .map_err(|_| e.c.error("has no parts").into())
}

/// Element `i` of an axis, without that axis.
fn picked(e: &mut Expansion<'_>, x: ValueId, axis: i64, i: usize) -> Made {
    let at = e.int("part", i as i64)?;
    e.op("Gather", axis_of(axis), &[x, at])
}

/// Imports DecoderMaskedMultiHeadAttention: attention of one query for each row of the batch, to keys in a cache or to
/// keys that do not change.
pub(in super::super) fn decoder_masked_attention(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let heads = take_heads(&mut c, "num_heads")?;
    let scale = take_scale(&mut c)?;
    let filter = c.take_float("mask_filter_value")?.unwrap_or(-10000.0);
    let shared = c.take_flag("past_present_share_buffer", false)?;
    c.take_int("output_qk")?;
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let operands = Operands {
        query: c.need(0)?,
        key: c.input(1),
        value: c.input(2),
        bias: c.input(10),
    };
    let mut e = Expansion { b, c: &c };
    let [q, k, v] = operands.by_heads(&mut e, heads)?;
    let dtype = e.ty(q)?.dtype;
    let (past_key, past_value) = (c.input(5), c.input(6));
    if past_key.is_some() != past_value.is_some() {
        return Err(c.error("past_key and past_value go together").into());
    }
    let attended = match past_key.zip(past_value) {
        Some((past_key, past_value)) if shared => {
            let cache = SharedCache {
                caches: [past_key, past_value],
                at: c.need(7)?,
                beams: c.input(9),
            };
            cache.write(&mut e, [k, v])?.0
        }
        _ if c.input(9).is_some() => return Err(unsupported("beams without a shared cache")),
        _ => {
            let k = behind(&mut e, 1, past_key, k)?;
            Attended::all([k, behind(&mut e, 2, past_value, v)?])
        }
    };
    let [k, v] = attended.keys_and_values;
    let lengths = Lengths::of(&mut e, q, k)?;
    let mut padding = None;
    if let Some(mask) = c.input(3) {
        let mask = lengths.padding(&mut e, mask, dtype, filter)?;
        padding = Some(attended.term(&mut e, &lengths, mask)?);
    }
    let mut given = None;
    if let Some(bias) = c.input(4) {
        given = Some(attended.term(&mut e, &lengths, bias)?);
    }
    let unwritten = attended.mask(&mut e, dtype)?;
    let bias = added(&mut e, &[given, padding, unwritten])?;
    let attention = Heads {
        q,
        k,
        v,
        scale,
        softcap: 0.0,
        bias,
    };
    finish(&mut e, &attention, &attended)
}
