//! Normalization of `[batch, channels, spatial]`, with a scale per channel.

use super::row_stats;
use crate::Exec;
use crate::compiled::compiled_floats;
use crate::element::{Float, Number, canonical_nan};
use crate::error::Result;
use crate::math::Real;
use crate::multiversion::multiversion;
use crate::shape::Axis;
use crate::split::{PIECE, pieces, tiles, units_per_tile};

multiversion! {
    fn affine<T: Float>(exec: &Exec, x: &[T], mean: T::Wide, factor: T::Wide, bias: T::Wide, y: &mut [T]) {
        let n = y.len();
        let x = &x[..n];
        for piece in pieces(exec, n, PIECE) {
            for i in piece {
                let scaled = <T::Wide as Number>::fma(x[i].widen() - mean, factor, bias);
                y[i] = T::narrow(canonical_nan(scaled));
            }
        }
    }
}

multiversion! {
    fn affine_in_place<T: Float>(exec: &Exec, mean: T::Wide, factor: T::Wide, bias: T::Wide, y: &mut [T]) {
        for piece in pieces(exec, y.len(), PIECE) {
            for i in piece {
                let scaled = <T::Wide as Number>::fma(y[i].widen() - mean, factor, bias);
                y[i] = T::narrow(canonical_nan(scaled));
            }
        }
    }
}

multiversion! {
    fn stats<T: Float>(exec: &Exec, x: &[T], epsilon: T::Wide) -> (T::Wide, T::Wide) {
        row_stats(exec, x, epsilon)
    }
}

fn batch_norm_any<T: Float>(
    exec: &Exec,
    x: Option<&[T]>,
    channels: Axis,
    [scale, bias, mean, variance]: [&[T]; 4],
    epsilon: f64,
    y: &mut [T],
) -> Result {
    let c = channels.len;
    assert!(
        y.len() == channels.count() && x.is_none_or(|x| x.len() == y.len()),
        "{channels:?}"
    );
    assert!(
        [scale, bias, mean, variance].iter().all(|s| s.len() == c),
        "{channels:?}"
    );
    let epsilon = <T::Wide as Real>::from_f64(epsilon);
    let unit = channels.inner;
    let grain = units_per_tile(unit);
    tiles(exec, y, unit, grain, |range, part| {
        for (plane, y) in range.zip(part.chunks_mut(unit)) {
            let i = plane % c;
            let factor = scale[i].widen() / (variance[i].widen() + epsilon).sqrt();
            let (mean, bias) = (mean[i].widen(), bias[i].widen());
            match x {
                Some(x) => {
                    let x = &x[plane * unit..(plane + 1) * unit];
                    affine(exec, x, mean, factor, bias, y);
                }
                None => affine_in_place(exec, mean, factor, bias, y),
            }
        }
    })?;
    Ok(exec.check()?)
}

fn group_norm_any<T: Float>(
    exec: &Exec,
    x: &[T],
    channels: Axis,
    groups: usize,
    [scale, bias]: [&[T]; 2],
    epsilon: f64,
    y: &mut [T],
) -> Result {
    let c = channels.len;
    assert!(
        x.len() == channels.count() && y.len() == x.len(),
        "{channels:?}"
    );
    assert!(
        scale.len() == c && bias.len() == c && groups > 0 && c.is_multiple_of(groups),
        "{groups} of {channels:?}"
    );
    let epsilon = <T::Wide as Real>::from_f64(epsilon);
    let (per_group, inner) = (c / groups, channels.inner);
    let unit = per_group * inner;
    let grain = units_per_tile(unit);
    tiles(exec, y, unit, grain, |range, part| {
        for (group, y) in range.zip(part.chunks_mut(unit)) {
            let x = &x[group * unit..(group + 1) * unit];
            let (mean, inverse) = stats(exec, x, epsilon);
            let first = group % groups * per_group;
            for (i, (x, y)) in x.chunks(inner).zip(y.chunks_mut(inner)).enumerate() {
                let factor = inverse * scale[first + i].widen();
                affine(exec, x, mean, factor, bias[first + i].widen(), y);
            }
        }
    })?;
    Ok(exec.check()?)
}

compiled_floats! {
    /// The channel normalizations of a type.
    trait ChannelNormKernels {
        fn batch_norm(
            exec: &Exec, x: Option<&[Self]>, channels: Axis, parameters: [&[Self]; 4], epsilon: f64, y: &mut [Self],
        ) = batch_norm_any;
        fn group_norm(
            exec: &Exec, x: &[Self], channels: Axis, groups: usize, parameters: [&[Self]; 2], epsilon: f64,
            y: &mut [Self],
        ) = group_norm_any;
    }
}

/// `y = (x - mean) * (scale / sqrt(variance + epsilon)) + bias`, where the four parameters have one element per channel
/// of the axis `channels`. Without `x`, the elements of `y` are replaced.
pub fn batch_norm<T: Float>(
    exec: &Exec,
    x: Option<&[T]>,
    channels: Axis,
    scale: &[T],
    bias: &[T],
    mean: &[T],
    variance: &[T],
    epsilon: f64,
    y: &mut [T],
) -> Result {
    T::batch_norm(exec, x, channels, [scale, bias, mean, variance], epsilon, y)
}

/// Normalizes every group of `channels.len / groups` channels of a batch entry to mean 0 and variance 1, then scales
/// and shifts per channel.
pub fn group_norm<T: Float>(
    exec: &Exec,
    x: &[T],
    channels: Axis,
    groups: usize,
    scale: &[T],
    bias: &[T],
    epsilon: f64,
    y: &mut [T],
) -> Result {
    T::group_norm(exec, x, channels, groups, [scale, bias], epsilon, y)
}

/// [`group_norm`] with one channel in each group.
pub fn instance_norm<T: Float>(
    exec: &Exec,
    x: &[T],
    channels: Axis,
    scale: &[T],
    bias: &[T],
    epsilon: f64,
    y: &mut [T],
) -> Result {
    T::group_norm(
        exec,
        x,
        channels,
        channels.len.max(1),
        [scale, bias],
        epsilon,
        y,
    )
}
