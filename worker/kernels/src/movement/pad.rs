//! `Pad` in all modes, with negative amounts for cropping.

use crate::Exec;
use crate::compiled::compiled_bits;
use crate::element::Bits;
use crate::error::{KernelError, Result};
use crate::shape::{check_rank, count, strides};
use crate::split::{tiles, units_per_tile};

/// How the padding is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PadMode<T> {
    /// The padding is this value.
    Constant(T),
    /// The padding is the mirror image of the data, without the edge itself.
    Reflect,
    /// The padding repeats the element at the edge.
    Edge,
    /// The padding is the data from the other end, as if the data were a ring.
    Wrap,
}

impl<T: Bits> PadMode<T> {
    /// The position in data of length `len` that position `at` copies; `None` where the constant goes.
    fn source(self, at: i64, len: usize) -> Option<usize> {
        let len = len as i64;
        if (0..len).contains(&at) {
            return Some(at as usize);
        }
        let from = match self {
            PadMode::Constant(_) => return None,
            PadMode::Edge => at.clamp(0, len - 1),
            PadMode::Wrap => at.rem_euclid(len),
            PadMode::Reflect if len == 1 => 0,
            PadMode::Reflect => {
                let around = at.rem_euclid(2 * (len - 1));
                around.min(2 * (len - 1) - around)
            }
        };
        Some(from as usize)
    }
}

fn pad_any<T: Bits>(
    exec: &Exec,
    mode: PadMode<T>,
    x: &[T],
    shape: &[usize],
    begins: &[i64],
    y: &mut [T],
    y_shape: &[usize],
) -> Result {
    check_rank(shape)?;
    let rank = shape.len();
    assert!(
        x.len() == count(shape) && y.len() == count(y_shape),
        "{shape:?} to {y_shape:?}"
    );
    assert!(
        begins.len() == rank && y_shape.len() == rank,
        "{shape:?} to {y_shape:?}"
    );
    let Some(last) = rank.checked_sub(1) else {
        y.copy_from_slice(x);
        return Ok(());
    };
    if !y.is_empty()
        && !matches!(mode, PadMode::Constant(_))
        && let Some(axis) = (0..rank).find(|&a| shape[a] == 0)
    {
        return Err(KernelError::PadTooLarge {
            axis,
            len: 0,
            pad: begins[axis],
        });
    }
    let dense = strides(shape);
    let fill = if let PadMode::Constant(value) = mode {
        value
    } else {
        T::default()
    };
    let (from, to) = (shape[last] as i64, y_shape[last]);
    // The outputs of a row that are copies of the input row.
    let start = begins[last].clamp(0, to as i64);
    let end = (begins[last] + from).clamp(start, to as i64);
    let (start, end) = (start as usize, end as usize);
    let row = |index: usize, y: &mut [T]| {
        let (mut rest, mut offset) = (index, 0);
        for axis in (0..last).rev() {
            let at = (rest % y_shape[axis]) as i64 - begins[axis];
            rest /= y_shape[axis];
            match mode.source(at, shape[axis]) {
                Some(from) => offset += from * dense[axis] as usize,
                None => return y.fill(fill),
            }
        }
        let x = &x[offset..offset + shape[last]];
        let outside = |at: usize| {
            mode.source(at as i64 - begins[last], shape[last])
                .map_or(fill, |from| x[from])
        };
        for (at, y) in y[..start].iter_mut().enumerate() {
            *y = outside(at);
        }
        if start < end {
            let first = (start as i64 - begins[last]) as usize;
            y[start..end].copy_from_slice(&x[first..first + end - start]);
        }
        for (at, y) in y[end..].iter_mut().enumerate() {
            *y = outside(end + at);
        }
    };
    Ok(tiles(exec, y, to, units_per_tile(to), |range, part| {
        for (index, y) in range.zip(part.chunks_mut(to)) {
            row(index, y);
        }
    })?)
}

compiled_bits! {
    /// Padding elements of one size.
    trait PadKernels {
        fn pad(
            exec: &Exec, mode: PadMode<Self>, x: &[Self], shape: &[usize], begins: &[i64], y: &mut [Self],
            y_shape: &[usize],
        ) = pad_any;
    }
}

/// Pads `x` to `y`: `begins[axis]` elements go before each axis, or are cut off where the number is negative; `y_shape`
/// decides how many go after it.
pub fn pad<T: Bits>(
    exec: &Exec,
    mode: PadMode<T>,
    x: &[T],
    shape: &[usize],
    begins: &[i64],
    y: &mut [T],
    y_shape: &[usize],
) -> Result {
    T::pad(exec, mode, x, shape, begins, y, y_shape)
}
