//! Normalization across channels (`LRN`) and over any axes (`MeanVarianceNormalization`).

use crate::Exec;
use crate::binary::{Arith, arith, arith_inplace};
use crate::compiled::compiled_floats;
use crate::element::{Float, Number, canonical_nan};
use crate::error::Result;
use crate::math::Real;
use crate::multiversion::multiversion;
use crate::reduce::{Reduce, reduce_float};
use crate::shape::{Axis, MAX_RANK, Operand, check_rank, count};
use crate::split::{Finished, PIECE, Pace, tiles, units_per_tile};

/// Number of adjacent columns that are computed together.
const COLUMNS: usize = 64;
/// Channels of [`COLUMNS`] columns after which work is counted.
const RUN: usize = PIECE / COLUMNS;

multiversion! {
    /// Normalizes one channel of one batch entry: `x` begins at the first channel of the window, `own` is the channel
    /// itself.
    fn lrn_row<T: Float>(
        pace: &mut Pace, x: &[T], window: usize, own: &[T], factor: f64, beta: f64, bias: f64, y: &mut [T],
    ) -> Finished {
        let inner = y.len();
        let factor = <T::Wide as Real>::from_f64(factor);
        let (beta, bias) = (<T::Wide as Real>::from_f64(beta), <T::Wide as Real>::from_f64(bias));
        for first in (0..inner).step_by(COLUMNS) {
            let width = if inner - first < COLUMNS { inner - first } else { COLUMNS };
            let mut sums = [<T::Wide as Real>::ZERO; COLUMNS];
            let sums = &mut sums[..width];
            let mut run = 0;
            while run < window {
                let end = if window - run < RUN { window } else { run + RUN };
                pace.count((end - run) * width)?;
                for c in run..end {
                    let x = &x[c * inner + first..c * inner + first + width];
                    for i in 0..width {
                        sums[i] = <T::Wide as Number>::fma(x[i].widen(), x[i].widen(), sums[i]);
                    }
                }
                run = end;
            }
            let (own, y) = (&own[first..first + width], &mut y[first..first + width]);
            for i in 0..width {
                let base = <T::Wide as Number>::fma(factor, sums[i], bias);
                y[i] = T::narrow(canonical_nan(own[i].widen() / Real::pow(base, beta)));
            }
        }
        Ok(())
    }
}

fn lrn_any<T: Float>(
    exec: &Exec,
    x: &[T],
    channels: Axis,
    size: usize,
    alpha: f64,
    beta: f64,
    bias: f64,
    y: &mut [T],
) -> Result {
    assert!(
        x.len() == channels.count() && y.len() == x.len() && size > 0,
        "{channels:?}"
    );
    let (c, unit) = (channels.len, channels.inner);
    let (before, after) = ((size - 1) / 2, size / 2);
    let factor = alpha / size as f64;
    let grain = units_per_tile(unit * size.min(c));
    tiles(exec, y, unit, grain, |range, part| {
        let mut pace = Pace::new(exec, PIECE);
        for (plane, y) in range.zip(part.chunks_mut(unit)) {
            let (batch, own) = (plane / c * c, plane % c);
            let first = own.saturating_sub(before);
            let window = (own + after).min(c - 1) + 1 - first;
            let (around, own) = (
                &x[(batch + first) * unit..],
                &x[plane * unit..(plane + 1) * unit],
            );
            let done = lrn_row(&mut pace, around, window, own, factor, beta, bias, y);
            if done.is_err() {
                return;
            }
        }
    })?;
    Ok(exec.check()?)
}

compiled_floats! {
    /// Local response normalization of a type.
    trait LrnKernels {
        fn lrn(
            exec: &Exec, x: &[Self], channels: Axis, size: usize, alpha: f64, beta: f64, bias: f64, y: &mut [Self],
        ) = lrn_any;
    }
}

/// `y = x / (bias + alpha / size * sum of squares)^beta`, where the sum covers the `size` channels around each channel.
pub fn lrn<T: Float>(
    exec: &Exec,
    x: &[T],
    channels: Axis,
    size: usize,
    alpha: f64,
    beta: f64,
    bias: f64,
    y: &mut [T],
) -> Result {
    T::lrn(exec, x, channels, size, alpha, beta, bias, y)
}

/// `y = (x - mean) / (standard deviation + 1e-9)` over `axes`. `scratch` has one element for each element of the
/// kept axes.
pub fn mean_variance_norm<T: Float>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    axes: &[usize],
    scratch: &mut [T],
    y: &mut [T],
) -> Result {
    check_rank(shape)?;
    let mut kept = [1; MAX_RANK];
    for (axis, dim) in shape.iter().enumerate() {
        kept[axis] = if axes.contains(&axis) { 1 } else { *dim };
    }
    let kept = &kept[..shape.len()];
    reduce_float(exec, Reduce::Mean, x, shape, axes, scratch)?;
    arith(
        exec,
        Arith::Sub,
        Operand::new(x, shape),
        Operand::new(scratch, kept),
        y,
        shape,
    )?;
    reduce_float(exec, Reduce::L2, y, shape, axes, scratch)?;
    // Dividing the root of the sum by this root of the count gives the root mean square.
    let root = T::from_f64((count(shape) as f64 / count(kept).max(1) as f64).sqrt());
    arith_inplace(exec, Arith::Div, scratch, kept, Operand::new(&[root], &[]))?;
    arith_inplace(
        exec,
        Arith::Add,
        scratch,
        kept,
        Operand::new(&[T::from_f64(1e-9)], &[]),
    )?;
    arith_inplace(exec, Arith::Div, y, shape, Operand::new(scratch, kept))
}
