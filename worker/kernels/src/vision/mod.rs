//! Ops of vision models that sample feature maps at places which other operands give, and that choose among boxes.
//!
//! Invariants
//! 1. Coordinates may be any floats. How many elements a place or a bin reads is bounded by the map and by attributes,
//!    however large a region is. What does not lie on the map is zero, or what the padding of a grid says. NaN does not lie
//!    on the map, but is the place -1 in a grid.
//! 2. The weights of a sample are computed once for all channels of a tile.

mod deform;
mod grid;
mod nms;
mod roi;
#[cfg(test)]
mod tests;

pub use deform::{Deform, DeformElement, DeformKernels, DeformOperands, deform_conv};
pub use grid::{
    GridKernels, GridPadding, GridSample, Sampling, TakeKernels, grid_places, grid_sample,
    take_places,
};
pub use nms::{Suppression, suppress};
pub use roi::{RoiAlign, RoiKernels, RoiMode, max_roi_pool, roi_align};
