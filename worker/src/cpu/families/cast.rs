//! Conversions between dtypes.

use convoke_graph::DType;
use convoke_graph::ops::OpError;
use convoke_graph::ops::UnaryOp;
use convoke_kernels::cast::{cast, cast_to_bool};

use crate::cpu::call::{FamilyAnswer, KernelBody, Spec, body, one, write};
use crate::cpu::dispatch::by_dtype;

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

fn convert(spec: &Spec<'_>, from: DType, to: DType) -> Result<KernelBody, OpError> {
    if from == to {
        return body(|mut call| one(call.take(0)?));
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
        for from in DType::ALL {
            for to in DType::ALL {
                let x = Tensor::zeros(from, &[3]).unwrap();
                let y = one("Cast", Attrs::default().with("to", Attr::DType(to)), &[&x]).unwrap();
                assert_eq!(y, Tensor::zeros(to, &[3]).unwrap(), "{from} to {to}");
            }
        }
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
