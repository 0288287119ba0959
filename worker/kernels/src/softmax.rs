//! `Softmax` and `LogSoftmax` along one axis.
//!
//! Sums run over sixteen virtual lanes (see [`crate::reduce`]), so the place of the axis in memory does not change
//! bits. `f16` and `bf16` compute in `f32` and round once, at the end.

use crate::Exec;
use crate::compiled::compiled_floats;
use crate::element::{Float, Number};
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
fn finish<W: Real>(log: bool, e: W, sum: W, scale: W) -> W {
    if log { e - sum } else { e * scale }
}

#[inline(always)]
fn ln_and_scale<W: Real>(log: bool, sum: W) -> (W, W) {
    (if log { sum.ln() } else { sum }, W::ONE / sum)
}

#[inline(always)]
fn row<T: Float>(exec: &Exec, log: bool, x: &[T], y: &mut [T]) {
    let n = x.len();
    let y = &mut y[..n];
    let mut maxima = [<T::Wide as Real>::NEG_INFINITY; LANES];
    let whole = n / LANES * LANES;
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
    let mut sums = [<T::Wide as Real>::ZERO; LANES];
    if let Some(kept) = T::as_wide_mut(y) {
        // The exponentials are computed once and kept in the result, which has room for them.
        for piece in pieces(exec, whole, PIECE) {
            for c in piece.step_by(LANES) {
                let (x, kept) = (&x[c..c + LANES], &mut kept[c..c + LANES]);
                for l in 0..LANES {
                    let e = x[l].widen() - max;
                    let power = e.exp();
                    kept[l] = if log { e } else { power };
                    sums[l] = sums[l] + power;
                }
            }
        }
        for i in whole..n {
            let e = x[i].widen() - max;
            let power = e.exp();
            kept[i] = if log { e } else { power };
            sums[i - whole] = sums[i - whole] + power;
        }
        let (ln, scale) = ln_and_scale(log, merge_lanes(sums));
        for piece in pieces(exec, n, PIECE) {
            for kept in &mut kept[piece] {
                *kept = finish(log, *kept, ln, scale);
            }
        }
        return;
    }
    for piece in pieces(exec, whole, PIECE) {
        for c in piece.step_by(LANES) {
            let x = &x[c..c + LANES];
            for l in 0..LANES {
                sums[l] = sums[l] + (x[l].widen() - max).exp();
            }
        }
    }
    for i in whole..n {
        sums[i - whole] = sums[i - whole] + (x[i].widen() - max).exp();
    }
    let (ln, scale) = ln_and_scale(log, merge_lanes(sums));
    for piece in pieces(exec, n, PIECE) {
        for (x, y) in x[piece.clone()].iter().zip(&mut y[piece]) {
            let e = x.widen() - max;
            *y = T::narrow(finish(log, if log { e } else { e.exp() }, ln, scale));
        }
    }
}

/// Computes `width` columns at once as [`row`] computes one; their `len` elements lie `step` apart.
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
            sums[c] = sums[c] + (x[c].widen() - max[c]).exp();
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
            y[c] = T::narrow(finish(log, if log { e } else { e.exp() }, ln[c], scale[c]));
        }
    }
}

multiversion! {
    fn tile<T: Float>(exec: &Exec, log: bool, axis: Axis, x: &[T], y: &mut [T]) {
        let unit = axis.len * axis.inner;
        let mut at = 0;
        while at < y.len() {
            let (x, y) = (&x[at..at + unit], &mut y[at..at + unit]);
            if axis.inner == 1 {
                // The test is outside the loops of each row.
                if log { row(exec, true, x, y) } else { row(exec, false, x, y) }
            } else {
                let mut first = 0;
                while first < axis.inner {
                    let width = if axis.inner - first < COLUMNS { axis.inner - first } else { COLUMNS };
                    columns(exec, log, &x[first..], &mut y[first..], axis.len, axis.inner, width);
                    first += width;
                }
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
    fn masked_and_undefined_rows() {
        let inf = f32::INFINITY;
        let x = [0.0, -inf, 0.0, -inf, -inf, -inf, 1.0, f32::NAN, 2.0];
        let mut y = [0.0; 9];
        softmax(&crate::testing::exec(), &x, Axis::of(&[3, 3], 1), &mut y).unwrap();
        assert_eq!(y[..3], [0.5, 0.0, 0.5]);
        assert!(y[3..].iter().all(|y| y.is_nan()));
    }
}
