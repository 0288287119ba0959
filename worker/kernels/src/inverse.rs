//! Inverses of square matrices, by elimination with the greatest pivot of each column.

use crate::Exec;
use crate::compiled::compiled;
use crate::elimination::{CancelChecks, ELEMENTS, fill, holds_nan, pivot, swap_rows};
use crate::error::Result;
use crate::math::Real;
use crate::multiversion::multiversion;
use crate::split::tiles2;

fn inverse_any<W: Real>(exec: &Exec, n: usize, work: &mut [W], y: &mut [W]) -> Result {
    // Where there is no matrix, `n * n` may be any number.
    if n == 0 || y.is_empty() {
        return Ok(exec.check()?);
    }
    let size = n * n;
    let grain = (ELEMENTS / size).max(1);
    let matrices = y.len() / size;
    tiles2(
        exec,
        (y, size),
        (work, size),
        matrices,
        grain,
        |_, y, work| {
            for (y, a) in y.chunks_exact_mut(size).zip(work.chunks_exact_mut(size)) {
                if invert(exec, n, a, y).is_none() {
                    return;
                }
            }
        },
    )?;
    Ok(exec.check()?)
}

/// Writes the inverse of `a` to `y`; `None` where the step was cancelled.
fn invert<W: Real>(exec: &Exec, n: usize, a: &mut [W], y: &mut [W]) -> Option<()> {
    // What a NaN reaches would depend on the pivots.
    if holds_nan(exec, a)? {
        return fill(exec, y, W::NAN);
    }
    eliminate(exec, n, a, y)?;
    substitute(exec, n, a, y)
}

multiversion! {
    /// Subtracts from the rows of `below` the multiples of `top` that make their elements `k` zero, and from the rows of
    /// `right` the same multiples of `right_top`.
    fn subtract<W: Real>(top: &[W], below: &mut [W], right_top: &[W], right: &mut [W], n: usize, k: usize) {
        for (row, right) in below.chunks_exact_mut(n).zip(right.chunks_exact_mut(n)) {
            let row = &mut row[k..];
            let factor = -(row[0] / top[0]);
            for (x, t) in row.iter_mut().zip(top) {
                *x = Real::mul_add(factor, *t, *x);
            }
            for (x, t) in right.iter_mut().zip(right_top) {
                *x = Real::mul_add(factor, *t, *x);
            }
        }
    }
}

multiversion! {
    /// Subtracts from `row` each of `rows` times its factor.
    fn subtract_from<W: Real>(row: &mut [W], factors: &[W], rows: &[W]) {
        for (factor, other) in factors.iter().zip(rows.chunks_exact(row.len())) {
            for (x, t) in row.iter_mut().zip(other) {
                *x = Real::mul_add(-*factor, *t, *x);
            }
        }
    }
}

/// Makes `a` an upper triangle, and `y` the product of the steps that do so; `None` where the step was cancelled.
fn eliminate<W: Real>(exec: &Exec, n: usize, a: &mut [W], y: &mut [W]) -> Option<()> {
    fill(exec, y, W::ZERO)?;
    for k in 0..n {
        y[k * n + k] = W::ONE;
    }
    let rows = (ELEMENTS / n).max(1);
    let mut checks = CancelChecks::default();
    for k in 0..n {
        let pivot = pivot(a, n, k);
        if pivot != k {
            swap_rows(a, n, k, pivot);
            swap_rows(y, n, k, pivot);
        }
        let (above, below) = a.split_at_mut((k + 1) * n);
        let (right_above, right) = y.split_at_mut((k + 1) * n);
        let (top, right_top) = (&above[k * n + k..], &right_above[k * n..]);
        // Below a pivot of zero there are zeros only.
        if top[0] == W::ZERO {
            continue;
        }
        let parts = below.chunks_mut(rows * n).zip(right.chunks_mut(rows * n));
        for (part, right) in parts {
            subtract(top, part, right_top, right, n, k);
            checks.computed(exec, 2 * part.len())?;
        }
    }
    Some(())
}

/// Multiplies `y` by the inverse of the upper triangle `a`, from the last row on; `None` where the step was cancelled.
fn substitute<W: Real>(exec: &Exec, n: usize, a: &[W], y: &mut [W]) -> Option<()> {
    let rows = (ELEMENTS / n).max(1);
    let mut checks = CancelChecks::default();
    for k in (0..n).rev() {
        let (above, below) = y.split_at_mut((k + 1) * n);
        let row = &mut above[k * n..];
        let (diagonal, factors) = (a[k * n + k], &a[k * n + k + 1..(k + 1) * n]);
        for (factors, others) in factors.chunks(rows).zip(below.chunks(rows * n)) {
            subtract_from(row, factors, others);
            checks.computed(exec, others.len())?;
        }
        for x in row {
            *x = *x / diagonal;
        }
    }
    Some(())
}

compiled! {
    /// Inverses of one type.
    trait InverseKernels for [f32, f64] {
        fn inverses(exec: &Exec, n: usize, work: &mut [Self], y: &mut [Self]) = inverse_any;
    }
}

/// The inverses y of the `[n, n]` matrices in `work`, which are overwritten. A pivot of zero is divided by as it is, which makes
/// elements that are not finite; rounding may hide that a matrix is singular. All elements are NaN where one of the matrix is.
pub fn inverse<W: InverseKernels>(exec: &Exec, n: usize, work: &mut [W], y: &mut [W]) -> Result {
    W::inverses(exec, n, work, y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{bits, check_stops, each_exec, exec, random};

    #[test]
    fn a_matrix_times_its_inverse_is_the_identity() {
        for n in 0..9 {
            let a = random::<f64>(5 * n * n, 1.0, n as u64);
            let mut y = vec![0.0; a.len()];
            inverse(&exec(), n, &mut a.clone(), &mut y).unwrap();
            let size = (n * n).max(1);
            for (a, y) in a.chunks(size).zip(y.chunks(size)) {
                for (row, column) in (0..n).flat_map(|r| (0..n).map(move |c| (r, c))) {
                    let got: f64 = (0..n).map(|k| a[row * n + k] * y[k * n + column]).sum();
                    let want = f64::from(u8::from(row == column));
                    assert!((got - want).abs() < 1e-11, "{got} for {want}");
                }
            }
        }
    }

    #[test]
    fn rows_are_swapped_and_singular_matrices_have_no_finite_inverse() {
        let mut y = [7.0f64; 4];
        inverse(&exec(), 2, &mut [0.0, 1.0, f64::NAN, 1.0], &mut y).unwrap();
        assert_eq!(bits(&y), bits(&[f64::NAN; 4]));
        inverse(&exec(), 2, &mut [0.0, 2.0, 4.0, 0.0], &mut y).unwrap();
        assert_eq!(y, [0.0, 0.25, 0.5, 0.0]);
        // These are the results of ONNX Runtime.
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        for (mut singular, want) in [
            ([1.0, 2.0, 2.0, 4.0], [-inf, inf, inf, -inf]),
            ([0.0; 4], [nan, nan, nan, inf]),
        ] {
            inverse(&exec(), 2, &mut singular, &mut y).unwrap();
            assert_eq!(format!("{y:?}"), format!("{want:?}"));
        }
    }

    #[test]
    fn matrices_of_any_size_may_be_none() {
        inverse::<f32>(&exec(), 1 << 32, &mut [], &mut []).unwrap();
    }

    #[test]
    fn threads_change_no_bit_and_a_large_matrix_stops() {
        let a = random::<f32>(40 * 30 * 30, 1.0, 1);
        let mut want = vec![0.0; a.len()];
        inverse(&exec(), 30, &mut a.clone(), &mut want).unwrap();
        each_exec(|exec| {
            let mut y = vec![0.0; a.len()];
            inverse(exec, 30, &mut a.clone(), &mut y).unwrap();
            assert_eq!(bits(&y), bits(&want));
        });
        let a = random::<f32>(200 * 200, 1.0, 2);
        check_stops(|exec| inverse(exec, 200, &mut a.clone(), &mut vec![0.0; a.len()]));
    }
}
