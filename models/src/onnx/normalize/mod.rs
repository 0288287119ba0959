//! Rewriting of older forms of ops to the newest form.
//!
//! Invariants
//! 1. A rewritten node computes what the op computes in the version of its own operator set.
//! 2. The last node of a rewriting has the name and the outputs of the original node `NAME`. Nodes before it are named
//!    `NAME/Op`, and operands that were attributes `NAME/attribute`.
//! 3. A form that cannot be expressed is reported as unsupported, never approximated.

mod attention;
mod composed;
mod contrib;
mod early;
mod einsum;
mod learn;
mod node;
mod operands;
mod quantised;
mod random;
mod scatter;
mod signal;
mod text;
mod vision;

use self::composed::{losses, softmax};
use self::vision::{center_crop_pad, conv_transpose, grid, resize};
use super::builder::Builder;

/// Imports a node of ONNX's own domain.
pub(super) fn standard(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let v = c.opset;
    if v < 7 {
        early::to_seven(b, &mut c)?;
    }
    match c.op.as_str() {
        "Bernoulli" => random::bernoulli(b, c),
        "Multinomial" => random::multinomial(b, c),
        "RandomNormal" | "RandomNormalLike" | "RandomUniform" | "RandomUniformLike" => {
            random::random(b, c)
        }
        "Softmax" | "LogSoftmax" | "Hardmax" if v < 13 => softmax::flattening(b, c),
        "Squeeze" => operands::squeeze(b, c),
        "Unsqueeze" if v < 13 => operands::axes(b, c),
        "Unsqueeze" => operands::scalar_axes(b, c),
        "ReduceSum" if v < 13 => operands::axes(b, c),
        "ReduceSum" => c.emit(b),
        op if op.starts_with("Reduce") && v < 18 => operands::axes(b, c),
        "Split" => operands::split(b, c),
        "Range" => operands::range(b, c),
        "Pad" if v < 11 => operands::pad(b, c),
        "Slice" if v < 10 => operands::slice(b, c),
        "Clip" if v < 11 => operands::clip(b, c),
        "TopK" if v < 10 => operands::top_k(b, c),
        "Dropout" => operands::dropout(b, c),
        "IsInf" | "IsNaN" => operands::widened(b, c),
        "BatchNormalization" => operands::batch_norm(b, c),
        "ConvTranspose" => conv_transpose::conv_transpose(b, c),
        "LSTM" | "GRU" | "RNN" => operands::recurrent(b, c),
        "NegativeLogLikelihoodLoss" => losses::negative_log_likelihood(b, c),
        "SoftmaxCrossEntropyLoss" => losses::softmax_cross_entropy(b, c),
        "Affine" if v < 10 => early::experimental::affine(b, c),
        "Crop" if v < 10 => early::experimental::crop(b, c),
        "ImageScaler" if v < 10 => early::experimental::image_scaler(b, c),
        "ParametricSoftplus" if v < 10 => early::experimental::scaled(b, c, "Softplus"),
        "Scale" if v < 10 => early::experimental::scale(b, c),
        "ScaledTanh" if v < 10 => early::experimental::scaled(b, c, "Tanh"),
        "AffineGrid" => grid::affine_grid(b, c),
        "Attention" => attention::attention(b, c),
        "CausalConvWithState" => attention::causal_conv(b, c),
        "CenterCropPad" => center_crop_pad::center_crop_pad(b, c),
        "DFT" if v < 20 => operands::dft(b, c),
        "Einsum" => einsum::einsum(b, c),
        "HannWindow" | "HammingWindow" | "BlackmanWindow" => signal::window(b, c),
        "LinearAttention" => attention::linear_attention(b, c),
        "MelWeightMatrix" => signal::mel_weight_matrix(b, c),
        "STFT" => signal::stft(b, c),
        // ONNX Runtime has this op of its own in ONNX's domain.
        "SimplifiedLayerNormalization" => contrib::simplified_layer_norm(b, c),
        "SwiGLU" => composed::swiglu(b, c),
        "Upsample" => resize::upsample(b, c),
        "QuantizeLinear" | "DequantizeLinear" => quantised::linear(b, c),
        "QLinearMatMul" => quantised::qlinear_matmul(b, c),
        "Resize" => resize::resize(b, c),
        "Scatter" => c.emit_as(b, "ScatterElements"),
        "ScatterElements" | "ScatterND" => scatter::scatter(b, c),
        "Col2Im" => operands::col2im(b, c),
        "NonZero" => text::non_zero(b, c),
        "Unique" => text::unique(b, c),
        "GridSample" if v < 20 => resize::grid_sample(b, c),
        "RoiAlign" if v < 16 => resize::roi_align(b, c),
        "GroupNormalization" if v < 21 => composed::group_norm(b, c),
        "Shrink" => composed::shrink(b, c),
        _ => c.emit(b),
    }
}

pub(super) use attention::{Flex, FlexAttention};
pub use contrib::BlockWidth;
pub(super) use contrib::{Block, block_of, blocked, dynamic_lstm, microsoft};
pub(super) use learn::{learned, of_map};
pub(super) use node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, without_axes,
};
pub(super) use text::tf_idf;
