//! `CumSum`.

use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::Number;
use crate::error::Result;
use crate::shape::Axis;
use crate::split::{PIECE, pieces, tiles, units_per_tile};

/// Number of adjacent columns that are summed together.
const COLUMNS: usize = 64;
fn cum_sum_any<T: Number>(
    exec: &Exec,
    x: &[T],
    axis: Axis,
    exclusive: bool,
    reverse: bool,
    y: &mut [T],
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
                let mut sums = [T::Wide::ZERO; COLUMNS];
                for k in pieces(exec, axis.len, PIECE / COLUMNS).flatten() {
                    let k = if reverse { axis.len - 1 - k } else { k };
                    let at = k * axis.inner + first;
                    let columns = x[at..at + width].iter().zip(&mut y[at..at + width]);
                    for ((x, y), sum) in columns.zip(&mut sums) {
                        let before = *sum;
                        *sum = T::Wide::add(before, x.widen());
                        *y = T::narrow(if exclusive { before } else { *sum });
                    }
                }
            }
        }
    })?;
    Ok(exec.check()?)
}

compiled_numbers! {
    /// Running sums of a type.
    trait CumSumKernels {
        fn cum_sum(exec: &Exec, x: &[Self], axis: Axis, exclusive: bool, reverse: bool, y: &mut [Self]) = cum_sum_any;
    }
}

/// Computes running sums along `axis`: from the end if `reverse`, without the element itself if `exclusive`. Each
/// column is one chain of additions; `f16` and `bf16` accumulate in `f32`.
pub fn cum_sum<T: Number>(
    exec: &Exec,
    x: &[T],
    axis: Axis,
    exclusive: bool,
    reverse: bool,
    y: &mut [T],
) -> Result {
    T::cum_sum(exec, x, axis, exclusive, reverse, y)
}
