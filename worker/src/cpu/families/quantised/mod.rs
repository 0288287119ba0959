//! Ops on quantised numbers.

mod blocks;
mod linear;
mod numbers;
mod products;
#[cfg(test)]
mod tests;

use convoke_graph::ops::QuantisedOp;
use convoke_graph::ops::attrs::QuantiseAttrs;
use convoke_graph::{DType, Tensor};
use convoke_kernels::fused::Coding;
use convoke_kernels::quantised::range_of;

use self::numbers::format_of;
use crate::cpu::kernel::{FamilyAnswer, Spec};

pub(super) use blocks::{matmul_n_bits_int8, pack as pack_codes};

pub(super) fn find(op: QuantisedOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        QuantisedOp::QuantizeLinear => linear::quantise_linear(spec),
        QuantisedOp::DequantizeLinear => linear::dequantise_linear(spec),
        QuantisedOp::DynamicQuantizeLinear => linear::dynamic(),
        QuantisedOp::MatMulInteger => products::matmul_integer(),
        QuantisedOp::QLinearMatMul => products::qlinear_matmul(spec),
        QuantisedOp::ConvInteger => products::conv_integer(),
        QuantisedOp::QLinearConv => products::qlinear_conv(spec),
        QuantisedOp::MatMulNBits => blocks::matmul_n_bits(spec),
    }
}

/// The function of single elements that `op` computes with one scale and one zero point, and the dtype of its codes, where these
/// have eight bits.
pub(super) fn coding_of(
    op: QuantisedOp,
    spec: &Spec<'_>,
    scale: &Tensor,
    zero: Option<&Tensor>,
) -> Option<(Coding, DType)> {
    let attrs = QuantiseAttrs::new(spec.attrs).ok()?;
    let f32s = |d: Option<DType>| matches!(d, None | Some(DType::F32));
    if !f32s(attrs.precision) {
        return None;
    }
    let &[scale] = scale.as_slice::<f32>().ok()? else {
        return None;
    };
    let given = |zero: &Tensor| match zero.to_i64s()?[..] {
        [zero] => Some(zero as f32),
        _ => None,
    };
    let of_zero = zero.map(Tensor::dtype);
    let zero = zero.map_or(Some(0.0), given)?;
    let bytes = |dtype: DType| matches!(dtype, DType::I8 | DType::U8).then_some(dtype);
    let x = spec.dtype(0).ok()?;
    match op {
        QuantisedOp::DequantizeLinear if f32s(attrs.output_dtype) => {
            Some((Coding::Decode { scale, zero }, bytes(x)?))
        }
        QuantisedOp::QuantizeLinear if x == DType::F32 => {
            let to = bytes(of_zero.or(attrs.output_dtype).unwrap_or(DType::U8))?;
            let (low, high) = range_of(format_of(to).ok()?)?;
            let coding = Coding::Encode {
                scale,
                zero,
                low,
                high,
            };
            Some((coding, to))
        }
        _ => None,
    }
}
