//! `ArgMax` and `ArgMin`.

use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::Number;
use crate::error::Result;
use crate::shape::Axis;
use crate::split::{GRAIN, tiles};

/// Which end of the order.
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
    Ok(tiles(exec, y, 1, grain, |range, part| {
        for (flat, y) in range.zip(part) {
            let (o, i) = (flat / axis.inner, flat % axis.inner);
            let column = x[o * axis.len * axis.inner + i..]
                .iter()
                .step_by(axis.inner)
                .take(axis.len);
            *y = match (extreme, select_last) {
                (Extreme::Max, false) => best(column, |x, best| x > best),
                (Extreme::Max, true) => best(column, |x, best| x >= best),
                (Extreme::Min, false) => best(column, |x, best| x < best),
                (Extreme::Min, true) => best(column, |x, best| x <= best),
            };
            if let Some(nan) = nan_position(&x[o * axis.len * axis.inner + i..], axis, select_last)
            {
                *y = nan;
            }
        }
    })?)
}

fn best<'a, T: Number>(column: impl Iterator<Item = &'a T>, better: impl Fn(T, T) -> bool) -> i64 {
    let mut column = column.enumerate();
    let Some((mut at, &first)) = column.next() else {
        return 0;
    };
    let mut best = first;
    for (k, &x) in column {
        if better(x, best) {
            (at, best) = (k, x);
        }
    }
    at as i64
}

fn nan_position<T: Number>(x: &[T], axis: Axis, last: bool) -> Option<i64> {
    if T::INTEGER {
        return None;
    }
    let mut nans = (0..axis.len).filter(|k| x[k * axis.inner].is_nan());
    let at = if last { nans.next_back() } else { nans.next() };
    at.map(|k| k as i64)
}

compiled_numbers! {
    /// Positions of extremes in a type.
    trait ArgKernels {
        fn arg_extreme(exec: &Exec, extreme: Extreme, x: &[Self], axis: Axis, select_last: bool, y: &mut [i64]) = arg_extreme_any;
    }
}

/// Position of the extreme along `axis`, the first or the last of equals, into `y` of `outer * inner` elements. NaN
/// is more extreme than any number. `axis.len` is at least one unless `y` is empty.
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
