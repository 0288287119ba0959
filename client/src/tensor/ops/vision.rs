//! Ops of vision models.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::args::{Axes, OptHostArg};
use crate::tensor::options;
use crate::tensor::{Tensor, call};

/// Ops of vision models.
impl Tensor {
    /// X \[N, C, ..\] of one to three spatial axes convolved with W, each element of which is read with an
    /// offset of its own: \[N, M, ..\].
    ///
    /// - `self`: operand X, floats
    /// - `w`: operand W, floats
    /// - `offset`: operand offset, floats
    /// - `b`: operand B, floats, may be left out
    /// - `mask`: operand mask, floats, may be left out
    /// - `with`: further attributes
    #[track_caller]
    pub fn deform_conv(
        &self,
        w: &Tensor,
        offset: &Tensor,
        b: Option<&Tensor>,
        mask: Option<&Tensor>,
        with: impl Into<Option<options::DeformConv>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("dilations", call::list(with.dilations)),
            ("group", call::int(with.group)),
            ("kernel_shape", call::list(with.kernel_shape)),
            ("offset_group", call::int(with.offset_group)),
            ("pads", call::list(with.pads)),
            ("strides", call::list(with.strides)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(w),
            call::strict(offset),
            call::optional(b),
            call::optional(mask),
        ];
        call::one("DeformConv", attrs, &operands)
    }

    /// The elements of X \[N, C, ..\] at the places of `grid` \[N, .., axes\], in \[-1, 1\] and from the
    /// last axis on: \[N, C, ..\].
    ///
    /// - `self`: operand X, any dtype
    /// - `grid`: operand grid, floats
    /// - `with`: further attributes
    #[track_caller]
    pub fn grid_sample(
        &self,
        grid: &Tensor,
        with: impl Into<Option<options::GridSample>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("align_corners", call::flag(with.align_corners)),
            ("mode", call::text(with.mode.as_deref())),
            ("padding_mode", call::text(with.padding_mode.as_deref())),
        ]);
        let operands = [call::strict(self), call::strict(grid)];
        call::one("GridSample", attrs, &operands)
    }

    /// The pixels of an image file: u8 \[height, width, channels\]. BMP, JPEG, JPEG 2000, PNG, PNM, TIFF and
    /// WebP are read.
    ///
    /// - `self`: operand encoded_stream, u8
    /// - `pixel_format`: `RGB`, `BGR` or `Grayscale`; by default `RGB`
    #[track_caller]
    pub fn image_decoder<'a>(&self, pixel_format: impl Into<Option<&'a str>>) -> Result<Tensor> {
        let attrs = call::attrs([("pixel_format", call::text(pixel_format))]);
        let operands = [call::strict(self)];
        call::one("ImageDecoder", attrs, &operands)
    }

    /// Greatest elements of the bins of regions \[R, 5\] of X \[N, C, H, W\], each an image and two corners:
    /// \[R, C, ..\].
    ///
    /// - `self`: operand X, floats
    /// - `rois`: operand rois, floats
    /// - `pooled_shape`: height and width of the result
    /// - `spatial_scale`: the factor from coordinates of regions to elements; by default 1
    #[track_caller]
    pub fn max_roi_pool(
        &self,
        rois: &Tensor,
        pooled_shape: impl Into<Vec<i64>>,
        spatial_scale: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("pooled_shape", call::ints(pooled_shape)),
            ("spatial_scale", call::float(spatial_scale)),
        ]);
        let operands = [call::strict(self), call::strict(rois)];
        call::one("MaxRoiPool", attrs, &operands)
    }

    /// The elements of X \[N, C, ..\] at the places where `MaxPool` found them, and zeros.
    ///
    /// - `self`: operand X, floats
    /// - `indices`: operand indices, i64
    /// - `output_shape`: operand output_shape, i64, may be left out
    /// - `kernel_shape`: extents of the window, one per spatial axis
    /// - `pads`: padding before every spatial axis, then behind every one; by default all 0
    /// - `strides`: steps of the window, one per spatial axis; by default all 1
    #[track_caller]
    pub fn max_unpool<'a>(
        &self,
        indices: &Tensor,
        output_shape: impl Into<OptHostArg<'a>>,
        kernel_shape: impl Into<Vec<i64>>,
        pads: impl Into<Axes>,
        strides: impl Into<Axes>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("kernel_shape", call::ints(kernel_shape)),
            ("pads", call::axes(pads)),
            ("strides", call::axes(strides)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(indices),
            call::optional_host(output_shape)?,
        ];
        call::one("MaxUnpool", attrs, &operands)
    }

    /// The boxes \[N, B, 4\] with the highest scores \[N, classes, B\] that overlap none with a higher one:
    /// i64 \[count, 3\] of image, class and box.
    ///
    /// - `self`: operand boxes, f32
    /// - `scores`: operand scores, f32
    /// - `max_output_boxes_per_class`: operand max_output_boxes_per_class, i64, may be left out
    /// - `iou_threshold`: operand iou_threshold, f32, may be left out
    /// - `score_threshold`: operand score_threshold, f32, may be left out
    /// - `center_point_box`: boxes are given by centre, width and height; by default false
    #[track_caller]
    pub fn non_max_suppression(
        &self,
        scores: &Tensor,
        max_output_boxes_per_class: Option<&Tensor>,
        iou_threshold: Option<&Tensor>,
        score_threshold: Option<&Tensor>,
        center_point_box: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("center_point_box", call::flag(center_point_box))]);
        let operands = [
            call::strict(self),
            call::strict(scores),
            call::optional(max_output_boxes_per_class),
            call::optional(iou_threshold),
            call::optional(score_threshold),
        ];
        call::one("NonMaxSuppression", attrs, &operands)
    }

    /// Bins of regions \[R, 4\] of X \[N, C, H, W\], sampled by interpolation: \[R, C, ..\].
    ///
    /// - `self`: operand X, floats
    /// - `rois`: operand rois, floats
    /// - `batch_indices`: operand batch_indices, i64
    /// - `with`: further attributes
    #[track_caller]
    pub fn roi_align(
        &self,
        rois: &Tensor,
        batch_indices: &Tensor,
        with: impl Into<Option<options::RoiAlign>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            (
                "coordinate_transformation_mode",
                call::text(with.coordinate_transformation_mode.as_deref()),
            ),
            ("mode", call::text(with.mode.as_deref())),
            ("output_height", call::int(with.output_height)),
            ("output_width", call::int(with.output_width)),
            ("sampling_ratio", call::int(with.sampling_ratio)),
            ("spatial_scale", call::float(with.spatial_scale)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(rois),
            call::strict(batch_indices),
        ];
        call::one("RoiAlign", attrs, &operands)
    }
}
