//! `Gather`, `GatherElements`, `GatherND`.

use std::sync::atomic::{AtomicBool, Ordering};

use super::indices::{Index, Indices, are_within, check_index, resolve};
use crate::Exec;
use crate::compiled::compiled_bits;
use crate::element::Bits;
use crate::error::Result;
use crate::shape::{Axis, MAX_RANK, Walk, check_rank, count, strides};
use crate::split::{GRAIN, PIECE, tiles, units_per_tile};

fn gather_any<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    axis: usize,
    indices: Indices,
    y: &mut [T],
) -> Result {
    let Axis { outer, len, inner } = Axis::of(shape, axis);
    let n = indices.len();
    assert!(
        x.len() == count(shape) && y.len() == outer * n * inner,
        "gather from {shape:?}"
    );
    indices.check(exec, len, axis)?;
    Ok(tiles(
        exec,
        y,
        inner,
        units_per_tile(inner),
        |range, part| {
            if inner == 1 {
                for (at, y) in range.zip(part) {
                    *y = x[at / n * len + indices.resolved(at % n, len)];
                }
                return;
            }
            for (at, y) in range.zip(part.chunks_mut(inner)) {
                let from = (at / n * len + indices.resolved(at % n, len)) * inner;
                y.copy_from_slice(&x[from..from + inner]);
            }
        },
    )?)
}

fn gather_elements_any<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    axis: usize,
    indices: Indices,
    y: &mut [T],
    y_shape: &[usize],
) -> Result {
    check_rank(shape)?;
    let rank = shape.len();
    assert!(
        x.len() == count(shape) && y.len() == count(y_shape) && indices.len() == y.len(),
        "{shape:?}"
    );
    assert!(
        y_shape.len() == rank && (0..rank).all(|a| a == axis || y_shape[a] <= shape[a]),
        "{y_shape:?} of {shape:?}"
    );
    let all = match indices {
        Indices::I32(indices) => pick_elements(exec, x, shape, axis, indices, y, y_shape)?,
        Indices::I64(indices) => pick_elements(exec, x, shape, axis, indices, y, y_shape)?,
    };
    if all {
        return Ok(());
    }
    // Names the first index that is out of range, whichever tile met one first.
    indices.check(exec, shape[axis], axis)
}

/// Gathers the elements that the indices address, and returns whether all indices address one. Indices are checked a tile
/// at a time, since together they may be larger than the cache.
fn pick_elements<T: Bits, I: Index>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    axis: usize,
    indices: &[I],
    y: &mut [T],
    y_shape: &[usize],
) -> Result<bool> {
    let mut moves = strides(shape);
    let along = std::mem::take(&mut moves[axis]) as usize;
    let walk = Walk::new(y_shape, [&moves[..shape.len()]], [0])?;
    let step = walk.inner()[0] as usize;
    let outside = AtomicBool::new(false);
    tiles(exec, y, 1, GRAIN, |range, part| {
        let indices = &indices[range.clone()];
        if !are_within(indices, shape[axis]) {
            outside.store(true, Ordering::Relaxed);
            return;
        }
        let mut runs = walk.runs(range);
        while let Some(run) = runs.next_run() {
            let x = &x[run.offset[0]..];
            let indices = &indices[run.start..run.start + run.len];
            let part = &mut part[run.start..run.start + run.len];
            let mut from = 0;
            for (y, index) in part.iter_mut().zip(indices) {
                *y = x[from + resolve(index.wide(), shape[axis]) * along];
                from += step;
            }
        }
    })?;
    Ok(!outside.into_inner())
}

/// Checks the rows of `indices`, each of which is a position in the `depth` axes of `shape` from axis `batch` on.
pub(super) fn check_rows(
    exec: &Exec,
    indices: Indices,
    shape: &[usize],
    batch: usize,
    depth: usize,
) -> Result {
    for at in 0..indices.len() {
        if at.is_multiple_of(PIECE) {
            exec.check()?;
        }
        let axis = batch + at % depth.max(1);
        check_index(indices.get(at), shape[axis], axis)?;
    }
    Ok(())
}

/// The flat offset that row `row` of `indices` addresses in dimensions `dims` with strides `dense`.
pub(super) fn row_offset(indices: Indices, row: usize, dims: &[usize], dense: &[isize]) -> usize {
    let depth = dims.len();
    (0..depth)
        .map(|k| indices.resolved(row * depth + k, dims[k]) * dense[k] as usize)
        .sum()
}

fn gather_nd_any<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    batch_dims: usize,
    indices: Indices,
    depth: usize,
    y: &mut [T],
) -> Result {
    check_rank(shape)?;
    assert!(
        x.len() == count(shape) && batch_dims + depth <= shape.len() && depth > 0,
        "{depth} of {shape:?}"
    );
    check_rows(exec, indices, shape, batch_dims, depth)?;
    let inner = count(&shape[batch_dims + depth..]);
    let batch = count(&shape[..batch_dims]);
    let rows = indices.len() / depth;
    assert_eq!(y.len(), rows * inner, "{rows} rows of {inner}");
    let (per_batch, step) = (rows / batch.max(1), count(&shape[batch_dims..]));
    let dense: [isize; MAX_RANK] = strides(shape);
    let (dims, dense) = (
        &shape[batch_dims..batch_dims + depth],
        &dense[batch_dims..batch_dims + depth],
    );
    Ok(tiles(
        exec,
        y,
        inner,
        units_per_tile(inner),
        |range, part| {
            for (row, y) in range.zip(part.chunks_mut(inner)) {
                let from = row / per_batch * step + row_offset(indices, row, dims, dense);
                y.copy_from_slice(&x[from..from + inner]);
            }
        },
    )?)
}

compiled_bits! {
    /// Gathering elements of one size.
    trait GatherKernels {
        fn gather(
            exec: &Exec, x: &[Self], shape: &[usize], axis: usize, indices: Indices, y: &mut [Self],
        ) = gather_any;
        fn gather_elements(
            exec: &Exec, x: &[Self], shape: &[usize], axis: usize, indices: Indices, y: &mut [Self],
            y_shape: &[usize],
        ) = gather_elements_any;
        fn gather_nd(
            exec: &Exec, x: &[Self], shape: &[usize], batch_dims: usize, indices: Indices, depth: usize,
            y: &mut [Self],
        ) = gather_nd_any;
    }
}

/// `y[…, i, …] = x[…, indices[i], …]` along `axis`.
pub fn gather<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    axis: usize,
    indices: Indices,
    y: &mut [T],
) -> Result {
    T::gather(exec, x, shape, axis, indices, y)
}

/// `y[i, j, …] = x[indices[i, j, …], j, …]` for axis 0, and correspondingly for other axes; `indices` has the shape of
/// `y`.
pub fn gather_elements<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    axis: usize,
    indices: Indices,
    y: &mut [T],
    y_shape: &[usize],
) -> Result {
    T::gather_elements(exec, x, shape, axis, indices, y, y_shape)
}

/// `y[b, i, …] = x[b, indices[b, i], …]`, where an index is a row of `depth` positions. The first `batch_dims` axes of
/// `x`, `indices` and `y` are equal.
pub fn gather_nd<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    batch_dims: usize,
    indices: Indices,
    depth: usize,
    y: &mut [T],
) -> Result {
    T::gather_nd(exec, x, shape, batch_dims, indices, depth, y)
}
