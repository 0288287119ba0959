//! `Softmax` and `LogSoftmax` along one axis.
//!
//! Sums run over sixteen virtual lanes (see [`crate::reduce`]), so the place of the axis in memory does not change
//! bits. `f16` and `bf16` compute in `f32` and round once, at the end.

use crate::Exec;
use crate::compiled::compiled_floats;
use crate::element::{Float, Number, WIDENED, canonical_nan};
use crate::error::Result;
use crate::math::Real;
use crate::multiversion::multiversion;
use crate::reduce::{LANES, merge_lanes};
use crate::shape::Axis;
use crate::split::{GRAIN, PIECE, pieces, tiles, units_per_tile};

/// Number of adjacent columns that are computed together where the axis is not the last one.
const COLUMNS: usize = 64;

/// The result for one element: `e` is x - max where `log` is true, and e^(x - max) otherwise.
#[inline(always)]
fn finish<W: Real + Number>(log: bool, e: W, sum: W, scale: W) -> W {
    canonical_nan(if log { e - sum } else { e * scale })
}

#[inline(always)]
fn ln_and_scale<W: Real>(log: bool, sum: W) -> (W, W) {
    (if log { sum.ln() } else { sum }, W::ONE / sum)
}

/// Elements whose largest is searched together, so that comparisons do not wait for each other.
const WIDTH: usize = 4 * LANES;

/// The largest element of a row, where there is no NaN; a NaN is skipped, or any result.
#[inline(always)]
fn largest<T: Number<Wide: Real>>(exec: &Exec, x: &[T]) -> T::Wide {
    let mut maxima = [<T::Wide as Real>::NEG_INFINITY; WIDTH];
    let whole = x.len() / WIDTH * WIDTH;
    for piece in pieces(exec, whole, PIECE) {
        for c in piece.step_by(WIDTH) {
            let x = &x[c..c + WIDTH];
            for l in 0..WIDTH {
                let x = x[l].widen();
                maxima[l] = if x > maxima[l] { x } else { maxima[l] };
            }
        }
    }
    let mut max = <T::Wide as Real>::NEG_INFINITY;
    for l in 0..WIDTH {
        max = if maxima[l] > max { maxima[l] } else { max };
    }
    for i in whole..x.len() {
        let x = x[i].widen();
        max = if x > max { x } else { max };
    }
    max
}

/// The largest element of a row, or a NaN where there is one.
#[inline(always)]
fn largest_or_nan<T: Number<Wide: Real>>(exec: &Exec, x: &[T]) -> T::Wide {
    let (n, whole) = (x.len(), x.len() / LANES * LANES);
    let mut maxima = [<T::Wide as Real>::NEG_INFINITY; LANES];
    for piece in pieces(exec, whole, PIECE) {
        for c in piece.step_by(LANES) {
            let x = &x[c..c + LANES];
            for l in 0..LANES {
                maxima[l] = T::Wide::max(maxima[l], x[l].widen());
            }
        }
    }
    let mut max = <T::Wide as Real>::NEG_INFINITY;
    for l in 0..LANES {
        max = T::Wide::max(max, maxima[l]);
    }
    for i in whole..n {
        max = T::Wide::max(max, x[i].widen());
    }
    max
}

/// Keeps x - max for each element where `log` is true, and its power of e otherwise. Returns the sum of the powers.
#[inline(always)]
fn powers<W: Real + Number<Wide = W>>(
    exec: &Exec,
    log: bool,
    x: &[W],
    max: W,
    kept: &mut [W],
) -> W {
    let (n, whole) = (x.len(), x.len() / LANES * LANES);
    let mut sums = [<W as Real>::ZERO; LANES];
    for piece in pieces(exec, whole, PIECE) {
        for c in piece.step_by(LANES) {
            let (x, kept) = (&x[c..c + LANES], &mut kept[c..c + LANES]);
            for l in 0..LANES {
                let e = x[l] - max;
                let power = e.exp_below_zero();
                kept[l] = if log { e } else { power };
                sums[l] = sums[l] + power;
            }
        }
    }
    for i in whole..n {
        let e = x[i] - max;
        let power = e.exp_below_zero();
        kept[i] = if log { e } else { power };
        sums[i - whole] = sums[i - whole] + power;
    }
    merge_lanes(sums)
}

/// Computes a row in the type that it is computed in. The powers are computed once and kept in the result.
#[inline(always)]
fn wide_row<W: Real + Number<Wide = W>>(exec: &Exec, log: bool, x: &[W], y: &mut [W]) {
    let n = x.len();
    let y = &mut y[..n];
    let mut sum = powers(exec, log, x, largest(exec, x), y);
    if Real::is_nan(sum) {
        // There are a NaN or infinities, which take their share as maximum.
        sum = powers(exec, log, x, largest_or_nan(exec, x), y);
    }
    let (ln, scale) = ln_and_scale(log, sum);
    for piece in pieces(exec, n, PIECE) {
        for y in &mut y[piece] {
            *y = finish(log, *y, ln, scale);
        }
    }
}

/// Computes a row of a narrow type that is too long to be widened as a whole: the powers are computed twice.
#[inline(always)]
fn long_row<T: Float>(exec: &Exec, log: bool, x: &[T], y: &mut [T]) {
    let (n, whole) = (x.len(), x.len() / LANES * LANES);
    let max = largest_or_nan(exec, x);
    let mut sums = [<T::Wide as Real>::ZERO; LANES];
    for piece in pieces(exec, whole, PIECE) {
        for c in piece.step_by(LANES) {
            let x = &x[c..c + LANES];
            for l in 0..LANES {
                sums[l] = sums[l] + (x[l].widen() - max).exp_below_zero();
            }
        }
    }
    for i in whole..n {
        sums[i - whole] = sums[i - whole] + (x[i].widen() - max).exp_below_zero();
    }
    let (ln, scale) = ln_and_scale(log, merge_lanes(sums));
    for piece in pieces(exec, n, PIECE) {
        for (x, y) in x[piece.clone()].iter().zip(&mut y[piece]) {
            let e = x.widen() - max;
            let kept = if log { e } else { e.exp_below_zero() };
            *y = T::narrow(finish(log, kept, ln, scale));
        }
    }
}

/// Computes rows of `n` elements.
#[inline(always)]
fn rows<T: Float>(exec: &Exec, log: bool, x: &[T], y: &mut [T], n: usize) {
    if let (Some(x), Some(y)) = (T::as_wide(x), T::as_wide_mut(y)) {
        for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
            wide_row(exec, log, x, y);
        }
        return;
    }
    if n > WIDENED {
        for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
            long_row(exec, log, x, y);
        }
        return;
    }
    let mut wide = [[<T::Wide as Real>::ZERO; WIDENED]; 2];
    let [operands, results] = &mut wide;
    let (operands, results) = (&mut operands[..n], &mut results[..n]);
    for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
        T::widen_run(x, operands);
        wide_row(exec, log, operands, results);
        T::narrow_run(results, y);
    }
}

/// Computes `width` columns at once as [`rows`] computes one; their `len` elements lie `step` apart.
#[inline(always)]
fn columns<T: Float>(
    exec: &Exec,
    log: bool,
    x: &[T],
    y: &mut [T],
    len: usize,
    step: usize,
    width: usize,
) {
    let mut max = [<T::Wide as Real>::NEG_INFINITY; COLUMNS];
    let mut sums = [[<T::Wide as Real>::ZERO; COLUMNS]; LANES];
    let max = &mut max[..width];
    for k in pieces(exec, len, PIECE / COLUMNS).flatten() {
        let x = &x[k * step..k * step + width];
        for c in 0..width {
            max[c] = T::Wide::max(max[c], x[c].widen());
        }
    }
    for k in pieces(exec, len, PIECE / COLUMNS).flatten() {
        let (x, sums) = (
            &x[k * step..k * step + width],
            &mut sums[k % LANES][..width],
        );
        for c in 0..width {
            sums[c] = sums[c] + (x[c].widen() - max[c]).exp_below_zero();
        }
    }
    let mut ln = [<T::Wide as Real>::ZERO; COLUMNS];
    let mut scale = [<T::Wide as Real>::ZERO; COLUMNS];
    for c in 0..width {
        let mut lanes = [<T::Wide as Real>::ZERO; LANES];
        for l in 0..LANES {
            lanes[l] = sums[l][c];
        }
        (ln[c], scale[c]) = ln_and_scale(log, merge_lanes(lanes));
    }
    for k in pieces(exec, len, PIECE / COLUMNS).flatten() {
        let (x, y) = (
            &x[k * step..k * step + width],
            &mut y[k * step..k * step + width],
        );
        for c in 0..width {
            let e = x[c].widen() - max[c];
            y[c] = T::narrow(finish(
                log,
                if log { e } else { e.exp_below_zero() },
                ln[c],
                scale[c],
            ));
        }
    }
}

multiversion! {
    fn tile<T: Float>(exec: &Exec, log: bool, axis: Axis, x: &[T], y: &mut [T]) {
        if axis.inner == 1 {
            // The test is outside the loops of each row.
            return if log { rows(exec, true, x, y, axis.len) } else { rows(exec, false, x, y, axis.len) };
        }
        let unit = axis.len * axis.inner;
        let mut at = 0;
        while at < y.len() {
            let (x, y) = (&x[at..at + unit], &mut y[at..at + unit]);
            let mut first = 0;
            while first < axis.inner {
                let width = if axis.inner - first < COLUMNS { axis.inner - first } else { COLUMNS };
                columns(exec, log, &x[first..], &mut y[first..], axis.len, axis.inner, width);
                first += width;
            }
            at += unit;
        }
    }
}

fn softmax_any<T: Float>(exec: &Exec, log: bool, x: &[T], axis: Axis, y: &mut [T]) -> Result {
    assert!(
        x.len() == axis.count() && y.len() == axis.count(),
        "{axis:?}"
    );
    let unit = axis.len * axis.inner;
    let grain = units_per_tile(unit).min(GRAIN);
    tiles(exec, y, unit, grain, |range, part| {
        let x = &x[range.start * unit..range.end * unit];
        tile(exec, log, axis, x, part)
    })?;
    Ok(exec.check()?)
}

/// The softmaxes of the lines along an axis, within one tile of another kernel.
pub(crate) fn softmax_rows(exec: &Exec, axis: Axis, x: &[f32], y: &mut [f32]) {
    tile(exec, false, axis, x, y)
}

compiled_floats! {
    /// The softmaxes of a type.
    trait SoftmaxKernels {
        fn softmax(exec: &Exec, log: bool, x: &[Self], axis: Axis, y: &mut [Self]) = softmax_any;
    }
}

/// `y = e^(x - max) / sum(e^(x - max))` along `axis`.
pub fn softmax<T: Float>(exec: &Exec, x: &[T], axis: Axis, y: &mut [T]) -> Result {
    T::softmax(exec, false, x, axis, y)
}

/// `y = x - max - ln(sum(e^(x - max)))` along `axis`.
pub fn log_softmax<T: Float>(exec: &Exec, x: &[T], axis: Axis, y: &mut [T]) -> Result {
    T::softmax(exec, true, x, axis, y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{bf16, f16};
    use crate::testing::{bits, check_stops, each_exec, random};

    fn check<T: Float>(tolerance: f64) {
        for shape in [
            [5, 300, 1],
            [3, 7, 70],
            [1, 1, 1],
            [2, 1000, 3],
            [130, 129, 1],
            [1, 40, 600],
        ] {
            let axis = Axis::of(&shape, 1);
            let x: Vec<T> = random(axis.count() + 1, 12.0, 5);
            for log in [false, true] {
                each_exec(|exec| {
                    let mut y = vec![T::ZERO; axis.count() + 3];
                    let run = if log { log_softmax } else { softmax };
                    run(exec, &x[1..], axis, &mut y[3..]).unwrap();
                    for (o, i) in (0..axis.outer).flat_map(|o| (0..axis.inner).map(move |i| (o, i)))
                    {
                        let at = |k: usize| (o * axis.len + k) * axis.inner + i;
                        let column: Vec<f64> =
                            (0..axis.len).map(|k| x[1 + at(k)].to_f64()).collect();
                        let max = column.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        let sum: f64 = column.iter().map(|x| (x - max).exp()).sum();
                        for (k, x) in column.iter().enumerate() {
                            let want = if log {
                                x - max - sum.ln()
                            } else {
                                (x - max).exp() / sum
                            };
                            let got = y[3 + at(k)].to_f64();
                            assert!(
                                (got - want).abs() <= tolerance * want.abs().max(0.1),
                                "{got} {want}"
                            );
                        }
                    }
                });
            }
        }
    }

    #[test]
    fn matches_wide_arithmetic() {
        check::<f32>(2e-6);
        check::<f64>(1e-14);
        check::<f16>(1e-3);
        check::<bf16>(8e-3);
    }

    #[test]
    fn the_place_of_the_axis_does_not_change_bits() {
        let (n, m) = (333, 70);
        let rows: Vec<f32> = random(n * m, 9.0, 2);
        let columns: Vec<f32> = (0..n * m).map(|i| rows[(i % m) * n + i / m]).collect();
        each_exec(|exec| {
            for run in [softmax, log_softmax] {
                let (mut a, mut b) = (vec![0.0; n * m], vec![0.0; n * m]);
                run(exec, &rows, Axis::of(&[m, n], 1), &mut a).unwrap();
                run(exec, &columns, Axis::of(&[n, m], 0), &mut b).unwrap();
                let back: Vec<f32> = (0..n * m).map(|i| b[(i % n) * m + i / n]).collect();
                assert_eq!(bits(&a), bits(&back));
            }
        });
    }

    #[test]
    fn one_huge_row_stops_when_it_is_cancelled() {
        let n = 1 << 23;
        let x: Vec<f32> = vec![0.5; n];
        let y = std::cell::RefCell::new(vec![0.0; n]);
        for shape in [[1, n, 1], [1, n / 8, 8]] {
            let axis = Axis::of(&shape, 1);
            check_stops(|exec| softmax(exec, &x, axis, &mut y.borrow_mut()));
        }
    }

    #[test]
    fn rows_of_any_length_have_the_bits_of_wide_rows() {
        let inf = f32::INFINITY;
        for n in [1, 15, 16, 100, WIDENED, WIDENED + 1] {
            let mut x: Vec<f16> = random(6 * n, 12.0, 3);
            // Rows with zeros of both signs, infinities and a NaN.
            x[n] = f16::from_f32(-0.0);
            x[2 * n - 1] = f16::from_f32(0.0);
            x[2 * n..3 * n].fill(f16::from_f32(-inf));
            x[3 * n + n / 2] = f16::from_f32(inf);
            x[4 * n + n / 3] = f16::from_f32(f32::NAN);
            let wide: Vec<f32> = x.iter().map(|x| x.widen()).collect();
            for run in [
                (softmax as Run<f16>, softmax as Run<f32>),
                (log_softmax, log_softmax),
            ] {
                let (mut y, mut want) = (vec![f16::ZERO; 6 * n], vec![0.0; 6 * n]);
                let axis = Axis::of(&[6, n], 1);
                (run.0)(&crate::testing::exec(), &x, axis, &mut y).unwrap();
                (run.1)(&crate::testing::exec(), &wide, axis, &mut want).unwrap();
                for (y, want) in y.iter().zip(want) {
                    assert_eq!(y.to_bits(), f16::narrow(want).to_bits(), "rows of {n}");
                }
            }
        }
    }

    type Run<T> = fn(&Exec, &[T], Axis, &mut [T]) -> Result;

    #[test]
    fn every_nan_of_a_row_is_the_same() {
        for n in [2, 5, 16, 40, 100] {
            let mut x: Vec<f32> = random(2 * n, 2.0, 7);
            (x[0], x[n - 1]) = (-f32::NAN, f32::NAN);
            (x[n], x[2 * n - 1]) = (f32::INFINITY, f32::NAN);
            for run in [softmax as Run<f32>, log_softmax] {
                for shape in [[2, n, 1], [1, 2, n]] {
                    let mut y = vec![0.0; 2 * n];
                    run(&crate::testing::exec(), &x, Axis::of(&shape, 1), &mut y).unwrap();
                    let nans: Vec<f32> = y.into_iter().filter(|y| y.is_nan()).collect();
                    assert!(!nans.is_empty(), "{n}");
                    assert_eq!(bits(&nans), bits(&vec![f32::NAN; nans.len()]), "{n}");
                }
            }
        }
    }

    #[test]
    fn masked_and_undefined_rows() {
        let inf = f32::INFINITY;
        let x = [0.0, -inf, 0.0, -inf, -inf, -inf, 1.0, f32::NAN, 2.0];
        let mut y = [0.0; 9];
        softmax(&crate::testing::exec(), &x, Axis::of(&[3, 3], 1), &mut y).unwrap();
        assert_eq!(y[..3], [0.5, 0.0, 0.5]);
        assert!(y[3..].iter().all(|y| y.is_nan()));
    }
}
