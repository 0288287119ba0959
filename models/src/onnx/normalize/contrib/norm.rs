//! Normalisations with the sums that come before them.

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::{DType, Tensor};

use super::super::super::builder::Builder;
use super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, is_half, to_dtype, without_axes,
};

/// The normalisation that follows a sum.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// It divides by the deviation from the mean.
    Layer,
    /// It divides by the root of the mean square.
    Simplified,
}

/// Imports the layer normalisation of `input + skip + bias`, which is the optional fourth output.
pub(super) fn skip_layer_norm(b: &mut Builder, mut c: ImportedNode, kind: Kind) -> Outputs {
    let epsilon = c.take_float("epsilon")?.unwrap_or(1e-12);
    c.no_more_attributes()?;
    if c.outputs.len() > 4 {
        return Err(c.error("has more than four outputs").into());
    }
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (x, skip, scale) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let (shift, bias) = match kind {
        Kind::Layer => (c.input(3), c.input(4)),
        Kind::Simplified => (None, c.input(3)),
    };
    let mut e = Expansion { b, c: &c };
    let mut total = wide(&mut e, x)?;
    for part in [Some(skip), bias].into_iter().flatten() {
        let part = wide(&mut e, part)?;
        total = e.plain("Add", &[total, part])?;
    }
    let mut out = normalised(&mut e, kind, total, (scale, shift), epsilon)?;
    let dtype = e.ty(x)?.dtype;
    if e.is_read(3) {
        out.push(e.cast(total, dtype)?);
    }
    out.truncate(c.outputs.len());
    Ok(out)
}

/// A value in the dtype in which sums are made.
pub(super) fn wide(e: &mut Expansion<'_>, x: ValueId) -> Made {
    match is_half(e.ty(x)?.dtype) {
        true => e.cast(x, DType::F32),
        false => Ok(x),
    }
}

/// The normalised rows of a sum under the name of the first output, then their means and inverse deviations, in place of
/// which the rows stand where nothing reads them.
fn normalised(
    e: &mut Expansion<'_>,
    kind: Kind,
    total: ValueId,
    (scale, shift): (ValueId, Option<ValueId>),
    epsilon: f32,
) -> Result<Vec<ValueId>, ImportFailure> {
    let dtype = e.ty(scale)?.dtype;
    let scale = wide(e, scale)?;
    let shift = shift.map(|shift| wide(e, shift)).transpose()?;
    let attrs = axis_of(-1).with("epsilon", Attr::Float(epsilon));
    let op = match kind {
        Kind::Layer => "LayerNormalization",
        Kind::Simplified => "RMSNormalization",
    };
    let name = match is_half(dtype) {
        true => e.c.sub(op),
        false => e.c.name.clone(),
    };
    let mut outputs = vec![match is_half(dtype) {
        true => name.clone(),
        false => e.c.outputs.first().cloned().unwrap_or_default(),
    }];
    if kind == Kind::Layer && (e.is_read(1) || e.is_read(2)) {
        outputs.extend([1, 2].map(|o| e.c.outputs.get(o).cloned().unwrap_or_default()));
    }
    let operands: Vec<_> = [Some(total), Some(scale), shift].into_iter().collect();
    let mut made = e.b.emit(op, &name, attrs, operands, &outputs)?;
    if is_half(dtype)
        && let Some(y) = made.first_mut()
    {
        *y = e.last(0, "Cast", to_dtype(dtype), &[*y])?;
    }
    let Some(y) = made.first().copied() else {
        return Err(e.c.error("has no result").into());
    };
    if kind == Kind::Simplified {
        made.extend([y, y]);
        if e.is_read(1) {
            let axes = e.ints("axes", &[-1])?;
            made[1] = e.last(1, "ReduceMean", Attrs::default(), &[total, axes])?;
        }
        if e.is_read(2) {
            made[2] = inverse_deviation(e, 2, total, -1, epsilon)?;
        }
    }
    made.resize(3, y);
    Ok(made)
}

/// One over the root of the mean square of the axes from `axis` on, as output `o`.
fn inverse_deviation(e: &mut Expansion<'_>, o: usize, x: ValueId, axis: i64, epsilon: f32) -> Made {
    let rank = e.shape(x)?.len() as i64;
    if !(-rank..rank).contains(&axis) {
        return Err(e.c.wrong("axis", "an axis of the operand").into());
    }
    let first = if axis < 0 { axis + rank } else { axis };
    let axes: Vec<i64> = (first..rank).collect();
    let axes = e.ints("axes", &axes)?;
    let x = wide(e, x)?;
    let square = e.plain("Mul", &[x, x])?;
    let mean = e.plain("ReduceMean", &[square, axes])?;
    let dtype = e.ty(mean)?.dtype;
    let epsilon = e.float("epsilon", dtype, epsilon.into())?;
    let sum = e.plain("Add", &[mean, epsilon])?;
    let root = e.plain("Sqrt", &[sum])?;
    e.last(o, "Reciprocal", Attrs::default(), &[root])
}

/// Imports SimplifiedLayerNormalization, whose second output is the inverse deviation.
pub(in super::super) fn simplified_layer_norm(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let axis = c.take_int("axis")?.unwrap_or(-1);
    let epsilon = c.take_float("epsilon")?.unwrap_or(1e-5);
    c.take_int("stash_type")?;
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (x, scale) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b, c: &c };
    let attrs = axis_of(axis).with("epsilon", Attr::Float(epsilon));
    let y = e.last(0, "RMSNormalization", attrs, &[x, scale])?;
    let mut out = vec![y];
    if e.is_read(1) {
        out.push(inverse_deviation(&mut e, 1, x, axis, epsilon)?);
    }
    out.truncate(c.outputs.len());
    Ok(out)
}

/// Imports EmbedLayerNormalization: the layer normalisation of the embeddings of words, their places and their
/// segments. Its second output is how many words of each row the mask has, its third one the sum of the embeddings.
pub(super) fn embed_layer_norm(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let epsilon = c.take_float("epsilon")?.unwrap_or(1e-12);
    // This only says of which type the second output is.
    c.take_int("mask_index_type")?;
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let norm = EmbeddingNorm {
        places: c.input(8),
        scale: c.need(5)?,
        shift: c.need(6)?,
        epsilon,
    };
    let mut e = Expansion { b, c: &c };
    embedded(&mut e, norm, |e, table, ids| {
        let table = e.c.need(table)?;
        e.op("Gather", axis_of(0), &[table, ids])
    })
}

/// Imports QEmbedLayerNormalization, whose tables, scale and shift are codes. Rows are gathered of codes, and become
/// numbers then.
pub(super) fn codes_embed_layer_norm(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let epsilon = c.take_float("epsilon")?.unwrap_or(1e-12);
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let mut e = Expansion { b, c: &c };
    // Codes of operand `i`, one of 2 to 6, whose scales and zero points are in the same order behind the mask.
    let numbers = |e: &mut Expansion<'_>, codes: ValueId, i: usize| {
        let (scale, zero) = (e.c.need(i + 6)?, e.c.need(i + 11)?);
        let [scale, zero] = [e.reshaped(scale, &[])?, e.reshaped(zero, &[])?];
        e.plain("DequantizeLinear", &[codes, scale, zero])
    };
    let norm = EmbeddingNorm {
        places: None,
        scale: numbers(&mut e, c.need(5)?, 5)?,
        shift: numbers(&mut e, c.need(6)?, 6)?,
        epsilon,
    };
    embedded(&mut e, norm, |e, table, ids| {
        let codes = e.c.need(table)?;
        let rows = e.op("Gather", axis_of(0), &[codes, ids])?;
        numbers(e, rows, table)
    })
}

/// The normalisation of embeddings.
struct EmbeddingNorm {
    /// The places of words, where they are given.
    places: Option<ValueId>,
    scale: ValueId,
    shift: ValueId,
    epsilon: f32,
}

/// Adds the nodes of both ops on embeddings. `rows` gathers numbers of the table that is operand 2, 3 or 4.
fn embedded(
    e: &mut Expansion<'_>,
    norm: EmbeddingNorm,
    rows: impl Fn(&mut Expansion<'_>, usize, ValueId) -> Made,
) -> Outputs {
    let (ids, segments) = (e.c.need(0)?, e.c.input(1));
    if segments.is_some() != e.c.input(4).is_some() {
        let reason = "segment_ids and segment_embedding go together";
        return Err(e.c.error(reason).into());
    }
    if e.shape(ids)?.len() != 2 {
        return Err(e.c.error("input_ids must have rank 2").into());
    }
    let word = rows(e, 2, ids)?;
    let place = match norm.places {
        Some(place) => place,
        None => {
            let length = e.length(ids, 1)?;
            let length = e.scalar(length)?;
            e.counted(length)?
        }
    };
    let place = rows(e, 3, place)?;
    let dtype = e.ty(word)?.dtype;
    let (word, place) = (wide(e, word)?, wide(e, place)?);
    let mut total = e.plain("Add", &[word, place])?;
    if let Some(segments) = segments {
        let segment = rows(e, 4, segments)?;
        let segment = wide(e, segment)?;
        total = e.plain("Add", &[total, segment])?;
    }
    let attrs = axis_of(-1).with("epsilon", Attr::Float(norm.epsilon));
    let operands = [total, wide(e, norm.scale)?, wide(e, norm.shift)?];
    let y = match is_half(dtype) {
        false => e.last(0, "LayerNormalization", attrs, &operands)?,
        true => {
            let y = e.op("LayerNormalization", attrs, &operands)?;
            e.last(0, "Cast", to_dtype(dtype), &[y])?
        }
    };
    let mut out = vec![y, y, y];
    if e.is_read(1) {
        out[1] = words_of_mask(e, ids)?;
    }
    if e.is_read(2) {
        out[2] = e.cast(total, dtype)?;
    }
    out.truncate(e.c.outputs.len());
    Ok(out)
}

/// How many words of each row the mask has; zeros where there is no mask.
fn words_of_mask(e: &mut Expansion<'_>, ids: ValueId) -> Made {
    let Some(mask) = e.c.input(7) else {
        let batch = e.length(ids, 0)?;
        let zero = Tensor::from_slice(&[1], &[0i32]).map_err(|t| e.c.error(t.to_string()))?;
        let attrs = Attrs::default().with("value", Attr::Tensor(zero));
        return e.last(1, "ConstantOfShape", attrs, &[batch]);
    };
    let dtype = e.ty(mask)?.dtype;
    let one = e.int("one", 1)?;
    let one = e.cast(one, dtype)?;
    let present = e.plain("Equal", &[mask, one])?;
    let present = e.cast(present, DType::I32)?;
    let axes = e.ints("axes", &[1])?;
    let attrs = without_axes();
    e.last(1, "ReduceSum", attrs, &[present, axes])
}
