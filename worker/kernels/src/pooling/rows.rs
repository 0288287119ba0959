//! What pools are, and the loops that they share.
//!
//! Each output is one chain over its taps. Taps beyond the input are left out, or are the identity, which changes no chain.

use super::lines::{fits_lines, plane_by_lines};
use super::window::Window;
use crate::Exec;
use crate::element::Number;
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::split::{tiles, units_per_tile};
use std::ops::Range;

/// Number of outputs that are accumulated together.
pub(super) const COLUMNS: usize = 64;
/// Outputs that fill a vector of any instruction set; divides [`COLUMNS`].
pub(super) const LANES: usize = 16;

/// A function that is accumulated over a window.
pub(super) trait Pool<T: Number>: Copy + Send + Sync {
    /// Whether the function's loops are also compiled for wider instruction sets, at the price of two more copies.
    const WIDE: bool = !T::INTEGER;
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
    /// The outputs from `first` on that are accumulated together.
    #[inline(always)]
    pub fn new(w: &Window, first: usize) -> Chunk {
        let columns = first..w.output[2].min(first + COLUMNS);
        Chunk {
            interior: w.interior(columns.clone()),
            columns,
        }
    }

    /// Writes the results of chains to the row `y`. `inside` and `padded` are numbers of rows under the window.
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
        let mut results = [T::ZERO; COLUMNS];
        let blocks = results.as_chunks_mut::<LANES>().0.iter_mut();
        for (results, acc) in blocks
            .zip(acc.as_chunks::<LANES>().0)
            .take(n.div_ceil(LANES))
        {
            for i in 0..LANES {
                results[i] = pool.finish(acc[i], inside * kernel, padded * kernel);
            }
        }
        y[self.columns.clone()].copy_from_slice(&results[..n]);
        let mut i = first;
        while i < self.columns.end {
            if i == from && from < to {
                i = to;
                continue;
            }
            let taps = w.taps(2, i);
            y[i] = pool.finish(acc[i - first], inside * taps.count(), padded * taps.padded);
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

/// Pools a plane tap by tap, for any window.
#[inline(always)]
fn plane_by_taps<T: Number, P: Pool<T>>(pool: P, w: &Window, x: &[T], y: &mut [T]) {
    let [_, height, width] = w.input;
    let mut buffer = [pool.identity(); COLUMNS];
    for od in 0..w.output[0] {
        let depth_taps = w.taps(0, od);
        for oh in 0..w.output[1] {
            let height_taps = w.taps(1, oh);
            let y = &mut y[(od * w.output[1] + oh) * w.output[2]..][..w.output[2]];
            let mut first = 0;
            while first < y.len() {
                let chunk = Chunk::new(w, first);
                let columns = chunk.columns.clone();
                let acc = &mut buffer[..columns.len()];
                acc.fill(pool.identity());
                for kd in depth_taps.kernel.0..depth_taps.kernel.1 {
                    let d = w.position(0, od, kd);
                    for kh in height_taps.kernel.0..height_taps.kernel.1 {
                        let h = w.position(1, oh, kh);
                        let row = &x[(d * height + h) * width..][..width];
                        for kw in 0..w.kernel[2] {
                            let (from, to) = w.outputs(kw, columns.clone());
                            if from < to {
                                let taps = &row[w.position(2, from, kw)..];
                                push_taps(
                                    pool,
                                    &mut acc[from - first..to - first],
                                    taps,
                                    w.strides[2],
                                );
                            }
                        }
                    }
                }
                let counts = (
                    depth_taps.count() * height_taps.count(),
                    depth_taps.padded * height_taps.padded,
                );
                chunk.finish(pool, w, &buffer, counts, y);
                first = columns.end;
            }
        }
    }
}

#[inline(always)]
fn plane<T: Number, P: Pool<T>>(pool: P, w: &Window, x: &[T], y: &mut [T]) {
    if fits_lines(w) {
        plane_by_lines(pool, w, x, y)
    } else {
        plane_by_taps(pool, w, x, y)
    }
}

multiversion! {
    fn plane_wide<T: Number, P: Pool<T>>(pool: P, window: &Window, x: &[T], y: &mut [T]) {
        plane(pool, window, x, y)
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

fn plane_on<T: Number, P: Pool<T>>(pool: P, window: &Window, x: &[T], y: &mut [T]) {
    if P::WIDE {
        plane_wide(pool, window, x, y)
    } else {
        plane(pool, window, x, y)
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
    Ok(tiles(
        exec,
        y,
        to,
        units_per_tile(from.max(to)),
        |range, part| {
            for (i, y) in range.zip(part.chunks_mut(to)) {
                let x = &x[i * from..(i + 1) * from];
                if P::MINDS_NAN && !holds_nan(x) {
                    plane_on(pool.of_numbers(), window, x, y)
                } else {
                    plane_on(pool, window, x, y)
                }
            }
        },
    )?)
}
