//! Operators that move elements without looking at them.
//!
//! Most kernels take [`Bits`](crate::element::Bits): the caller views its elements as unsigned integers of equal size.
//! Indices are checked before anything is written; the error names the first index that is out of range.

mod compress;
mod concat;
mod create;
mod gather;
mod indices;
mod pad;
mod reverse;
mod scatter;
mod strided;
mod transpose;
mod triangle;
mod write_steps;

pub use compress::{CompressKernels, NonZeroKernels, compress, count_nonzero, nonzero};
pub use concat::{ConcatKernels, concat, split};
pub use create::{
    FillKernels, OneHotKernels, RangeKernels, eye, fill, one_hot, range, range_len, range_len_float,
};
pub use gather::{GatherKernels, gather, gather_elements, gather_nd};
pub use indices::Indices;
pub use pad::{PadKernels, PadMode, pad};
pub use reverse::{ReverseKernels, reverse_sequence};
pub use scatter::{ScatterKernels, ScatterReduction, scatter_elements, scatter_nd};
pub use strided::{StridedKernels, copy, expand, slice, tile};
pub use transpose::{BlockOrder, TransposeKernels, depth_to_space, space_to_depth, transpose};
pub use triangle::{TriangleKernels, trilu};
pub use write_steps::{Places, WriteStepsKernels, write_steps};

#[cfg(test)]
mod tests;
