//! `ArgMax` and `ArgMin`.

use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::Number;
use crate::error::Result;
use crate::shape::Axis;
use crate::split::{GRAIN, PIECE, pieces, tiles};

/// The end of the order that is searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extreme {
    /// The largest.
    Max,
    /// The smallest.
    Min,
}
fn arg_extreme_any<T: Number>(
    exec: &Exec,
    extreme: Extreme,
    x: &[T],
    axis: Axis,
    select_last: bool,
    y: &mut [i64],
) -> Result {
    assert!(
        x.len() == axis.count() && y.len() == axis.outer * axis.inner,
        "{axis:?}"
    );
    assert!(axis.len > 0 || y.is_empty(), "no elements to choose from");
    let grain = (GRAIN / axis.len.max(1)).max(1);
    tiles(exec, y, 1, grain, |range, part| {
        for (flat, y) in range.zip(part) {
            let (o, i) = (flat / axis.inner, flat % axis.inner);
            let x = &x[o * axis.len * axis.inner + i..];
            *y = match (extreme, select_last) {
                (Extreme::Max, false) => best(exec, axis, x, |x, best| x > best),
                (Extreme::Max, true) => best(exec, axis, x, |x, best| x >= best),
                (Extreme::Min, false) => best(exec, axis, x, |x, best| x < best),
                (Extreme::Min, true) => best(exec, axis, x, |x, best| x <= best),
            };
            if let Some(nan) = nan_position(exec, axis, x, select_last) {
                *y = nan;
            }
        }
    })?;
    Ok(exec.check()?)
}

fn best<T: Number>(exec: &Exec, axis: Axis, x: &[T], better: impl Fn(T, T) -> bool) -> i64 {
    let (mut at, mut best) = (0, x[0]);
    for piece in pieces(exec, axis.len, PIECE) {
        for k in piece {
            let x = x[k * axis.inner];
            // Comparing the first element with itself changes nothing, so the loop needs no special start.
            if better(x, best) {
                (at, best) = (k, x);
            }
        }
    }
    at as i64
}

fn nan_position<T: Number>(exec: &Exec, axis: Axis, x: &[T], last: bool) -> Option<i64> {
    if T::INTEGER {
        return None;
    }
    let mut found = None;
    for piece in pieces(exec, axis.len, PIECE) {
        let mut nans = piece.filter(|k| x[k * axis.inner].is_nan());
        let nan = if last { nans.next_back() } else { nans.next() };
        found = nan.map(|k| k as i64).or(found);
        if found.is_some() && !last {
            break;
        }
    }
    found
}

compiled_numbers! {
    /// Positions of extremes in a type.
    trait ArgKernels {
        fn arg_extreme(exec: &Exec, extreme: Extreme, x: &[Self], axis: Axis, select_last: bool, y: &mut [i64]) = arg_extreme_any;
    }
}

/// Writes the position of the extreme along `axis`, the first or the last among equals, to `y` of `outer * inner`
/// elements. NaN is more extreme than any number. `axis.len` is at least 1 unless `y` is empty.
pub fn arg_extreme<T: Number>(
    exec: &Exec,
    extreme: Extreme,
    x: &[T],
    axis: Axis,
    select_last: bool,
    y: &mut [i64],
) -> Result {
    T::arg_extreme(exec, extreme, x, axis, select_last, y)
}
