//! Normalization of rows, with a scale per column: `LayerNormalization` and `RMSNormalization`.

use super::{row_squares, row_stats};
use crate::Exec;
use crate::compiled::compiled_floats;
use crate::element::{Float, Number, WIDENED, canonical_nan};
use crate::error::Result;
use crate::math::Real;
use crate::multiversion::multiversion;
use crate::split::{PIECE, pieces, tiles, tiles2, units_per_tile};

multiversion! {
    fn layer_tile<T: Float>(exec: &Exec, x: &[T], scale: &[T], bias: Option<&[T]>, epsilon: f64, y: &mut [T]) {
        let n = scale.len();
        let epsilon = <T::Wide as Real>::from_f64(epsilon);
        let mut at = 0;
        while at < y.len() {
            let (x, y) = (&x[at..at + n], &mut y[at..at + n]);
            let (mean, inverse) = row_stats(exec, x, epsilon);
            if let Some(bias) = bias {
                let bias = &bias[..n];
                for piece in pieces(exec, n, PIECE) {
                    for i in piece {
                        let normal = (x[i].widen() - mean) * inverse;
                        let scaled = <T::Wide as Number>::fma(normal, scale[i].widen(), bias[i].widen());
                        y[i] = T::narrow(canonical_nan(scaled));
                    }
                }
            } else {
                for piece in pieces(exec, n, PIECE) {
                    for i in piece {
                        let scaled = (x[i].widen() - mean) * inverse * scale[i].widen();
                        y[i] = T::narrow(canonical_nan(scaled));
                    }
                }
            }
            at += n;
        }
    }
}

#[inline(always)]
fn rms_row<T: Number<Wide: Real>>(
    exec: &Exec,
    x: &[T],
    scale: &[T],
    epsilon: T::Wide,
    y: &mut [T],
) {
    let n = scale.len();
    let (x, y) = (&x[..n], &mut y[..n]);
    let mean = row_squares(exec, x, <T::Wide as Real>::ZERO) / <T::Wide as Real>::from_usize(n);
    let inverse = <T::Wide as Real>::ONE / (mean + epsilon).sqrt();
    for piece in pieces(exec, n, PIECE) {
        for i in piece {
            y[i] = T::narrow(canonical_nan(x[i].widen() * inverse * scale[i].widen()));
        }
    }
}

multiversion! {
    fn rms_tile<T: Float>(exec: &Exec, x: &[T], scale: &[T], epsilon: f64, y: &mut [T]) {
        let n = scale.len();
        let epsilon = <T::Wide as Real>::from_f64(epsilon);
        if n > WIDENED || T::as_wide(x).is_some() {
            for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
                rms_row(exec, x, scale, epsilon, y);
            }
            return;
        }
        let mut wide = [[<T::Wide as Real>::ZERO; WIDENED]; 3];
        let [scales, operands, results] = &mut wide;
        let (scales, operands, results) = (&mut scales[..n], &mut operands[..n], &mut results[..n]);
        T::widen_run(scale, scales);
        for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
            T::widen_run(x, operands);
            rms_row(exec, operands, scales, epsilon, results);
            T::narrow_run(results, y);
        }
    }
}

multiversion! {
    fn stats_tile<T: Float>(
        exec: &Exec, x: &[T], n: usize, epsilon: f64, mean: &mut [T::Wide], inverse: &mut [T::Wide],
    ) {
        let epsilon = <T::Wide as Real>::from_f64(epsilon);
        for i in 0..mean.len() {
            let of_row = row_stats(exec, &x[i * n..(i + 1) * n], epsilon);
            (mean[i], inverse[i]) = (canonical_nan(of_row.0), canonical_nan(of_row.1));
        }
    }
}

fn layer_norm_any<T: Float>(
    exec: &Exec,
    x: &[T],
    scale: &[T],
    bias: Option<&[T]>,
    epsilon: f64,
    y: &mut [T],
) -> Result {
    let n = scale.len();
    assert!(
        x.len() == y.len() && bias.is_none_or(|b| b.len() == n),
        "rows of {n}"
    );
    tiles(exec, y, n, units_per_tile(n), |range, part| {
        let x = &x[range.start * n..range.end * n];
        layer_tile(exec, x, scale, bias, epsilon, part)
    })?;
    Ok(exec.check()?)
}

fn rms_norm_any<T: Float>(exec: &Exec, x: &[T], scale: &[T], epsilon: f64, y: &mut [T]) -> Result {
    let n = scale.len();
    assert_eq!(x.len(), y.len(), "rows of {n}");
    tiles(exec, y, n, units_per_tile(n), |range, part| {
        let x = &x[range.start * n..range.end * n];
        rms_tile(exec, x, scale, epsilon, part)
    })?;
    Ok(exec.check()?)
}

compiled_floats! {
    /// The row normalizations of a type.
    trait RowNormKernels {
        fn layer_norm(exec: &Exec, x: &[Self], scale: &[Self], bias: Option<&[Self]>, epsilon: f64, y: &mut [Self])
            = layer_norm_any;
        fn rms_norm(exec: &Exec, x: &[Self], scale: &[Self], epsilon: f64, y: &mut [Self]) = rms_norm_any;
    }
}

/// `y = (x - mean) / sqrt(variance + epsilon) * scale + bias` for every row of `scale.len()` elements.
pub fn layer_norm<T: Float>(
    exec: &Exec,
    x: &[T],
    scale: &[T],
    bias: Option<&[T]>,
    epsilon: f64,
    y: &mut [T],
) -> Result {
    T::layer_norm(exec, x, scale, bias, epsilon, y)
}

/// Computes the optional outputs of `LayerNormalization`: mean and `1 / sqrt(variance + epsilon)` of every row of `n`
/// elements, with the bits that [`layer_norm`] uses.
pub fn layer_norm_stats<T: Float>(
    exec: &Exec,
    x: &[T],
    n: usize,
    epsilon: f64,
    mean: &mut [T::Wide],
    inverse: &mut [T::Wide],
) -> Result {
    let rows = mean.len();
    assert!(
        x.len() == rows * n && inverse.len() == rows,
        "{rows} rows of {n}"
    );
    tiles2(
        exec,
        (mean, 1),
        (inverse, 1),
        rows,
        units_per_tile(n),
        |range, mean, inverse| {
            let x = &x[range.start * n..range.end * n];
            stats_tile(exec, x, n, epsilon, mean, inverse)
        },
    )?;
    Ok(exec.check()?)
}

/// `y = x / sqrt(mean(x^2) + epsilon) * scale` for every row of `scale.len()` elements.
pub fn rms_norm<T: Float>(exec: &Exec, x: &[T], scale: &[T], epsilon: f64, y: &mut [T]) -> Result {
    T::rms_norm(exec, x, scale, epsilon, y)
}
