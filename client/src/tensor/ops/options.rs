//! Attributes of ops that have many: what is `None`, or an empty list, is the op's default.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

/// Attributes of [`Tensor::conv`](crate::Tensor::conv).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conv {
    /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; by default `NOTSET`.
    pub auto_pad: Option<String>,
    /// Steps inside a window, one per spatial axis; by default all 1.
    pub dilations: Vec<i64>,
    /// Groups of channels; by default 1.
    pub group: Option<i64>,
    /// Extents of the window, one per spatial axis; by default W's.
    pub kernel_shape: Vec<i64>,
    /// Padding before every spatial axis, then behind every one; by default all 0.
    pub pads: Vec<i64>,
    /// Steps of the window, one per spatial axis; by default all 1.
    pub strides: Vec<i64>,
}

/// Attributes of [`Tensor::gemm`](crate::Tensor::gemm).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gemm {
    /// A factor of the formula; by default 1.
    pub alpha: Option<f32>,
    /// A factor of the formula; by default 1.
    pub beta: Option<f32>,
    /// A is transposed first; by default false.
    pub trans_a: Option<bool>,
    /// B is transposed first; by default false.
    pub trans_b: Option<bool>,
}

/// Attributes of [`Tensor::lrn`](crate::Tensor::lrn).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LRN {
    /// A factor of the formula; by default 0.0001.
    pub alpha: Option<f32>,
    /// The power; by default 0.75.
    pub beta: Option<f32>,
    /// What is added to the sum of squares, times alpha; by default 1.
    pub bias: Option<f32>,
}

/// Attributes of [`Tensor::average_pool`](crate::Tensor::average_pool).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AveragePool {
    /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; by default `NOTSET`.
    pub auto_pad: Option<String>,
    /// Windows at the end may reach beyond it; by default false.
    pub ceil_mode: Option<bool>,
    /// Steps inside a window, one per spatial axis; by default all 1.
    pub dilations: Vec<i64>,
    /// Padding before every spatial axis, then behind every one; by default all 0.
    pub pads: Vec<i64>,
    /// Steps of the window, one per spatial axis; by default all 1.
    pub strides: Vec<i64>,
    /// Padding counts in the mean; by default false.
    pub count_include_pad: Option<bool>,
}

/// Attributes of [`Tensor::lp_pool`](crate::Tensor::lp_pool).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LpPool {
    /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; by default `NOTSET`.
    pub auto_pad: Option<String>,
    /// Windows at the end may reach beyond it; by default false.
    pub ceil_mode: Option<bool>,
    /// Steps inside a window, one per spatial axis; by default all 1.
    pub dilations: Vec<i64>,
    /// Padding before every spatial axis, then behind every one; by default all 0.
    pub pads: Vec<i64>,
    /// Steps of the window, one per spatial axis; by default all 1.
    pub strides: Vec<i64>,
    /// The norm; by default 2.
    pub p: Option<i64>,
}

/// Attributes of [`Tensor::max_pool`](crate::Tensor::max_pool).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MaxPool {
    /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; by default `NOTSET`.
    pub auto_pad: Option<String>,
    /// Windows at the end may reach beyond it; by default false.
    pub ceil_mode: Option<bool>,
    /// Steps inside a window, one per spatial axis; by default all 1.
    pub dilations: Vec<i64>,
    /// Padding before every spatial axis, then behind every one; by default all 0.
    pub pads: Vec<i64>,
    /// Steps of the window, one per spatial axis; by default all 1.
    pub strides: Vec<i64>,
    /// Indices are those of column-major order; by default false.
    pub storage_order: Option<bool>,
}

/// Attributes of [`Tensor::arg_max`](crate::Tensor::arg_max).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ArgMax {
    /// The axis, from the end where negative; by default 0.
    pub axis: Option<i64>,
    /// Reduced axes stay, with length 1; by default true.
    pub keepdims: Option<bool>,
    /// Of equal elements the last counts; by default false.
    pub select_last_index: Option<bool>,
}

/// Attributes of [`Tensor::arg_min`](crate::Tensor::arg_min).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ArgMin {
    /// The axis, from the end where negative; by default 0.
    pub axis: Option<i64>,
    /// Reduced axes stay, with length 1; by default true.
    pub keepdims: Option<bool>,
    /// Of equal elements the last counts; by default false.
    pub select_last_index: Option<bool>,
}

/// Attributes of [`Tensor::resize`](crate::Tensor::resize).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resize {
    /// Weights spread where an axis shrinks; by default false.
    pub antialias: Option<bool>,
    /// The axes that scales, sizes and roi are for; by default all axes.
    pub axes: Vec<i64>,
    /// `half_pixel`, `half_pixel_symmetric`, `pytorch_half_pixel`, `align_corners`, `asymmetric` or
    /// `tf_crop_and_resize`; by default `half_pixel`.
    pub coordinate_transformation_mode: Option<String>,
    /// The parameter of cubic interpolation; by default -0.75.
    pub cubic_coeff_a: Option<f32>,
    /// Elements outside the operand have no weight; by default false.
    pub exclude_outside: Option<bool>,
    /// The value outside a cropped operand; by default 0.
    pub extrapolation_value: Option<f32>,
    /// `stretch`, `not_larger` or `not_smaller`, for sizes; by default `stretch`.
    pub keep_aspect_ratio_policy: Option<String>,
    /// `nearest`, `linear` or `cubic`; by default `nearest`.
    pub mode: Option<String>,
    /// `round_prefer_floor`, `round_prefer_ceil`, `floor` or `ceil`; by default `round_prefer_floor`.
    pub nearest_mode: Option<String>,
}
