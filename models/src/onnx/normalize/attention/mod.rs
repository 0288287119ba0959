//! Attention, and the ops beside it in language models, by the ops that they consist of.
//!
//! ```text
//! Q × scale ──┐
//!             MatMul ── softcap ── + bias ── Softmax ── rows without a key are zero ── MatMul ── Y
//! Kᵀ ─────────┘                     mask                                      V ────────┘
//! ```
//!
//! All of it is one op where nothing in between is read. Where several heads of Q share one of K and V, they are the rows of one product, so that neither is repeated.

mod causal_conv;
mod flex;
mod linear;
mod mask;

pub(super) use causal_conv::{CausalForm, causal_conv, causal_conv_of};
pub(in super::super) use flex::{Flex, FlexAttention};
pub(super) use linear::linear_attention;
pub(super) use mask::where_allowed;

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::builder::Builder;
use super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, perm_of, unsupported,
};

/// The stage of the computation that output `qk_matmul_output` shows.
#[derive(Clone, Copy, PartialEq)]
enum AttentionStage {
    Product,
    Capped,
    Biased,
    Softmax,
}

/// The attributes of Attention.
struct AttentionAttrs {
    scale: Option<f32>,
    softcap: f32,
    softmax_precision: Option<DType>,
    shown: AttentionStage,
    heads: Option<i64>,
    key_heads: Option<i64>,
    causal: bool,
    /// How many keys before and after its own a query attends to, where that is bounded.
    window: [Option<i64>; 2],
}

impl AttentionAttrs {
    fn take(c: &mut ImportedNode) -> Result<AttentionAttrs, ImportFailure> {
        let shown = match c.take_int("qk_matmul_output_mode")?.unwrap_or(0) {
            0 => AttentionStage::Product,
            1 => AttentionStage::Capped,
            2 => AttentionStage::Biased,
            3 => AttentionStage::Softmax,
            _ => return Err(c.wrong("qk_matmul_output_mode", "0, 1, 2 or 3").into()),
        };
        let bound = |c: &mut ImportedNode, attr: &str| match c.take_int(attr)? {
            None | Some(-1) => Ok(None),
            // No sequence is longer than this, and the sum of a place and a larger bound might be too large.
            Some(n) if n > i32::MAX.into() => Ok(None),
            Some(n) if n >= 0 => Ok(Some(n)),
            Some(_) => Err(c.wrong(attr, "-1 or a number of keys")),
        };
        let heads = |c: &mut ImportedNode, attr: &str| match c.take_int(attr)? {
            Some(n) if n < 1 => Err(c.wrong(attr, "above zero")),
            n => Ok(n),
        };
        let attrs = AttentionAttrs {
            scale: c.take_float("scale")?,
            softcap: c.take_float("softcap")?.unwrap_or(0.0),
            softmax_precision: softmax_precision(c)?,
            shown,
            heads: heads(c, "q_num_heads")?,
            key_heads: heads(c, "kv_num_heads")?,
            causal: c.take_flag("is_causal", false)?,
            window: [
                bound(c, "left_window_size")?,
                bound(c, "right_window_size")?,
            ],
        };
        c.no_more_attributes()?;
        Ok(attrs)
    }
}

/// The dtype that the softmax is computed in, where it is given.
fn softmax_precision(c: &mut ImportedNode) -> Result<Option<DType>, ImportFailure> {
    let attr = "softmax_precision";
    match c.take_dtype(attr)? {
        None => Ok(None),
        Some(dtype @ (DType::F16 | DType::BF16 | DType::F32 | DType::F64)) => Ok(Some(dtype)),
        Some(_) => Err(c.wrong(attr, "f16, bf16, f32 or f64").into()),
    }
}

/// Imports Attention.
pub(super) fn attention(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let attrs = AttentionAttrs::take(&mut c)?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (past_key, past_value) = (c.input(4), c.input(5));
    if past_key.is_some() != past_value.is_some() {
        return Err(c.error("past_key and past_value go together").into());
    }
    if past_key.is_some() && c.input(6).is_some() {
        return Err(c
            .error("nonpad_kv_seqlen and a past exclude each other")
            .into());
    }
    if c.outputs.len() > 4 {
        return Err(c.error("has more than four outputs").into());
    }
    let (q, k, v) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let mut e = Expansion { b, c: &c };
    let rank = e.shape(q)?.len();
    if !(3..=4).contains(&rank)
        || [k, v]
            .iter()
            .any(|x| e.shape(*x).is_ok_and(|s| s.len() != rank))
    {
        return Err(c
            .error("Q, K and V must all have rank 3, or all rank 4")
            .into());
    }
    if rank == 4 {
        for (attr, heads, x) in [
            ("q_num_heads", attrs.heads, q),
            ("kv_num_heads", attrs.key_heads, k),
        ] {
            let Some(heads) = heads else { continue };
            if c.opset >= 25 {
                return Err(c.error(format!("{attr} is for operands of rank 3")).into());
            }
            let has = e.shape(x)?[1].as_const();
            if let Some(has) = has.filter(|has| *has != heads) {
                let reason = format!("{attr} is {heads}, the operand has {has} heads");
                return Err(c.error(reason).into());
            }
        }
    }
    let dtype = e.ty(q)?.dtype;
    let by_heads = |e: &mut Expansion<'_>, x: ValueId, heads: Option<i64>| match rank {
        4 => Ok(x),
        _ => {
            let heads = heads.ok_or_else(|| c.error("Q of rank 3 needs the numbers of heads"))?;
            let x = e.by_heads(x, heads)?;
            e.transposed(x, &[0, 2, 1, 3])
        }
    };
    let q = by_heads(&mut e, q, attrs.heads)?;
    let mut k = by_heads(&mut e, k, attrs.key_heads)?;
    let mut v = by_heads(&mut e, v, attrs.key_heads)?;
    let mut presents = [k, v];
    for (o, (x, past)) in [(&mut k, past_key), (&mut v, past_value)]
        .into_iter()
        .enumerate()
    {
        if let Some(past) = past {
            *x = match e.is_read(1 + o) {
                true => e.last(1 + o, "Concat", axis_of(2), &[past, *x])?,
                false => e.joined(2, &[past, *x])?,
            };
        } else if e.is_read(1 + o) {
            *x = e.last(1 + o, "Identity", Attrs::default(), &[*x])?;
        }
        presents[o] = *x;
    }
    let bias = mask::bias(&mut e, &attrs, q, k, dtype)?;
    let (y, shown) = match fused(&e, &attrs, q, dtype)? {
        Some(fused) => {
            let v = e.cast(v, dtype)?;
            let operands: Vec<ValueId> =
                [q, k, v].into_iter().chain(bias.map(|b| b.added)).collect();
            (e.op("FusedAttention", fused, &operands)?, None)
        }
        None => {
            let (y, shown) = attended(&mut e, &attrs, (q, k, v), bias, dtype)?;
            (y, e.is_read(3).then_some(shown))
        }
    };
    let y = match rank {
        4 => e.last(0, "Identity", Attrs::default(), &[y])?,
        _ => {
            let sizes = e.shape(y)?;
            let columns = sizes[1].as_const().zip(sizes[3].as_const());
            let columns = columns.and_then(|(heads, size)| heads.checked_mul(size));
            let columns = columns.unwrap_or(-1);
            let y = e.transposed(y, &[0, 2, 1, 3])?;
            let shape = e.ints("shape", &[0, 0, columns])?;
            e.last(0, "Reshape", Attrs::default(), &[y, shape])?
        }
    };
    let shown = match shown {
        Some(shown) => e.last(3, "Identity", Attrs::default(), &[shown])?,
        None => y,
    };
    let mut out = vec![y, presents[0], presents[1], shown];
    out.truncate(c.outputs.len());
    Ok(out)
}

/// The attributes of the op that computes attention at once; `None` where it must be expanded, since something in
/// between is read or computed in another dtype.
fn fused(
    e: &Expansion<'_>,
    attrs: &AttentionAttrs,
    q: ValueId,
    dtype: DType,
) -> Result<Option<Attrs>, ImportFailure> {
    let precise = attrs.softmax_precision.unwrap_or(DType::F32);
    let narrow = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    if e.is_read(3) || !narrow(dtype) || !narrow(precise) {
        return Ok(None);
    }
    let size = e.shape(q)?[3].as_const();
    let scale = match (attrs.scale, size) {
        (Some(scale), _) => scale,
        (None, Some(size)) => (1.0 / (size.max(1) as f64).sqrt()) as f32,
        (None, None) => return Ok(None),
    };
    let fused = Attrs::default().with("scale", Attr::Float(scale));
    Ok(Some(match attrs.softcap > 0.0 {
        true => fused.with("softcap", Attr::Float(attrs.softcap)),
        false => fused,
    }))
}

/// How many heads of Q share one of K; `None` where each has its own.
pub(super) fn sharing(
    e: &Expansion<'_>,
    q: ValueId,
    k: ValueId,
) -> Result<Option<(i64, i64)>, ImportFailure> {
    let (q, k) = (e.shape(q)?[1].clone(), e.shape(k)?[1].clone());
    match (q.as_const(), k.as_const()) {
        (Some(q), Some(k)) if q == k => Ok(None),
        (Some(q), Some(k)) if k > 0 && q % k == 0 => Ok(Some((q, k))),
        (Some(q), Some(k)) => {
            let reason = format!("{q} heads of Q are no multiple of {k} heads of K");
            Err(e.c.error(reason).into())
        }
        _ if q == k => Ok(None),
        _ => Err(unsupported("numbers of heads that are not known")),
    }
}

impl Expansion<'_> {
    /// The columns of `x` [batch, tokens, columns] divided into heads: [batch, tokens, heads, size].
    pub(super) fn by_heads(&mut self, x: ValueId, heads: i64) -> Made {
        let size = match self.shape(x)?[2].as_const() {
            None => -1,
            Some(columns) if columns % heads == 0 => columns / heads,
            Some(columns) => {
                let reason = format!("{columns} columns do not divide into {heads} heads");
                return Err(self.c.error(reason).into());
            }
        };
        self.reshaped(x, &[0, 0, heads, size])
    }

    /// The scaled products of all queries and keys.
    pub(super) fn scores(
        &mut self,
        q: ValueId,
        k: ValueId,
        scale: ValueId,
        shared: Option<(i64, i64)>,
    ) -> Made {
        // Scaling Q alone leaves K, which may be a long cache, as it is.
        let mut q = self.plain("Mul", &[q, scale])?;
        if let Some((_, heads)) = shared {
            q = self.reshaped(q, &[0, heads, -1, 0])?;
        }
        let k = self.op("Transpose", perm_of(&[0, 1, 3, 2]), &[k])?;
        let scores = self.plain("MatMul", &[q, k])?;
        match shared {
            None => Ok(scores),
            Some((heads, _)) => self.reshaped(scores, &[0, heads, -1, 0]),
        }
    }

    /// The sums of values by their weights.
    pub(super) fn mixed(
        &mut self,
        weights: ValueId,
        v: ValueId,
        shared: Option<(i64, i64)>,
    ) -> Made {
        let Some((heads, shared)) = shared else {
            return self.plain("MatMul", &[weights, v]);
        };
        let weights = self.reshaped(weights, &[0, shared, -1, 0])?;
        let y = self.plain("MatMul", &[weights, v])?;
        self.reshaped(y, &[0, heads, -1, 0])
    }
}

/// The result, and what output 3 shows of the way there where it is read.
fn attended(
    e: &mut Expansion<'_>,
    attrs: &AttentionAttrs,
    (q, k, v): (ValueId, ValueId, ValueId),
    bias: Option<mask::Bias>,
    dtype: DType,
) -> Result<(ValueId, ValueId), ImportFailure> {
    let shared = sharing(e, q, k)?;
    let scale = scale(e, attrs, q, dtype)?;
    let mut scores = e.scores(q, k, scale, shared)?;
    let mut shown = scores;
    if attrs.softcap > 0.0 {
        let cap = e.float("softcap", dtype, attrs.softcap.into())?;
        let scaled = e.plain("Div", &[scores, cap])?;
        let bent = e.plain("Tanh", &[scaled])?;
        scores = e.plain("Mul", &[bent, cap])?;
    }
    if attrs.shown == AttentionStage::Capped {
        shown = scores;
    }
    if let Some(bias) = &bias {
        scores = e.plain("Add", &[scores, bias.added])?;
    }
    if attrs.shown == AttentionStage::Biased {
        shown = scores;
    }
    let precise = attrs.softmax_precision.unwrap_or(dtype);
    let scores = e.cast(scores, precise)?;
    let mut weights = e.op("Softmax", axis_of(-1), &[scores])?;
    weights = e.cast(weights, dtype)?;
    let empty = match &bias {
        Some(bias) => bias.empty_rows(e)?,
        None => None,
    };
    if let Some(empty) = empty {
        let zero = e.float("zero", dtype, 0.0)?;
        weights = e.plain("Where", &[empty, zero, weights])?;
    }
    if attrs.shown == AttentionStage::Softmax {
        shown = weights;
    }
    let v = e.cast(v, dtype)?;
    let y = e.mixed(weights, v, shared)?;
    Ok((y, shown))
}

/// The factor of the product of Q and K: 1 over the root of a head's size, where it is not given.
fn scale(e: &mut Expansion<'_>, attrs: &AttentionAttrs, q: ValueId, dtype: DType) -> Made {
    if let Some(scale) = attrs.scale {
        return e.float("scale", dtype, scale.into());
    }
    match e.shape(q)?[3].as_const() {
        Some(size) => e.float("scale", dtype, 1.0 / (size.max(1) as f64).sqrt()),
        None => {
            let size = e.length(q, -1)?;
            let size = e.cast(size, DType::F32)?;
            let root = e.plain("Sqrt", &[size])?;
            let scale = e.plain("Reciprocal", &[root])?;
            e.cast(scale, dtype)
        }
    }
}
