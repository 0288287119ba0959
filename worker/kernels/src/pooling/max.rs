//! `MaxPool`, with and without the positions of the maxima.

use super::rows::{Pool, pool_planes};
use super::window::Window;
use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::Number;
use crate::error::Result;
use crate::split::{Finished, PIECE, Pace, tiles2, units_per_tile};

/// How positions within a plane are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageOrder {
    /// The last dimension runs fastest.
    RowMajor,
    /// The first spatial dimension runs fastest.
    ColumnMajor,
}

/// Taps, looked at one by one, that cost about as much as an element of another kernel.
const TAPS: usize = 8;

#[derive(Clone, Copy)]
struct Max;

impl<T: Number> Pool<T> for Max {
    const COUNTS: bool = false;
    const MINDS_NAN: bool = !T::INTEGER;
    type OfNumbers = MaxOfNumbers;
    #[inline(always)]
    fn of_numbers(self) -> MaxOfNumbers {
        MaxOfNumbers
    }
    #[inline(always)]
    fn identity(self) -> T::Wide {
        T::LOWEST.widen()
    }
    #[inline(always)]
    fn push(self, acc: T::Wide, x: T::Wide) -> T::Wide {
        <T::Wide as Number>::max(acc, x)
    }
    #[inline(always)]
    fn finish(self, acc: T::Wide, _: usize, _: usize) -> T {
        T::narrow(acc)
    }
}

/// [`Max`] where no tap is NaN: one instruction for each vector of taps.
#[derive(Clone, Copy)]
struct MaxOfNumbers;

impl<T: Number> Pool<T> for MaxOfNumbers {
    const COUNTS: bool = false;
    type OfNumbers = Self;
    #[inline(always)]
    fn of_numbers(self) -> Self {
        self
    }
    #[inline(always)]
    fn identity(self) -> T::Wide {
        T::LOWEST.widen()
    }
    #[inline(always)]
    fn push(self, acc: T::Wide, x: T::Wide) -> T::Wide {
        if acc > x { acc } else { x }
    }
    #[inline(always)]
    fn finish(self, acc: T::Wide, _: usize, _: usize) -> T {
        T::narrow(acc)
    }
}

fn max_pool_any<T: Number>(exec: &Exec, window: &Window, x: &[T], y: &mut [T]) -> Result {
    pool_planes(exec, Max, window, x, y)
}

fn with_indices_any<T: Number>(
    exec: &Exec,
    w: &Window,
    order: StorageOrder,
    x: &[T],
    y: &mut [T],
    indices: &mut [i64],
) -> Result {
    let (from, to) = (w.input_len(), w.output_len());
    let planes = y.len().checked_div(to).unwrap_or(0);
    assert!(
        x.len() == planes * from && y.len() == planes * to && indices.len() == y.len(),
        "{w:?}"
    );
    let (outputs, grain) = (y.len(), units_per_tile(w.most_taps() / TAPS));
    tiles2(
        exec,
        (y, 1),
        (indices, 1),
        outputs,
        grain,
        |range, y, indices| {
            let mut pace = Pace::new(exec, PIECE);
            for (number, (y, index)) in range.zip(y.iter_mut().zip(indices)) {
                let (i, o) = (number / to, number % to);
                let x = &x[i * from..(i + 1) * from];
                let Ok((value, at)) = best(w, order, &mut pace, x, o) else {
                    return;
                };
                (*y, *index) = (value, (i * from + at) as i64);
            }
        },
    )?;
    Ok(exec.check()?)
}

/// The largest tap of output `o`, the first among equals, and its position in the plane.
fn best<T: Number>(
    w: &Window,
    order: StorageOrder,
    pace: &mut Pace,
    x: &[T],
    o: usize,
) -> Finished<(T, usize)> {
    let [depth, height, width] = w.input;
    let (od, oh, ow) = (
        o / (w.output[1] * w.output[2]),
        o / w.output[2] % w.output[1],
        o % w.output[2],
    );
    let taps = [
        w.taps(0, od).kernel,
        w.taps(1, oh).kernel,
        w.taps(2, ow).kernel,
    ];
    pace.count(1)?;
    if taps[2].0 >= taps[2].1 {
        return Ok((T::LOWEST, 0));
    }
    let mut best: Option<(T, usize)> = None;
    for kd in taps[0].0..taps[0].1 {
        let d = w.position(0, od, kd);
        pace.count(1)?;
        for kh in taps[1].0..taps[1].1 {
            let h = w.position(1, oh, kh);
            let mut first = taps[2].0;
            while first < taps[2].1 {
                let end = taps[2].1.min(first + PIECE);
                pace.count(end - first)?;
                for kw in first..end {
                    let c = w.position(2, ow, kw);
                    let value = x[(d * height + h) * width + c];
                    if best
                        .is_none_or(|(best, _)| value > best || (value.is_nan() && !best.is_nan()))
                    {
                        let at = match order {
                            StorageOrder::RowMajor => (d * height + h) * width + c,
                            StorageOrder::ColumnMajor => (c * height + h) * depth + d,
                        };
                        best = Some((value, at));
                    }
                }
                first = end;
            }
        }
    }
    Ok(best.unwrap_or((T::LOWEST, 0)))
}

compiled_numbers! {
    /// Maximum pooling of a type.
    trait MaxPoolKernels {
        fn max_pool(exec: &Exec, window: &Window, x: &[Self], y: &mut [Self]) = max_pool_any;
        fn max_pool_with_indices(
            exec: &Exec, window: &Window, order: StorageOrder, x: &[Self], y: &mut [Self], indices: &mut [i64],
        ) = with_indices_any;
    }
}

/// Computes the largest element of the window in each plane of `x`; NaN if an element is NaN.
pub fn max_pool<T: Number>(exec: &Exec, window: &Window, x: &[T], y: &mut [T]) -> Result {
    T::max_pool(exec, window, x, y)
}

/// Computes [`max_pool`], and the flat position in `x` of each maximum, the first among equals.
pub fn max_pool_with_indices<T: Number>(
    exec: &Exec,
    window: &Window,
    order: StorageOrder,
    x: &[T],
    y: &mut [T],
    indices: &mut [i64],
) -> Result {
    T::max_pool_with_indices(exec, window, order, x, y, indices)
}
