//! Attributes of ops that have many: what is `None`, or an empty list, is the op's default.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_graph::DType;

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

/// Attributes of [`Tensor::rotary_embedding`](crate::Tensor::rotary_embedding).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RotaryEmbedding {
    /// The elements of a pair are neighbours, and not half of the rotated elements apart; by default false.
    pub interleaved: Option<bool>,
    /// The heads of an operand of rank 3; by default none.
    pub num_heads: Option<i64>,
    /// The elements of a head that are rotated; by default all.
    pub rotary_embedding_dim: Option<i64>,
}

/// Attributes of [`Tensor::conv_integer`](crate::Tensor::conv_integer).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConvInteger {
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

/// Attributes of [`Tensor::dequantize_linear`](crate::Tensor::dequantize_linear).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DequantizeLinear {
    /// The axis, from the end where negative; by default 1.
    pub axis: Option<i64>,
    /// Elements along the axis that share a scale; 0 for one scale an index; by default 0.
    pub block_size: Option<i64>,
    /// The dtype of the result; by default that of the scales.
    pub output_dtype: Option<DType>,
}

/// Attributes of [`Tensor::q_linear_conv`](crate::Tensor::q_linear_conv).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QLinearConv {
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

/// Attributes of [`Tensor::quantize_linear`](crate::Tensor::quantize_linear).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuantizeLinear {
    /// The axis, from the end where negative; by default 1.
    pub axis: Option<i64>,
    /// Elements along the axis that share a scale; 0 for one scale an index; by default 0.
    pub block_size: Option<i64>,
    /// The dtype of the result; by default that of the zero points, or u8.
    pub output_dtype: Option<DType>,
    /// The dtype of the division; by default that of the scales.
    pub precision: Option<DType>,
    /// A number beyond the largest float of the dtype becomes that one; by default true.
    pub saturate: Option<bool>,
}

/// Attributes of [`Tensor::gru`](crate::Tensor::gru).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GRU {
    /// Parameters of the functions, in order; by default the functions' own.
    pub activation_alpha: Vec<f32>,
    /// Parameters of the functions, in order; by default the functions' own.
    pub activation_beta: Vec<f32>,
    /// The functions of the gates, for each direction; by default sigmoid and tanh as the standard has them.
    pub activations: Vec<String>,
    /// The bound of what functions are given; by default none.
    pub clip: Option<f32>,
    /// `forward`, `reverse` or `bidirectional`; by default `forward`.
    pub direction: Option<String>,
    /// The batch is the first axis; by default false.
    pub layout: Option<bool>,
    /// The state is multiplied before it is reset; by default false.
    pub linear_before_reset: Option<bool>,
}

/// Attributes of [`Tensor::lstm`](crate::Tensor::lstm).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LSTM {
    /// Parameters of the functions, in order; by default the functions' own.
    pub activation_alpha: Vec<f32>,
    /// Parameters of the functions, in order; by default the functions' own.
    pub activation_beta: Vec<f32>,
    /// The functions of the gates, for each direction; by default sigmoid and tanh as the standard has them.
    pub activations: Vec<String>,
    /// The bound of what functions are given; by default none.
    pub clip: Option<f32>,
    /// `forward`, `reverse` or `bidirectional`; by default `forward`.
    pub direction: Option<String>,
    /// The forget gate is one minus the input gate; by default false.
    pub input_forget: Option<bool>,
    /// The batch is the first axis; by default false.
    pub layout: Option<bool>,
}

/// Attributes of [`Tensor::rnn`](crate::Tensor::rnn).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RNN {
    /// Parameters of the functions, in order; by default the functions' own.
    pub activation_alpha: Vec<f32>,
    /// Parameters of the functions, in order; by default the functions' own.
    pub activation_beta: Vec<f32>,
    /// The functions of the gates, for each direction; by default sigmoid and tanh as the standard has them.
    pub activations: Vec<String>,
    /// The bound of what functions are given; by default none.
    pub clip: Option<f32>,
    /// `forward`, `reverse` or `bidirectional`; by default `forward`.
    pub direction: Option<String>,
    /// The batch is the first axis; by default false.
    pub layout: Option<bool>,
}

/// Attributes of [`Tensor::arg_max`](crate::Tensor::arg_max).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ArgMax {
    /// The axis, from the end where negative; by default 0.
    pub axis: Option<i64>,
    /// Reduced axes stay, with length 1; by default true.
    pub keepdims: Option<bool>,
    /// Among equal elements the last one counts; by default false.
    pub select_last_index: Option<bool>,
}

/// Attributes of [`Tensor::arg_min`](crate::Tensor::arg_min).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ArgMin {
    /// The axis, from the end where negative; by default 0.
    pub axis: Option<i64>,
    /// Reduced axes stay, with length 1; by default true.
    pub keepdims: Option<bool>,
    /// Among equal elements the last one counts; by default false.
    pub select_last_index: Option<bool>,
}

/// Attributes of [`Tensor::resize`](crate::Tensor::resize).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resize {
    /// Weights spread where an axis shrinks; by default false.
    pub antialias: Option<bool>,
    /// The axes that scales, sizes and roi are for; by default all axes.
    pub axes: Vec<i64>,
    /// `half_pixel`, `half_pixel_symmetric`, `pytorch_half_pixel`, `align_corners`, `asymmetric`,
    /// `tf_half_pixel_for_nn` or `tf_crop_and_resize`; by default `half_pixel`.
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
    /// `round_prefer_floor`, `round_prefer_ceil`, `floor`, `ceil`, or `by_scale` for `ceil` where an axis
    /// shrinks, else `floor`; by default `round_prefer_floor`.
    pub nearest_mode: Option<String>,
}

/// Attributes of [`Tensor::col2im`](crate::Tensor::col2im).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Col2Im {
    /// Steps inside a window, one per spatial axis; by default all 1.
    pub dilations: Vec<i64>,
    /// Padding before every spatial axis, then behind every one; by default all 0.
    pub pads: Vec<i64>,
    /// Steps of the window, one per spatial axis; by default all 1.
    pub strides: Vec<i64>,
}

/// Attributes of [`Tensor::string_normalizer`](crate::Tensor::string_normalizer).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StringNormalizer {
    /// `NONE`, `LOWER` or `UPPER`; by default `NONE`.
    pub case_change_action: Option<String>,
    /// Stop words are left out only in their own case; by default false.
    pub is_case_sensitive: Option<bool>,
    /// The language, whose rules of case must be those of Unicode; by default none.
    pub locale: Option<String>,
    /// The words to leave out; by default none.
    pub stopwords: Vec<String>,
}

/// Attributes of [`Tensor::tf_idf_vectorizer`](crate::Tensor::tf_idf_vectorizer).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TfIdfVectorizer {
    /// The most items of a gram; by default 1.
    pub max_gram_length: Option<i64>,
    /// The most items between neighbours of a gram; by default 0.
    pub max_skip_count: Option<i64>,
    /// The least items of a gram; by default 1.
    pub min_gram_length: Option<i64>,
    /// `TF`, `IDF` or `TFIDF`; by default `TF`.
    pub mode: Option<String>,
}

/// Attributes of [`Tensor::deform_conv`](crate::Tensor::deform_conv).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeformConv {
    /// Steps inside a window, one per spatial axis; by default all 1.
    pub dilations: Vec<i64>,
    /// Groups of channels; by default 1.
    pub group: Option<i64>,
    /// Extents of the window, one per spatial axis; by default W's.
    pub kernel_shape: Vec<i64>,
    /// Groups of channels with offsets of their own; by default 1.
    pub offset_group: Option<i64>,
    /// Padding before every spatial axis, then behind every one; by default all 0.
    pub pads: Vec<i64>,
    /// Steps of the window, one per spatial axis; by default all 1.
    pub strides: Vec<i64>,
}

/// Attributes of [`Tensor::grid_sample`](crate::Tensor::grid_sample).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GridSample {
    /// -1 and 1 are the centres of the outermost elements; by default false.
    pub align_corners: Option<bool>,
    /// `nearest`, `linear` or `cubic`; by default `linear`.
    pub mode: Option<String>,
    /// `zeros`, `border` or `reflection`; by default `zeros`.
    pub padding_mode: Option<String>,
}

/// Attributes of [`Tensor::roi_align`](crate::Tensor::roi_align).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RoiAlign {
    /// `half_pixel` or `output_half_pixel`; by default `half_pixel`.
    pub coordinate_transformation_mode: Option<String>,
    /// `avg` or `max`; by default `avg`.
    pub mode: Option<String>,
    /// The extent of the result; by default 1.
    pub output_height: Option<i64>,
    /// The extent of the result; by default 1.
    pub output_width: Option<i64>,
    /// Samples along each axis of a bin; 0 chooses; by default 0.
    pub sampling_ratio: Option<i64>,
    /// The factor from coordinates of regions to elements; by default 1.
    pub spatial_scale: Option<f32>,
}
