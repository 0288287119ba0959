//! Upsample, and older forms of Resize, GridSample and RoiAlign.

use convoke_graph::Tensor;
use convoke_graph::graph::Attr;
use convoke_graph::ops::attrs::BY_SCALE;

use crate::onnx::builder::Builder;
use crate::onnx::normalize::node::{ImportedNode, Outputs, unsupported};

/// Imports Upsample as a Resize that maps coordinates without an offset and rounds down.
pub(in crate::onnx::normalize) fn upsample(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let scales = match c.take("scales") {
        Some(Attr::Floats(v)) => {
            let name = c.sub("scales");
            let t = Tensor::from_slice(&[v.len()], &v).map_err(|e| c.error(e.to_string()))?;
            b.literal(&name, t)
        }
        Some(_) => return Err(c.wrong("scales", "a list of floats").into()),
        None => c.need(1)?,
    };
    c.inputs.truncate(1);
    c.set(2, Some(scales));
    asymmetric(&mut c, "floor");
    c.emit_as(b, "Resize")
}

/// Imports Resize. Before operator set 11 the scales were the second operand, and the nearest element was the one above where
/// an axis shrinks; since then empty tensors stand for operands that are left out.
pub(in crate::onnx::normalize) fn resize(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if c.opset < 11 {
        let scales = c.need(1)?;
        c.inputs.truncate(1);
        c.set(2, Some(scales));
        asymmetric(&mut c, BY_SCALE);
        return c.emit(b);
    }
    if c.attrs.str("nearest_mode", "") == BY_SCALE {
        return Err(unsupported(format!(
            "attribute 'nearest_mode' as '{BY_SCALE}'"
        )));
    }
    if c.opset > 12 && c.attrs.str("coordinate_transformation_mode", "") == "tf_half_pixel_for_nn" {
        let reason = format!(
            "'tf_half_pixel_for_nn' in opset {}, since opset 13 removed it",
            c.opset
        );
        return Err(unsupported(reason));
    }
    for i in 1..c.inputs.len() {
        let empty = |id| b.ty(id).is_some_and(|t| t.shape.iter().any(|d| d.is(0)));
        if c.input(i).is_some_and(empty) {
            c.set(i, None);
        }
    }
    c.emit(b)
}

fn asymmetric(c: &mut ImportedNode, nearest: &str) {
    for (attr, value) in [
        ("coordinate_transformation_mode", "asymmetric"),
        ("nearest_mode", nearest),
    ] {
        c.attrs.0.insert(attr.into(), Attr::Str(value.into()));
    }
}

/// Imports GridSample, whose modes had other names before operator set 20.
pub(in crate::onnx::normalize) fn grid_sample(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if c.input(0)
        .and_then(|x| b.ty(x))
        .is_some_and(|x| x.shape.len() != 4)
    {
        return Err(unsupported(format!(
            "its form of opset {} on other than two spatial axes",
            c.opset
        )));
    }
    let mode = match c.attrs.str("mode", "bilinear") {
        "bilinear" => "linear",
        "bicubic" => "cubic",
        other => other,
    };
    let mode = Attr::Str(mode.into());
    c.attrs = c.attrs.with("mode", mode);
    c.emit(b)
}

/// Imports RoiAlign of operator set 10, which did not shift coordinates by half a pixel.
pub(in crate::onnx::normalize) fn roi_align(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let mode = Attr::Str("output_half_pixel".into());
    c.attrs = c.attrs.with("coordinate_transformation_mode", mode);
    c.emit(b)
}
