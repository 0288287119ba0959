//! Pooling over one to three spatial dimensions.
//!
//! A window's taps are taken in row-major order, one chain per output; `f16` and `bf16` accumulate in `f32`. Global
//! pooling is a reduction over the spatial axes (see [`crate::reduce`]).

mod average;
mod lines;
mod max;
mod rows;
mod unpool;
mod window;

pub use average::{AveragePoolKernels, average_pool, lp_pool};
pub use max::{MaxPoolKernels, StorageOrder, max_pool, max_pool_with_indices};
pub use unpool::{UnpoolKernels, max_unpool};
pub use window::Window;

use crate::Exec;
use crate::element::Float;
use crate::error::Result;
use crate::reduce::{Reduce, reduce_float};

/// Computes the mean of every plane; `x` is `[y.len(), spatial]`.
pub fn global_average_pool<T: Float>(exec: &Exec, x: &[T], spatial: usize, y: &mut [T]) -> Result {
    let shape = [y.len(), spatial];
    reduce_float(exec, Reduce::Mean, x, &shape, &[1], y)
}

/// Computes the largest element of every plane; `x` is `[y.len(), spatial]`.
pub fn global_max_pool<T: Float>(exec: &Exec, x: &[T], spatial: usize, y: &mut [T]) -> Result {
    let shape = [y.len(), spatial];
    reduce_float(exec, Reduce::Max, x, &shape, &[1], y)
}

#[cfg(test)]
mod tests;
