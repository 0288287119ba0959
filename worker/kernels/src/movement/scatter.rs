//! `ScatterElements` and `ScatterND`.
//!
//! Updates are applied in their order on one thread, so that repeated indices give the same result on every machine.

use super::gather::{check_rows, row_offset};
use super::indices::Indices;
use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::Number;
use crate::error::Result;
use crate::shape::{Walk, check_rank, count, strides};
use crate::split::{GRAIN, units_per_tile};

/// How an update is combined with the element that its index addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScatterReduction {
    /// The update replaces the element.
    None,
    /// The update is added to the element.
    Add,
    /// The element is multiplied by the update.
    Mul,
    /// The smaller of both is kept.
    Min,
    /// The larger of both is kept.
    Max,
}

impl ScatterReduction {
    fn apply<T: Number>(self, old: T, update: T) -> T {
        match self {
            ScatterReduction::None => update,
            ScatterReduction::Add => T::add(old, update),
            ScatterReduction::Mul => T::mul(old, update),
            ScatterReduction::Min => T::min(old, update),
            ScatterReduction::Max => T::max(old, update),
        }
    }
}

fn scatter_elements_any<T: Number>(
    exec: &Exec,
    reduction: ScatterReduction,
    y: &mut [T],
    shape: &[usize],
    axis: usize,
    indices: Indices,
    updates: &[T],
    update_shape: &[usize],
) -> Result {
    check_rank(shape)?;
    let rank = shape.len();
    assert!(
        y.len() == count(shape) && updates.len() == count(update_shape),
        "{update_shape:?} into {shape:?}"
    );
    assert!(
        indices.len() == updates.len() && update_shape.len() == rank,
        "{update_shape:?} into {shape:?}"
    );
    assert!(
        (0..rank).all(|a| a == axis || update_shape[a] <= shape[a]),
        "{update_shape:?} into {shape:?}"
    );
    indices.check(exec, shape[axis], axis)?;
    let mut moves = strides(shape);
    let along = std::mem::take(&mut moves[axis]) as usize;
    let walk = Walk::new(update_shape, [&moves[..rank]], [0])?;
    let step = walk.inner()[0] as usize;
    for first in (0..updates.len()).step_by(GRAIN) {
        exec.check()?;
        let mut runs = walk.runs(first..updates.len().min(first + GRAIN));
        while let Some(run) = runs.next_run() {
            for i in 0..run.len {
                let at = first + run.start + i;
                let place =
                    &mut y[run.offset[0] + i * step + indices.resolved(at, shape[axis]) * along];
                *place = reduction.apply(*place, updates[at]);
            }
        }
    }
    Ok(())
}

fn scatter_nd_any<T: Number>(
    exec: &Exec,
    reduction: ScatterReduction,
    y: &mut [T],
    shape: &[usize],
    indices: Indices,
    depth: usize,
    updates: &[T],
) -> Result {
    check_rank(shape)?;
    assert!(
        y.len() == count(shape) && depth <= shape.len() && depth > 0,
        "{depth} of {shape:?}"
    );
    check_rows(exec, indices, shape, 0, depth)?;
    let (rows, inner) = (indices.len() / depth, count(&shape[depth..]));
    assert_eq!(updates.len(), rows * inner, "{rows} updates of {inner}");
    let dense = strides(shape);
    let batch = units_per_tile(inner);
    for row in 0..rows {
        if row.is_multiple_of(batch) {
            exec.check()?;
        }
        let at = row_offset(indices, row, &shape[..depth], &dense[..depth]);
        for (place, &update) in y[at..at + inner].iter_mut().zip(&updates[row * inner..]) {
            *place = reduction.apply(*place, update);
        }
    }
    Ok(())
}

compiled_numbers! {
    /// Scattering elements of a type.
    trait ScatterKernels {
        fn scatter_elements(
            exec: &Exec, reduction: ScatterReduction, y: &mut [Self], shape: &[usize], axis: usize,
            indices: Indices, updates: &[Self], update_shape: &[usize],
        ) = scatter_elements_any;
        fn scatter_nd(
            exec: &Exec, reduction: ScatterReduction, y: &mut [Self], shape: &[usize], indices: Indices,
            depth: usize, updates: &[Self],
        ) = scatter_nd_any;
    }
}

/// `y[indices[i, j, …], j, …] = updates[i, j, …]` for axis 0, and correspondingly for other axes. The caller has copied
/// the data to `y`.
pub fn scatter_elements<T: Number>(
    exec: &Exec,
    reduction: ScatterReduction,
    y: &mut [T],
    shape: &[usize],
    axis: usize,
    indices: Indices,
    updates: &[T],
    update_shape: &[usize],
) -> Result {
    T::scatter_elements(
        exec,
        reduction,
        y,
        shape,
        axis,
        indices,
        updates,
        update_shape,
    )
}

/// `y[indices[i], …] = updates[i, …]`, where an index is a row of `depth` positions. The caller has copied the data to
/// `y`.
pub fn scatter_nd<T: Number>(
    exec: &Exec,
    reduction: ScatterReduction,
    y: &mut [T],
    shape: &[usize],
    indices: Indices,
    depth: usize,
    updates: &[T],
) -> Result {
    T::scatter_nd(exec, reduction, y, shape, indices, depth, updates)
}
