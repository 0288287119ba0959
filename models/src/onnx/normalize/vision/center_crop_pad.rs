//! CenterCropPad.

use convoke_graph::graph::Attrs;

use crate::onnx::builder::Builder;
use crate::onnx::normalize::node::{Expansion, ImportedNode, Outputs, axis_of, unsupported};

/// Imports CenterCropPad: an axis that is too long is cut evenly at both ends, and one that is too short is padded.
pub(in crate::onnx::normalize) fn center_crop_pad(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let axes = c.take_ints("axes")?;
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (x, wanted) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b, c: &c };
    let rank = e.shape(x)?.len();
    let axes = axes.unwrap_or_else(|| (0..rank as i64).collect());
    let axes =
        convoke_graph::ops::normalize_axes(&axes, rank).map_err(|e| c.error(e.to_string()))?;
    let count = match e.shape(wanted)?.as_slice() {
        [n] => n.as_const(),
        _ => return Err(c.error("shape must have rank 1").into()),
    };
    match count {
        Some(n) if n == axes.len() as i64 => {}
        Some(n) => {
            let reason = format!("shape has {n} elements for {} axes", axes.len());
            return Err(c.error(reason).into());
        }
        None => return Err(unsupported("a shape of a length that is not known")),
    }
    let axes: Vec<i64> = axes.into_iter().map(|axis| axis as i64).collect();
    let wanted = e.cast(wanted, convoke_graph::DType::I64)?;
    let axes = e.ints("axes", &axes)?;
    let shape = e.plain("Shape", &[x])?;
    let shape = e.op("Gather", axis_of(0), &[shape, axes])?;
    let (zero, two) = (e.ints("zero", &[0])?, e.ints("two", &[2])?);
    // The lesser half of a difference lies before the centre.
    let surplus = e.plain("Sub", &[shape, wanted])?;
    let surplus = e.plain("Max", &[surplus, zero])?;
    let starts = e.plain("Div", &[surplus, two])?;
    let kept = e.plain("Min", &[shape, wanted])?;
    let ends = e.plain("Add", &[starts, kept])?;
    let cropped = e.plain("Slice", &[x, starts, ends, axes])?;
    let missing = e.plain("Sub", &[wanted, shape])?;
    let missing = e.plain("Max", &[missing, zero])?;
    let before = e.plain("Div", &[missing, two])?;
    let after = e.plain("Sub", &[missing, before])?;
    let pads = e.joined(0, &[before, after])?;
    let operands = vec![Some(cropped), Some(pads), None, Some(axes)];
    c.finish(b, "Pad", Attrs::default(), operands)
}
