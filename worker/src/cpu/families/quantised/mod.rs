//! Ops on quantised numbers.

mod blocks;
mod linear;
mod products;
#[cfg(test)]
mod tests;

use convoke_common::Error;
use convoke_graph::narrow::narrow_of;
use convoke_graph::ops::attrs::{Granularity, QuantiseAttrs};
use convoke_graph::ops::{OpError, QuantisedOp};
use convoke_graph::{DType, Tensor};
use convoke_kernels::fused::Coding;
use convoke_kernels::quantised::{Format, Layout, Numbers, Parameters, Take, dequantise, range_of};

use crate::cpu::KernelFailure;
use crate::cpu::call::{FamilyAnswer, OpLaunch, Spec, write_bits};

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

/// The format of elements of `dtype`, where quantisation knows it.
fn format_of(dtype: DType) -> Result<Format, OpError> {
    Ok(match dtype {
        DType::F32 => Format::F32,
        DType::F16 => Format::F16,
        DType::BF16 => Format::BF16,
        DType::I8 => Format::I8,
        DType::U8 => Format::U8,
        DType::I16 => Format::I16,
        DType::U16 => Format::U16,
        DType::I32 => Format::I32,
        other => {
            let narrow = narrow_of(other).map(Format::Narrow);
            return narrow.ok_or_else(|| OpError::DType {
                operand: "a quantised tensor".into(),
                got: other,
                allowed: "a dtype that quantisation knows".into(),
            });
        }
    })
}

/// The layout of parameters of this granularity over a tensor of shape `x`.
fn layout_of(x: &[usize], granularity: Granularity) -> Layout {
    let sizes = |axis: usize| {
        let inner: usize = x.iter().skip(axis + 1).product();
        (x.get(axis).copied().unwrap_or(1), inner)
    };
    match granularity {
        Granularity::Tensor => Layout::Tensor,
        Granularity::Axis(axis) => {
            let (len, inner) = sizes(axis);
            Layout::Axis { len, inner }
        }
        Granularity::Blocks { axis, size } => {
            let (len, inner) = sizes(axis);
            Layout::Blocks { len, inner, size }
        }
        Granularity::Whole { axis } => {
            let (len, inner) = sizes(axis);
            Layout::Blocks {
                len,
                inner,
                size: len,
            }
        }
    }
}

/// The elements of `x` that `take` names, less their zero points and times their scales, as f32 numbers in `to`.
fn numbers_into(
    call: &OpLaunch<'_, '_>,
    x: &Tensor,
    take: Take,
    parameters: &Parameters<'_>,
    to: &mut Tensor,
    len: usize,
) -> Result<(), KernelFailure> {
    let numbers = Numbers::new(format_of(x.dtype())?, x.bytes());
    let bytes = write_bits::<u8>(to)?;
    let short = || Error::internal("scratch memory is too short");
    let bytes = bytes.get_mut(..len * 4).ok_or_else(short)?;
    let exec = &call.launch.exec;
    Ok(dequantise(
        exec,
        &numbers,
        take,
        len,
        parameters,
        (Format::F32, bytes),
    )?)
}

/// The numbers of `x` as an f32 tensor.
fn as_f32(call: &OpLaunch<'_, '_>, x: &Tensor) -> Result<Tensor, KernelFailure> {
    if x.dtype() == DType::F32 {
        return Ok(x.clone());
    }
    let mut y = call.launch.pool.tensor(DType::F32, x.shape())?;
    let plain = Parameters {
        layout: Layout::Tensor,
        scales: None,
        zeros: None,
    };
    numbers_into(call, x, Take::ALL, &plain, &mut y, x.elements())?;
    Ok(y)
}

/// Operand `i` as f32 numbers; `None` where it is left out.
fn optional_f32(call: &OpLaunch<'_, '_>, i: usize) -> Result<Option<Tensor>, KernelFailure> {
    call.optional(i).map(|t| as_f32(call, t)).transpose()
}
