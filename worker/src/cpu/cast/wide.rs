//! Conversions of floats around a kernel: for kernels that compute in f32 only, and for ops whose operands differ in
//! dtype. Operands are widened before, and results rounded once after.

use convoke_common::Error;
use convoke_graph::{DType, Tensor};
use convoke_kernels::cast::{self, cast};

use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::{KernelFailure, OpLaunch, write};

/// `x` converted to `to`, where both dtypes are floats; `x` itself if it has that dtype.
pub(crate) fn convert(
    call: &OpLaunch<'_, '_>,
    x: &Tensor,
    to: DType,
) -> Result<Tensor, KernelFailure> {
    if x.dtype() == to {
        return Ok(x.clone());
    }
    let mut y = call.launch.pool.tensor(to, x.shape())?;
    let exec = &call.launch.exec;
    if to == DType::F32
        && by_dtype!([F16 half::f16, BF16 half::bf16] x.dtype(), A => {
            cast::widen::<A>(exec, x.as_slice()?, write(&mut y)?)?
        })
        .is_some()
    {
        return Ok(y);
    }
    if x.dtype() == DType::F32
        && by_dtype!([F16 half::f16, BF16 half::bf16] to, B => {
            cast::narrow::<B>(exec, x.as_slice()?, write(&mut y)?)?
        })
        .is_some()
    {
        return Ok(y);
    }
    let done = by_dtype!(float x.dtype(), A => by_dtype!(float to, B => {
        cast::<A, B>(exec, x.as_slice()?, write(&mut y)?)?
    }));
    let other = || Error::internal(format!("{} to {to} is no conversion of floats", x.dtype()));
    done.flatten().map(|()| y).ok_or_else(|| other().into())
}

/// Operand `i` converted to f32.
pub(crate) fn wide(call: &OpLaunch<'_, '_>, i: usize) -> Result<Tensor, KernelFailure> {
    convert(call, call.input(i)?, DType::F32)
}

/// Operand `i` converted to f32; `None` where it is left out.
pub(crate) fn optional_wide(
    call: &OpLaunch<'_, '_>,
    i: usize,
) -> Result<Option<Tensor>, KernelFailure> {
    call.optional(i)
        .map(|t| convert(call, t, DType::F32))
        .transpose()
}

/// An f32 tensor of output `o`'s shape.
pub(crate) fn wide_output(call: &OpLaunch<'_, '_>, o: usize) -> Result<Tensor, KernelFailure> {
    Ok(call.launch.pool.tensor(DType::F32, call.out_shape(o))?)
}

/// `y` converted to the dtype of output `o`.
pub(crate) fn narrow_to(
    call: &OpLaunch<'_, '_>,
    o: usize,
    y: Tensor,
) -> Result<Tensor, KernelFailure> {
    let (dtype, _) = call
        .outputs
        .get(o)
        .ok_or_else(|| Error::internal(format!("output {o} has no dtype")))?;
    convert(call, &y, *dtype)
}
