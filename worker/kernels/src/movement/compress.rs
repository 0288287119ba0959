//! Operators whose output size depends on the data: `NonZero`, `Compress`. The caller counts first, then a kernel fills
//! the output.

use crate::Exec;
use crate::compiled::{compiled_bits, compiled_numbers};
use crate::element::{Bits, Number};
use crate::error::Result;
use crate::shape::{Axis, MAX_RANK, check_rank, count};
use crate::split::{Finished, GRAIN, PIECE, Pace, tiles, units_per_tile};

fn nonzero_any<T: Number>(exec: &Exec, x: &[T], shape: &[usize], y: &mut [i64]) -> Result {
    check_rank(shape)?;
    assert_eq!(x.len(), count(shape), "{shape:?}");
    let rank = shape.len();
    let n = y.len().checked_div(rank).unwrap_or(0);
    let mut index = [0usize; MAX_RANK];
    let mut found = 0;
    for (at, &x) in x.iter().enumerate() {
        if at.is_multiple_of(GRAIN) {
            exec.check()?;
        }
        if x != T::ZERO && rank > 0 {
            assert!(found < n, "room for {n} positions");
            for axis in 0..rank {
                y[axis * n + found] = index[axis] as i64;
            }
            found += 1;
        }
        for axis in (0..rank).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    assert_eq!(found * rank, y.len(), "positions");
    Ok(())
}

fn compress_any<T: Bits>(
    exec: &Exec,
    x: &[T],
    axis: Axis,
    condition: &[u8],
    y: &mut [T],
) -> Result {
    let Axis { outer, len, inner } = axis;
    assert!(
        x.len() == axis.count() && condition.len() <= len,
        "{axis:?}"
    );
    let kept = count_nonzero(exec, condition)?;
    assert_eq!(y.len(), outer * kept * inner, "{kept} of {axis:?}");
    let unit = kept * inner;
    let grain = units_per_tile(unit.max(condition.len()));
    tiles(exec, y, unit, grain, |range, part| {
        let pace = &mut Pace::new(exec, PIECE);
        for (o, y) in range.zip(part.chunks_mut(unit)) {
            let x = &x[o * len * inner..(o + 1) * len * inner];
            if compress_one(pace, x, inner, condition, y).is_err() {
                return;
            }
        }
    })?;
    Ok(exec.check()?)
}

/// Copies the chosen ones of the slices of `inner` elements that lie in `x`.
fn compress_one<T: Bits>(
    pace: &mut Pace,
    x: &[T],
    inner: usize,
    condition: &[u8],
    y: &mut [T],
) -> Finished {
    let mut rest = y.chunks_mut(inner);
    for (number, some) in condition.chunks(PIECE).enumerate() {
        pace.count(some.len())?;
        let chosen = some.iter().enumerate().filter(|(_, c)| **c != 0);
        for ((k, _), y) in chosen.zip(&mut rest) {
            let from = (number * PIECE + k) * inner;
            let x = &x[from..from + inner];
            if let ([x], [y]) = (x, &mut *y) {
                *y = *x;
                continue;
            }
            for (x, y) in x.chunks(PIECE).zip(y.chunks_mut(PIECE)) {
                pace.count(x.len())?;
                y.copy_from_slice(x);
            }
        }
    }
    Ok(())
}

compiled_numbers! {
    /// `NonZero` on elements of one type.
    trait NonZeroKernels {
        fn nonzero(exec: &Exec, x: &[Self], shape: &[usize], y: &mut [i64]) = nonzero_any;
    }
}

compiled_bits! {
    /// Selection of elements of one size.
    trait CompressKernels {
        fn compress(exec: &Exec, x: &[Self], axis: Axis, condition: &[u8], y: &mut [Self]) = compress_any;
    }
}

/// Returns how many elements are not zero.
pub fn count_nonzero<T: Number>(exec: &Exec, x: &[T]) -> Result<usize> {
    let mut found = 0;
    for x in x.chunks(PIECE) {
        exec.check()?;
        found += x.iter().filter(|&&x| x != T::ZERO).count();
    }
    Ok(found)
}

/// Writes the positions of the elements that are not zero to `y` of shape `[rank, count_nonzero(x)]`. For a scalar the
/// caller passes the shape `[1]`.
pub fn nonzero<T: Number>(exec: &Exec, x: &[T], shape: &[usize], y: &mut [i64]) -> Result {
    T::nonzero(exec, x, shape, y)
}

/// Copies the slices of `x` along `axis` for which `condition` is true; entries that a short condition lacks are false.
/// For `Compress` without an axis the caller passes `x` as `[1, n, 1]`.
pub fn compress<T: Bits>(
    exec: &Exec,
    x: &[T],
    axis: Axis,
    condition: &[u8],
    y: &mut [T],
) -> Result {
    T::compress(exec, x, axis, condition, y)
}
