//! Output sizes at run time: the shape rules on concrete operands.

use std::cell::Cell;

use smallvec::SmallVec;

use super::{apply, check};
use crate::graph::{Attrs, TensorType};
use crate::ops::def::{ConcreteOperand, ConcreteOutputs, HostValue, OpDef, Operand};
use crate::ops::error::OpError;
use crate::ops::{custom, host};
use crate::tensor::Shape;
use crate::{DType, Dim};

/// The most elements of a host operand that rules read one by one.
const HOST_LIMIT: usize = 1 << 16;

/// Dtypes and shapes of the outputs of an op about to run. Host operands must come with their tensor.
pub fn infer_concrete(
    op: &OpDef,
    attrs: &Attrs,
    inputs: &[Option<ConcreteOperand<'_>>],
    outputs: usize,
) -> Result<ConcreteOutputs, OpError> {
    infer(op, attrs, inputs, outputs, false)
}

/// As [`infer_concrete`], for a kernel that decides sizes itself where its op is `OpDef::sized_by_data`: such a
/// dimension is zero.
pub fn infer_launch(
    op: &OpDef,
    attrs: &Attrs,
    inputs: &[Option<ConcreteOperand<'_>>],
    outputs: usize,
) -> Result<ConcreteOutputs, OpError> {
    infer(op, attrs, inputs, outputs, op.sized_by_data)
}

fn infer(
    op: &OpDef,
    attrs: &Attrs,
    inputs: &[Option<ConcreteOperand<'_>>],
    outputs: usize,
    may_be_unknown: bool,
) -> Result<ConcreteOutputs, OpError> {
    if let Some(quick) = op.quick {
        let dtypes: SmallVec<[Option<DType>; 8]> =
            inputs.iter().map(|i| i.as_ref().map(|i| i.dtype)).collect();
        check::check_operands(op, &dtypes)?;
        check::check_attrs(op, attrs)?;
        check::check_outputs(op, outputs)?;
        if let Some(out) = custom::guarded(op, || quick(inputs))? {
            return Ok(out);
        }
    }
    let types: SmallVec<[Option<TensorType>; 8]> = inputs
        .iter()
        .map(|i| i.as_ref().map(|i| TensorType::fixed(i.dtype, i.shape)))
        .collect();
    let values: SmallVec<[Option<HostValue>; 8]> = inputs
        .iter()
        .map(|i| host::from_tensor(i.as_ref()?.host?, HOST_LIMIT))
        .collect();
    let operands: SmallVec<[Option<Operand<'_>>; 8]> = (types.iter().zip(&values).zip(inputs))
        .map(|((ty, value), i)| {
            let tensor = i.as_ref().and_then(|i| i.host);
            Some(Operand {
                ty: ty.as_ref()?,
                value: value.as_ref(),
                tensor,
            })
        })
        .collect();
    let unknown = Cell::new(false);
    let fresh = |_: usize, _: usize| {
        unknown.set(true);
        Dim::Const(0)
    };
    let inferred = apply(op, attrs, &operands, outputs, &fresh)?;
    if unknown.get() && !may_be_unknown {
        return Err(OpError::shape(
            "the size of the result depends on a host operand not given",
        ));
    }
    inferred
        .into_iter()
        .map(|out| {
            let shape: Option<Shape> = out
                .ty
                .shape
                .iter()
                .map(|d| usize::try_from(d.as_const()?).ok())
                .collect();
            let shape =
                shape.ok_or_else(|| OpError::shape(format!("{} is not concrete", out.ty)))?;
            Ok((out.ty.dtype, shape))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;
    use crate::graph::Attr;

    fn check(
        op: &str,
        attrs: Attrs,
        inputs: &[(&Tensor, bool)],
    ) -> Result<Vec<Vec<usize>>, OpError> {
        let inputs: Vec<_> = inputs
            .iter()
            .map(|(t, host)| {
                let host = host.then_some(*t);
                Some(ConcreteOperand {
                    dtype: t.dtype(),
                    shape: t.shape(),
                    host,
                })
            })
            .collect();
        let out = infer_concrete(crate::ops::lookup(op).unwrap(), &attrs, &inputs, 1)?;
        Ok(out.into_iter().map(|(_, s)| s.to_vec()).collect())
    }

    fn f32s(shape: &[usize]) -> Tensor {
        Tensor::zeros(DType::F32, shape).unwrap()
    }

    fn ints(v: &[i64]) -> Tensor {
        Tensor::from_slice(&[v.len()], v).unwrap()
    }

    #[test]
    fn quick_and_general_rules_agree() {
        let (a, b) = (f32s(&[2, 3]), f32s(&[2, 3]));
        assert_eq!(
            check("Add", Attrs::default(), &[(&a, false), (&b, false)]),
            Ok(vec![vec![2, 3]])
        );
        let b = f32s(&[4, 1, 3]);
        assert_eq!(
            check("Add", Attrs::default(), &[(&a, false), (&b, false)]),
            Ok(vec![vec![4, 2, 3]])
        );
        assert_eq!(
            check("Relu", Attrs::default(), &[(&a, false)]),
            Ok(vec![vec![2, 3]])
        );
        assert!(
            check(
                "Add",
                Attrs::default(),
                &[(&a, false), (&ints(&[1]), false)]
            )
            .is_err()
        );
        let bad = Attrs::default().with("x", Attr::Int(1));
        assert!(check("Relu", bad, &[(&a, false)]).is_err());
    }

    #[test]
    fn host_operands_decide_sizes() {
        let a = f32s(&[2, 6]);
        let reshape = |to: &[i64], given| {
            check(
                "Reshape",
                Attrs::default(),
                &[(&a, false), (&ints(to), given)],
            )
        };
        assert_eq!(reshape(&[3, -1], true), Ok(vec![vec![3, 4]]));
        assert!(reshape(&[3, -1], false).is_err());
        let mask = Tensor::from_bools(&[3], &[true, false, true]).unwrap();
        assert_eq!(
            check("NonZero", Attrs::default(), &[(&mask, true)]),
            Ok(vec![vec![1, 2]])
        );
        let axis = Attrs::default().with("axis", Attr::Int(0));
        let x = f32s(&[3, 5]);
        assert_eq!(
            check("Compress", axis, &[(&x, false), (&mask, true)]),
            Ok(vec![vec![2, 5]])
        );
        let of = Tensor::from_slice(&[], &[0.5f32]).unwrap();
        let (zero, three) = (Tensor::scalar(0f32), Tensor::scalar(3f32));
        let range = check(
            "Range",
            Attrs::default(),
            &[(&zero, true), (&three, true), (&of, true)],
        );
        assert_eq!(range, Ok(vec![vec![6]]));
    }
}
