//! Attributes of the random ops.

use half::{bf16, f16};

use super::bad;
use crate::DType;
use crate::graph::Attrs;
use crate::ops::error::OpError;

/// Attribute `dtype`, which must be a float.
fn float(attrs: &Attrs) -> Result<DType, OpError> {
    match attrs.dtype("dtype") {
        Some(d) if d.is_float() && !d.is_narrow() => Ok(d),
        Some(d) => Err(bad("dtype", format!("must be a float, not {d}"))),
        None => Err(bad("dtype", "is required")),
    }
}

/// Whether `v`, rounded to `dtype`, is a finite number.
fn is_finite_in(dtype: DType, v: f32) -> bool {
    match dtype {
        DType::F16 => f16::from_f32(v).is_finite(),
        DType::BF16 => bf16::from_f32(v).is_finite(),
        _ => v.is_finite(),
    }
}

/// Attributes of `PhiloxUniform`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UniformAttrs {
    pub dtype: DType,
    pub low: f32,
    pub high: f32,
}

impl UniformAttrs {
    /// Reads the attributes, and checks that the bounds are finite, in ascending order, and a finite distance apart.
    pub fn new(attrs: &Attrs) -> Result<UniformAttrs, OpError> {
        let dtype = float(attrs)?;
        let (low, high) = (attrs.float("low", 0.), attrs.float("high", 1.));
        for (name, v) in [("low", low), ("high", high)] {
            if !is_finite_in(dtype, v) {
                return Err(bad(name, format!("{v} is not a finite {dtype}")));
            }
        }
        if high < low || !(high - low).is_finite() {
            let reason = format!("{high} is below 'low', {low}, or too far above it");
            return Err(bad("high", reason));
        }
        Ok(UniformAttrs { dtype, low, high })
    }
}

/// Attributes of `PhiloxNormal`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormalAttrs {
    pub dtype: DType,
    pub mean: f32,
    /// The standard deviation.
    pub scale: f32,
}

impl NormalAttrs {
    /// Reads the attributes, and checks that mean and scale are finite and the scale is not negative.
    pub fn new(attrs: &Attrs) -> Result<NormalAttrs, OpError> {
        let dtype = float(attrs)?;
        let (mean, scale) = (attrs.float("mean", 0.), attrs.float("scale", 1.));
        if !mean.is_finite() {
            return Err(bad("mean", format!("{mean} is not finite")));
        }
        if !scale.is_finite() || scale < 0. {
            return Err(bad("scale", format!("{scale} is negative or not finite")));
        }
        Ok(NormalAttrs { dtype, mean, scale })
    }
}
