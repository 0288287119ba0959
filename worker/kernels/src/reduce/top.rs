//! `TopK`: a heap of the best `k`, kept in the outputs themselves.

use super::Extreme;
use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::Number;
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::shape::Axis;
use crate::split::{Finished, GRAIN, PIECE, Pace, tiles2};
use std::ops::Range;

/// Adjacent elements that are compared with the worst of the best at once: most are worse.
const CHUNK: usize = 64;
/// Moves in heaps between two checks of the cancel flag, each of which may read memory in several places.
const MOVES: usize = PIECE / 4;

multiversion! {
    /// Whether any element may come before one of value `worst` that lies before it.
    fn any_beyond<T: Number>(extreme: Extreme, worst: T::Wide, x: &[T]) -> bool {
        let mut any = worst.is_nan();
        match extreme {
            Extreme::Max => for i in 0..x.len() {
                let x = x[i].widen();
                any |= (x > worst) | x.is_nan();
            },
            Extreme::Min => for i in 0..x.len() {
                any |= x[i].widen() < worst;
            },
        }
        any
    }
}

/// A heap of the best elements of one column, which lie strided in the outputs. The root is the worst of them.
struct Heap<'a, T> {
    values: &'a mut [T],
    indices: &'a mut [i64],
    step: usize,
    extreme: Extreme,
}

impl<T: Number> Heap<'_, T> {
    /// Whether `(a, i)` comes before `(b, j)` in the strict order of results. NaN counts as the largest value; equal
    /// values are ordered by index.
    #[inline(always)]
    fn before(&self, (a, i): (T, i64), (b, j): (T, i64)) -> bool {
        let (a, b) = (a.rank(), b.rank());
        let (low, high) = if self.extreme == Extreme::Max {
            (b, a)
        } else {
            (a, b)
        };
        low < high || (low == high && i < j)
    }

    fn get(&self, at: usize) -> (T, i64) {
        (self.values[at * self.step], self.indices[at * self.step])
    }

    fn set(&mut self, at: usize, (value, index): (T, i64)) {
        self.values[at * self.step] = value;
        self.indices[at * self.step] = index;
    }

    /// Moves the entry at `at` down until both children come before it.
    fn sift(&mut self, mut at: usize, len: usize) {
        let entry = self.get(at);
        loop {
            let mut child = 2 * at + 1;
            if child >= len {
                break;
            }
            if child + 1 < len && self.before(self.get(child), self.get(child + 1)) {
                child += 1;
            }
            if !self.before(entry, self.get(child)) {
                break;
            }
            let moved = self.get(child);
            self.set(at, moved);
            at = child;
        }
        self.set(at, entry);
    }

    /// Takes in those of some elements that come before the worst of the best `k`.
    fn offer(&mut self, pace: &mut Pace, k: usize, column: &[T], some: Range<usize>) -> Finished {
        let levels = levels(k);
        let mut worst = self.get(0).0.rank();
        for i in some {
            let value = column[i * self.step];
            // Elements of the heap lie before this one, so it does not come before an equal one.
            let comes_before = match self.extreme {
                Extreme::Max => value.rank() > worst,
                Extreme::Min => value.rank() < worst,
            };
            if comes_before {
                pace.count(levels)?;
                self.set(0, (value, i as i64));
                self.sift(0, k);
                worst = self.get(0).0.rank();
            }
        }
        Ok(())
    }

    /// Keeps the best `k` of a column of `len` elements, best first.
    fn fill(&mut self, pace: &mut Pace, k: usize, len: usize, column: &[T]) -> Finished {
        let levels = levels(k);
        for i in 0..k {
            pace.count(1)?;
            self.set(i, (column[i * self.step], i as i64));
        }
        for at in (0..k / 2).rev() {
            pace.count(levels)?;
            self.sift(at, k);
        }
        for start in (k..len).step_by(CHUNK) {
            let chunk = start..len.min(start + CHUNK);
            pace.count(chunk.len())?;
            if self.step > 1
                || any_beyond(self.extreme, self.get(0).0.widen(), &column[chunk.clone()])
            {
                self.offer(pace, k, column, chunk)?;
            }
        }
        for len in (1..k).rev() {
            pace.count(levels)?;
            let (worst, last) = (self.get(0), self.get(len));
            self.set(len, worst);
            self.set(0, last);
            self.sift(0, len);
        }
        Ok(())
    }
}

/// The levels of a heap of `k` elements, of which there are some.
fn levels(k: usize) -> usize {
    k.ilog2() as usize + 1
}

fn top_k_any<T: Number>(
    exec: &Exec,
    extreme: Extreme,
    x: &[T],
    axis: Axis,
    k: usize,
    values: &mut [T],
    indices: &mut [i64],
) -> Result {
    let unit = k * axis.inner;
    assert!(
        x.len() == axis.count() && k <= axis.len,
        "top {k} of {axis:?}"
    );
    assert!(
        values.len() == axis.outer * unit && indices.len() == values.len(),
        "top {k} of {axis:?}"
    );
    if unit == 0 {
        return Ok(exec.check()?);
    }
    let grain = (GRAIN / (axis.len * axis.inner)).max(1);
    tiles2(
        exec,
        (values, unit),
        (indices, unit),
        axis.outer,
        grain,
        |range, values, indices| {
            let mut pace = Pace::new(exec, MOVES);
            for (o, (values, indices)) in
                range.zip(values.chunks_mut(unit).zip(indices.chunks_mut(unit)))
            {
                for i in 0..axis.inner {
                    let column = &x[o * axis.len * axis.inner + i..];
                    let (values, indices) = (&mut values[i..], &mut indices[i..]);
                    let mut heap = Heap {
                        values,
                        indices,
                        step: axis.inner,
                        extreme,
                    };
                    if heap.fill(&mut pace, k, axis.len, column).is_err() {
                        return;
                    }
                }
            }
        },
    )?;
    Ok(exec.check()?)
}

compiled_numbers! {
    /// `TopK` on elements of one type.
    trait TopKernels {
        fn top_k(exec: &Exec, extreme: Extreme, x: &[Self], axis: Axis, k: usize, values: &mut [Self], indices: &mut [i64]) = top_k_any;
    }
}

/// Writes the `k` most extreme elements along `axis` (`k <= axis.len`), most extreme first, equal ones by ascending
/// index. The outputs have `k` in place of `axis.len`. NaN counts as the largest value.
pub fn top_k<T: Number>(
    exec: &Exec,
    extreme: Extreme,
    x: &[T],
    axis: Axis,
    k: usize,
    values: &mut [T],
    indices: &mut [i64],
) -> Result {
    T::top_k(exec, extreme, x, axis, k, values, indices)
}
