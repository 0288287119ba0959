//! Other lengths by interpolation.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::args::OptHostArg;
use crate::tensor::options;
use crate::tensor::{Tensor, call};

/// Other lengths by interpolation.
impl Tensor {
    /// X with axes brought to other lengths, by factors `scales` or to `sizes`, by interpolation.
    ///
    /// - `self`: operand X, any dtype
    /// - `roi`: operand roi, floats, may be left out
    /// - `scales`: operand scales, f32, may be left out
    /// - `sizes`: operand sizes, i64, may be left out
    /// - `with`: further attributes
    #[track_caller]
    pub fn resize<'a>(
        &self,
        roi: impl Into<OptHostArg<'a>>,
        scales: impl Into<OptHostArg<'a>>,
        sizes: impl Into<OptHostArg<'a>>,
        with: impl Into<Option<options::Resize>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("antialias", call::flag(with.antialias)),
            ("axes", call::list(with.axes)),
            (
                "coordinate_transformation_mode",
                call::text(with.coordinate_transformation_mode.as_deref()),
            ),
            ("cubic_coeff_a", call::float(with.cubic_coeff_a)),
            ("exclude_outside", call::flag(with.exclude_outside)),
            ("extrapolation_value", call::float(with.extrapolation_value)),
            (
                "keep_aspect_ratio_policy",
                call::text(with.keep_aspect_ratio_policy.as_deref()),
            ),
            ("mode", call::text(with.mode.as_deref())),
            ("nearest_mode", call::text(with.nearest_mode.as_deref())),
        ]);
        let operands = [
            call::strict(self),
            call::optional_host(roi)?,
            call::optional_host(scales)?,
            call::optional_host(sizes)?,
        ];
        call::one("Resize", attrs, &operands)
    }
}
