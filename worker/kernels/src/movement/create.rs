//! Operators that create tensors from a few values: `ConstantOfShape`, `EyeLike`, `OneHot`, `Range`.

use super::indices::Indices;
use crate::Exec;
use crate::compiled::{compiled_bits, compiled_numbers};
use crate::element::{Bits, Number};
use crate::error::Result;
use crate::shape::Axis;
use crate::split::{GRAIN, tiles, units_per_tile};

fn fill_any<T: Bits>(exec: &Exec, value: T, y: &mut [T]) -> Result {
    Ok(tiles(exec, y, 1, GRAIN, |_, part| part.fill(value))?)
}

fn one_hot_any<T: Bits>(
    exec: &Exec,
    indices: Indices,
    axis: Axis,
    off: T,
    on: T,
    y: &mut [T],
) -> Result {
    let Axis {
        len: depth, inner, ..
    } = axis;
    assert!(
        y.len() == axis.count() && indices.len() == axis.outer * inner,
        "{axis:?}"
    );
    let unit = depth * inner;
    Ok(tiles(
        exec,
        y,
        unit,
        units_per_tile(unit),
        |range, part| {
            part.fill(off);
            for (outer, y) in range.zip(part.chunks_mut(unit)) {
                for i in 0..inner {
                    let index = indices.get(outer * inner + i);
                    let index = if index < 0 {
                        index.saturating_add(depth as i64)
                    } else {
                        index
                    };
                    // An index outside the depth leaves its whole column off.
                    if let Some(at) = usize::try_from(index).ok().filter(|&at| at < depth) {
                        y[at * inner + i] = on;
                    }
                }
            }
        },
    )?)
}

fn range_any<T: Number>(exec: &Exec, start: T, delta: T, y: &mut [T]) -> Result {
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        for (i, y) in range.zip(part) {
            let (start, delta) = (start.widen(), delta.widen());
            *y = T::narrow(T::Wide::add(
                start,
                T::Wide::mul(T::Wide::from_f64(i as f64), delta),
            ));
        }
    })?)
}

compiled_bits! {
    /// Filling with elements of one size.
    trait FillKernels {
        fn fill(exec: &Exec, value: Self, y: &mut [Self]) = fill_any;
    }
}

compiled_bits! {
    /// One-hot encodings with elements of one size.
    trait OneHotKernels {
        fn one_hot(exec: &Exec, indices: Indices, axis: Axis, off: Self, on: Self, y: &mut [Self]) = one_hot_any;
    }
}

compiled_numbers! {
    /// Arithmetic progressions in a type.
    trait RangeKernels {
        fn range(exec: &Exec, start: Self, delta: Self, y: &mut [Self]) = range_any;
    }
}

/// Sets every element of `y` to `value`.
pub fn fill<T: Bits>(exec: &Exec, value: T, y: &mut [T]) -> Result {
    T::fill(exec, value, y)
}

/// `y[r][c] = one` where `c - r = k`; all other elements become zero.
pub fn eye<T: Bits>(exec: &Exec, one: T, columns: usize, k: i64, y: &mut [T]) -> Result {
    T::fill(exec, T::default(), y)?;
    for (r, row) in y.chunks_mut(columns.max(1)).enumerate() {
        let c = (r as i64).saturating_add(k);
        if let Some(y) = usize::try_from(c).ok().and_then(|c| row.get_mut(c)) {
            *y = one;
        }
    }
    Ok(())
}

/// Sets `y` to `on` at position `indices[outer, inner]` of `axis`, and to `off` elsewhere. An index outside the depth
/// sets no element to `on`.
pub fn one_hot<T: Bits>(
    exec: &Exec,
    indices: Indices,
    axis: Axis,
    off: T,
    on: T,
    y: &mut [T],
) -> Result {
    T::one_hot(exec, indices, axis, off, on, y)
}

/// `y[i] = start + i * delta`.
pub fn range<T: Number>(exec: &Exec, start: T, delta: T, y: &mut [T]) -> Result {
    T::range(exec, start, delta, y)
}

/// Number of elements of an integer range; 0 where `delta` is zero or points away from `limit`.
pub fn range_len(start: i64, limit: i64, delta: i64) -> usize {
    let (distance, step) = (i128::from(limit) - i128::from(start), i128::from(delta));
    if step == 0 || (distance > 0) != (step > 0) {
        return 0;
    }
    usize::try_from((distance.abs() + step.abs() - 1) / step.abs()).unwrap_or(usize::MAX)
}

/// Number of elements of a floating-point range; 0 where the number is undefined or negative.
pub fn range_len_float(start: f64, limit: f64, delta: f64) -> usize {
    let n = ((limit - start) / delta).ceil();
    // NaN and negative numbers saturate to zero.
    n as usize
}
