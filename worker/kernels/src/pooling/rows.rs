//! The loop that all pooling kernels share: it accumulates rows of outputs tap by tap.

use super::window::Window;
use crate::Exec;
use crate::element::Number;
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::split::{tiles, units_per_tile};

/// Number of outputs that are accumulated together.
const COLUMNS: usize = 64;

/// A function that is accumulated over a window.
pub(super) trait Pool<T: Number>: Copy + Send + Sync {
    /// Whether the function's loops are also compiled for wider instruction sets, at the price of two more copies.
    const WIDE: bool = !T::INTEGER;
    /// The value of an empty window.
    fn identity(self) -> T::Wide;
    /// Adds one tap.
    fn push(self, acc: T::Wide, x: T) -> T::Wide;
    /// The result of a window with `inside` taps in the input and `padded` in the padded input.
    fn finish(self, acc: T::Wide, inside: usize, padded: usize) -> T;
}

/// Adds the taps `x[0], x[stride], …` to consecutive outputs.
#[inline(always)]
fn push_taps<T: Number, P: Pool<T>>(pool: P, acc: &mut [T::Wide], x: &[T], stride: usize) {
    let n = acc.len();
    if n == 0 {
        return;
    }
    match stride {
        1 => {
            let x = &x[..n];
            for i in 0..n {
                acc[i] = pool.push(acc[i], x[i]);
            }
        }
        2 => {
            let x = &x[..2 * n - 1];
            for i in 0..n {
                acc[i] = pool.push(acc[i], x[2 * i]);
            }
        }
        _ => {
            let x = &x[..stride * (n - 1) + 1];
            for i in 0..n {
                acc[i] = pool.push(acc[i], x[stride * i]);
            }
        }
    }
}

#[inline(always)]
fn plane<T: Number, P: Pool<T>>(pool: P, w: &Window, x: &[T], y: &mut [T]) {
    let [_, height, width] = w.input;
    let mut buffer = [pool.identity(); COLUMNS];
    for od in 0..w.output[0] {
        let depth_taps = w.taps(0, od);
        for oh in 0..w.output[1] {
            let height_taps = w.taps(1, oh);
            let y = &mut y[(od * w.output[1] + oh) * w.output[2]..][..w.output[2]];
            let mut first = 0;
            while first < y.len() {
                let columns = if y.len() - first < COLUMNS {
                    y.len() - first
                } else {
                    COLUMNS
                };
                let acc = &mut buffer[..columns];
                acc.fill(pool.identity());
                for kd in depth_taps.kernel.0..depth_taps.kernel.1 {
                    let d = w.position(0, od, kd);
                    for kh in height_taps.kernel.0..height_taps.kernel.1 {
                        let h = w.position(1, oh, kh);
                        let row = &x[(d * height + h) * width..][..width];
                        for kw in 0..w.kernel[2] {
                            let (from, to) = w.outputs(kw, first..first + columns);
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
                let inside = (depth_taps.kernel.1 - depth_taps.kernel.0)
                    * (height_taps.kernel.1 - height_taps.kernel.0);
                let padded = depth_taps.padded * height_taps.padded;
                let (from, to) = w.interior(first..first + columns);
                let kernel = w.kernel[2];
                for i in from..to {
                    y[i] = pool.finish(acc[i - first], inside * kernel, padded * kernel);
                }
                let mut i = first;
                while i < first + columns {
                    if i == from && from < to {
                        i = to;
                        continue;
                    }
                    let taps = w.taps(2, i);
                    y[i] = pool.finish(
                        acc[i - first],
                        inside * (taps.kernel.1 - taps.kernel.0),
                        padded * taps.padded,
                    );
                    i += 1;
                }
                first += columns;
            }
        }
    }
}

multiversion! {
    fn plane_wide<T: Number, P: Pool<T>>(pool: P, window: &Window, x: &[T], y: &mut [T]) {
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
                if P::WIDE {
                    plane_wide(pool, window, x, y)
                } else {
                    plane(pool, window, x, y)
                }
            }
        },
    )?)
}
