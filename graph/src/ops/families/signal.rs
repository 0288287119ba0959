//! Transforms of signals, and sums of overlapping blocks.

use crate::Dim;
use crate::graph::{Attrs, TensorType};
use crate::ops::attrs::{DftAttrs, FoldAttrs, bad, normalize_axis};
use crate::ops::cost::{Cost, elements, per_input_element, with_flops};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{Op, SignalOp};
use crate::ops::shapes::*;

fn dft(i: &Infer<'_>) -> Rule {
    let attrs = DftAttrs::new(i.attrs);
    let x = i.shape(0)?;
    if x.len() < 2 {
        return Err(OpError::shape("the operand must have rank 2 or more"));
    }
    i.check_scalar(1, "dft_length")?;
    i.check_scalar(2, "axis")?;
    let last = x.len() - 1;
    match x[last].as_const() {
        Some(1) | None => {}
        Some(2) if attrs.one_sided && !attrs.inverse => {
            return Err(bad("onesided", "needs a real signal"));
        }
        Some(2) => {}
        Some(parts) => {
            let reason =
                format!("the last axis holds a real or a complex number, not {parts} parts");
            return Err(OpError::shape(reason));
        }
    }
    let axis = match (i.opt(2).is_some(), i.scalar(2).and_then(|d| d.as_const())) {
        (false, _) => last - 1,
        (true, Some(axis)) => normalize_axis(axis, x.len())?,
        (true, None) => {
            // It is unknown which axis changes.
            let mut out: Vec<Dim> = (0..last).map(|k| i.fresh(0, k)).collect();
            out.push(parts(attrs));
            return one(i.dtype(0)?, out);
        }
    };
    if axis == last {
        return Err(OpError::shape(
            "the last axis holds the parts of a number and cannot be transformed",
        ));
    }
    let two = Dim::Const(2);
    let length = match (i.opt(1).is_some(), i.scalar(1)) {
        (false, _) if attrs.to_real() => &(&x[axis] - &Dim::Const(1)) * &two,
        (false, _) => x[axis].clone(),
        (true, Some(length)) => length.clone(),
        (true, None) => i.fresh(0, axis),
    };
    if length.as_const().is_some_and(|n| n < 1) {
        return Err(OpError::shape(format!(
            "a transform of length {length} does not exist"
        )));
    }
    let mut out = x.to_vec();
    out[axis] = match attrs.one_sided && !attrs.inverse {
        true => &length.floor_div(&two) + &Dim::Const(1),
        false => length,
    };
    out[last] = parts(attrs);
    one(i.dtype(0)?, out)
}

/// The parts of a number of the result.
fn parts(attrs: DftAttrs) -> Dim {
    Dim::Const(if attrs.to_real() { 1 } else { 2 })
}

fn dft_cost(_: &Attrs, inputs: &[Option<&TensorType>], outputs: &[&TensorType]) -> Cost {
    let n = outputs.first().map_or(0., |t| elements(t));
    // The logarithm is that of the whole result, since the rule of the cost does not see the axis.
    with_flops(5. * n * n.max(2.).log2(), inputs, outputs)
}

/// The elements of a list of lengths, where they are known. None may be below one.
fn lengths(i: &Infer<'_>, operand: usize, name: &str) -> Result<Option<Vec<usize>>, OpError> {
    let Some(all) = i.ints(operand) else {
        return Ok(None);
    };
    let length = |d: &i64| usize::try_from(*d).ok().filter(|d| *d > 0);
    let all: Option<Vec<usize>> = all.iter().map(length).collect();
    all.map(Some)
        .ok_or_else(|| OpError::shape(format!("'{name}' must be above zero")))
}

fn col2im(i: &Infer<'_>) -> Rule {
    let x = i.ranked(0, "input", 3)?;
    let rank = i.vector_len(1, "image_shape")?;
    check_rank(rank.saturating_add(2))?;
    check_len(i.vector_len(2, "block_shape")?, rank, "block_shape")?;
    if rank == 0 {
        return Err(OpError::shape("'image_shape' must not be empty"));
    }
    let attrs = FoldAttrs::new(i.attrs, rank)?;
    let (image, block) = (lengths(i, 1, "image_shape")?, lengths(i, 2, "block_shape")?);
    let size = match &block {
        None => None,
        Some(block) => {
            let size = block.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
            Some(size.ok_or_else(|| OpError::shape("the block is too large"))?)
        }
    };
    let channels = match size {
        None => i.fresh(0, 1),
        Some(size) => {
            let size = Dim::from(size);
            if let (Some(rows), Some(size)) = (x[1].as_const(), size.as_const())
                && rows % size != 0
            {
                let reason = format!("{rows} rows do not divide into blocks of {size}");
                return Err(OpError::shape(reason));
            }
            x[1].floor_div(&size)
        }
    };
    if let (Some(image), Some(block)) = (&image, &block) {
        let positions = attrs.positions(image, block)?;
        let all = positions.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let all = all.ok_or_else(|| OpError::shape("the image is too large"))?;
        unify(&x[2], &all.into(), "columns and positions of the block")?;
    }
    let mut out = vec![x[0].clone(), channels];
    match i.dims(1) {
        Some(dims) => out.extend_from_slice(dims),
        None => out.extend((0..rank).map(|k| i.fresh(0, k + 2))),
    }
    one(i.dtype(0)?, out)
}

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Signal(SignalOp::Col2Im),
        "Images [N, C, ..] as the sums of overlapping blocks, the columns of [N, C * block, positions].",
        &[
            operand("input", NUMBERS),
            operand("image_shape", LONG).host(),
            operand("block_shape", LONG).host(),
        ],
        col2im,
    )
    .attrs(&[
        attr("dilations", AttrKind::Ints),
        attr("pads", AttrKind::Ints),
        attr("strides", AttrKind::Ints),
    ])
    .cost(per_input_element::<1>),
    OpDef::of(
        Op::Signal(SignalOp::DFT),
        "The discrete Fourier transform of [.., 1] or [.., 2] along an axis, the last but one by default.",
        &[
            operand("input", FLOATS),
            operand("dft_length", INDEX).host().optional(),
            operand("axis", LONG).host().optional(),
        ],
        dft,
    )
    .attrs(&[
        attr("inverse", AttrKind::Int),
        attr("onesided", AttrKind::Int),
    ])
    .cost(dft_cost),
];
