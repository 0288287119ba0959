//! Matrix products.

use crate::Dim;
use crate::graph::{Attrs, TensorType};
use crate::ops::attrs::GemmAttrs;
use crate::ops::cost::{Cost, elements, with_flops};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{MatMulOp, Op};
use crate::ops::shapes::*;

/// Shape of the product of `a` and `b` in the manner of numpy's `matmul`.
pub(super) fn matmul_shape(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, OpError> {
    if a.is_empty() || b.is_empty() {
        return Err(OpError::shape("a scalar has no matrix product"));
    }
    // A vector counts as one row on the left and as one column on the right.
    let (lead_a, m) = match a {
        [_] => (&a[..0], None),
        _ => (&a[..a.len() - 2], Some(&a[a.len() - 2])),
    };
    let (lead_b, k, n) = match b {
        [k] => (&b[..0], k, None),
        _ => (&b[..b.len() - 2], &b[b.len() - 2], Some(&b[b.len() - 1])),
    };
    unify(&a[a.len() - 1], k, "inner dimensions")?;
    let mut out = broadcast(lead_a, lead_b)?;
    out.extend(m.into_iter().chain(n).cloned());
    Ok(out)
}

fn matmul(i: &Infer<'_>) -> Rule {
    one(i.dtype(0)?, matmul_shape(i.shape(0)?, i.shape(1)?)?)
}

fn matmul_cost(_: &Attrs, inputs: &[Option<&TensorType>], outputs: &[&TensorType]) -> Cost {
    let k = inputs
        .first()
        .copied()
        .flatten()
        .and_then(|a| a.shape.last());
    let k = k.and_then(Dim::as_const).unwrap_or(0) as f64;
    with_flops(
        2. * k * outputs.first().map_or(0., |t| elements(t)),
        inputs,
        outputs,
    )
}

fn gemm(i: &Infer<'_>) -> Rule {
    let attrs = GemmAttrs::new(i.attrs);
    let flip = |s: &[Dim], t: bool| {
        if t {
            [s[1].clone(), s[0].clone()]
        } else {
            [s[0].clone(), s[1].clone()]
        }
    };
    let [m, k] = flip(i.ranked(0, "A", 2)?, attrs.trans_a);
    let [k2, n] = flip(i.ranked(1, "B", 2)?, attrs.trans_b);
    unify(&k, &k2, "inner dimensions")?;
    let out = vec![m, n];
    if let Some(c) = i.opt(2) {
        check_broadcasts_to(&c.ty.shape, &out, "C")?;
    }
    one(i.dtype(0)?, out)
}

fn gemm_cost(attrs: &Attrs, inputs: &[Option<&TensorType>], outputs: &[&TensorType]) -> Cost {
    let axis = usize::from(!GemmAttrs::new(attrs).trans_a);
    let k = inputs
        .first()
        .copied()
        .flatten()
        .and_then(|a| a.shape.get(axis));
    let k = k.and_then(Dim::as_const).unwrap_or(0) as f64;
    with_flops(
        (2. * k + 2.) * outputs.first().map_or(0., |t| elements(t)),
        inputs,
        outputs,
    )
}

fn det(i: &Infer<'_>) -> Rule {
    match i.shape(0)? {
        [batch @ .., rows, columns] => {
            unify(rows, columns, "sides of a square matrix")?;
            one(i.dtype(0)?, batch.to_vec())
        }
        other => Err(OpError::shape(format!("{other:?} is no matrix"))),
    }
}

fn inverse(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    match x {
        [.., rows, columns] => {
            unify(rows, columns, "sides of a square matrix")?;
            one(i.dtype(0)?, x.to_vec())
        }
        other => Err(OpError::shape(format!("{other:?} is no matrix"))),
    }
}

/// Twice the cube of a side for each matrix.
fn inverse_cost(_: &Attrs, inputs: &[Option<&TensorType>], outputs: &[&TensorType]) -> Cost {
    let x = inputs.first().copied().flatten();
    let side = x.and_then(|x| x.shape.last()?.as_const()).unwrap_or(0) as f64;
    let flops = x.map_or(0., elements) * side * 2.;
    with_flops(flops, inputs, outputs)
}

/// Two thirds of the cube of a side for each matrix.
fn det_cost(_: &Attrs, inputs: &[Option<&TensorType>], outputs: &[&TensorType]) -> Cost {
    let x = inputs.first().copied().flatten();
    let side = x.and_then(|x| x.shape.last()?.as_const()).unwrap_or(0) as f64;
    let flops = x.map_or(0., elements) * side * 2. / 3.;
    with_flops(flops, inputs, outputs)
}

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::MatMul(MatMulOp::Det),
        "Determinants of the matrices X [.., M, M]: [..].",
        &[operand("X", FLOATS)],
        det,
    )
    .cost(det_cost),
    OpDef::of(
        Op::MatMul(MatMulOp::Inverse),
        "Inverses of the matrices X [.., M, M]: [.., M, M]. Where a pivot is zero, elements are not finite; rounding may hide that a matrix is singular.",
        &[operand("X", FLOATS)],
        inverse,
    )
    .cost(inverse_cost),
    OpDef::of(
        Op::MatMul(MatMulOp::MatMul),
        "A [.., M, K] times B [.., K, N], batches broadcast: [.., M, N].",
        &[
            operand("A", NUMBERS).class(1),
            operand("B", NUMBERS).class(1),
        ],
        matmul,
    )
    .cost(matmul_cost),
    OpDef::of(
        Op::MatMul(MatMulOp::Gemm),
        "alpha * A [M, K] times B [K, N], either transposed on demand, plus beta * C: [M, N].",
        &[
            operand("A", NUMBERS).class(1),
            operand("B", NUMBERS).class(1),
            operand("C", NUMBERS).class(1).optional(),
        ],
        gemm,
    )
    .attrs(&[
        attr("alpha", AttrKind::Float),
        attr("beta", AttrKind::Float),
        attr("transA", AttrKind::Int),
        attr("transB", AttrKind::Int),
    ])
    .cost(gemm_cost),
];
