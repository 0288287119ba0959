//! Copies from a strided view: `Slice`, `Expand`, `Tile`.

use crate::Exec;
use crate::compiled::compiled_bits;
use crate::element::{Bits, Element};
use crate::error::{KernelError, Result};
use crate::shape::{MAX_RANK, Walk, check_rank, count, strides};
use crate::split::{GRAIN, tiles};

/// Fills `y` in order with the elements of `x` that `walk` visits.
pub(super) fn copy_walk<T: Element>(exec: &Exec, x: &[T], walk: &Walk<1>, y: &mut [T]) -> Result {
    let step = walk.inner()[0];
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        let mut runs = walk.runs(range);
        while let Some(run) = runs.next_run() {
            let y = &mut part[run.start..run.start + run.len];
            let from = run.offset[0];
            match step {
                1 => y.copy_from_slice(&x[from..from + run.len]),
                0 => y.fill(x[from]),
                _ => {
                    let mut at = from;
                    for y in y {
                        *y = x[at];
                        at = at.wrapping_add_signed(step);
                    }
                }
            }
        }
    })?)
}

fn slice_any<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    starts: &[usize],
    steps: &[isize],
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
        [starts.len(), steps.len(), y_shape.len()] == [rank; 3],
        "slice of {shape:?}"
    );
    let dense = strides(shape);
    let mut moves = [0; MAX_RANK];
    let mut base = 0;
    for axis in 0..rank {
        if y_shape[axis] > 0 {
            let last = starts[axis] as isize + (y_shape[axis] as isize - 1) * steps[axis];
            let inside = starts[axis] < shape[axis] && (0..shape[axis] as isize).contains(&last);
            assert!(
                inside || y.is_empty(),
                "slice of axis {axis} of {shape:?} leaves it"
            );
        }
        moves[axis] = dense[axis] * steps[axis];
        base += dense[axis] * starts[axis] as isize;
    }
    copy_walk(exec, x, &Walk::new(y_shape, [&moves[..rank]], [base])?, y)
}

fn expand_any<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    y: &mut [T],
    y_shape: &[usize],
) -> Result {
    assert!(
        x.len() == count(shape) && y.len() == count(y_shape),
        "{shape:?} to {y_shape:?}"
    );
    copy_walk(exec, x, &Walk::broadcast(y_shape, [shape])?, y)
}

fn tile_any<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    repeats: &[usize],
    y: &mut [T],
) -> Result {
    let rank = shape.len();
    if 2 * rank > MAX_RANK {
        return Err(KernelError::RankTooLarge {
            rank,
            max: MAX_RANK / 2,
        });
    }
    assert!(
        x.len() == count(shape) && repeats.len() == rank && y.len() == x.len() * count(repeats),
        "{shape:?}"
    );
    // Every axis becomes two axes: the repetition, whose stride is 0, and the axis itself.
    let dense = strides(shape);
    let (mut dims, mut moves) = ([1; MAX_RANK], [0; MAX_RANK]);
    for axis in 0..rank {
        (dims[2 * axis], dims[2 * axis + 1], moves[2 * axis + 1]) =
            (repeats[axis], shape[axis], dense[axis]);
    }
    copy_walk(
        exec,
        x,
        &Walk::new(&dims[..2 * rank], [&moves[..2 * rank]], [0])?,
        y,
    )
}

fn copy_any<T: Bits>(exec: &Exec, x: &[T], y: &mut [T]) -> Result {
    assert_eq!(x.len(), y.len(), "copy");
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        part.copy_from_slice(&x[range])
    })?)
}

compiled_bits! {
    /// Strided copies of elements of one size.
    trait StridedKernels {
        fn slice(
            exec: &Exec, x: &[Self], shape: &[usize], starts: &[usize], steps: &[isize], y: &mut [Self],
            y_shape: &[usize],
        ) = slice_any;
        fn expand(exec: &Exec, x: &[Self], shape: &[usize], y: &mut [Self], y_shape: &[usize]) = expand_any;
        fn tile(exec: &Exec, x: &[Self], shape: &[usize], repeats: &[usize], y: &mut [Self]) = tile_any;
        fn copy(exec: &Exec, x: &[Self], y: &mut [Self]) = copy_any;
    }
}

/// `y[i, …] = x[starts[0] + i * steps[0], …]`: one start and step per axis, clamped to the shape by the caller.
pub fn slice<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    starts: &[usize],
    steps: &[isize],
    y: &mut [T],
    y_shape: &[usize],
) -> Result {
    T::slice(exec, x, shape, starts, steps, y, y_shape)
}

/// Broadcasts `x` to `y_shape`.
pub fn expand<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    y: &mut [T],
    y_shape: &[usize],
) -> Result {
    T::expand(exec, x, shape, y, y_shape)
}

/// Repeats `x` `repeats[axis]` times along every axis. `x` has at most eight axes.
pub fn tile<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    repeats: &[usize],
    y: &mut [T],
) -> Result {
    T::tile(exec, x, shape, repeats, y)
}

/// Copies `x` to `y`, which has the same length.
pub fn copy<T: Bits>(exec: &Exec, x: &[T], y: &mut [T]) -> Result {
    T::copy(exec, x, y)
}
