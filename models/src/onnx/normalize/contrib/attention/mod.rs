//! The attention ops of ONNX Runtime, which differ in how they are given queries, keys, masks and caches:
//!
//! ```text
//! packed.rs        Attention: products with one weight for queries, keys and values
//! multi_head.rs    MultiHeadAttention, DecoderMaskedMultiHeadAttention
//! shared.rs        their caches of a fixed length, whose rows may be beams
//! group_query.rs   GroupQueryAttention: caches, rotary embedding, windows
//! windowed.rs      its caches that hold a window of the tokens
//! coded.rs         its caches that hold codes of 8 or 4 bits
//! ```
//!
//! This module has their common part: the scores, their mask and the weighted sum.

mod coded;
mod group_query;
mod mask;
mod multi_head;
mod packed;
mod rotary;
mod shared;
mod windowed;

pub(in super::super) use packed::Packed;

pub(super) use group_query::group_query_attention;
pub(super) use multi_head::{decoder_masked_attention, multi_head_attention};
pub(super) use packed::attention;
pub(super) use rotary::{rotary_embedding, sectioned_rotary};

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::attention::sharing;
use super::super::node::{Expansion, ImportFailure, ImportedNode, Made, axis_of, unsupported};

/// Attention of heads: Q, K and V are [batch, heads, tokens, size].
struct Heads {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    /// The factor of the product of Q and K; 1 over the root of a head's size, where it is not given.
    scale: Option<f32>,
    /// Bounds scores to this magnitude, where it is above zero.
    softcap: f32,
    /// A term that is added to the scores.
    bias: Option<ValueId>,
}

/// What attention computes on the way: [batch, heads, queries, keys].
struct AttentionScores {
    scores: ValueId,
    /// The softmax of the scores.
    weights: ValueId,
}

impl Heads {
    /// The result [batch, heads, tokens, size], and the scores and the weights, where they are `shown`.
    fn attend(
        &self,
        e: &mut Expansion<'_>,
        shown: bool,
    ) -> Result<(ValueId, Option<AttentionScores>), ImportFailure> {
        let (dtype, size) = (e.ty(self.q)?.dtype, e.shape(self.q)?[3].as_const());
        let size = size.ok_or_else(|| unsupported("heads of a size that is not known"))?;
        let root = || 1.0 / (size.max(1) as f64).sqrt();
        let scale = self.scale.map_or_else(root, f64::from);
        if !shown && dtype != DType::F64 {
            let attrs = Attrs::default().with("scale", Attr::Float(scale as f32));
            let attrs = match self.softcap > 0.0 {
                true => attrs.with("softcap", Attr::Float(self.softcap)),
                false => attrs,
            };
            let operands: Vec<_> = [Some(self.q), Some(self.k), Some(self.v), self.bias]
                .into_iter()
                .flatten()
                .collect();
            return Ok((e.op("FusedAttention", attrs, &operands)?, None));
        }
        let precise = match dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let shared = sharing(e, self.q, self.k)?;
        let (q, k, v) = (
            e.cast(self.q, precise)?,
            e.cast(self.k, precise)?,
            e.cast(self.v, precise)?,
        );
        let scale = e.float("scale", precise, scale)?;
        let mut scores = e.scores(q, k, scale, shared)?;
        if self.softcap > 0.0 {
            let cap = e.float("softcap", precise, self.softcap.into())?;
            let scaled = e.plain("Div", &[scores, cap])?;
            let bent = e.plain("Tanh", &[scaled])?;
            scores = e.plain("Mul", &[bent, cap])?;
        }
        if let Some(bias) = self.bias {
            let bias = e.cast(bias, precise)?;
            scores = e.plain("Add", &[scores, bias])?;
        }
        let weights = e.op("Softmax", axis_of(-1), &[scores])?;
        let y = e.mixed(weights, v, shared)?;
        let y = e.cast(y, dtype)?;
        Ok((y, shown.then_some(AttentionScores { scores, weights })))
    }
}

/// The columns of `x` [batch, tokens, columns] as heads: [batch, heads, tokens, size].
fn heads_of(e: &mut Expansion<'_>, x: ValueId, heads: i64) -> Made {
    let x = e.by_heads(x, heads)?;
    e.transposed(x, &[0, 2, 1, 3])
}

/// Heads [batch, heads, tokens, size] as output 0, [batch, tokens, columns].
fn joined_heads(e: &mut Expansion<'_>, y: ValueId) -> Made {
    let sizes = e.shape(y)?;
    let columns = sizes[1].as_const().zip(sizes[3].as_const());
    let columns = columns.and_then(|(heads, size)| heads.checked_mul(size));
    let y = e.transposed(y, &[0, 2, 1, 3])?;
    let shape = e.ints("shape", &[0, 0, columns.unwrap_or(-1)])?;
    e.last(0, "Reshape", Attrs::default(), &[y, shape])
}

/// An attribute that must be a number of heads.
fn take_heads(c: &mut ImportedNode, attr: &str) -> Result<i64, ImportFailure> {
    match c.take_int(attr)? {
        Some(heads) if heads > 0 => Ok(heads),
        _ => Err(c.wrong(attr, "a number above zero").into()),
    }
}

/// Attribute `scale`; zero stands for the default.
fn take_scale(c: &mut ImportedNode) -> Result<Option<f32>, ImportFailure> {
    Ok(c.take_float("scale")?.filter(|scale| *scale != 0.0))
}

/// The sum of the terms that are added to the scores.
fn added(
    e: &mut Expansion<'_>,
    parts: &[Option<ValueId>],
) -> Result<Option<ValueId>, ImportFailure> {
    let mut all: Option<ValueId> = None;
    for part in parts.iter().copied().flatten() {
        all = Some(match all {
            None => part,
            Some(all) => e.plain("Add", &[all, part])?,
        });
    }
    Ok(all)
}

/// Keys or values behind those that came before them, as output `o` where it is read.
fn behind(e: &mut Expansion<'_>, o: usize, past: Option<ValueId>, x: ValueId) -> Made {
    match (past, e.is_read(o)) {
        (Some(past), true) => e.last(o, "Concat", axis_of(2), &[past, x]),
        (Some(past), false) => e.joined(2, &[past, x]),
        (None, true) => e.last(o, "Identity", Attrs::default(), &[x]),
        (None, false) => Ok(x),
    }
}
