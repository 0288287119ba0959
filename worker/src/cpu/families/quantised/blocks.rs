//! `MatMulNBits` and `MatMulNBitsInt8`: weights that stay codes.

use convoke_graph::ops::attrs::{BlockWeightAttrs, PackCodesAttrs};
use convoke_graph::{DType, Tensor};
use convoke_kernels::quantised::{
    BlockWeights, CodedRows, ZeroPoints, code_rows, pack_codes, product_of_blocks, product_of_codes,
};

use super::numbers::{as_f32, optional_f32};
use crate::cpu::cast::wide::{narrow_to, wide, wide_output};
use crate::cpu::kernel::{FamilyAnswer, KernelFailure, OpLaunch, Spec, body, one, write};

fn is_signed(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::I4 | DType::I2)
}

/// Makes the kernel of `PackCodes`.
pub(in crate::cpu::families) fn pack(spec: &Spec<'_>) -> FamilyAnswer {
    let attrs = PackCodesAttrs::new(spec.attrs)?;
    body(move |call| {
        let codes = call.input(0)?;
        let rows = attrs.rows(codes.dtype(), codes.elements())?;
        let mut y = call.output(0)?;
        let layout = (attrs.n, rows, attrs.bits, is_signed(codes.dtype()));
        pack_codes(&call.launch.exec, codes.bytes(), layout, write(&mut y)?)?;
        one(y)
    })
}

pub(super) fn matmul_n_bits(spec: &Spec<'_>) -> FamilyAnswer {
    let attrs = BlockWeightAttrs::new(spec.attrs)?;
    body(move |call| {
        let (a, w) = (wide(&call, 0)?, Weights::new(&call)?);
        let mut y = wide_output(&call, 0)?;
        product_of_blocks(
            &call.launch.exec,
            a.as_slice()?,
            a.elements() / attrs.k,
            &w.blocks(&call, &attrs)?,
            w.bias()?,
            write(&mut y)?,
        )?;
        one(narrow_to(&call, 0, y)?)
    })
}

/// Makes the kernel of `MatMulNBitsInt8`.
pub(in crate::cpu::families) fn matmul_n_bits_int8(spec: &Spec<'_>) -> FamilyAnswer {
    let attrs = BlockWeightAttrs::new(spec.attrs)?;
    body(move |call| {
        let (a, w, exec) = (wide(&call, 0)?, Weights::new(&call)?, &call.launch.exec);
        let blocks = a.elements() / attrs.k * attrs.blocks();
        let mut codes = call.scratch::<u8>(blocks * attrs.block)?;
        let mut scales = call.scratch::<f32>(blocks)?;
        let mut sums = call.scratch::<i32>(blocks)?;
        code_rows(
            exec,
            a.as_slice()?,
            (attrs.k, attrs.block),
            write(&mut codes)?,
            (write(&mut scales)?, write(&mut sums)?),
        )?;
        let left = CodedRows {
            codes: codes.as_slice()?,
            scales: scales.as_slice()?,
            sums: sums.as_slice()?,
        };
        let mut y = wide_output(&call, 0)?;
        product_of_codes(
            exec,
            left,
            &w.blocks(&call, &attrs)?,
            w.bias()?,
            write(&mut y)?,
        )?;
        one(narrow_to(&call, 0, y)?)
    })
}

/// The parameters of weights, as numbers where they are not codes.
struct Weights {
    scales: Tensor,
    /// Zero points that are no codes.
    numbers: Option<Tensor>,
    bias: Option<Tensor>,
}

impl Weights {
    fn new(call: &OpLaunch<'_, '_>) -> Result<Weights, KernelFailure> {
        let numbers = call
            .optional(3)
            .filter(|z| !matches!(z.dtype(), DType::U8 | DType::I8));
        Ok(Weights {
            scales: as_f32(call, call.input(2)?)?,
            numbers: numbers.map(|z| as_f32(call, z)).transpose()?,
            bias: optional_f32(call, 4)?,
        })
    }

    fn blocks<'a>(
        &'a self,
        call: &'a OpLaunch<'_, '_>,
        attrs: &BlockWeightAttrs,
    ) -> Result<BlockWeights<'a>, KernelFailure> {
        let zeros = match (&self.numbers, call.optional(3)) {
            (Some(numbers), _) => ZeroPoints::Numbers(numbers.as_slice()?),
            (None, None) => ZeroPoints::Middle,
            (None, Some(zeros)) if zeros.dtype() == DType::U8 => {
                ZeroPoints::Packed(zeros.as_slice()?)
            }
            (None, Some(zeros)) => ZeroPoints::Signed(zeros.as_slice()?),
        };
        let codes = call.input(1)?;
        Ok(BlockWeights {
            k: attrs.k,
            n: attrs.n,
            bits: attrs.bits,
            signed: is_signed(codes.dtype()),
            packed: attrs.packed,
            block: attrs.block,
            codes: codes.bytes(),
            scales: self.scales.as_slice()?,
            zeros,
        })
    }

    fn bias(&self) -> Result<Option<&[f32]>, KernelFailure> {
        Ok(self.bias.as_ref().map(|b| b.as_slice()).transpose()?)
    }
}
