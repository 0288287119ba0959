//! Attention, which makes queries, keys and values by one product.

use convoke_graph::graph::ValueId;

use super::super::super::super::builder::Builder;
use super::super::super::node::{
    Expansion, ImportFailure, ImportedNode, Outputs, axis_of, unsupported,
};
use super::mask::Lengths;
use super::{Heads, added, heads_of, joined_heads, take_heads, take_scale};

/// Attention of queries, keys and values that one product makes.
pub(in super::super::super) struct Packed {
    heads: i64,
    scale: Option<f32>,
    /// The term that is added to the scores of keys that are padding.
    filter: f32,
    causal: bool,
    /// This operand says which keys are padding.
    pub mask: Option<ValueId>,
    /// Keys and values that came before, [2, batch, heads, tokens, size].
    pub past: Option<ValueId>,
    /// A term that is added to the scores.
    pub bias: Option<ValueId>,
}

impl Packed {
    /// Takes the attributes that Attention and QAttention share.
    pub fn take(c: &mut ImportedNode) -> Result<Packed, ImportFailure> {
        let packed = Packed {
            heads: take_heads(c, "num_heads")?,
            scale: take_scale(c)?,
            filter: c.take_float("mask_filter_value")?.unwrap_or(-10000.0),
            causal: c.take_flag("unidirectional", false)?,
            mask: None,
            past: None,
            bias: None,
        };
        for (attr, what) in [
            ("do_rotary", "rotary embedding"),
            ("past_present_share_buffer", "a shared cache"),
        ] {
            if c.take_flag(attr, false)? {
                return Err(unsupported(what));
            }
        }
        Ok(packed)
    }

    /// The outputs: the result, and where it is read, keys and values with those that came before. `product` is [batch, tokens,
    /// columns], where `sizes` says how many of the columns are of queries, keys and values: a third each, where it is not given.
    pub fn attend(
        self,
        e: &mut Expansion<'_>,
        product: ValueId,
        sizes: Option<Vec<i64>>,
    ) -> Outputs {
        let columns = match e.shape(product)?.as_slice() {
            [_, _, columns] => columns.as_const(),
            _ => return Err(e.c.error("input must have rank 3").into()),
        };
        let sizes = match (sizes, columns) {
            (Some(sizes), _) => sizes,
            (None, Some(columns)) if columns % 3 == 0 => vec![columns / 3; 3],
            _ => {
                let reason = "weights do not have three times as many columns";
                return Err(e.c.error(reason).into());
            }
        };
        let [q, k, v] = split(e, product, &sizes)?;
        let (q, mut k, mut v) = (
            heads_of(e, q, self.heads)?,
            heads_of(e, k, self.heads)?,
            heads_of(e, v, self.heads)?,
        );
        if let Some(past) = self.past {
            for (i, x) in [&mut k, &mut v].into_iter().enumerate() {
                let at = e.int("part", i as i64)?;
                let past = e.op("Gather", axis_of(0), &[past, at])?;
                *x = e.joined(2, &[past, *x])?;
            }
        }
        let dtype = e.ty(q)?.dtype;
        let lengths = Lengths::of(e, q, k)?;
        // ONNX Runtime ignores a mask of one column. Where there is only one key, its weight is 1 with a mask or without, so such
        // a mask may always be left out.
        let mut mask = self.mask;
        if let Some(given) = mask
            && let [_, keys] = e.shape(given)?.as_slice()
            && keys.is(1)
        {
            mask = None;
        }
        let padding = match mask {
            Some(mask) => Some(lengths.padding(e, mask, dtype, self.filter)?),
            None => None,
        };
        let order = match self.causal {
            true => {
                let query = lengths.query_places(e)?;
                Some(lengths.causal(e, dtype, query)?)
            }
            false => None,
        };
        let bias = added(e, &[self.bias, padding, order])?;
        let (y, _) = Heads {
            q,
            k,
            v,
            scale: self.scale,
            softcap: 0.0,
            bias,
        }
        .attend(e, false)?;
        let mut out = vec![joined_heads(e, y)?];
        if e.c.outputs.len() > 1 {
            let (k, v) = (e.unsqueezed(k, &[0])?, e.unsqueezed(v, &[0])?);
            out.push(e.last(1, "Concat", axis_of(0), &[k, v])?);
        }
        Ok(out)
    }
}

/// Imports Attention.
pub(in super::super) fn attention(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let mut attention = Packed::take(&mut c)?;
    let sizes = c.take_ints("qkv_hidden_sizes")?.filter(|s| !s.is_empty());
    c.take_int("rotary_embedding_dim")?;
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (x, weights) = (c.need(0)?, c.need(1)?);
    attention.mask = c.input(3);
    attention.past = c.input(4);
    attention.bias = c.input(5);
    let mut e = Expansion { b, c: &c };
    let mut product = e.plain("MatMul", &[x, weights])?;
    if let Some(bias) = c.input(2) {
        product = e.plain("Add", &[product, bias])?;
    }
    attention.attend(&mut e, product, sizes)
}

/// The columns of queries, keys and values.
pub(super) fn split(
    e: &mut Expansion<'_>,
    x: ValueId,
    sizes: &[i64],
) -> Result<[ValueId; 3], ImportFailure> {
    if sizes.len() != 3 || sizes.iter().any(|s| *s < 0) {
        let reason = format!("{sizes:?} are not the sizes of queries, keys and values");
        return Err(e.c.error(reason).into());
    }
    let lengths = e.ints("sizes", sizes)?;
    let name = e.c.sub("Split");
    let names = [0, 1, 2].map(|i| format!("{name}.{i}"));
    let operands = vec![Some(x), Some(lengths)];
    let made = e.b.emit("Split", &name, axis_of(-1), operands, &names)?;
    made.try_into()
        .map_err(|_| e.c.error("has no queries, keys and values").into())
}
