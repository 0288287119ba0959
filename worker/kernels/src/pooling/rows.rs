//! What pools are, and the loops that they share.
//!
//! Each output is one chain over its taps. Taps beyond the input are left out, or are the identity, which changes no chain.

use super::lines::{Lines, fits_lines, plane_by_lines};
use super::window::Window;
use crate::Exec;
use crate::element::Number;
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::split::{Finished, GRAIN, PIECE, Pace, tiles, units_per_tile};
use std::ops::Range;

/// Number of outputs that are accumulated together.
pub(super) const COLUMNS: usize = 64;
/// Outputs that fill a vector of any instruction set; divides [`COLUMNS`].
pub(super) const LANES: usize = 16;
/// Taps of [`COLUMNS`] outputs after which work is counted.
const RUN: usize = PIECE / COLUMNS;
/// Taps that cost about as much as one element that is read or written.
const TAPS: usize = 16;
/// The cost, in elements, from which a plane is divided among tiles, and of each of these. It is larger than that
/// of other tiles, since lines of the input under two tiles are prepared twice.
const LARGE: usize = 4 * GRAIN;

/// A function that is accumulated over a window.
pub(super) trait Pool<T: Number>: Copy + Send + Sync {
    /// Whether the function's loops are also compiled for wider instruction sets, at the price of two more copies.
    const WIDE: bool = !T::INTEGER;
    /// Whether [`Pool::finish`] looks at the numbers of taps.
    const COUNTS: bool = true;
    /// Whether [`Pool::of_numbers`] is another pool, which is faster.
    const MINDS_NAN: bool = false;
    /// The pool that gives the same bits for planes without a NaN.
    type OfNumbers: Pool<T>;
    /// The pool for planes without a NaN.
    fn of_numbers(self) -> Self::OfNumbers;
    /// The value of an empty window. Adding it as a tap changes nothing.
    fn identity(self) -> T::Wide;
    /// Adds one tap.
    fn push(self, acc: T::Wide, x: T::Wide) -> T::Wide;
    /// The result of a window with `inside` taps in the input and `padded` in the padded input.
    fn finish(self, acc: T::Wide, inside: usize, padded: usize) -> T;
}

/// Some outputs of a row, with the numbers of their taps.
pub(super) struct Chunk {
    /// The outputs.
    pub columns: Range<usize>,
    /// Those of them whose taps along the row all lie in the input.
    pub interior: (usize, usize),
}

impl Chunk {
    /// The outputs from `first` on that are accumulated together, at most `most` of them.
    #[inline(always)]
    pub fn new(w: &Window, first: usize, most: usize) -> Chunk {
        let columns = first..w.output[2].min(first + most);
        Chunk {
            interior: w.interior(columns.clone()),
            columns,
        }
    }

    /// Writes the results of chains to the row `y`. `inside` and `padded` are numbers of rows under the window. Counts
    /// of taps in the padding saturate.
    #[inline(always)]
    pub fn finish<T: Number, P: Pool<T>>(
        &self,
        pool: P,
        w: &Window,
        acc: &[T::Wide; COLUMNS],
        (inside, padded): (usize, usize),
        y: &mut [T],
    ) {
        let (first, (from, to)) = (self.columns.start, self.interior);
        let (kernel, n) = (w.kernel[2], self.columns.len());
        // Those with fewer taps are overwritten below.
        let results = &mut y[self.columns.clone()];
        let taps = (inside * kernel, padded.saturating_mul(kernel));
        if n < LANES {
            for i in 0..n {
                results[i] = pool.finish(acc[i], taps.0, taps.1);
            }
        } else {
            // The last block ends with the outputs, and may overlap the one before it.
            let mut at = 0;
            loop {
                let acc: &[T::Wide; LANES] =
                    acc[at..].first_chunk().expect("a block within the chains");
                let results: &mut [T; LANES] = results[at..]
                    .first_chunk_mut()
                    .expect("a block within the outputs");
                for i in 0..LANES {
                    results[i] = pool.finish(acc[i], taps.0, taps.1);
                }
                if at == n - LANES {
                    break;
                }
                at = (at + LANES).min(n - LANES);
            }
        }
        if !P::COUNTS {
            return;
        }
        let mut i = first;
        while i < self.columns.end {
            if i == from && from < to {
                i = to;
                continue;
            }
            let taps = w.taps(2, i);
            let padded = padded.saturating_mul(taps.padded);
            y[i] = pool.finish(acc[i - first], inside * taps.count(), padded);
            i += 1;
        }
    }
}

/// Adds the taps `x[0], x[stride], …` to consecutive outputs.
#[inline(always)]
fn push_taps<T: Number, P: Pool<T>>(pool: P, acc: &mut [T::Wide], x: &[T], stride: usize) {
    let n = acc.len();
    if n == 0 {
        return;
    }
    let x = &x[..stride * (n - 1) + 1];
    for i in 0..n {
        acc[i] = pool.push(acc[i], x[stride * i].widen());
    }
}

/// Pools some rows of a plane's outputs tap by tap, for any window.
#[inline(always)]
fn plane_by_taps<T: Number, P: Pool<T>>(
    pool: P,
    w: &Window,
    pace: &mut Pace,
    rows: Range<usize>,
    x: &[T],
    y: &mut [T],
) -> Finished {
    let [_, height, width] = w.input;
    // Where no two outputs of a row share a tap's element, most taps would miss most of several outputs.
    let most = if w.strides[2] > width { 1 } else { COLUMNS };
    let mut buffer = [pool.identity(); COLUMNS];
    for row in rows.clone() {
        let (od, oh) = (row / w.output[1], row % w.output[1]);
        let (depth_taps, height_taps) = (w.taps(0, od), w.taps(1, oh));
        let y = &mut y[(row - rows.start) * w.output[2]..][..w.output[2]];
        let mut first = 0;
        while first < y.len() {
            let chunk = Chunk::new(w, first, most);
            let columns = chunk.columns.clone();
            pace.count(columns.len())?;
            let acc = &mut buffer[..columns.len()];
            acc.fill(pool.identity());
            let (start, end) = w.taps_of_any(&columns);
            let depth_range = if start < end {
                depth_taps.kernel
            } else {
                (0, 0)
            };
            for kd in depth_range.0..depth_range.1 {
                let d = w.position(0, od, kd);
                pace.count(1)?;
                for kh in height_taps.kernel.0..height_taps.kernel.1 {
                    let h = w.position(1, oh, kh);
                    let line = &x[(d * height + h) * width..][..width];
                    let mut run = start;
                    while run < end {
                        let to = if end - run < RUN { end } else { run + RUN };
                        pace.count((to - run) * columns.len())?;
                        for kw in run..to {
                            let (from, to) = w.outputs(kw, columns.clone());
                            if from < to {
                                let taps = &line[w.position(2, from, kw)..];
                                push_taps(
                                    pool,
                                    &mut acc[from - first..to - first],
                                    taps,
                                    w.strides[2],
                                );
                            }
                        }
                        run = to;
                    }
                }
            }
            let counts = (
                depth_taps.count() * height_taps.count(),
                depth_taps.padded.saturating_mul(height_taps.padded),
            );
            chunk.finish(pool, w, &buffer, counts, y);
            first = columns.end;
        }
    }
    Ok(())
}

#[inline(always)]
fn plane<T: Number, P: Pool<T>>(
    pool: P,
    w: &Window,
    pace: &mut Pace,
    rows: Range<usize>,
    lines: &mut Lines<T::Wide>,
    x: &[T],
    y: &mut [T],
) -> Finished {
    if fits_lines(w) {
        plane_by_lines(pool, w, pace, rows, lines, x, y)
    } else {
        plane_by_taps(pool, w, pace, rows, x, y)
    }
}

multiversion! {
    fn plane_wide<T: Number, P: Pool<T>>(
        pool: P, window: &Window, pace: &mut Pace, rows: Range<usize>, lines: &mut Lines<T::Wide>, x: &[T], y: &mut [T],
    ) -> Finished {
        plane(pool, window, pace, rows, lines, x, y)
    }
}

multiversion! {
    fn holds_nan<T: Number>(x: &[T]) -> bool {
        let mut any = false;
        for i in 0..x.len() {
            any |= x[i].is_nan();
        }
        any
    }
}

/// Whether the elements of a plane over which the windows of some rows of outputs reach may hold a NaN. It is not looked for
/// where that would take as long as to pool them.
fn reads_nan<T: Number>(
    w: &Window,
    pace: &mut Pace,
    rows: &Range<usize>,
    x: &[T],
) -> Finished<bool> {
    let [_, height, width] = w.input;
    let (first, last) = (rows.start, rows.end - 1);
    let (front, back) = (first / w.output[1], last / w.output[1]);
    let lines = if front == back {
        w.under(1, first % w.output[1], last % w.output[1])
    } else {
        0..height
    };
    let depths = w.under(0, front, back);
    let taps = (rows.len() * w.output[2]).saturating_mul(w.most_taps());
    if depths.len() * lines.len() * width > taps {
        return Ok(true);
    }
    for d in depths {
        pace.count(1)?;
        let x = &x[(d * height + lines.start) * width..(d * height + lines.end) * width];
        for x in x.chunks(PIECE) {
            pace.count(x.len())?;
            if holds_nan(x) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn plane_on<T: Number, P: Pool<T>>(
    pool: P,
    window: &Window,
    pace: &mut Pace,
    rows: Range<usize>,
    lines: &mut Lines<T::Wide>,
    x: &[T],
    y: &mut [T],
) -> Finished {
    if P::WIDE {
        plane_wide(pool, window, pace, rows, lines, x, y)
    } else {
        plane(pool, window, pace, rows, lines, x, y)
    }
}

/// Pools some rows of a plane's outputs.
fn pool_rows<T: Number, P: Pool<T>>(
    pool: P,
    window: &Window,
    pace: &mut Pace,
    rows: Range<usize>,
    lines: &mut Lines<T::Wide>,
    x: &[T],
    y: &mut [T],
) -> Finished {
    if P::MINDS_NAN && !reads_nan(window, pace, &rows, x)? {
        plane_on(pool.of_numbers(), window, pace, rows, lines, x, y)
    } else {
        plane_on(pool, window, pace, rows, lines, x, y)
    }
}

/// Pools every plane of `x`.
pub(super) fn pool_planes<T: Number, P: Pool<T>>(
    exec: &Exec,
    pool: P,
    window: &Window,
    x: &[T],
    y: &mut [T],
) -> Result {
    let (from, to) = (window.input_len(), window.output_len());
    let planes = y.len().checked_div(to).unwrap_or(0);
    assert!(
        y.len() == planes * to && x.len() == planes * from,
        "{window:?}"
    );
    if y.is_empty() {
        return Ok(exec.check()?);
    }
    // Tiles are planes, or some rows of the outputs of a plane that is large.
    let (rows, unit) = (window.output[0] * window.output[1], window.output[2]);
    let taps = to.saturating_mul(window.most_taps());
    let cost = from.max(to).max(taps / TAPS);
    let grain = if cost <= LARGE {
        rows * units_per_tile(cost)
    } else {
        (LARGE / (cost / rows).max(1)).max(1)
    };
    tiles(exec, y, unit, grain, |range, part| {
        let mut pace = Pace::new(exec, PIECE);
        let mut lines = Lines::new(pool.identity());
        let mut row = range.start;
        while row < range.end {
            let (number, first) = (row / rows, row % rows);
            let some = first..rows.min(first + (range.end - row));
            let x = &x[number * from..(number + 1) * from];
            let y = &mut part[(row - range.start) * unit..][..some.len() * unit];
            row += some.len();
            if pool_rows(pool, window, &mut pace, some, &mut lines, x, y).is_err() {
                return;
            }
        }
    })?;
    Ok(exec.check()?)
}
