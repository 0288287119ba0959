//! Products and convolutions with prepacked weights, each computed in one pass with the activation that follows.

use convoke_common::Error;
use convoke_graph::Tensor;
use convoke_graph::ops::FusedOp;
use convoke_graph::ops::OpError;
use convoke_graph::ops::attrs::flag;
use convoke_graph::ops::packing::packed_gemm_len;
use convoke_kernels::gemm::{
    Batch, Epilogue, Lhs, PackedB, Rhs, Strided, gemm_batched, pack_b_on, packed_b_len,
};

use super::matmul::{product, rows};
use super::{attention, conv};
use crate::cpu::cast::wide::{narrow_to, optional_wide, wide, wide_output};
use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::activation::activation;
use crate::cpu::kernel::{FamilyAnswer, KernelBody, KernelFailure, Spec, body, one, write};

pub(super) fn find(op: FusedOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        FusedOp::PackGemmB => pack_gemm_b(spec),
        FusedOp::PackConvW => conv::pack(spec),
        FusedOp::PackRecurrent => super::recurrent::pack(spec),
        FusedOp::PackCodes => super::quantised::pack_codes(spec),
        FusedOp::MatMulNBitsInt8 => super::quantised::matmul_n_bits_int8(spec),
        FusedOp::FusedAttention => attention::find(spec),
        FusedOp::FusedGemm => fused_gemm(spec),
        FusedOp::FusedConv => conv::fused_conv(spec),
    }
}

/// Makes the kernel that packs `[k, n]`, or `[n, k]` with `trans`, into the order in which products read it.
fn pack_gemm_b(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let trans = flag(spec.attrs, "trans", false);
    let dtype = spec.dtype(0)?;
    let found = by_dtype!([F32 f32, F16 half::f16, BF16 half::bf16] dtype, T => body(move |call| {
        let b = call.input(0)?;
        let &[rows, cols] = b.shape() else {
            return Err(KernelFailure::values(format!("only matrices are packed, not {b:?}")));
        };
        let (k, n) = if trans { (cols, rows) } else { (rows, cols) };
        let data = b.as_slice::<T>()?;
        let source = if trans { Strided::col_major(data, k) } else { Strided::row_major(data, n) };
        let mut y = call.output(0)?;
        let out = write::<T>(&mut y)?;
        if out.len() != packed_b_len(k, n) {
            return Err(Error::internal("the registry's packed length is not the kernel's").into());
        }
        pack_b_on(&call.launch.exec, out, source, k, n)?;
        one(y)
    })?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn fused_gemm(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let activation = activation(spec)?;
    let size = |name: &str| {
        usize::try_from(spec.attrs.int(name, -1))
            .map_err(|_| spec.bad_attr(name, "must not be negative"))
    };
    let packed = if flag(spec.attrs, "packed", false) {
        Some((size("k")?, size("n")?))
    } else {
        None
    };
    if packed.is_some_and(|(k, n)| packed_gemm_len(k, n).is_none()) {
        return Err(spec.bad_attr("k", "the packed matrix is too large"));
    }
    body(move |call| {
        let (a, b, bias) = (wide(&call, 0)?, call.input(1)?, optional_wide(&call, 2)?);
        let bias = bias.as_ref().map(Tensor::as_slice).transpose()?;
        let epilogue = bias
            .map_or(Epilogue::NONE, Epilogue::col_bias)
            .activation(activation);
        if let (Some(bias), Some(n)) = (bias, call.out_shape(0).last())
            && bias.len() != *n
        {
            return Err(KernelFailure::values(format!(
                "a bias of {} values for {n} columns",
                bias.len()
            )));
        }
        let Some((k, n)) = packed else {
            let y = product(&call, &a, &wide(&call, 1)?, &epilogue)?;
            return one(narrow_to(&call, 0, y)?);
        };
        let (m, k_a) = rows(a.shape())?;
        let mut y = wide_output(&call, 0)?;
        let out = write(&mut y)?;
        if k_a != k || b.elements() != packed_b_len(k, n) || out.len() != m * n {
            return Err(KernelFailure::values(format!(
                "{a:?} cannot be multiplied by a packed [{k}, {n}] matrix"
            )));
        }
        let lhs = Lhs::Strided(Strided::row_major(a.as_slice()?, k));
        let packed = by_dtype!([F32 f32, F16 half::f16, BF16 half::bf16] b.dtype(), T => {
            PackedB::new(b.as_slice::<T>()?, k, n)
        });
        let other = || Error::internal(format!("{} is no dtype of weights", b.dtype()));
        gemm_batched(
            call.launch.exec,
            &Batch::ONE,
            (m, n, k),
            lhs,
            Rhs::Packed(packed.ok_or_else(other)?),
            out,
            &epilogue,
        )?;
        one(narrow_to(&call, 0, y)?)
    })
}

#[cfg(test)]
mod tests {
    use convoke_graph::DType;
    use convoke_graph::graph::{Attr, Attrs};
    use convoke_graph::ops::packing::PACK_N;

    use super::*;
    use crate::cpu::testing::{counting, launch, one};

    fn int(attrs: Attrs, name: &str, v: i64) -> Attrs {
        attrs.with(name, Attr::Int(v))
    }

    #[test]
    fn registry_and_kernels_agree_on_packed_lengths() {
        for k in [0, 1, 7, 300] {
            for n in (0..130).chain([1000]) {
                assert_eq!(
                    packed_gemm_len(k, n),
                    Some(packed_b_len(k, n)),
                    "[{k}, {n}]"
                );
            }
        }
        assert_eq!(packed_b_len(1, 1), PACK_N);
    }

    #[test]
    fn fused_and_packed_equal_the_separate_ops() {
        let (a, b, bias) = (counting(&[2, 3, 20]), counting(&[20, 50]), counting(&[50]));
        let product = one("MatMul", Attrs::default(), &[&a, &b]).unwrap();
        let sum = one("Add", Attrs::default(), &[&product, &bias]).unwrap();
        let want = one("Sigmoid", Attrs::default(), &[&sum]).unwrap();
        let transposed = one("Transpose", Attrs::default(), &[&b]).unwrap();
        let pack = |t: &Tensor, trans| {
            one("PackGemmB", int(Attrs::default(), "trans", trans), &[t]).unwrap()
        };
        assert_eq!(pack(&b, 0), pack(&transposed, 1));
        let fused = Attrs::default().with("activation", Attr::Str("Sigmoid".into()));
        let packed = int(int(int(fused.clone(), "packed", 1), "k", 20), "n", 50);
        for (attrs, b) in [(fused, b.clone()), (packed, pack(&b, 0))] {
            let inputs = vec![Some(a.clone()), Some(b), Some(bias.clone())];
            assert_eq!(launch("FusedGemm", attrs, inputs, 1).unwrap()[0], want);
        }
    }

    #[test]
    fn packed_halves_give_the_bits_of_the_separate_ops() {
        let cast = |t: &Tensor, to| {
            let attrs = Attrs::default().with("to", Attr::DType(to));
            one("Cast", attrs, &[t]).unwrap()
        };
        let fused = int(int(int(Attrs::default(), "packed", 1), "k", 20), "n", 50);
        for dtype in [DType::F16, DType::BF16] {
            for rows in [1, 5] {
                let x = one("Sin", Attrs::default(), &[&counting(&[rows, 20])]).unwrap();
                let (a, b) = (cast(&x, dtype), cast(&counting(&[20, 50]), dtype));
                let bias = cast(&counting(&[50]), dtype);
                let packed = one("PackGemmB", Attrs::default(), &[&b]).unwrap();
                assert_eq!(packed.dtype(), dtype);
                let run = |a: &Tensor, bias: Option<&Tensor>| {
                    let inputs = vec![Some(a.clone()), Some(packed.clone()), bias.cloned()];
                    launch("FusedGemm", fused.clone(), inputs, 1).unwrap()[0].clone()
                };
                let want = one("MatMul", Attrs::default(), &[&a, &b]).unwrap();
                assert_eq!(run(&a, None), want);
                let want = one("Gemm", Attrs::default(), &[&a, &b, &bias]).unwrap();
                assert_eq!(run(&a, Some(&bias)), want);
                let wide = one("MatMul", Attrs::default(), &[&x, &cast(&b, DType::F32)]);
                assert_eq!(run(&x, None), wide.unwrap());
            }
        }
    }

    #[test]
    fn impossible_forms_are_refused() {
        let attrs = int(
            int(int(Attrs::default(), "packed", 1), "k", i64::MAX),
            "n",
            i64::MAX,
        );
        let inputs = vec![Some(counting(&[1, 2])), Some(counting(&[4]))];
        assert!(launch("FusedGemm", attrs, inputs, 1).is_err());
    }
}
