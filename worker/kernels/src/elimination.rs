//! What determinants and inverses share: the elimination of a column of a square matrix, row-major, by its greatest pivot.

use crate::Exec;
use crate::math::Real;

/// Elements between two checks of the cancel flag.
pub(crate) const ELEMENTS: usize = 1 << 14;

/// The row, from row `k` on, whose element in column `k` is the greatest; the first of several.
pub(crate) fn pivot<W: Real>(a: &[W], n: usize, k: usize) -> usize {
    let mut pivot = k;
    for row in k + 1..n {
        if Real::abs(a[row * n + k]) > Real::abs(a[pivot * n + k]) {
            pivot = row;
        }
    }
    pivot
}

/// Swaps row `k` with a later one.
pub(crate) fn swap_rows<W>(a: &mut [W], n: usize, k: usize, later: usize) {
    let (above, below) = a.split_at_mut(later * n);
    above[k * n..][..n].swap_with_slice(&mut below[..n]);
}

/// Whether a matrix holds a NaN; `None` where the step was cancelled.
pub(crate) fn holds_nan<W: Real>(exec: &Exec, a: &[W]) -> Option<bool> {
    let mut any = false;
    for a in a.chunks(ELEMENTS) {
        exec.check().ok()?;
        any |= a.iter().any(|x| Real::is_nan(*x));
    }
    Some(any)
}

/// Fills a matrix with one value; `None` where the step was cancelled.
pub(crate) fn fill<W: Real>(exec: &Exec, y: &mut [W], value: W) -> Option<()> {
    for y in y.chunks_mut(ELEMENTS) {
        exec.check().ok()?;
        y.fill(value);
    }
    Some(())
}

/// Counts elements, and looks at the cancel flag after every [`ELEMENTS`] of them.
#[derive(Default)]
pub(crate) struct CancelChecks {
    since: usize,
}

impl CancelChecks {
    /// Counts elements that are computed; `None` where the step was cancelled.
    pub(crate) fn computed(&mut self, exec: &Exec, elements: usize) -> Option<()> {
        self.since += elements;
        if self.since < ELEMENTS {
            return Some(());
        }
        self.since = 0;
        exec.check().ok()
    }
}
