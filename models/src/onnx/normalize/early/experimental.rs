//! Ops that ONNX had on trial before operator set 10, which converters of that time wrote and ONNX Runtime still runs.

use convoke_graph::graph::{Attr, Attrs};
use convoke_graph::{Dim, Tensor};

use super::super::super::builder::Builder;
use super::super::node::{Expansion, ImportFailure, ImportedNode, Outputs, exact};
use crate::error::ModelError;

/// Imports Affine, `alpha * x + beta`.
pub(in super::super) fn affine(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let alpha = c.take_float("alpha")?.unwrap_or(1.0);
    let beta = c.take_float("beta")?.unwrap_or(0.0);
    c.no_more_attributes()?;
    let (x, dtype) = (c.need(0)?, c.dtype(b, 0));
    let mut e = Expansion { b, c: &c };
    let alpha = e.float("alpha", dtype, alpha.into())?;
    let beta = e.float("beta", dtype, beta.into())?;
    let product = e.plain("Mul", &[x, alpha])?;
    Ok(vec![e.last(
        0,
        "Add",
        Attrs::default(),
        &[product, beta],
    )?])
}

/// Imports Scale, `scale * x`.
pub(in super::super) fn scale(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let scale = c.take_float("scale")?.unwrap_or(1.0);
    c.no_more_attributes()?;
    let (x, dtype) = (c.need(0)?, c.dtype(b, 0));
    let mut e = Expansion { b, c: &c };
    let scale = e.float("scale", dtype, scale.into())?;
    Ok(vec![e.last(0, "Mul", Attrs::default(), &[x, scale])?])
}

/// Imports ParametricSoftplus and ScaledTanh, `alpha * f(beta * x)` with the function `f`.
pub(in super::super) fn scaled(b: &mut Builder, mut c: ImportedNode, f: &str) -> Outputs {
    let alpha = c.take_float("alpha")?.ok_or_else(|| missing(&c, "alpha"))?;
    let beta = c.take_float("beta")?.ok_or_else(|| missing(&c, "beta"))?;
    c.no_more_attributes()?;
    let (x, dtype) = (c.need(0)?, c.dtype(b, 0));
    let mut e = Expansion { b, c: &c };
    let alpha = e.float("alpha", dtype, alpha.into())?;
    let beta = e.float("beta", dtype, beta.into())?;
    let within = e.plain("Mul", &[x, beta])?;
    let y = e.plain(f, &[within])?;
    Ok(vec![e.last(0, "Mul", Attrs::default(), &[y, alpha])?])
}

/// Imports ImageScaler, `scale * x + bias` with a bias of each channel.
pub(in super::super) fn image_scaler(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let scale = c.take_float("scale")?.unwrap_or(1.0);
    let bias = match c.take("bias") {
        Some(Attr::Floats(v)) => v,
        Some(_) => return Err(c.wrong("bias", "a list of floats").into()),
        None => return Err(missing(&c, "bias").into()),
    };
    c.no_more_attributes()?;
    let (x, dtype) = (c.need(0)?, c.dtype(b, 0));
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let mut e = Expansion { b, c: &c };
    let [_, channels, _, _] = &image(&e)?;
    if channels.as_const() != Some(bias.len() as i64) {
        let msg = format!("{channels} channels have {} elements of 'bias'", bias.len());
        return Err(c.error(msg).into());
    }
    let scale = e.float("scale", dtype, scale.into())?;
    let product = e.plain("Mul", &[x, scale])?;
    let bias = Tensor::from_slice(&[bias.len(), 1, 1], &bias);
    let bias = bias.map_err(|e| c.error(e.to_string()))?;
    let bias = e.b.literal(&c.sub("bias"), bias);
    let bias = e.cast(bias, dtype)?;
    Ok(vec![e.last(
        0,
        "Add",
        Attrs::default(),
        &[product, bias],
    )?])
}

/// Imports Crop, which takes elements off the borders of images, or takes a part of a given size that begins behind the first
/// borders.
pub(in super::super) fn crop(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let border = c.take_ints("border")?;
    let border: Option<[i64; 4]> = border.and_then(|b| b.try_into().ok());
    let border = border.filter(|b| b.iter().all(|n| *n >= 0));
    let [left, top, right, bottom] =
        border.ok_or_else(|| c.error("'border' must be four lengths: left, top, right, bottom"))?;
    let scale = c.take_ints("scale")?;
    c.no_more_attributes()?;
    let x = c.need(0)?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let mut e = Expansion { b, c: &c };
    let [_, _, height, width] = image(&e)?;
    let Some(scale) = scale else {
        // Taking off more than there is fails, at the latest in the run.
        let pads = e.ints("pads", &[0, 0, -top, -left, 0, 0, -bottom, -right])?;
        return Ok(vec![e.last(0, "Pad", Attrs::default(), &[x, pads])?]);
    };
    let [rows, columns] = *scale.as_slice() else {
        return Err(c.error("'scale' must be a height and a width").into());
    };
    let ends = top.checked_add(rows).zip(left.checked_add(columns));
    let Some((below, behind)) = ends.filter(|_| rows >= 0 && columns >= 0) else {
        return Err(c.error(format!("'scale' {scale:?} is no size")).into());
    };
    let outside = |size: &Dim, end: i64| size.as_const().is_some_and(|size| end > size);
    if outside(&height, below) || outside(&width, behind) {
        let msg =
            format!("a part up to row {below} and column {behind} exceeds {height} by {width}");
        return Err(c.error(msg).into());
    }
    let operands = [
        x,
        e.ints("starts", &[top, left])?,
        e.ints("ends", &[below, behind])?,
        e.ints("axes", &[2, 3])?,
    ];
    if height.as_const().is_some() && width.as_const().is_some() {
        return Ok(vec![e.last(0, "Slice", Attrs::default(), &operands)?]);
    }
    // Slice takes as much as there is, where the images turn out too small. The shape refuses that.
    let part = e.plain("Slice", &operands)?;
    let shape = e.plain("Shape", &[x])?;
    let outer = e.slice(shape, 0, 0, 2, 1)?;
    let inner = e.ints("scale", &[rows, columns])?;
    let shape = e.joined(0, &[outer, inner])?;
    Ok(vec![e.last(0, "Reshape", exact(), &[part, shape])?])
}

/// The dimensions of the first operand, which must be images: batch, channels, height and width.
fn image(e: &Expansion<'_>) -> Result<[Dim; 4], ImportFailure> {
    let shape = e.shape(e.c.need(0)?)?;
    let rank = shape.len();
    let images: Result<[Dim; 4], _> = shape.try_into();
    Ok(images.map_err(|_| e.c.error(format!("takes images of 4 axes, not of {rank}")))?)
}

fn missing(c: &ImportedNode, attr: &str) -> ModelError {
    c.error(format!("attribute '{attr}' is missing"))
}
