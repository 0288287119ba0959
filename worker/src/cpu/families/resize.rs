//! Interpolation: one axis after the other, in the order of the axes.

use convoke_graph::ops::attrs::{Coordinates, Interpolation, Nearest, ResizeAttrs};
use convoke_graph::ops::{OpError, ResizeOp};
use convoke_graph::{DType, Element, Outputs, Shape, Tensor};
use convoke_kernels::cast::{CastTo, cast};
use convoke_kernels::element::Bits;
use convoke_kernels::resize::{
    self as kernels, NearestKernels, Neighbour, Position, ResizeKernels, Scaling, Taps, Weights,
    resize,
};
use convoke_kernels::shape::Axis;

use crate::cpu::dispatch::{by_dtype, by_size};
use crate::cpu::kernel::{
    FamilyAnswer, KernelFailure, OpLaunch, Spec, bits, body, one, write, write_bits,
};

/// Elements between two checks of the cancel flag.
const PIECE: usize = 1 << 16;

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
struct Changes {
    axes: Vec<(usize, Taps)>,
    /// Reservations of the memory of tables, which lie beside these.
    _tables: Vec<Tensor>,
}

/// The axes that change, in their order.
fn changes(call: &OpLaunch<'_, '_>) -> Result<Changes, KernelFailure> {
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
    let (mut changes, mut tables) = (Vec::new(), Vec::new());
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
            Coordinates::TfHalfPixel => Position::TfHalfPixel,
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
        let scaling = Scaling {
            from,
            to,
            scale,
            position,
            weights,
            exclude_outside: attrs.exclude_outside,
        };
        // Where weights spread, tables may be much longer than the axis is in operand and result.
        tables.push(call.scratch::<u8>(Taps::memory(&scaling))?);
        changes.push((*axis, Taps::new(&call.launch.exec, &scaling)?));
    }
    changes.sort_by_key(|(axis, _)| *axis);
    Ok(Changes {
        axes: changes,
        _tables: tables,
    })
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
    // A result without elements may have an axis of any length, which no table could be made for.
    let mut y = call.output(0)?;
    if y.elements() == 0 {
        return one(y);
    }
    let changes = changes(&call)?;
    if changes.axes.is_empty() {
        return one(call.take(0)?);
    }
    let exec = &call.launch.exec;
    let mut tables = Vec::new();
    for (axis, taps) in &changes.axes {
        tables.push((*axis, taps.nearest(exec)?));
    }
    let x = call.input(0)?;
    kernels::nearest::<T>(exec, bits(x), x.shape(), &tables, write_bits(&mut y)?)?;
    extrapolated(&call, y, &changes.axes)
}

/// Interpolates elements of type `T` in type `W`. Integers are truncated.
fn interpolated<T, W>(mut call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure>
where
    T: Element + CastTo<W>,
    W: Element + ResizeKernels + CastTo<T>,
{
    // A result without elements may have an axis of any length, which no table could be made for.
    let result = call.output(0)?;
    if result.elements() == 0 {
        return one(result);
    }
    drop(result);
    let Changes { axes, _tables } = changes(&call)?;
    let mut x = call.take(0)?;
    if !axes.is_empty() && T::DTYPE != W::DTYPE {
        x = converted::<T, W>(&call, &x)?;
    }
    for (axis, taps) in &axes {
        let shape = with_length(x.shape(), *axis, taps.len());
        let mut y = call.launch.pool.tensor(W::DTYPE, &shape)?;
        let of = Axis::of(x.shape(), *axis);
        resize::<W>(&call.launch.exec, x.as_slice()?, of, taps, write(&mut y)?)?;
        x = y;
    }
    if !axes.is_empty() && T::DTYPE != W::DTYPE {
        x = converted::<W, T>(&call, &x)?;
    }
    extrapolated(&call, x, &axes)
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
    if !changes.iter().any(|(_, taps)| taps.any_outside()) {
        return one(y);
    }
    let value = ResizeAttrs::new(call.attrs)?.extrapolation;
    let (shape, dtype) = (Shape::from_slice(y.shape()), y.dtype());
    let found = by_dtype!(number dtype, T => {
        let value: T = CastTo::<T>::cast(value);
        for (axis, taps) in changes {
            let of = Axis::of(&shape, *axis);
            let rows = write::<T>(&mut y)?.chunks_mut(of.inner.max(1));
            let mut since = 0;
            for (row, at) in rows.zip((0..of.len).cycle()) {
                for part in row.chunks_mut(PIECE) {
                    if taps.outside(at) {
                        part.fill(value);
                    }
                    since += part.len();
                    if since >= PIECE {
                        call.launch.exec.check()?;
                        since = 0;
                    }
                }
            }
        }
    });
    let refused = || OpError::shape(format!("elements of {dtype} cannot be extrapolated"));
    found.ok_or_else(refused)?;
    one(y)
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};

    use crate::cpu::testing::{counting, launch_within, vec1};

    #[test]
    fn tables_of_weights_that_spread_lie_within_the_memory() {
        let run = |memory| {
            let attrs = Attrs::default().with("mode", Attr::Str("cubic".into()));
            let attrs = attrs.with("antialias", Attr::Int(1));
            let x = counting(&[1 << 16]);
            let inputs = vec![Some(x), None, None, Some(vec1(&[1i64]))];
            launch_within(memory, "Resize", attrs, inputs, 1)
        };
        // One element is made of four times as many as there are.
        assert!(run(1 << 20).is_err());
        assert_eq!(run(1 << 24).unwrap()[0].shape(), [1]);
    }
}
