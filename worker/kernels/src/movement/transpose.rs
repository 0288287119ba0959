//! `Transpose`, `DepthToSpace`, `SpaceToDepth`.
//!
//! Axes that stay adjacent are merged first. Then rows that stay whole are copied, the two innermost axes are swapped
//! by way of square blocks or, where the last one is short, by rows of it, and any other permutation is gathered element by
//! element.

use super::strided::copy_walk;
use crate::Exec;
use crate::compiled::compiled_bits;
use crate::element::Bits;
use crate::error::Result;
use crate::isa::{Isa, Simd, per_isa};
use crate::shape::{MAX_RANK, Walk, check_rank, count, strides};
use crate::split::{tiles, units_per_tile};

/// Side of the blocks of a swap: sixteen rows of sixteen elements stay in the first-level cache.
const BLOCK: usize = 16;

/// A swap is split into tiles at multiples of this many output rows.
const ROWS: usize = 4 * BLOCK;

/// Writes `rows` rows of `columns` elements: `y[r][c] = x[c * step + r]`.
fn swap<T: Bits>(x: &[T], step: usize, y: &mut [T], rows: usize, columns: usize) {
    match columns {
        2 => return interleave::<T, 2>(x, step, y),
        3 => return interleave::<T, 3>(x, step, y),
        4 => return interleave::<T, 4>(x, step, y),
        _ if size_of::<T>() == 4 => return swap_of_words(x, step, y, rows, columns),
        _ => {}
    }
    for r in (0..rows).step_by(BLOCK) {
        let height = BLOCK.min(rows - r);
        for c in (0..columns).step_by(BLOCK) {
            let width = BLOCK.min(columns - c);
            let mut block = [[T::default(); BLOCK]; BLOCK];
            if height == BLOCK && width == BLOCK {
                for (j, column) in (c..c + BLOCK).enumerate() {
                    let x = &x[column * step + r..column * step + r + BLOCK];
                    for i in 0..BLOCK {
                        block[i][j] = x[i];
                    }
                }
                for (i, row) in block.iter().enumerate() {
                    let at = (r + i) * columns + c;
                    y[at..at + BLOCK].copy_from_slice(row);
                }
            } else {
                for i in 0..height {
                    for j in 0..width {
                        y[(r + i) * columns + c + j] = x[(c + j) * step + r + i];
                    }
                }
            }
        }
    }
}

/// [`swap`] of elements of four bytes.
fn swap_of_words<T: Bits>(x: &[T], step: usize, y: &mut [T], rows: usize, columns: usize) {
    const { assert!(BLOCK.is_multiple_of(SQUARE)) };
    if rows == 0 || columns == 0 {
        return;
    }
    assert!(x.len() >= (columns - 1) * step + rows && y.len() >= rows * columns);
    let squares = (rows / BLOCK * BLOCK, columns / SQUARE * SQUARE);
    let (from, to) = (x.as_ptr().cast::<f32>(), y.as_mut_ptr().cast::<f32>());
    // SAFETY: the processor has the instruction set. Elements are of the size of f32, whose registers keep any bits, and the
    // squares lie in both slices by the assertion.
    unsafe { words(Isa::detect(), from, step, to, columns, squares) };
    // What is left reads each line of the cache once as well.
    for (rows, from) in [(0..squares.0, squares.1), (squares.0..rows, 0)] {
        for first in (from..columns).step_by(BLOCK) {
            for r in rows.clone() {
                for c in first..columns.min(first + BLOCK) {
                    y[r * columns + c] = x[c * step + r];
                }
            }
        }
    }
}

/// Side of the squares that are transposed in registers.
const SQUARE: usize = 8;

per_isa! {
    /// Transposes whole squares: `y[r * columns + c] = x[c * step + r]`. Rows are a multiple of [`BLOCK`], a line of the cache.
    ///
    /// # Safety
    /// The instruction set is available, and the squares lie in both operands.
    unsafe fn words(
        x: *const f32,
        step: usize,
        y: *mut f32,
        columns: usize,
        squares: (usize, usize),
    ) => words_by
}

/// The body of [`words`].
///
/// # Safety
/// The contract is that of [`words`].
#[inline(always)]
unsafe fn words_by<S: Simd>(
    x: *const f32,
    step: usize,
    y: *mut f32,
    columns: usize,
    (rows, width): (usize, usize),
) {
    for first in (0..rows).step_by(BLOCK) {
        for c in (0..width).step_by(SQUARE) {
            for r in (first..first + BLOCK).step_by(SQUARE) {
                // SAFETY: the caller's contract.
                unsafe {
                    S::transpose8(x.add(c * step + r), step, y.add(r * columns + c), columns)
                };
            }
        }
    }
}

/// [`swap`] of `N` columns.
fn interleave<T: Bits, const N: usize>(x: &[T], step: usize, y: &mut [T]) {
    let rows = y.as_chunks_mut::<N>().0;
    let columns: [&[T]; N] = std::array::from_fn(|c| &x[c * step..c * step + rows.len()]);
    for r in 0..rows.len() {
        rows[r] = columns.map(|column| column[r]);
    }
}

fn transpose_any<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    perm: &[usize],
    y: &mut [T],
) -> Result {
    check_rank(shape)?;
    let rank = shape.len();
    assert!(
        x.len() == count(shape) && y.len() == x.len() && perm.len() == rank,
        "{shape:?} by {perm:?}"
    );
    let dense = strides(shape);
    let (mut dims, mut moves) = ([1; MAX_RANK], [0; MAX_RANK]);
    for (axis, &from) in perm.iter().enumerate() {
        (dims[axis], moves[axis]) = (shape[from], dense[from]);
    }
    let walk = Walk::new(&dims[..rank], [&moves[..rank]], [0])?;
    let Some((rows, 1)) = walk.second() else {
        return copy_walk(exec, x, &walk, y);
    };
    let (columns, step) = (walk.run(), walk.inner()[0] as usize);
    if step == 1 {
        return copy_walk(exec, x, &walk, y);
    }
    let grain = units_per_tile(columns).next_multiple_of(ROWS);
    Ok(tiles(exec, y, columns, grain, |range, part| {
        let (mut row, mut done) = (range.start, 0);
        while row < range.end {
            let height = (rows - row % rows).min(range.end - row);
            // The source of the first element of this row.
            let mut runs = walk.runs(row * columns..row * columns + 1);
            if let Some(run) = runs.next_run() {
                let y = &mut part[done * columns..(done + height) * columns];
                swap(&x[run.offset[0]..], step, y, height, columns);
            }
            row += height;
            done += height;
        }
    })?)
}

compiled_bits! {
    /// Transposition of elements of one size.
    trait TransposeKernels {
        fn transpose(exec: &Exec, x: &[Self], shape: &[usize], perm: &[usize], y: &mut [Self]) = transpose_any;
    }
}

/// Axis `i` of `y` is axis `perm[i]` of `x`.
pub fn transpose<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    perm: &[usize],
    y: &mut [T],
) -> Result {
    T::transpose(exec, x, shape, perm, y)
}

/// The order of the parts that the channel axis of `DepthToSpace` consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockOrder {
    /// Block row, block column, channel.
    DepthColumnRow,
    /// Channel, block row, block column.
    ColumnRowDepth,
}

/// Moves `[n, c, h, w]` to `[n, c / block^2, h * block, w * block]`.
pub fn depth_to_space<T: Bits>(
    exec: &Exec,
    x: &[T],
    [n, c, h, w]: [usize; 4],
    block: usize,
    order: BlockOrder,
    y: &mut [T],
) -> Result {
    assert!(
        block > 0 && c.is_multiple_of(block * block),
        "{c} channels in blocks of {block}"
    );
    let depth = c / (block * block);
    match order {
        BlockOrder::DepthColumnRow => transpose(
            exec,
            x,
            &[n, block, block, depth, h, w],
            &[0, 3, 4, 1, 5, 2],
            y,
        ),
        BlockOrder::ColumnRowDepth => transpose(
            exec,
            x,
            &[n, depth, block, block, h, w],
            &[0, 1, 4, 2, 5, 3],
            y,
        ),
    }
}

/// Moves `[n, c, h, w]` to `[n, c * block^2, h / block, w / block]`, with block row and column before the channel.
pub fn space_to_depth<T: Bits>(
    exec: &Exec,
    x: &[T],
    [n, c, h, w]: [usize; 4],
    block: usize,
    y: &mut [T],
) -> Result {
    assert!(
        block > 0 && h.is_multiple_of(block) && w.is_multiple_of(block),
        "{h}x{w} in blocks of {block}"
    );
    transpose(
        exec,
        x,
        &[n, c, h / block, block, w / block, block],
        &[0, 3, 5, 1, 2, 4],
        y,
    )
}
