//! Interpolation: one axis after the other, in the order of the axes.

use convoke_graph::ops::attrs::{Coordinates, Interpolation, Nearest, ResizeAttrs};
use convoke_graph::ops::{OpError, ResizeOp};
use convoke_graph::{DType, Element, Shape, Tensor};
use convoke_kernels::cast::{CastTo, cast};
use convoke_kernels::element::Bits;
use convoke_kernels::resize::{
    self as kernels, NearestKernels, Neighbour, Position, ResizeKernels, Scaling, Taps, Weights,
    resize,
};
use convoke_kernels::shape::Axis;

use crate::cpu::call::{FamilyAnswer, OpLaunch, Spec, bits, body, one, write, write_bits};
use crate::cpu::dispatch::{by_dtype, by_size};
use crate::cpu::{KernelFailure, Outputs};

pub(super) fn find(op: ResizeOp, spec: &Spec<'_>) -> FamilyAnswer {
    let ResizeOp::Resize = op;
    let dtype = spec.dtype(0)?;
    match ResizeAttrs::new(spec.attrs)?.interpolation {
        Interpolation::Nearest => by_size!(dtype, T => body(nearest::<T>)),
        _ => {
            let found = match dtype {
                DType::F64 => Some(body(interpolated::<f64, f64>)?),
                dtype => by_dtype!(number dtype, T => body(interpolated::<T, f32>)?),
            };
            found.ok_or_else(|| spec.no_dtype(dtype))
        }
    }
}

/// The axes that change, with their weights.
fn changes(call: &OpLaunch<'_, '_>) -> Result<Vec<(usize, Taps)>, KernelFailure> {
    let attrs = ResizeAttrs::new(call.attrs)?;
    let x = call.shape(0)?;
    let axes = attrs.axes(x.len())?;
    let lengths: Vec<usize> = axes.iter().map(|a| x[*a]).collect();
    let sizes = match (call.optional_slice::<f32>(2)?, call.ints(3)?) {
        (Some(scales), _) => ResizeAttrs::scaled(&lengths, scales)?,
        (None, Some(sizes)) => attrs.sized(&lengths, &sizes)?,
        (None, None) => return Err(KernelFailure::values("needs either 'scales' or 'sizes'")),
    };
    let crops = attrs.coordinates == Coordinates::CropAndResize;
    let roi = if crops {
        roi(call, axes.len())?
    } else {
        vec![]
    };
    let mut changes = Vec::new();
    for (k, (axis, (to, scale))) in axes.iter().zip(sizes).enumerate() {
        let from = x[*axis];
        if from == 0 || (from == to && scale == 1. && !crops) {
            continue;
        }
        let position = match attrs.coordinates {
            Coordinates::HalfPixel => Position::HalfPixel,
            Coordinates::HalfPixelSymmetric => Position::HalfPixelSymmetric,
            Coordinates::PytorchHalfPixel => Position::PytorchHalfPixel,
            Coordinates::AlignCorners => Position::AlignCorners,
            Coordinates::Asymmetric => Position::Asymmetric,
            Coordinates::CropAndResize => Position::Crop(roi[k], roi[axes.len() + k]),
        };
        let weights = match attrs.interpolation {
            Interpolation::Nearest => Weights::Nearest(match attrs.nearest {
                Nearest::RoundPreferFloor => Neighbour::RoundPreferFloor,
                Nearest::RoundPreferCeil => Neighbour::RoundPreferCeil,
                Nearest::ByScale if scale < 1. => Neighbour::Ceil,
                Nearest::Floor | Nearest::ByScale => Neighbour::Floor,
                Nearest::Ceil => Neighbour::Ceil,
            }),
            Interpolation::Linear => Weights::Linear {
                antialias: attrs.antialias,
            },
            Interpolation::Cubic => Weights::Cubic {
                a: attrs.cubic,
                antialias: attrs.antialias,
            },
        };
        let taps = Taps::new(&Scaling {
            from,
            to,
            scale,
            position,
            weights,
            exclude_outside: attrs.exclude_outside,
        });
        changes.push((*axis, taps));
    }
    changes.sort_by_key(|(axis, _)| *axis);
    Ok(changes)
}

/// The part of each axis that is cropped: the starts, then the ends.
fn roi(call: &OpLaunch<'_, '_>, axes: usize) -> Result<Vec<f32>, KernelFailure> {
    let given = call.input(1)?;
    let found = by_dtype!(float given.dtype(), T => {
        given.as_slice::<T>()?.iter().map(|v| CastTo::<f32>::cast(*v)).collect::<Vec<f32>>()
    });
    match found {
        Some(roi) if roi.len() == 2 * axes => Ok(roi),
        _ => Err(KernelFailure::values(format!(
            "'roi' ({given:?}) must hold a start and an end for each of {axes} axes"
        ))),
    }
}

/// The shape of a tensor whose `axis` is brought to the length `to`.
fn with_length(shape: &[usize], axis: usize, to: usize) -> Shape {
    let mut shape = Shape::from_slice(shape);
    shape[axis] = to;
    shape
}

fn nearest<T: Bits + NearestKernels + bytemuck::Pod>(
    mut call: OpLaunch<'_, '_>,
) -> Result<Outputs, KernelFailure> {
    // The tables of an axis are as long as the axis, which the memory of a result with elements bounds.
    let mut y = call.output(0)?;
    if y.elements() == 0 {
        return one(y);
    }
    let changes = changes(&call)?;
    if changes.is_empty() {
        return one(call.take(0)?);
    }
    let tables: Vec<_> = changes
        .iter()
        .map(|(axis, taps)| (*axis, taps.nearest()))
        .collect();
    let x = call.input(0)?;
    kernels::nearest::<T>(
        &call.launch.exec,
        bits(x),
        x.shape(),
        &tables,
        write_bits(&mut y)?,
    )?;
    extrapolated(&call, y, &changes)
}

/// Interpolates elements of type `T` in type `W`. Integers are truncated.
fn interpolated<T, W>(mut call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure>
where
    T: Element + CastTo<W>,
    W: Element + ResizeKernels + CastTo<T>,
{
    // The tables of an axis are as long as the axis, which the memory of a result with elements bounds.
    let result = call.output(0)?;
    if result.elements() == 0 {
        return one(result);
    }
    drop(result);
    let changes = changes(&call)?;
    let mut x = call.take(0)?;
    if !changes.is_empty() && T::DTYPE != W::DTYPE {
        x = converted::<T, W>(&call, &x)?;
    }
    for (axis, taps) in &changes {
        let shape = with_length(x.shape(), *axis, taps.len());
        let mut y = call.launch.pool.tensor(W::DTYPE, &shape)?;
        let of = Axis::of(x.shape(), *axis);
        resize::<W>(&call.launch.exec, x.as_slice()?, of, taps, write(&mut y)?)?;
        x = y;
    }
    if !changes.is_empty() && T::DTYPE != W::DTYPE {
        x = converted::<W, T>(&call, &x)?;
    }
    extrapolated(&call, x, &changes)
}

/// A copy of `x` with elements of type `B`.
fn converted<A: Element + CastTo<B>, B: Element + convoke_kernels::element::Element>(
    call: &OpLaunch<'_, '_>,
    x: &Tensor,
) -> Result<Tensor, KernelFailure> {
    let mut y = call.launch.pool.tensor(B::DTYPE, x.shape())?;
    cast::<A, B>(&call.launch.exec, x.as_slice()?, write(&mut y)?)?;
    Ok(y)
}

/// Replaces the elements that lie outside the cropped operand.
fn extrapolated(
    call: &OpLaunch<'_, '_>,
    mut y: Tensor,
    changes: &[(usize, Taps)],
) -> Result<Outputs, KernelFailure> {
    let outside = |taps: &Taps| (0..taps.len()).any(|i| taps.outside(i));
    if !changes.iter().any(|(_, taps)| outside(taps)) {
        return one(y);
    }
    let value = ResizeAttrs::new(call.attrs)?.extrapolation;
    let (shape, dtype) = (Shape::from_slice(y.shape()), y.dtype());
    let found = by_dtype!(number dtype, T => {
        let value: T = CastTo::<T>::cast(value);
        for (axis, taps) in changes {
            let of = Axis::of(&shape, *axis);
            let rows = write::<T>(&mut y)?.chunks_mut(of.inner.max(1));
            for (row, at) in rows.zip((0..of.len).cycle()) {
                if taps.outside(at) {
                    row.fill(value);
                }
            }
        }
    });
    let refused = || OpError::shape(format!("elements of {dtype} cannot be extrapolated"));
    found.ok_or_else(refused)?;
    one(y)
}
