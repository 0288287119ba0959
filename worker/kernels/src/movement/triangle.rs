//! `Trilu`.

use crate::Exec;
use crate::compiled::compiled_bits;
use crate::element::Bits;
use crate::error::Result;
use crate::split::{tiles, units_per_tile};

fn trilu_any<T: Bits>(
    exec: &Exec,
    upper: bool,
    k: i64,
    x: &[T],
    rows: usize,
    columns: usize,
    y: &mut [T],
) -> Result {
    assert!(
        x.len() == y.len() && (x.is_empty() || x.len().is_multiple_of(rows * columns)),
        "{rows}x{columns}"
    );
    Ok(tiles(
        exec,
        y,
        columns,
        units_per_tile(columns),
        |range, part| {
            for (row, y) in range.zip(part.chunks_mut(columns)) {
                let x = &x[row * columns..(row + 1) * columns];
                // The first column of the upper triangle, or the column after the lower one.
                let diagonal = ((row % rows) as i64)
                    .saturating_add(k)
                    .saturating_add(i64::from(!upper));
                let cut = diagonal.clamp(0, columns as i64) as usize;
                let (left, right) = y.split_at_mut(cut);
                if upper {
                    left.fill(T::default());
                    right.copy_from_slice(&x[cut..]);
                } else {
                    left.copy_from_slice(&x[..cut]);
                    right.fill(T::default());
                }
            }
        },
    )?)
}

compiled_bits! {
    /// Triangles of elements of one size.
    trait TriangleKernels {
        fn trilu(
            exec: &Exec, upper: bool, k: i64, x: &[Self], rows: usize, columns: usize, y: &mut [Self],
        ) = trilu_any;
    }
}

/// Keeps the elements on and above (or on and below) the `k`-th diagonal of every matrix; the others become zero.
pub fn trilu<T: Bits>(
    exec: &Exec,
    upper: bool,
    k: i64,
    x: &[T],
    rows: usize,
    columns: usize,
    y: &mut [T],
) -> Result {
    T::trilu(exec, upper, k, x, rows, columns, y)
}
