//! Ops of vision models: crops, transposed convolutions, grids and resizing, in their older forms or by other ops.

pub(super) mod center_crop_pad;
pub(super) mod conv_transpose;
pub(super) mod grid;
pub(super) mod resize;
