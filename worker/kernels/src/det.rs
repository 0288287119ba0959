//! Determinants of square matrices, by elimination with the greatest pivot of each column.

use crate::Exec;
use crate::compiled::compiled;
use crate::elimination::{CancelChecks, ELEMENTS, holds_nan, pivot, swap_rows};
use crate::error::Result;
use crate::math::Real;
use crate::multiversion::multiversion;
use crate::split::tiles2;

fn det_any<W: Real>(exec: &Exec, n: usize, work: &mut [W], y: &mut [W]) -> Result {
    // Where there is no matrix, `n * n` may be any number.
    if n == 0 || y.is_empty() {
        y.fill(W::ONE);
        return Ok(exec.check()?);
    }
    let grain = (ELEMENTS / (n * n)).max(1);
    let matrices = y.len();
    tiles2(
        exec,
        (y, 1),
        (work, n * n),
        matrices,
        grain,
        |_, y, work| {
            for (y, a) in y.iter_mut().zip(work.chunks_exact_mut(n * n)) {
                let Some(det) = det_of(exec, n, a) else {
                    return;
                };
                *y = if Real::is_nan(det) { W::NAN } else { det };
            }
        },
    )?;
    Ok(exec.check()?)
}

multiversion! {
    /// Subtracts from the rows of `below` the multiples of `top` that make their elements `k` zero.
    fn subtract<W: Real>(top: &[W], below: &mut [W], n: usize, k: usize) {
        for row in below.chunks_exact_mut(n) {
            let row = &mut row[k..];
            let factor = -(row[0] / top[0]);
            for (x, t) in row.iter_mut().zip(top) {
                *x = Real::mul_add(factor, *t, *x);
            }
        }
    }
}

/// The determinant of one matrix, which is overwritten; `None` where the step was cancelled.
fn det_of<W: Real>(exec: &Exec, n: usize, a: &mut [W]) -> Option<W> {
    // A zero pivot ends the elimination, whatever else the matrix has.
    match holds_nan(exec, a)? {
        true => Some(W::NAN),
        false => eliminate(exec, n, a),
    }
}

/// The determinant of one matrix without NaN, which is overwritten; `None` where the step was cancelled.
fn eliminate<W: Real>(exec: &Exec, n: usize, a: &mut [W]) -> Option<W> {
    let mut det = W::ONE;
    let rows = (ELEMENTS / n).max(1);
    let mut checks = CancelChecks::default();
    for k in 0..n {
        let pivot = pivot(a, n, k);
        if pivot != k {
            swap_rows(a, n, k, pivot);
            det = -det;
        }
        let (above, below) = a.split_at_mut((k + 1) * n);
        let top = &above[k * n + k..];
        det = det * top[0];
        if top[0] == W::ZERO {
            return Some(det);
        }
        for part in below.chunks_mut(rows * n) {
            subtract(top, part, n, k);
            checks.computed(exec, part.len())?;
        }
    }
    Some(det)
}

compiled! {
    /// Determinants of one type.
    trait DetKernels for [f32, f64] {
        fn dets(exec: &Exec, n: usize, work: &mut [Self], y: &mut [Self]) = det_any;
    }
}

/// The determinants y of the `[n, n]` matrices in `work`, which are overwritten.
pub fn det<W: DetKernels>(exec: &Exec, n: usize, work: &mut [W], y: &mut [W]) -> Result {
    W::dets(exec, n, work, y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{bits, check_stops, each_exec, exec, random};

    /// The determinant by expansion along the first row.
    fn expanded(n: usize, a: &[f64]) -> f64 {
        if n == 0 {
            return 1.0;
        }
        let minor = |c: usize| -> Vec<f64> {
            let rows = a[n..].chunks(n);
            rows.flat_map(|row| row.iter().enumerate().filter(|(j, _)| *j != c))
                .map(|(_, x)| *x)
                .collect()
        };
        let sign = |c: usize| if c.is_multiple_of(2) { 1.0 } else { -1.0 };
        (0..n)
            .map(|c| sign(c) * a[c] * expanded(n - 1, &minor(c)))
            .sum()
    }

    #[test]
    fn determinants_are_those_of_an_expansion() {
        for n in 0..7 {
            let a = random::<f64>(5 * n * n, 1.0, n as u64);
            let mut y = vec![0.0; 5];
            det(&exec(), n, &mut a.clone(), &mut y).unwrap();
            for (i, y) in y.iter().enumerate() {
                let want = expanded(n, &a[i * n * n..][..n * n]);
                assert!((y - want).abs() < 1e-13, "{y} for {want}");
            }
        }
        let (mut singular, mut y) = ([1.0, 2.0, 2.0, 4.0], [7.0]);
        det(&exec(), 2, &mut singular, &mut y).unwrap();
        assert_eq!(y, [0.0]);
        for at in 0..4 {
            let mut a = [0.0; 4];
            a[at] = f64::NAN;
            det(&exec(), 2, &mut a, &mut y).unwrap();
            assert!(y[0].is_nan(), "{at}");
        }
    }

    #[test]
    fn matrices_of_any_size_may_be_none() {
        det::<f32>(&exec(), 1 << 32, &mut [], &mut []).unwrap();
    }

    #[test]
    fn threads_change_no_bit_and_a_large_matrix_stops() {
        let a = random::<f32>(40 * 30 * 30, 1.0, 1);
        let mut want = vec![0.0; 40];
        det(&exec(), 30, &mut a.clone(), &mut want).unwrap();
        each_exec(|exec| {
            let mut y = vec![0.0; 40];
            det(exec, 30, &mut a.clone(), &mut y).unwrap();
            assert_eq!(bits(&y), bits(&want));
        });
        let a = random::<f32>(200 * 200, 1.0, 2);
        check_stops(|exec| det(exec, 200, &mut a.clone(), &mut [0.0]));
    }
}
