//! From quantised elements to numbers: formats, layouts of parameters, and operands as f32.

use convoke_common::Error;
use convoke_graph::narrow::narrow_of;
use convoke_graph::ops::OpError;
use convoke_graph::ops::attrs::Granularity;
use convoke_graph::{DType, Tensor};
use convoke_kernels::quantised::{Format, Layout, Numbers, Parameters, Take, dequantise};

use crate::cpu::kernel::{KernelFailure, OpLaunch, write_bits};

/// The format of elements of `dtype`, where quantisation knows it.
pub(super) fn format_of(dtype: DType) -> Result<Format, OpError> {
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
pub(super) fn layout_of(x: &[usize], granularity: Granularity) -> Layout {
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
pub(super) fn numbers_into(
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
pub(super) fn as_f32(call: &OpLaunch<'_, '_>, x: &Tensor) -> Result<Tensor, KernelFailure> {
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
pub(super) fn optional_f32(
    call: &OpLaunch<'_, '_>,
    i: usize,
) -> Result<Option<Tensor>, KernelFailure> {
    call.optional(i).map(|t| as_f32(call, t)).transpose()
}
