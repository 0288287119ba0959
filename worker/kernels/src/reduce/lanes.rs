//! The loops of a reduction: by rows where the innermost axis is reduced, by columns otherwise.

use crate::Exec;
use crate::element::Number;
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::shape::{MAX_RANK, Walk, check_rank, count, strides};
use crate::split::{GRAIN, PIECE, tiles};
use std::ops::Range;

/// Virtual lanes of every reduction.
pub(crate) const LANES: usize = 16;

/// Columns whose lanes are kept on the stack together, in the first-level cache: the more there are, the longer are the
/// pieces of memory that each step reads.
const COLUMNS: usize = 256;

/// Elements that are converted at a time, of one row or of [`ABREAST`] rows together.
const BLOCK: usize = 1024;

/// Rows that are reduced side by side where each is contiguous: the additions of one row wait for each other, those of
/// different rows do not.
const ABREAST: usize = 4;

/// A function that is accumulated over elements.
pub(crate) trait Fold<T: Number>: Copy + Send + Sync {
    /// The accumulator of one lane.
    type Acc: Copy;
    /// Whether the fold's loops are also compiled for wider instruction sets.
    const WIDE: bool;
    /// The value of an empty lane.
    fn identity(self) -> Self::Acc;
    /// Adds one element. `pivot` is the result of the previous pass.
    fn push(self, acc: Self::Acc, x: T::Wide, pivot: T) -> Self::Acc;
    /// Joins two lanes.
    fn merge(self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// The result of `n` elements.
    fn finish(self, acc: Self::Acc, n: usize, pivot: T) -> T;
}

/// Joins lanes in the fixed pairwise order.
#[inline(always)]
pub(super) fn merge<T: Number, F: Fold<T>>(fold: F, mut acc: [F::Acc; LANES]) -> F::Acc {
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            acc[l] = fold.merge(acc[l], acc[l + width]);
        }
        width /= 2;
    }
    acc[0]
}

/// Sums sixteen lanes in the fixed pairwise order.
#[inline(always)]
pub(crate) fn merge_lanes<W: Number>(mut acc: [W; LANES]) -> W {
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            acc[l] = W::add(acc[l], acc[l + width]);
        }
        width /= 2;
    }
    acc[0]
}

/// Adds consecutive elements, the first of which belongs to lane `phase`.
#[inline(always)]
fn push_segment<T: Number, F: Fold<T>>(
    fold: F,
    acc: &mut [F::Acc; LANES],
    phase: usize,
    x: &[T::Wide],
    pivot: T,
) {
    let head = if phase == 0 {
        0
    } else {
        (LANES - phase).min(x.len())
    };
    for i in 0..head {
        acc[phase + i] = fold.push(acc[phase + i], x[i], pivot);
    }
    let x = &x[head..];
    let whole = x.len() / LANES;
    let mut lanes = *acc;
    for c in 0..whole {
        let x = &x[c * LANES..(c + 1) * LANES];
        for l in 0..LANES {
            lanes[l] = fold.push(lanes[l], x[l], pivot);
        }
    }
    let rest = &x[whole * LANES..];
    for l in 0..rest.len() {
        lanes[l] = fold.push(lanes[l], rest[l], pivot);
    }
    *acc = lanes;
}

multiversion! {
    fn push_segment_wide<T: Number, F: Fold<T>>(
        fold: F, acc: &mut [F::Acc; LANES], phase: usize, x: &[T::Wide], pivot: T,
    ) {
        push_segment(fold, acc, phase, x, pivot)
    }
}

/// Reduces rows of equal length, whose elements arrive run by run, to one result each.
pub(crate) struct Rows<'a, T: Number, F: Fold<T>> {
    fold: F,
    row: usize,
    acc: [F::Acc; LANES],
    /// Number of elements of the current row so far.
    at: usize,
    results: std::slice::IterMut<'a, T>,
}

impl<'a, T: Number, F: Fold<T>> Rows<'a, T, F> {
    /// Creates the reduction of rows of `row` elements; `row` is at least 1.
    pub fn new(fold: F, row: usize, results: &'a mut [T]) -> Self {
        Rows {
            fold,
            row,
            acc: [fold.identity(); LANES],
            at: 0,
            results: results.iter_mut(),
        }
    }

    /// Adds the elements that follow.
    pub fn push(&mut self, mut x: &[T]) {
        let mut room = [T::Wide::ZERO; BLOCK];
        while !x.is_empty() {
            let (now, rest) = x.split_at(x.len().min(self.row - self.at).min(BLOCK));
            let phase = self.at % LANES;
            let now = T::widened(now, &mut room);
            match F::WIDE {
                true => push_segment_wide(self.fold, &mut self.acc, phase, now, T::ZERO),
                false => push_segment(self.fold, &mut self.acc, phase, now, T::ZERO),
            }
            self.at += now.len();
            if self.at == self.row {
                if let Some(y) = self.results.next() {
                    *y = self
                        .fold
                        .finish(merge(self.fold, self.acc), self.row, T::ZERO);
                }
                self.acc = [self.fold.identity(); LANES];
                self.at = 0;
            }
            x = rest;
        }
    }
}

/// The offset in the input at which each output starts, and the offsets of its elements relative to that.
#[derive(Clone, Copy)]
pub(super) struct ReductionTiling {
    kept: Walk<1>,
    reduced: Walk<1>,
    elements: usize,
    rows: bool,
}

impl ReductionTiling {
    pub fn new(shape: &[usize], axes: &[usize]) -> Result<Self> {
        check_rank(shape)?;
        let dense = strides(shape);
        let group = |reduced: bool| {
            let (mut dims, mut steps, mut rank) = ([1; MAX_RANK], [0; MAX_RANK], 0);
            for (axis, &dim) in shape.iter().enumerate() {
                if axes.contains(&axis) == reduced {
                    (dims[rank], steps[rank]) = (dim, dense[axis]);
                    rank += 1;
                }
            }
            Walk::new(&dims[..rank], [&steps[..rank]], [0]).map(|walk| (walk, count(&dims[..rank])))
        };
        let ((kept, _), (reduced, elements)) = (group(false)?, group(true)?);
        let rows = (0..shape.len())
            .rev()
            .find(|&a| shape[a] != 1)
            .is_some_and(|a| axes.contains(&a));
        Ok(ReductionTiling {
            kept,
            reduced,
            elements,
            rows,
        })
    }

    /// Whether the elements of an output are consecutive in the input.
    fn is_contiguous(&self) -> bool {
        self.elements > 0 && self.reduced.run() == self.elements && self.reduced.inner() == [1]
    }
}

/// Adds as many consecutive elements of each of some rows; the first elements belong to lane 0.
#[inline(always)]
fn push_abreast<T: Number, F: Fold<T>>(
    fold: F,
    acc: &mut [[F::Acc; LANES]; ABREAST],
    rows: [&[T::Wide]; ABREAST],
    pivots: [T; ABREAST],
) {
    let len = rows[0].len();
    let rows = rows.map(|row| &row[..len]);
    let whole = len / LANES;
    // The compiler keeps lanes in vectors where those of each row are a variable.
    let [mut a, mut b, mut c, mut d] = *acc;
    for i in 0..whole {
        let [p, q, r, s] = rows.map(|row| &row[i * LANES..(i + 1) * LANES]);
        for l in 0..LANES {
            a[l] = fold.push(a[l], p[l], pivots[0]);
        }
        for l in 0..LANES {
            b[l] = fold.push(b[l], q[l], pivots[1]);
        }
        for l in 0..LANES {
            c[l] = fold.push(c[l], r[l], pivots[2]);
        }
        for l in 0..LANES {
            d[l] = fold.push(d[l], s[l], pivots[3]);
        }
    }
    *acc = [a, b, c, d];
    for ((acc, row), pivot) in acc.iter_mut().zip(rows).zip(pivots) {
        let rest = &row[whole * LANES..];
        for l in 0..rest.len() {
            acc[l] = fold.push(acc[l], rest[l], pivot);
        }
    }
}

/// Reduces the outputs `range`. A cancelled tile leaves garbage, as [`column_tile`] does.
#[inline(always)]
fn row_tile<T: Number, F: Fold<T>>(
    exec: &Exec,
    fold: F,
    plan: &ReductionTiling,
    range: Range<usize>,
    x: &[T],
    y: &mut [T],
) {
    let mut unchecked = 0;
    let step = plan.kept.inner()[0] as usize;
    let mut outputs = plan.kept.runs(range);
    let mut room = [T::Wide::ZERO; BLOCK];
    let contiguous = plan.is_contiguous();
    while let Some(run) = outputs.next_run() {
        let mut first = 0;
        while contiguous && run.len - first >= ABREAST {
            let y = &mut y[run.start + first..][..ABREAST];
            let pivots = std::array::from_fn(|r| y[r]);
            let rows: [&[T]; ABREAST] =
                std::array::from_fn(|r| &x[run.offset[0] + (first + r) * step..][..plan.elements]);
            let mut acc = [[fold.identity(); LANES]; ABREAST];
            let mut at = 0;
            while at < plan.elements {
                let len = (plan.elements - at).min(BLOCK / ABREAST);
                let mut rooms = room.chunks_exact_mut(BLOCK / ABREAST);
                let wide = rows.map(|row| {
                    let room = rooms.next().unwrap_or_default();
                    T::widened(&row[at..at + len], room)
                });
                push_abreast(fold, &mut acc, wide, pivots);
                at += len;
                unchecked += ABREAST * len;
                if unchecked >= PIECE {
                    unchecked = 0;
                    if exec.check().is_err() {
                        return;
                    }
                }
            }
            for r in 0..ABREAST {
                y[r] = fold.finish(merge(fold, acc[r]), plan.elements, pivots[r]);
            }
            first += ABREAST;
        }
        for i in first..run.len {
            let pivot = y[run.start + i];
            let x = &x[run.offset[0] + i * step..];
            let mut acc = [fold.identity(); LANES];
            let mut phase = 0;
            let mut segments = plan.reduced.runs(0..plan.elements);
            while let Some(segment) = segments.next_run() {
                let segment = &x[segment.offset[0]..segment.offset[0] + segment.len];
                for part in segment.chunks(BLOCK) {
                    let wide = T::widened(part, &mut room);
                    push_segment(fold, &mut acc, phase, wide, pivot);
                    phase = (phase + part.len()) % LANES;
                    unchecked += part.len();
                    if unchecked >= PIECE {
                        unchecked = 0;
                        if exec.check().is_err() {
                            return;
                        }
                    }
                }
            }
            y[run.start + i] = fold.finish(merge(fold, acc), plan.elements, pivot);
        }
    }
}

#[inline(always)]
fn column_tile<T: Number, F: Fold<T>>(
    exec: &Exec,
    fold: F,
    plan: &ReductionTiling,
    range: Range<usize>,
    x: &[T],
    y: &mut [T],
) {
    let mut unchecked = 0;
    let step = plan.reduced.inner()[0] as usize;
    let mut outputs = plan.kept.runs(range);
    let mut acc = [[fold.identity(); COLUMNS]; LANES];
    let mut pivots = [T::ZERO; COLUMNS];
    let mut room = [T::Wide::ZERO; COLUMNS];
    while let Some(run) = outputs.next_run() {
        let mut first = 0;
        while first < run.len {
            let width = (run.len - first).min(COLUMNS);
            let y = &mut y[run.start + first..run.start + first + width];
            let x = &x[run.offset[0] + first..];
            let pivots = &mut pivots[..width];
            pivots.copy_from_slice(y);
            for lane in acc.iter_mut().take(plan.elements) {
                lane[..width].fill(fold.identity());
            }
            let mut k = 0;
            let mut segments = plan.reduced.runs(0..plan.elements);
            while let Some(segment) = segments.next_run() {
                for i in 0..segment.len {
                    let at = segment.offset[0] + i * step;
                    let x = T::widened(&x[at..at + width], &mut room);
                    let lane = &mut acc[k % LANES][..width];
                    for c in 0..width {
                        lane[c] = fold.push(lane[c], x[c], pivots[c]);
                    }
                    k += 1;
                    unchecked += width;
                    if unchecked >= PIECE {
                        unchecked = 0;
                        if exec.check().is_err() {
                            return;
                        }
                    }
                }
            }
            // Lanes beyond the last element still hold values of an earlier block.
            for lane in acc.iter_mut().skip(plan.elements) {
                lane[..width].fill(fold.identity());
            }
            for c in 0..width {
                let mut lanes = [fold.identity(); LANES];
                for l in 0..LANES {
                    lanes[l] = acc[l][c];
                }
                y[c] = fold.finish(merge(fold, lanes), plan.elements, pivots[c]);
            }
            first += width;
        }
    }
}

multiversion! {
    fn row_tile_wide<T: Number, F: Fold<T>>(
        exec: &Exec, fold: F, plan: &ReductionTiling, range: Range<usize>, x: &[T], y: &mut [T],
    ) {
        row_tile(exec, fold, plan, range, x, y)
    }
}

multiversion! {
    fn column_tile_wide<T: Number, F: Fold<T>>(
        exec: &Exec, fold: F, plan: &ReductionTiling, range: Range<usize>, x: &[T], y: &mut [T],
    ) {
        column_tile(exec, fold, plan, range, x, y)
    }
}

/// Runs one pass over the input; the pivots are the former values of `y`.
pub(super) fn pass<T: Number, F: Fold<T>>(
    exec: &Exec,
    fold: F,
    plan: &ReductionTiling,
    x: &[T],
    y: &mut [T],
) -> Result {
    let grain = (GRAIN / plan.elements.max(1)).max(if plan.rows { 1 } else { COLUMNS });
    tiles(exec, y, 1, grain, |range, part| {
        match (plan.rows, F::WIDE) {
            (true, true) => row_tile_wide(exec, fold, plan, range, x, part),
            (true, false) => row_tile(exec, fold, plan, range, x, part),
            (false, true) => column_tile_wide(exec, fold, plan, range, x, part),
            (false, false) => column_tile(exec, fold, plan, range, x, part),
        }
    })?;
    // A tile that stopped in the middle left garbage.
    Ok(exec.check()?)
}
