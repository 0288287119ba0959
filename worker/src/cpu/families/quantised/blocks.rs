//! `MatMulNBits`: weights that stay codes.

use convoke_graph::DType;
use convoke_graph::ops::attrs::{BlockWeightAttrs, PackCodesAttrs};
use convoke_kernels::quantised::{BlockWeights, ZeroPoints, pack_codes, product_of_blocks};

use super::{as_f32, optional_f32};
use crate::cpu::call::{FamilyAnswer, Spec, body, one, write};
use crate::cpu::wide::{narrow_to, wide, wide_output};

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
        let (a, scales) = (wide(&call, 0)?, as_f32(&call, call.input(2)?)?);
        let bias = optional_f32(&call, 4)?;
        let numbers;
        let zeros = match call.optional(3) {
            None => ZeroPoints::Middle,
            Some(zeros) if zeros.dtype() == DType::U8 => ZeroPoints::Packed(zeros.as_slice()?),
            Some(zeros) if zeros.dtype() == DType::I8 => ZeroPoints::Signed(zeros.as_slice()?),
            Some(zeros) => {
                numbers = as_f32(&call, zeros)?;
                ZeroPoints::Numbers(numbers.as_slice()?)
            }
        };
        let weights = BlockWeights {
            k: attrs.k,
            n: attrs.n,
            bits: attrs.bits,
            signed: is_signed(call.input(1)?.dtype()),
            packed: attrs.packed,
            block: attrs.block,
            codes: call.input(1)?.bytes(),
            scales: scales.as_slice()?,
            zeros,
        };
        let bias = bias.as_ref().map(|b| b.as_slice()).transpose()?;
        let m = a.elements() / attrs.k;
        let mut y = wide_output(&call, 0)?;
        product_of_blocks(
            &call.launch.exec,
            a.as_slice()?,
            m,
            &weights,
            bias,
            write(&mut y)?,
        )?;
        one(narrow_to(&call, 0, y)?)
    })
}
