//! Reductions over any set of axes, along one axis, and the largest of one axis.
//!
//! Every sum, product or extreme runs over sixteen virtual lanes: element `k` of the reduced axes in row-major
//! order goes to lane `k % 16`, in ascending `k`; at the end lane `l` merges with lane `l + 8`, then 4, 2, 1. The
//! memory layout chooses the loop, never the order.

mod arg;
mod cumulate;
mod folds;
mod lanes;
mod top;

pub use arg::{ArgKernels, Extreme, arg_extreme};
pub use cumulate::{Covered, CumulateKernels, Running, cumulate};
pub use folds::{FloatReduceKernels, IntegerReduceKernels, Reduce, reduce_float, reduce_integer};
pub(crate) use folds::{Visit, single_pass};
pub(crate) use lanes::{Fold, LANES, Rows, merge_lanes};
pub use top::{TopKernels, top_k};

#[cfg(test)]
mod tests;
