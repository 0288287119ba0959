//! `LpNormalization`: division by the norm along an axis.

use crate::Exec;
use crate::compiled::compiled_floats;
use crate::element::{Float, canonical_nan};
use crate::error::Result;
use crate::math::Real;
use crate::reduce::{LANES, merge_lanes};
use crate::shape::Axis;
use crate::split::{PIECE, pieces, tiles, units_per_tile};

/// The norm that is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LpNorm {
    /// Sum of absolute values.
    L1,
    /// Square root of the sum of squares.
    L2,
}

fn lp_norm_any<T: Float>(exec: &Exec, norm: LpNorm, x: &[T], axis: Axis, y: &mut [T]) -> Result {
    assert!(x.len() == axis.count() && y.len() == x.len(), "{axis:?}");
    let unit = axis.len * axis.inner;
    let grain = units_per_tile(unit);
    tiles(exec, y, unit, grain, |range, part| {
        let x = &x[range.start * unit..range.end * unit];
        for (x, y) in x.chunks(unit).zip(part.chunks_mut(unit)) {
            for i in 0..axis.inner {
                column(exec, norm, axis, &x[i..], &mut y[i..]);
            }
        }
    })?;
    Ok(exec.check()?)
}

/// Normalizes one column, whose elements lie `axis.inner` apart.
fn column<T: Float>(exec: &Exec, norm: LpNorm, axis: Axis, x: &[T], y: &mut [T]) {
    let divisor = divisor(exec, norm, axis, x);
    let zero = divisor == <T::Wide as Real>::ZERO;
    for k in pieces(exec, axis.len, PIECE).flatten() {
        let at = k * axis.inner;
        y[at] = if zero {
            T::ZERO
        } else {
            T::narrow(canonical_nan(x[at].widen() / divisor))
        };
    }
}

fn divisor<T: Float>(exec: &Exec, norm: LpNorm, axis: Axis, x: &[T]) -> T::Wide {
    let mut sums = [<T::Wide as Real>::ZERO; LANES];
    for k in pieces(exec, axis.len, PIECE).flatten() {
        let x = x[k * axis.inner].widen();
        let sum = &mut sums[k % LANES];
        *sum = match norm {
            LpNorm::L1 => *sum + Real::abs(x),
            LpNorm::L2 => Real::mul_add(x, x, *sum),
        };
    }
    match norm {
        LpNorm::L1 => merge_lanes(sums),
        LpNorm::L2 => merge_lanes(sums).sqrt(),
    }
}

compiled_floats! {
    /// Norm divisions of a type.
    trait LpNormKernels {
        fn lp_norm(exec: &Exec, norm: LpNorm, x: &[Self], axis: Axis, y: &mut [Self]) = lp_norm_any;
    }
}

/// `y = x / norm(x)` along `axis`; 0 where the norm is 0.
pub fn lp_norm<T: Float>(exec: &Exec, norm: LpNorm, x: &[T], axis: Axis, y: &mut [T]) -> Result {
    T::lp_norm(exec, norm, x, axis, y)
}
