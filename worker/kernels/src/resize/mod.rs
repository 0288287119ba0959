//! Interpolation along one axis, and copies of the nearest elements along several.
//!
//! Each element of the result is a sum of elements of the operand along the axis, by weights that depend on the position
//! only. Several axes are resized one after the other.
//!
//! Invariant: the terms of a sum are added in the order of the operand's elements, by fused multiply-adds.

mod nearest;
mod taps;

pub use nearest::{NearestKernels, nearest};
pub use taps::{Neighbour, Position, Scaling, Taps, Weights};

use crate::Exec;
use crate::compiled::compiled;
use crate::error::Result;
use crate::math::Real;
use crate::multiversion::multiversion;
use crate::shape::Axis;
use crate::split::{tiles, units_per_tile};

fn resize_any<W: Real>(exec: &Exec, x: &[W], axis: Axis, taps: &Taps, y: &mut [W]) -> Result {
    let inner = axis.inner;
    let rows = taps.len();
    assert_eq!(x.len(), axis.count(), "resized operand");
    assert_eq!(y.len(), axis.outer * rows * inner, "resized result");
    if x.is_empty() || y.is_empty() {
        return Ok(exec.check()?);
    }
    // A unit is one row of `inner` elements of the result, or the whole axis where rows have one element.
    let unit = if inner == 1 { rows } else { inner };
    let grain = units_per_tile(unit.saturating_mul(taps.width()));
    tiles(exec, y, unit, grain, |range, part| match inner {
        1 => lines(&x[range.start * axis.len..], axis.len, taps, part),
        _ => rows_from(range.start, x, axis, taps, part),
    })?;
    Ok(exec.check()?)
}

multiversion! {
    /// Resizes lines of `len` elements.
    fn lines<W: Real>(x: &[W], len: usize, taps: &Taps, y: &mut [W]) {
        match taps.width() {
            2 => lines_of::<W, 2>(x, len, taps, y),
            4 => lines_of::<W, 4>(x, len, taps, y),
            _ => {
                let axis = Axis { outer: y.len() / taps.len(), len, inner: 1 };
                any_rows(0, x, axis, taps, y);
            }
        }
    }
}

/// Resizes lines by `N` taps for each element.
#[inline(always)]
fn lines_of<W: Real, const N: usize>(x: &[W], len: usize, taps: &Taps, y: &mut [W]) {
    let (from, weights) = taps.all::<N>();
    for (y, x) in y.chunks_exact_mut(from.len()).zip(x.chunks_exact(len)) {
        for i in 0..y.len() {
            let (from, weights) = (&from[i], &weights[i]);
            let mut sum = W::from_f64(f64::from(weights[0])) * x[from[0]];
            for t in 1..N {
                sum = W::from_f64(f64::from(weights[t])).mul_add(x[from[t]], sum);
            }
            y[i] = sum;
        }
    }
}

multiversion! {
    fn rows_from<W: Real>(first: usize, x: &[W], axis: Axis, taps: &Taps, y: &mut [W]) {
        any_rows(first, x, axis, taps, y)
    }
}

/// Makes rows from number `first` on by any number of taps.
#[inline(always)]
fn any_rows<W: Real>(first: usize, x: &[W], axis: Axis, taps: &Taps, y: &mut [W]) {
    let (inner, rows) = (axis.inner, taps.len());
    for k in 0..y.len() / inner {
        let (outer, row) = ((first + k) / rows, (first + k) % rows);
        let x = &x[outer * axis.len * inner..(outer + 1) * axis.len * inner];
        let y = &mut y[k * inner..(k + 1) * inner];
        let (from, weights) = taps.of(row);
        for t in 0..from.len() {
            let weight = W::from_f64(f64::from(weights[t]));
            let x = &x[from[t] * inner..(from[t] + 1) * inner];
            for i in 0..inner {
                y[i] = if t == 0 {
                    weight * x[i]
                } else {
                    weight.mul_add(x[i], y[i])
                };
            }
        }
    }
}

compiled! {
    /// The interpolation of a type.
    trait ResizeKernels for [f32, f64] {
        fn resize(exec: &Exec, x: &[Self], axis: Axis, taps: &Taps, y: &mut [Self]) = resize_any;
    }
}

/// Resizes `axis` of `x`, which has the shape that `axis` was made of; `y` has [`Taps::len`] in its place.
pub fn resize<W: ResizeKernels>(
    exec: &Exec,
    x: &[W],
    axis: Axis,
    taps: &Taps,
    y: &mut [W],
) -> Result {
    W::resize(exec, x, axis, taps, y)
}

#[cfg(test)]
mod tests;
