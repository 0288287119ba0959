//! Tensors brought to other lengths by interpolation.

use crate::ops::attrs::{AspectRatio, Coordinates, Interpolation, ResizeAttrs};
use crate::ops::cost::per_element;
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{Op, ResizeOp};
use crate::ops::shapes::*;
use crate::{DType, Dim};

/// The length of a dimension that is multiplied by `scale`, where it is known.
fn scaled(d: &Dim, scale: f32) -> Result<Option<Dim>, OpError> {
    let whole = scale.fract() == 0. && (1. ..16_777_216.).contains(&scale);
    match d.as_const().map(usize::try_from) {
        Some(Ok(length)) => {
            let (length, _) = ResizeAttrs::scaled(&[length], &[scale])?[0];
            Ok(Some(Dim::from(length)))
        }
        _ if whole => Ok(Some(d * &Dim::Const(scale as i64))),
        _ => Ok(None),
    }
}

fn resize(i: &Infer<'_>) -> Rule {
    let attrs = ResizeAttrs::new(i.attrs)?;
    let (x, dtype) = (i.shape(0)?, i.dtype(0)?);
    let axes = attrs.axes(x.len())?;
    let (scales, sizes) = (i.opt(2), i.opt(3));
    if scales.is_some() == sizes.is_some() {
        return Err(OpError::shape("needs either 'scales' or 'sizes'"));
    }
    if attrs.interpolation != Interpolation::Nearest && dtype == DType::Bool {
        return Err(OpError::shape("bools are resized by mode nearest only"));
    }
    if dtype == DType::Str
        && (attrs.interpolation != Interpolation::Nearest
            || attrs.coordinates == Coordinates::CropAndResize)
    {
        let reason = "strings are resized by mode nearest only, and without 'tf_crop_and_resize'";
        return Err(OpError::shape(reason));
    }
    if attrs.coordinates == Coordinates::CropAndResize && i.opt(1).is_none() {
        return Err(OpError::shape("tf_crop_and_resize needs the operand 'roi'"));
    }
    let of_axes: Vec<Dim> = axes.iter().map(|a| x[*a].clone()).collect();
    let lengths: Option<Vec<usize>> = of_axes
        .iter()
        .map(|d| usize::try_from(d.as_const()?).ok())
        .collect();
    let mut out = x.to_vec();
    for (k, axis) in axes.iter().enumerate() {
        let mut length = None;
        if let Some(scales) = i.tensor(2).and_then(|t| t.as_slice::<f32>().ok()) {
            check_len(scales.len(), axes.len(), "scales")?;
            length = scaled(&x[*axis], scales[k])?;
        }
        if let Some(sizes) = i.dims(3) {
            check_len(sizes.len(), axes.len(), "sizes")?;
            length = match (attrs.aspect_ratio, &lengths, i.ints(3)) {
                (AspectRatio::Stretch, ..) => Some(sizes[k].clone()),
                (_, Some(lengths), Some(sizes)) => {
                    Some(Dim::from(attrs.sized(lengths, &sizes)?[k].0))
                }
                _ => None,
            };
        }
        out[*axis] = length.unwrap_or_else(|| i.fresh(0, *axis));
        if x[*axis].is(0) && out[*axis].as_const().is_some_and(|d| d != 0) {
            let reason = format!("axis {axis} is empty and cannot be resized");
            return Err(OpError::shape(reason));
        }
    }
    one(dtype, out)
}

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[OpDef::of(
    Op::Resize(ResizeOp::Resize),
    "X with axes brought to other lengths, by factors `scales` or to `sizes`, by interpolation.",
    &[
        operand("X", MOVED),
        operand("roi", FLOATS).host().optional(),
        operand("scales", &[F32]).host().optional(),
        operand("sizes", LONG).host().optional(),
    ],
    resize,
)
.attrs(&[
    attr("antialias", AttrKind::Int),
    attr("axes", AttrKind::Ints),
    attr("coordinate_transformation_mode", AttrKind::Str),
    attr("cubic_coeff_a", AttrKind::Float),
    attr("exclude_outside", AttrKind::Int),
    attr("extrapolation_value", AttrKind::Float),
    attr("keep_aspect_ratio_policy", AttrKind::Str),
    attr("mode", AttrKind::Str),
    attr("nearest_mode", AttrKind::Str),
])
.cost(per_element::<12>)];
