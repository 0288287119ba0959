//! Interpolation along one axis, and copies of the nearest elements along several.
//!
//! Each element of the result is a sum of elements of the operand along the axis, by weights that depend on the position
//! only. Several axes are resized one after the other.
//!
//! Invariants
//! 1. The terms of a sum are added in the order of the operand's elements, by fused multiply-adds.
//! 2. A sum that is NaN is the canonical NaN, since which of two NaNs a multiply-add returns depends on the processor.

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
use crate::split::{Finished, PIECE, Pace, tiles, units_per_tile};
use std::ops::Range;

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
    tiles(exec, y, unit, grain, |range, part| {
        let pace = &mut Pace::new(exec, PIECE);
        // Where it ends early, so does the kernel.
        let _ = match inner {
            1 => lines(pace, &x[range.start * axis.len..], axis.len, taps, part),
            _ => rows_from(pace, range.start, x, axis, taps, part),
        };
    })?;
    Ok(exec.check()?)
}

multiversion! {
    /// Resizes lines of `len` elements.
    fn lines<W: Real>(pace: &mut Pace, x: &[W], len: usize, taps: &Taps, y: &mut [W]) -> Finished {
        match taps.width() {
            2 => lines_of::<W, 2>(pace, x, len, taps, y),
            4 => lines_of::<W, 4>(pace, x, len, taps, y),
            _ => {
                let axis = Axis { outer: y.len() / taps.len(), len, inner: 1 };
                any_rows(pace, 0, x, axis, taps, y)
            }
        }
    }
}

/// Resizes lines by `N` taps for each element.
#[inline(always)]
fn lines_of<W: Real, const N: usize>(
    pace: &mut Pace,
    x: &[W],
    len: usize,
    taps: &Taps,
    y: &mut [W],
) -> Finished {
    let (from, weights) = taps.all::<N>();
    for (y, x) in y.chunks_exact_mut(from.len()).zip(x.chunks_exact(len)) {
        for first in (0..y.len()).step_by(PIECE) {
            let end = y.len().min(first + PIECE);
            pace.count(end - first)?;
            for i in first..end {
                let (from, weights) = (&from[i], &weights[i]);
                let mut sum = W::from_f64(f64::from(weights[0])) * x[from[0]];
                for t in 1..N {
                    sum = W::from_f64(f64::from(weights[t])).mul_add(x[from[t]], sum);
                }
                y[i] = canonical(sum);
            }
        }
    }
    Ok(())
}

multiversion! {
    fn rows_from<W: Real>(
        pace: &mut Pace, first: usize, x: &[W], axis: Axis, taps: &Taps, y: &mut [W],
    ) -> Finished {
        any_rows(pace, first, x, axis, taps, y)
    }
}

/// Makes rows from number `first` on by any number of taps.
#[inline(always)]
fn any_rows<W: Real>(
    pace: &mut Pace,
    first: usize,
    x: &[W],
    axis: Axis,
    taps: &Taps,
    y: &mut [W],
) -> Finished {
    let (inner, rows) = (axis.inner, taps.len());
    // Columns, and taps of each, between two counts.
    let columns = inner.min(PIECE);
    let run = (PIECE / columns).max(1);
    for k in 0..y.len() / inner {
        let (outer, row) = ((first + k) / rows, (first + k) % rows);
        let x = &x[outer * axis.len * inner..(outer + 1) * axis.len * inner];
        let y = &mut y[k * inner..(k + 1) * inner];
        let (from, weights) = taps.of(row);
        let work = inner.saturating_mul(from.len());
        if work <= PIECE {
            pace.count(work)?;
            weigh(x, inner, 0, (from, weights), 0..from.len(), y);
            continue;
        }
        for column in (0..inner).step_by(columns) {
            let y = &mut y[column..inner.min(column + columns)];
            for start in (0..from.len()).step_by(run) {
                let end = from.len().min(start + run);
                pace.count((end - start) * y.len())?;
                weigh(x, inner, column, (from, weights), start..end, y);
            }
        }
    }
    Ok(())
}

/// The sum, or the canonical NaN in place of any NaN.
#[inline(always)]
fn canonical<W: Real>(sum: W) -> W {
    if sum.is_nan() { W::NAN } else { sum }
}

/// Adds some taps of a row to its columns from `column` on, of which there are `y.len()`.
#[inline(always)]
fn weigh<W: Real>(
    x: &[W],
    inner: usize,
    column: usize,
    (from, weights): (&[usize], &[f32]),
    taps: Range<usize>,
    y: &mut [W],
) {
    for t in taps {
        let weight = W::from_f64(f64::from(weights[t]));
        let x = &x[from[t] * inner + column..][..y.len()];
        for i in 0..y.len() {
            let sum = if t == 0 {
                weight * x[i]
            } else {
                weight.mul_add(x[i], y[i])
            };
            y[i] = match t + 1 == from.len() {
                true => canonical(sum),
                false => sum,
            };
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
