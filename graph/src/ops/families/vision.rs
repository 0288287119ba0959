//! Ops of vision models: sampling of feature maps at places that operands give, and the choice among boxes.

use crate::Dim;
use crate::graph::{Attrs, TensorType};
use crate::ops::attrs::{
    DeformAttrs, GridMode, GridSampleAttrs, PixelFormat, RoiAttrs, Window, unpooled_len,
};
use crate::ops::cost::{Cost, elements, per_element, per_input_element, with_flops};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{Op, VisionOp};
use crate::ops::shapes::*;

fn grid_sample(i: &Infer<'_>) -> Rule {
    let attrs = GridSampleAttrs::new(i.attrs)?;
    let (x, grid, dtype) = (i.shape(0)?, i.shape(1)?, i.dtype(0)?);
    if x.len() < 3 || grid.len() != x.len() {
        return Err(OpError::shape(format!(
            "X {x:?} and grid {grid:?} must have the same rank of 3 or more"
        )));
    }
    if attrs
        .mode
        .most_axes()
        .is_some_and(|most| x.len() - 2 > most)
    {
        let reason = format!("X {x:?} has more spatial axes than this mode samples");
        return Err(OpError::shape(reason));
    }
    if attrs.mode != GridMode::Nearest && !FLOATS.contains(&dtype) {
        return Err(OpError::shape(format!(
            "elements of {dtype} are sampled by mode 'nearest' only; cast X to a float dtype for other modes"
        )));
    }
    let (Some((coordinates, places)), [batch, channels, ..]) = (grid.split_last(), x) else {
        return Err(OpError::shape("X must have a batch and channels"));
    };
    unify(coordinates, &(x.len() - 2).into(), "coordinates of a place")?;
    let batch = unify(batch, &places[0], "images of X and grid")?;
    let mut out = vec![batch, channels.clone()];
    out.extend_from_slice(&places[1..]);
    one(i.dtype(0)?, out)
}

fn image_decoder(i: &Infer<'_>) -> Rule {
    i.ranked(0, "encoded_stream", 1)?;
    let channels = PixelFormat::new(i.attrs)?.channels();
    one(U8, vec![i.fresh(0, 0), i.fresh(0, 1), channels.into()])
}

/// The output of ops that pool regions of `columns` numbers.
fn regions(i: &Infer<'_>, attrs: &RoiAttrs, columns: i64) -> Result<Vec<Dim>, OpError> {
    let (x, rois) = (i.ranked(0, "X", 4)?, i.ranked(1, "rois", 2)?);
    unify(&rois[1], &columns.into(), "numbers of a region")?;
    let [height, width] = attrs.pooled;
    Ok(vec![
        rois[0].clone(),
        x[1].clone(),
        height.into(),
        width.into(),
    ])
}

fn roi_align(i: &Infer<'_>) -> Rule {
    let attrs = RoiAttrs::align(i.attrs)?;
    let mut out = regions(i, &attrs, 4)?;
    let images = i.ranked(2, "batch_indices", 1)?;
    out[0] = unify(&out[0], &images[0], "regions and their images")?;
    one(i.dtype(0)?, out)
}

fn max_roi_pool(i: &Infer<'_>) -> Rule {
    one(i.dtype(0)?, regions(i, &RoiAttrs::max_pool(i.attrs)?, 5)?)
}

fn suppression(i: &Infer<'_>) -> Rule {
    let (boxes, scores) = (i.ranked(0, "boxes", 3)?, i.ranked(1, "scores", 3)?);
    unify(&boxes[2], &Dim::Const(4), "numbers of a box")?;
    unify(&boxes[0], &scores[0], "images of boxes and scores")?;
    unify(&boxes[1], &scores[2], "boxes and scores")?;
    for (operand, name) in [
        (2, "max_output_boxes_per_class"),
        (3, "iou_threshold"),
        (4, "score_threshold"),
    ] {
        if let Some(given) = i.opt(operand)
            && given.ty.shape.iter().any(|d| !d.is(0))
        {
            i.check_scalar(operand, name)?;
        }
    }
    one(I64, vec![i.fresh(0, 0), Dim::Const(3)])
}

fn deform_conv(i: &Infer<'_>) -> Rule {
    let (x, w) = (i.shape(0)?, i.shape(1)?);
    if !(3..=5).contains(&x.len()) || w.len() != x.len() {
        return Err(OpError::shape(format!(
            "X {x:?} and W {w:?} must have the same rank of 3 to 5"
        )));
    }
    let kernel: Option<Vec<usize>> = w[2..]
        .iter()
        .map(|d| usize::try_from(d.as_const()?).ok())
        .collect();
    let kernel = kernel.ok_or(OpError::ValueNeeded { operand: "W" })?;
    let attrs = DeformAttrs::new(i.attrs, &kernel)?;
    unify(
        &x[1],
        &(&w[1] * &attrs.group.into()),
        "channels of input and weight",
    )?;
    for (channels, groups, what) in [
        (&w[0], attrs.group, "output channels"),
        (&x[1], attrs.offset_group, "channels"),
    ] {
        if channels.as_const().is_some_and(|c| c % groups as i64 != 0) {
            return Err(OpError::shape(format!(
                "{channels} {what} do not fall into {groups} groups"
            )));
        }
    }
    let mut out = vec![x[0].clone(), w[0].clone()];
    for (axis, d) in x[2..].iter().enumerate() {
        out.push(attrs.window.output_dim(axis, d)?);
    }
    let too_large = || OpError::shape("the filter is too large");
    let count = |all: &[usize]| {
        let mut all = all.iter().map(|n| i64::try_from(*n).ok());
        all.try_fold(attrs.offset_group as i64, |product, n| {
            product.checked_mul(n?)
        })
        .ok_or_else(too_large)
    };
    let taps = count(&kernel)?;
    let offsets = taps
        .checked_mul(kernel.len() as i64)
        .ok_or_else(too_large)?;
    for (operand, name, count) in [(2, "offset", offsets), (4, "mask", taps)] {
        let want: Vec<Dim> = [x[0].clone(), count.into()]
            .into_iter()
            .chain(out[2..].iter().cloned())
            .collect();
        let Some(given) = i.opt(operand) else {
            continue;
        };
        let shape = &given.ty.shape;
        if shape.len() != want.len() || shape.iter().zip(&want).any(|(a, b)| !can_equal(a, b)) {
            return Err(OpError::shape(format!(
                "'{name}' must have shape {want:?}, not {shape:?}"
            )));
        }
    }
    super::conv::check_bias(i.opt(3), &w[0])?;
    one(i.dtype(0)?, out)
}

fn deform_cost(_: &Attrs, inputs: &[Option<&TensorType>], outputs: &[&TensorType]) -> Cost {
    let filter = inputs.get(1).copied().flatten().map_or(0., |w| {
        let first = w.shape.first().and_then(Dim::as_const).unwrap_or(1).max(1);
        elements(w) / first as f64
    });
    let n = outputs.first().map_or(0., |t| elements(t));
    with_flops((2. * filter + 1.) * n, inputs, outputs)
}

fn max_unpool(i: &Infer<'_>) -> Rule {
    let (x, places) = (i.shape(0)?, i.shape(1)?);
    if x.len() < 3 || x.len() != places.len() {
        return Err(OpError::shape(format!(
            "X {x:?} and indices {places:?} must have the same rank of at least 3"
        )));
    }
    for (a, b) in x.iter().zip(places) {
        unify(a, b, "elements and indices")?;
    }
    let window = Window::new(i.attrs, x.len() - 2, None)?;
    if i.opt(2).is_some() {
        let rank = i.vector_len(2, "output_shape")?;
        check_len(rank, x.len(), "output_shape")?;
        return match i.dims(2) {
            Some(dims) => one(i.dtype(0)?, dims.to_vec()),
            None => one(i.dtype(0)?, i.unknown(Some(rank))?),
        };
    }
    let mut out = x[..2].to_vec();
    for (axis, d) in x[2..].iter().enumerate() {
        out.push(match d.as_const().map(usize::try_from) {
            Some(Ok(input)) => {
                let len = unpooled_len(&window, axis, input);
                let len = len.ok_or_else(|| {
                    OpError::shape(format!("{d} windows on spatial axis {axis} cover nothing"))
                })?;
                len.into()
            }
            _ => {
                let (before, after) = window.pads(axis, 0);
                let covered = &(d - &Dim::Const(1)) * &window.strides[axis].into();
                &(&covered + &window.kernel[axis].into()) - &(before + after).into()
            }
        });
    }
    one(i.dtype(0)?, out)
}

const X: OperandDef = operand("X", FLOATS);
const SCALE: AttrDef = attr("spatial_scale", AttrKind::Float);
const F32_ONLY: &[crate::DType] = &[F32];

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Vision(VisionOp::DeformConv),
        "X [N, C, ..] of one to three spatial axes convolved with W, each element of which is read with an offset of its own: [N, M, ..].",
        &[
            X.class(1),
            operand("W", FLOATS).class(1),
            operand("offset", FLOATS).class(1),
            operand("B", FLOATS).optional().class(1),
            operand("mask", FLOATS).optional().class(1),
        ],
        deform_conv,
    )
    .attrs(&[
        attr("dilations", AttrKind::Ints),
        attr("group", AttrKind::Int),
        attr("kernel_shape", AttrKind::Ints),
        attr("offset_group", AttrKind::Int),
        attr("pads", AttrKind::Ints),
        attr("strides", AttrKind::Ints),
    ])
    .cost(deform_cost),
    OpDef::of(
        Op::Vision(VisionOp::GridSample),
        "The elements of X [N, C, ..] at the places of `grid` [N, .., axes], in [-1, 1] and from the last axis on: [N, C, ..].",
        &[operand("X", MOVED), operand("grid", FLOATS)],
        grid_sample,
    )
    .attrs(&[
        attr("align_corners", AttrKind::Int),
        attr("mode", AttrKind::Str),
        attr("padding_mode", AttrKind::Str),
    ])
    .cost(per_element::<20>),
    OpDef::of(
        Op::Vision(VisionOp::ImageDecoder),
        "The pixels of an image file: u8 [height, width, channels]. BMP, JPEG, JPEG 2000, PNG, PNM, TIFF and WebP are read.",
        &[operand("encoded_stream", &[U8])],
        image_decoder,
    )
    .attrs(&[attr("pixel_format", AttrKind::Str)])
    .sized_by_data()
    .cost(per_input_element::<200>),
    OpDef::of(
        Op::Vision(VisionOp::MaxRoiPool),
        "Greatest elements of the bins of regions [R, 5] of X [N, C, H, W], each an image and two corners: [R, C, ..].",
        &[X.class(1), operand("rois", FLOATS).class(1)],
        max_roi_pool,
    )
    .attrs(&[required("pooled_shape", AttrKind::Ints), SCALE])
    .cost(per_element::<10>),
    OpDef::of(
        Op::Vision(VisionOp::MaxUnpool),
        "The elements of X [N, C, ..] at the places where `MaxPool` found them, and zeros.",
        &[
            X,
            operand("indices", LONG),
            operand("output_shape", LONG).host().optional(),
        ],
        max_unpool,
    )
    .attrs(&[
        required("kernel_shape", AttrKind::Ints),
        attr("pads", AttrKind::Ints),
        attr("strides", AttrKind::Ints),
    ])
    .cost(per_element::<1>),
    OpDef::of(
        Op::Vision(VisionOp::NonMaxSuppression),
        "The boxes [N, B, 4] with the highest scores [N, classes, B] that overlap none with a higher one: i64 [count, 3] of image, class and box.",
        &[
            operand("boxes", F32_ONLY),
            operand("scores", F32_ONLY),
            operand("max_output_boxes_per_class", LONG).optional(),
            operand("iou_threshold", F32_ONLY).optional(),
            operand("score_threshold", F32_ONLY).optional(),
        ],
        suppression,
    )
    .attrs(&[attr("center_point_box", AttrKind::Int)])
    .sized_by_data()
    .cost(per_input_element::<100>),
    OpDef::of(
        Op::Vision(VisionOp::RoiAlign),
        "Bins of regions [R, 4] of X [N, C, H, W], sampled by interpolation: [R, C, ..].",
        &[
            X.class(1),
            operand("rois", FLOATS).class(1),
            operand("batch_indices", LONG),
        ],
        roi_align,
    )
    .attrs(&[
        attr("coordinate_transformation_mode", AttrKind::Str),
        attr("mode", AttrKind::Str),
        attr("output_height", AttrKind::Int),
        attr("output_width", AttrKind::Int),
        attr("sampling_ratio", AttrKind::Int),
        SCALE,
    ])
    .cost(per_element::<40>),
];
