//! Tensors of strings: reading their strings, and making such a tensor within the pool.

use convoke_common::Error;
use convoke_common::memory::Pool;
use convoke_graph::tensor::{TensorError, element_count};
use convoke_graph::text::{MOST_BYTES, Strings, Writer, table_len};
use convoke_graph::{DType, Tensor};
use convoke_kernels::Exec;
use convoke_kernels::movement::expand;

use crate::cpu::kernel::{FamilyAnswer, KernelFailure, OpLaunch, body, one, write};

/// Elements between two checks of the cancel flag.
pub(super) const PIECE: usize = 1 << 12;

/// Takes the parts of one string.
pub(in crate::cpu) type Sink<'s> = &'s mut dyn FnMut(&str) -> Result<(), TensorError>;

/// Makes a tensor of strings. `give` passes on the parts of string `i`; it is called twice for each, first for the
/// lengths, and does the same both times.
pub(in crate::cpu) fn made(
    exec: &Exec<'_>,
    pool: &Pool,
    shape: &[usize],
    mut give: impl FnMut(usize, Sink<'_>) -> Result<(), KernelFailure>,
) -> Result<Tensor, KernelFailure> {
    let count = element_count(shape).unwrap_or(usize::MAX);
    let mut bytes = table_len(count).unwrap_or(usize::MAX);
    for i in 0..count {
        if i.is_multiple_of(PIECE) {
            exec.check()?;
            if bytes > MOST_BYTES {
                return Err(TensorError::TooMuchText { bytes }.into());
            }
        }
        give(i, &mut |part| {
            bytes = bytes.saturating_add(part.len());
            Ok(())
        })?;
    }
    let mut y = pool.sized(DType::Str, shape, bytes)?;
    let shared = || Error::internal("an output's buffer is shared");
    let mut writer = Writer::new(y.bytes_mut().ok_or_else(shared)?, count)?;
    for i in 0..count {
        if i.is_multiple_of(PIECE) {
            exec.check()?;
        }
        give(i, &mut |part| writer.part(part))?;
        writer.end()?;
    }
    writer.finish()?;
    Ok(y)
}

/// The strings of operand `i`.
pub(super) fn strings<'c>(
    call: &'c OpLaunch<'_, '_>,
    i: usize,
) -> Result<Strings<'c>, KernelFailure> {
    Ok(call.input(i)?.strings()?)
}

/// For each element of the output, the place of the string of operand `i` that it is broadcast from.
pub(super) fn places(call: &OpLaunch<'_, '_>, i: usize) -> Result<Tensor, KernelFailure> {
    let x = call.input(i)?;
    let elements = element_count(call.out_shape(0)).unwrap_or(usize::MAX);
    let mut own = call.scratch::<u64>(x.elements())?;
    for (at, place) in write::<u64>(&mut own)?.iter_mut().enumerate() {
        *place = at as u64;
    }
    let mut all = call.scratch::<u64>(elements)?;
    let (from, shape) = (own.as_slice::<u64>()?, call.out_shape(0));
    if elements > 0 {
        expand::<u64>(&call.launch.exec, from, x.shape(), write(&mut all)?, shape)?;
    }
    Ok(all)
}

/// Makes the kernel of an op with one output of strings.
pub(super) fn of_strings(
    kernel: impl Fn(&OpLaunch<'_, '_>) -> Result<Tensor, KernelFailure> + Send + Sync + 'static,
) -> FamilyAnswer {
    body(move |call| one(kernel(&call)?))
}
