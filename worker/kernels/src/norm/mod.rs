//! Normalizations.
//!
//! Means and variances are sums over sixteen virtual lanes (see [`crate::reduce`]); the variance is the mean square
//! of the deviations, in a second pass. `f16` and `bf16` compute in `f32` and round once, at the end. Every NaN is the same,
//! because that of a sum is the compiler's choice where a row has several.

mod across;
mod channel;
mod lp;
mod row;

pub use across::{LrnKernels, lrn, mean_variance_norm};
pub use channel::{ChannelNormKernels, batch_norm, group_norm, instance_norm};
pub use lp::{LpNorm, LpNormKernels, lp_norm};
pub use row::{RowNormKernels, layer_norm, layer_norm_stats, rms_norm};

use crate::Exec;
use crate::element::{Float, Number};
use crate::math::Real;
use crate::reduce::{LANES, merge_lanes};
use crate::split::{PIECE, pieces};

/// Sum of the elements of a row.
#[inline(always)]
fn row_sum<T: Float>(exec: &Exec, x: &[T]) -> T::Wide {
    let mut sums = [<T::Wide as Real>::ZERO; LANES];
    let whole = x.len() / LANES * LANES;
    for piece in pieces(exec, whole, PIECE) {
        for c in piece.step_by(LANES) {
            let x = &x[c..c + LANES];
            for l in 0..LANES {
                sums[l] = sums[l] + x[l].widen();
            }
        }
    }
    for i in whole..x.len() {
        sums[i - whole] = sums[i - whole] + x[i].widen();
    }
    merge_lanes(sums)
}

/// Sum of the squared distances of the elements of a row from `center`.
#[inline(always)]
fn row_squares<T: Number<Wide: Real>>(exec: &Exec, x: &[T], center: T::Wide) -> T::Wide {
    let mut sums = [<T::Wide as Real>::ZERO; LANES];
    let whole = x.len() / LANES * LANES;
    for piece in pieces(exec, whole, PIECE) {
        for c in piece.step_by(LANES) {
            let x = &x[c..c + LANES];
            for l in 0..LANES {
                let d = x[l].widen() - center;
                sums[l] = <T::Wide as Number>::fma(d, d, sums[l]);
            }
        }
    }
    for i in whole..x.len() {
        let d = x[i].widen() - center;
        sums[i - whole] = <T::Wide as Number>::fma(d, d, sums[i - whole]);
    }
    merge_lanes(sums)
}

/// The mean of a row, and `1 / sqrt(variance + epsilon)`.
#[inline(always)]
fn row_stats<T: Float>(exec: &Exec, x: &[T], epsilon: T::Wide) -> (T::Wide, T::Wide) {
    let n = <T::Wide as Real>::from_usize(x.len());
    let mean = row_sum(exec, x) / n;
    let variance = row_squares(exec, x, mean) / n;
    (mean, <T::Wide as Real>::ONE / (variance + epsilon).sqrt())
}

#[cfg(test)]
mod tests;
