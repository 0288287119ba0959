//! `CumSum` and `CumProd`.

use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::{Number, canonical_nan};
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::shape::Axis;
use crate::split::{PIECE, pieces, tiles, units_per_tile};

/// Number of adjacent columns that are accumulated together: their totals stay in the first-level cache, and each step reads
/// one piece of memory.
const COLUMNS: usize = 1024;

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

/// How a total takes in one more element.
trait Accumulate<W>: Copy + Sync {
    /// The total of no elements.
    const NONE: W;
    fn step(self, total: W, x: W) -> W;
}

#[derive(Clone, Copy)]
struct Sums;

impl<W: Number> Accumulate<W> for Sums {
    const NONE: W = W::ZERO;
    #[inline(always)]
    fn step(self, total: W, x: W) -> W {
        W::add(total, x)
    }
}

#[derive(Clone, Copy)]
struct Products;

impl<W: Number> Accumulate<W> for Products {
    const NONE: W = W::ONE;
    #[inline(always)]
    fn step(self, total: W, x: W) -> W {
        W::mul(total, x)
    }
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
        Running::Sum => cumulate_by(exec, Sums, x, axis, covered, y),
        Running::Product => cumulate_by(exec, Products, x, axis, covered, y),
    }
}

/// One step of adjacent columns.
#[inline(always)]
fn row<T: Number, A: Accumulate<T::Wide>>(
    by: A,
    exclusive: bool,
    x: &[T],
    totals: &mut [T::Wide],
    y: &mut [T],
) {
    let n = totals.len();
    let (x, y) = (&x[..n], &mut y[..n]);
    for i in 0..n {
        let before = totals[i];
        totals[i] = by.step(before, x[i].widen());
        let covered = if exclusive { before } else { totals[i] };
        y[i] = T::narrow(canonical_nan(covered));
    }
}

/// The whole of one column whose elements are adjacent.
#[inline(always)]
fn line<T: Number, A: Accumulate<T::Wide>>(
    exec: &Exec,
    by: A,
    x: &[T],
    covered: Covered,
    y: &mut [T],
) {
    let n = x.len();
    let y = &mut y[..n];
    let mut total = A::NONE;
    for piece in pieces(exec, n, PIECE) {
        for k in piece {
            let k = if covered.reverse { n - 1 - k } else { k };
            let before = total;
            total = by.step(before, x[k].widen());
            let covered = if covered.exclusive { before } else { total };
            y[k] = T::narrow(canonical_nan(covered));
        }
    }
}

multiversion! {
    fn columns<T: Number, A: Accumulate<<T as Number>::Wide>>(
        exec: &Exec, by: A, x: &[T], axis: Axis, covered: Covered, y: &mut [T],
    ) {
        let unit = axis.len * axis.inner;
        if axis.inner == 1 {
            for (x, y) in x.chunks_exact(unit).zip(y.chunks_exact_mut(unit)) {
                line(exec, by, x, covered, y);
            }
            return;
        }
        let mut totals = [A::NONE; COLUMNS];
        let mut at = 0;
        while at < y.len() {
            let mut first = at;
            while first < at + axis.inner {
                let left = at + axis.inner - first;
                let totals = &mut totals[..if left < COLUMNS { left } else { COLUMNS }];
                totals.fill(A::NONE);
                for piece in pieces(exec, axis.len, PIECE / COLUMNS) {
                    for k in piece {
                        let k = if covered.reverse { axis.len - 1 - k } else { k };
                        let from = first + k * axis.inner;
                        // The test is outside the loop.
                        match covered.exclusive {
                            true => row(by, true, &x[from..], totals, &mut y[from..]),
                            false => row(by, false, &x[from..], totals, &mut y[from..]),
                        }
                    }
                }
                first += totals.len();
            }
            at += unit;
        }
    }
}

fn cumulate_by<T: Number, A: Accumulate<T::Wide>>(
    exec: &Exec,
    by: A,
    x: &[T],
    axis: Axis,
    covered: Covered,
    y: &mut [T],
) -> Result {
    assert!(
        x.len() == axis.count() && y.len() == axis.count(),
        "{axis:?}"
    );
    let unit = axis.len * axis.inner;
    let grain = units_per_tile(unit);
    tiles(exec, y, unit, grain, |range, part| {
        columns(
            exec,
            by,
            &x[range.start * unit..range.end * unit],
            axis,
            covered,
            part,
        )
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
