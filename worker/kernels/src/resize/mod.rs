//! Interpolation along one axis.
//!
//! Each element of the result is a sum of elements of the operand along the axis, by weights that depend on the position
//! only. Several axes are resized one after the other.
//!
//! Invariant: the terms of a sum are added in the order of the operand's elements, by fused multiply-adds.

mod taps;

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
    let (unit, per_unit) = if inner == 1 { (rows, rows) } else { (inner, 1) };
    let grain = units_per_tile(unit.saturating_mul(taps.width()));
    tiles(exec, y, unit, grain, |range, part| {
        rows_from(range.start * per_unit, x, axis, taps, part);
    })?;
    Ok(exec.check()?)
}

multiversion! {
    fn rows_from<W: Real>(first: usize, x: &[W], axis: Axis, taps: &Taps, y: &mut [W]) {
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
                    y[i] = if t == 0 { weight * x[i] } else { weight.mul_add(x[i], y[i]) };
                }
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
