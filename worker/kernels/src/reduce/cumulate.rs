//! `CumSum` and `CumProd`.

use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::{Number, canonical_nan};
use crate::error::Result;
use crate::shape::Axis;
use crate::split::{PIECE, pieces, tiles, units_per_tile};

/// Number of adjacent columns that are accumulated together.
const COLUMNS: usize = 64;

/// What is accumulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Running {
    Sum,
    Product,
}

/// The elements that a running sum or product covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Covered {
    /// Whether the element itself is left out.
    pub exclusive: bool,
    /// Whether elements are accumulated from the end.
    pub reverse: bool,
}

fn cumulate_any<T: Number>(
    exec: &Exec,
    running: Running,
    x: &[T],
    axis: Axis,
    covered: Covered,
    y: &mut [T],
) -> Result {
    match running {
        Running::Sum => cumulate_by(exec, x, axis, covered, y, T::Wide::ZERO, T::Wide::add),
        Running::Product => cumulate_by(exec, x, axis, covered, y, T::Wide::ONE, T::Wide::mul),
    }
}

fn cumulate_by<T: Number>(
    exec: &Exec,
    x: &[T],
    axis: Axis,
    covered: Covered,
    y: &mut [T],
    none: T::Wide,
    step: impl Fn(T::Wide, T::Wide) -> T::Wide + Sync,
) -> Result {
    assert!(
        x.len() == axis.count() && y.len() == axis.count(),
        "{axis:?}"
    );
    let unit = axis.len * axis.inner;
    let grain = units_per_tile(unit);
    tiles(exec, y, unit, grain, |range, part| {
        let x = &x[range.start * unit..range.end * unit];
        for (x, y) in x.chunks(unit).zip(part.chunks_mut(unit)) {
            for first in (0..axis.inner).step_by(COLUMNS) {
                let width = COLUMNS.min(axis.inner - first);
                let mut totals = [none; COLUMNS];
                for k in pieces(exec, axis.len, PIECE / COLUMNS).flatten() {
                    let k = if covered.reverse { axis.len - 1 - k } else { k };
                    let at = k * axis.inner + first;
                    let columns = x[at..at + width].iter().zip(&mut y[at..at + width]);
                    for ((x, y), total) in columns.zip(&mut totals) {
                        let before = *total;
                        *total = step(before, x.widen());
                        let covered = if covered.exclusive { before } else { *total };
                        *y = T::narrow(canonical_nan(covered));
                    }
                }
            }
        }
    })?;
    Ok(exec.check()?)
}

compiled_numbers! {
    /// Running sums and products of a type.
    trait CumulateKernels {
        fn cumulate(exec: &Exec, running: Running, x: &[Self], axis: Axis, covered: Covered, y: &mut [Self]) = cumulate_any;
    }
}

/// Computes running sums or products along `axis`. Each column is one chain; `f16` and `bf16` accumulate in `f32`.
pub fn cumulate<T: Number>(
    exec: &Exec,
    running: Running,
    x: &[T],
    axis: Axis,
    covered: Covered,
    y: &mut [T],
) -> Result {
    T::cumulate(exec, running, x, axis, covered, y)
}
