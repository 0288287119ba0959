//! `ArgMax` and `ArgMin`.

use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::Number;
use crate::error::Result;
use crate::multiversion::multiversion;
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
            if axis.inner == 1 {
                *y = best_of_row(exec, extreme, select_last, &x[..axis.len]);
                continue;
            }
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

/// Elements that are looked at together.
const WIDTH: usize = 64;

/// The position of the extreme of a row: its value is found first, and then where it is.
fn best_of_row<T: Number>(exec: &Exec, extreme: Extreme, last: bool, x: &[T]) -> i64 {
    let (value, nans) = extreme_value(exec, extreme, x);
    let found = match nans {
        true => nan_position(exec, Axis::of(&[x.len()], 0), x, last),
        false => position(exec, value, last, x),
    };
    // Only a cancelled step finds nothing.
    found.unwrap_or(0)
}

multiversion! {
    /// The extreme of a row, and whether the row has a NaN, with which the extreme may be any number.
    fn extreme_value<T: Number>(exec: &Exec, extreme: Extreme, x: &[T]) -> (T::Wide, bool) {
        // The test is outside the loops.
        match extreme {
            Extreme::Max => extreme_by(exec, x, true),
            Extreme::Min => extreme_by(exec, x, false),
        }
    }
}

#[inline(always)]
fn better<W: PartialOrd>(largest: bool, a: W, b: W) -> bool {
    if largest { a > b } else { a < b }
}

#[inline(always)]
fn extreme_by<T: Number>(exec: &Exec, x: &[T], largest: bool) -> (T::Wide, bool) {
    let mut best = [x[0].widen(); WIDTH];
    let mut nans = [false; WIDTH];
    let whole = x.len() / WIDTH * WIDTH;
    for piece in pieces(exec, whole, PIECE) {
        for c in piece.step_by(WIDTH) {
            let x = &x[c..c + WIDTH];
            for l in 0..WIDTH {
                let x = x[l].widen();
                best[l] = if better(largest, x, best[l]) {
                    x
                } else {
                    best[l]
                };
                nans[l] |= x.is_nan();
            }
        }
    }
    for (l, x) in x[whole..].iter().enumerate() {
        let x = x.widen();
        best[l] = if better(largest, x, best[l]) {
            x
        } else {
            best[l]
        };
        nans[l] |= x.is_nan();
    }
    let mut all = best[0];
    for l in 1..WIDTH {
        all = if better(largest, best[l], all) {
            best[l]
        } else {
            all
        };
    }
    (all, nans.contains(&true))
}

multiversion! {
    fn has<T: Number>(value: T::Wide, x: &[T]) -> bool {
        let mut any = false;
        for i in 0..x.len() {
            any |= x[i].widen() == value;
        }
        any
    }
}

/// The first or last position of a value in a row.
fn position<T: Number>(exec: &Exec, value: T::Wide, last: bool, x: &[T]) -> Option<i64> {
    const BLOCK: usize = 16 * WIDTH;
    let blocks = x.len().div_ceil(BLOCK);
    for i in pieces(exec, blocks, PIECE / BLOCK).flatten() {
        let start = BLOCK * if last { blocks - 1 - i } else { i };
        let block = &x[start..x.len().min(start + BLOCK)];
        if !has(value, block) {
            continue;
        }
        let mut at = 0..block.len();
        let is = |k: &usize| block[*k].widen() == value;
        let at = if last { at.rfind(is) } else { at.find(is) };
        return at.map(|k| (start + k) as i64);
    }
    None
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
