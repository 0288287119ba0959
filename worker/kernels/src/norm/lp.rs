//! `LpNormalization`: division by the norm along an axis.

use crate::Exec;
use crate::compiled::compiled_floats;
use crate::element::{Float, Number};
use crate::error::Result;
use crate::math::Real;
use crate::reduce::{LANES, merge_lanes};
use crate::shape::Axis;
use crate::split::{tiles, units_per_tile};

/// Which norm.
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
    Ok(tiles(
        exec,
        y,
        unit,
        units_per_tile(unit),
        |range, part| {
            for (x, y) in x[range.start * unit..range.end * unit]
                .chunks(unit)
                .zip(part.chunks_mut(unit))
            {
                for i in 0..axis.inner {
                    let divisor =
                        divisor(norm, x[i..].iter().step_by(axis.inner).map(|x| x.widen()));
                    for k in 0..axis.len {
                        let at = k * axis.inner + i;
                        let zero = divisor == <T::Wide as Real>::ZERO;
                        y[at] = if zero {
                            T::ZERO
                        } else {
                            T::narrow(x[at].widen() / divisor)
                        };
                    }
                }
            }
        },
    )?)
}

fn divisor<W: Real + Number>(norm: LpNorm, column: impl Iterator<Item = W>) -> W {
    let mut sums = [<W as Real>::ZERO; LANES];
    for (k, x) in column.enumerate() {
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
