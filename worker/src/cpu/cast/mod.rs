//! Conversions between dtypes.

mod narrow;
pub(super) mod wide;

use convoke_graph::DType;
use convoke_graph::ops::OpError;
use convoke_graph::ops::UnaryOp;
use convoke_kernels::cast::{cast, cast_to_bool};
use convoke_kernels::movement::copy;

use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::{FamilyAnswer, KernelBody, Spec, body, one, write, write_bits};

/// Makes the kernel that converts operand 0 to the dtype `to`.
pub(super) fn find(spec: &Spec<'_>, to: DType) -> FamilyAnswer {
    convert(spec, spec.dtype(0)?, to)
}

/// The dtype that an op converts to, if it does nothing else.
pub(super) fn target(op: UnaryOp, spec: &Spec<'_>) -> Result<Option<DType>, OpError> {
    match op {
        UnaryOp::Cast => {
            let to = spec.attrs.dtype("to");
            to.map(Some)
                .ok_or_else(|| spec.bad_attr("to", "is required"))
        }
        UnaryOp::CastLike => spec.dtype(1).map(Some),
        _ => Ok(None),
    }
}

/// Makes the kernel that reads the bits of operand 0 as another dtype. A byte other than zero is a true bool.
pub(super) fn reinterpret(spec: &Spec<'_>) -> FamilyAnswer {
    let to = spec.attrs.dtype("to");
    let to = to.ok_or_else(|| spec.bad_attr("to", "is required"))?;
    let from = spec.dtype(0)?;
    if from == to {
        return body(|mut call| one(call.take(0)?));
    }
    if from.bits() != to.bits() || to == DType::Str {
        return Err(spec.bad_attr("to", format!("{to} is not of the size of {from}")));
    }
    body(move |call| {
        let mut y = call.output(0)?;
        let x = call.input(0)?.bytes();
        match to {
            DType::Bool => cast_to_bool::<u8>(&call.launch.exec, x, write(&mut y)?)?,
            _ => copy::<u8>(&call.launch.exec, x, write_bits(&mut y)?)?,
        }
        one(y)
    })
}

/// Makes the kernel that converts operand 0, of dtype `from`, to `to`.
pub(super) fn convert(spec: &Spec<'_>, from: DType, to: DType) -> Result<KernelBody, OpError> {
    if from == to {
        return body(|mut call| one(call.take(0)?));
    }
    if from.is_narrow() || to.is_narrow() {
        return narrow::convert(spec, from, to);
    }
    let found = if to == DType::Bool {
        by_dtype!(number from, A => body(|call| {
            let mut y = call.output(0)?;
            cast_to_bool::<A>(&call.launch.exec, call.slice(0)?, write(&mut y)?)?;
            one(y)
        })?)
    } else {
        by_dtype!(any from, A => by_dtype!(number to, B => body(|call| {
            let mut y = call.output(0)?;
            cast::<A, B>(&call.launch.exec, call.slice(0)?, write(&mut y)?)?;
            one(y)
        })?))
        .flatten()
    };
    found.ok_or_else(|| spec.no_dtype(from))
}

#[cfg(test)]
mod tests {
    use convoke_graph::Tensor;
    use convoke_graph::graph::{Attr, Attrs};

    use super::*;
    use crate::cpu::testing::{one, vec1};

    #[test]
    fn every_pair_converts() {
        // An empty string is no zero.
        let numbers = || DType::ALL.into_iter().filter(|d| *d != DType::Str);
        for from in numbers() {
            for to in numbers() {
                let x = Tensor::zeros(from, &[3]).unwrap();
                let y = one("Cast", Attrs::default().with("to", Attr::DType(to)), &[&x]).unwrap();
                // f8e8m0 has no zero: its least code is the least power of two.
                if from != DType::F8E8M0 {
                    assert_eq!(y, Tensor::zeros(to, &[3]).unwrap(), "{from} to {to}");
                }
            }
        }
    }

    #[test]
    fn bits_are_kept() {
        let to = |d| Attrs::default().with("to", Attr::DType(d));
        let y = one("BitCast", to(DType::I32), &[&vec1(&[1f32, -0.0])]).unwrap();
        assert_eq!(y, vec1(&[0x3f80_0000i32, i32::MIN]));
        let y = one("BitCast", to(DType::Bool), &[&vec1(&[0u8, 1, 7])]).unwrap();
        assert_eq!(y, Tensor::from_bools(&[3], &[false, true, true]).unwrap());
        let four = Tensor::from_bytes(DType::I4, &[3], &[0x8f, 0x07]).unwrap();
        let y = one("BitCast", to(DType::F4E2M1), &[&four]).unwrap();
        assert_eq!(
            y,
            Tensor::from_bytes(DType::F4E2M1, &[3], &[0x8f, 0x07]).unwrap()
        );
        assert!(one("BitCast", to(DType::I8), &[&four]).is_err());
        let other_size = one("BitCast", to(DType::I64), &[&vec1(&[1f32])]);
        assert!(other_size.is_err());
    }

    #[test]
    fn booleans_are_zero_and_one() {
        let to = |d| Attrs::default().with("to", Attr::DType(d));
        let y = one("Cast", to(DType::Bool), &[&vec1(&[0.5f32, 0.0, f32::NAN])]).unwrap();
        assert_eq!(y, Tensor::from_bools(&[3], &[true, false, true]).unwrap());
        assert_eq!(
            one("Cast", to(DType::I64), &[&y]).unwrap(),
            vec1(&[1i64, 0, 1])
        );
    }
}
