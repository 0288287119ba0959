//! Attention, which makes queries, keys and values by one product.

use convoke_graph::graph::ValueId;

use super::super::super::super::builder::Builder;
use super::super::super::expansion::{Expansion, axis_of};
use super::super::super::{ImportFailure, ImportedNode, Outputs, unsupported};
use super::mask::Lengths;
use super::{Heads, added, heads_of, joined_heads, take_heads, take_scale};

/// Imports Attention.
pub(in super::super) fn attention(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let heads = take_heads(&mut c, "num_heads")?;
    let scale = take_scale(&mut c)?;
    let filter = c.take_float("mask_filter_value")?.unwrap_or(-10000.0);
    let causal = c.take_flag("unidirectional", false)?;
    let sizes = c.take_ints("qkv_hidden_sizes")?.filter(|s| !s.is_empty());
    for (attr, what) in [
        ("do_rotary", "rotary embedding"),
        ("past_present_share_buffer", "a shared cache"),
    ] {
        if c.take_flag(attr, false)? {
            return Err(unsupported(what));
        }
    }
    c.take_int("rotary_embedding_dim")?;
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (x, weights) = (c.need(0)?, c.need(1)?);
    let (bias, mask, past) = (c.input(2), c.input(3), c.input(4));
    let mut e = Expansion { b, c: &c };
    if e.shape(x)?.len() != 3 {
        return Err(c.error("input must have rank 3").into());
    }
    let mut product = e.plain("MatMul", &[x, weights])?;
    if let Some(bias) = bias {
        product = e.plain("Add", &[product, bias])?;
    }
    let columns = e.shape(product)?[2].as_const();
    let sizes = match (sizes, columns) {
        (Some(sizes), _) => sizes,
        (None, Some(columns)) if columns % 3 == 0 => vec![columns / 3; 3],
        _ => {
            return Err(c
                .error("weights do not have three times as many columns")
                .into());
        }
    };
    let [q, k, v] = split(&mut e, product, &sizes)?;
    let (q, mut k, mut v) = (
        heads_of(&mut e, q, heads)?,
        heads_of(&mut e, k, heads)?,
        heads_of(&mut e, v, heads)?,
    );
    if let Some(past) = past {
        for (i, x) in [&mut k, &mut v].into_iter().enumerate() {
            let at = e.int("part", i as i64)?;
            let past = e.op("Gather", axis_of(0), &[past, at])?;
            *x = e.joined(2, &[past, *x])?;
        }
    }
    let dtype = e.ty(q)?.dtype;
    let lengths = Lengths::of(&mut e, q, k)?;
    let padding = match mask {
        Some(mask) => Some(lengths.padding(&mut e, mask, dtype, filter)?),
        None => None,
    };
    let order = match causal {
        true => Some(lengths.causal(&mut e, dtype)?),
        false => None,
    };
    let bias = added(&mut e, &[c.input(5), padding, order])?;
    let (y, _) = Heads {
        q,
        k,
        v,
        scale,
        softcap: 0.0,
        bias,
    }
    .attend(&mut e, false)?;
    let mut out = vec![joined_heads(&mut e, y)?];
    if c.outputs.len() > 1 {
        let (k, v) = (e.unsqueezed(k, &[0])?, e.unsqueezed(v, &[0])?);
        out.push(e.last(1, "Concat", axis_of(0), &[k, v])?);
    }
    Ok(out)
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
