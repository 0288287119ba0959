//! MultiHeadAttention and DecoderMaskedMultiHeadAttention.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::super::builder::Builder;
use super::super::super::attention::where_allowed;
use super::super::super::expansion::{Expansion, Made, axis_of};
use super::super::super::{ImportFailure, ImportedNode, Outputs, unsupported};
use super::mask::Lengths;
use super::packed::split;
use super::{Heads, added, behind, heads_of, joined_heads, take_heads, take_scale};

/// Imports MultiHeadAttention.
pub(in super::super) fn multi_head_attention(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let heads = take_heads(&mut c, "num_heads")?;
    let scale = take_scale(&mut c)?;
    let filter = c.take_float("mask_filter_value")?.unwrap_or(-10000.0);
    let causal = c.take_flag("unidirectional", false)?;
    c.no_more_attributes()?;
    if c.input(8).is_some() || c.input(9).is_some() {
        return Err(unsupported("a shared cache"));
    }
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
    let k = behind(&mut e, 1, past_key, k)?;
    let v = behind(&mut e, 2, past_value, v)?;
    let dtype = e.ty(q)?.dtype;
    let lengths = Lengths::of(&mut e, q, k)?;
    let padding = match c.input(4) {
        Some(mask) => Some(lengths.padding(&mut e, mask, dtype, filter)?),
        None => None,
    };
    let order = match causal {
        true => Some(lengths.causal(&mut e, dtype)?),
        false => None,
    };
    let bias = added(&mut e, &[c.input(5), padding, order])?;
    let attention = Heads {
        q,
        k,
        v,
        scale,
        softcap: 0.0,
        bias,
    };
    finish(&mut e, &attention)
}

/// The outputs of attention: its result, keys and values, and the scores.
fn finish(e: &mut Expansion<'_>, attention: &Heads) -> Outputs {
    let shown = e.is_read(3);
    let (y, shown) = attention.attend(e, shown)?;
    let mut out = vec![joined_heads(e, y)?, attention.k, attention.v];
    if let Some(shown) = shown {
        out.push(e.last(3, "Identity", Attrs::default(), &[shown])?);
    }
    out.truncate(e.c.outputs.len());
    Ok(out)
}

/// Queries, keys and values in one of their forms:
///
/// ```text
/// query [batch, tokens, columns], key and value alike, or [batch, heads, tokens, size] without their bias
/// query [batch, tokens, heads, 3, size] of all three
/// query [batch, tokens, columns], key [batch, tokens, heads, 2, size] of keys and values
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
            (Some(5), None, None) => packed::<3>(e, self.query)?,
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
                let q = self.biased_part(e, self.query, 0, heads)?;
                [q, k, v]
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
        let at = e.int("part", i as i64)?;
        let part = e.op("Gather", axis_of(3), &[x, at])?;
        parts.push(e.transposed(part, &[0, 2, 1, 3])?);
    }
    parts
        .try_into()
        .map_err(|_| e.c.error("has no parts").into())
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
    if c.input(9).is_some() {
        return Err(unsupported("beams"));
    }
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
    let [q, mut k, mut v] = operands.by_heads(&mut e, heads)?;
    let dtype = e.ty(q)?.dtype;
    let mut unwritten = None;
    match (c.input(5), c.input(6)) {
        (Some(past_key), Some(past_value)) if shared => {
            let at = e.reshaped(c.need(7)?, &[1])?;
            let at = e.cast(at, DType::I64)?;
            let batch = e.length(past_key, 0)?;
            let written = e.plain("Expand", &[at, batch])?;
            for (o, x, past) in [(1, &mut k, past_key), (2, &mut v, past_value)] {
                let attrs = axis_of(2).with("mode", Attr::Str("linear".into()));
                *x = e.last(o, "TensorScatter", attrs, &[past, *x, written])?;
            }
            let lengths = Lengths::of(&mut e, q, k)?;
            let key = lengths.key_places(&mut e)?;
            let allowed = e.plain("LessOrEqual", &[key, at])?;
            unwritten = Some(where_allowed(&mut e, allowed, dtype, f64::NEG_INFINITY)?);
        }
        (Some(past_key), Some(past_value)) => {
            k = behind(&mut e, 1, Some(past_key), k)?;
            v = behind(&mut e, 2, Some(past_value), v)?;
        }
        (None, None) => {
            k = behind(&mut e, 1, None, k)?;
            v = behind(&mut e, 2, None, v)?;
        }
        _ => return Err(c.error("past_key and past_value go together").into()),
    }
    let lengths = Lengths::of(&mut e, q, k)?;
    let mut padding = None;
    if let Some(mask) = c.input(3) {
        let mask = lengths.padding(&mut e, mask, dtype, filter)?;
        padding = Some(lengths.up_to_keys(&mut e, mask)?);
    }
    let mut given = None;
    if let Some(bias) = c.input(4) {
        given = Some(lengths.up_to_keys(&mut e, bias)?);
    }
    let bias = added(&mut e, &[given, padding, unwritten])?;
    let attention = Heads {
        q,
        k,
        v,
        scale,
        softcap: 0.0,
        bias,
    };
    finish(&mut e, &attention)
}
