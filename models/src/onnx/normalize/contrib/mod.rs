//! Ops of ONNX Runtime's own domains, by the ops that they consist of. Its optimizer puts them into models, and so do
//! tools that write models for it.

mod attention;
mod bnb;
mod conv;
mod crop;
mod distance;
mod elementwise;
mod forms;
mod group;
mod lstm;
mod moe;
mod nchwc;
mod norm;
mod product;
mod qmoe;
mod state;
mod streams;

pub(super) use attention::Packed;
pub(super) use conv::{channels_first, channels_last_order, rank};
pub(in super::super) use lstm::dynamic_lstm;
pub use nchwc::BlockWidth;
pub(in super::super) use nchwc::{Block, block_of};
pub(super) use norm::simplified_layer_norm;

use super::super::builder::Builder;
use super::node::{ImportedNode, Outputs, unsupported};
use super::quantised;

/// Imports a node of the domain `com.microsoft`.
pub(in super::super) fn microsoft(b: &mut Builder, c: ImportedNode) -> Outputs {
    match c.op.as_str() {
        "Attention" => attention::attention(b, c),
        "BiasAdd" => elementwise::bias_add(b, c),
        "BiasDropout" | "BitmaskBiasDropout" => elementwise::bias_dropout(b, c),
        "BiasGelu" => elementwise::gelu(b, c, "none"),
        "BiasSoftmax" => elementwise::bias_softmax(b, c),
        "BiasSplitGelu" => elementwise::bias_split_gelu(b, c),
        "BitmaskDropout" => elementwise::bitmask_dropout(b, c),
        "BranchwiseRMSNorm" => streams::branchwise_norm(b, c),
        "CausalConvWithState" => state::causal_conv(b, c),
        "CDist" => distance::distances(b, c),
        "ConvTransposeWithDynamicPads" => conv::conv_transpose(b, c),
        "CropAndResize" => crop::crop_and_resize(b, c),
        "DecoderMaskedMultiHeadAttention" => attention::decoder_masked_attention(b, c),
        "EmbedLayerNormalization" => norm::embed_layer_norm(b, c),
        "ExpandDims" => forms::expand_dims(b, c),
        "FastGelu" => elementwise::gelu(b, c, "tanh"),
        "FusedConv" => conv::fused_conv(b, c),
        "FusedGemm" => product::fused_gemm(b, c),
        "FusedMatMul" | "FusedMatMulActivation" | "TransposeMatMul" => product::fused_matmul(b, c),
        "GatedAdd" => elementwise::gated_add(b, c),
        "GatedRMSNorm" => streams::gated_rms_norm(b, c),
        "GatherND" => forms::gather_nd(b, c),
        "Gelu" | "Inverse" | "LayerNormalization" | "Tokenizer" | "Trilu" => c.emit(b),
        "GemmFastGelu" => product::gemm_fast_gelu(b, c),
        "GridSample" => super::resize::grid_sample(b, c),
        "GroupNorm" | "SkipGroupNorm" => group::group_norm(b, c),
        "GroupQueryAttention" => attention::group_query_attention(b, c),
        "HyperConnectionPostMix" => streams::post_mix(b, c),
        "HyperConnectionPreMix" => streams::pre_mix(b, c),
        "LinearAttention" => state::linear_attention(b, c),
        "LinearAttentionGate" => streams::linear_attention_gate(b, c),
        "MatMulBnb4" => bnb::product(b, c),
        "MRotaryEmbedding" => attention::sectioned_rotary(b, c),
        "MoE" => moe::moe(b, c),
        "MultiHeadAttention" => attention::multi_head_attention(b, c),
        "NhwcConv" | "NhwcFusedConv" => conv::nhwc_conv(b, c),
        "NhwcMaxPool" => conv::nhwc_max_pool(b, c),
        "Pad" => forms::pad(b, c),
        "QMoE" => qmoe::qmoe(b, c),
        "QuickGelu" => elementwise::quick_gelu(b, c),
        "QEmbedLayerNormalization" => norm::codes_embed_layer_norm(b, c),
        "Range" => forms::range(b, c),
        "RotaryEmbedding" => attention::rotary_embedding(b, c),
        "SampleOp" => c.emit_as(b, "Identity"),
        "ScaledSiLU" => streams::scaled_silu(b, c),
        "SimplifiedLayerNormalization" => norm::simplified_layer_norm(b, c),
        "SkipLayerNormalization" => norm::skip_layer_norm(b, c, norm::Kind::Layer),
        "SkipSimplifiedLayerNormalization" => norm::skip_layer_norm(b, c, norm::Kind::Simplified),
        "UnfoldTensor" => forms::unfold(b, c),
        "Unique" => forms::unique(b, c),
        op if quantised::is_known(op) => quantised::microsoft(b, c),
        _ => Err(unsupported("")),
    }
}

/// Imports a node of the domain `com.microsoft.nchwc`.
pub(in super::super) fn blocked(b: &mut Builder, c: ImportedNode, block: Block) -> Outputs {
    nchwc::import(b, c, block)
}
