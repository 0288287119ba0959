//! Ops that optimisation and import introduce: they pack weights, compute products together with the bias, residual and
//! activation that follow, and the core of attention at once. They are not ONNX's.

use super::conv::{check_bias, conv_shape};
use super::matmul::matmul_shape;
use crate::graph::{Attrs, TensorType};
use crate::ops::attrs::{Activation, ConvAttrs, bad, flag};
use crate::ops::cost::{Cost, elements, with_flops};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{FusedOp, Op};
use crate::ops::packing::{packed_conv_len, packed_gemm_len};
use crate::ops::shapes::*;
use crate::{DType, Dim};

const WEIGHTS: &[DType] = &[F32, F16, BF16];
const ACTIVATION: AttrDef = attr("activation", AttrKind::Str);
const ALPHA: AttrDef = attr("act_alpha", AttrKind::Float);
const BETA: AttrDef = attr("act_beta", AttrKind::Float);
const PACKED: AttrDef = attr("packed", AttrKind::Int);

/// The dimensions of an operand, all of which must be known.
pub(super) fn known(
    i: &Infer<'_>,
    operand: usize,
    name: &'static str,
) -> Result<Vec<usize>, OpError> {
    i.ty(operand)?
        .fixed_shape()
        .ok_or(OpError::ValueNeeded { operand: name })
}

pub(super) fn packed(dtype: DType, len: Option<usize>) -> Rule {
    let len = len.ok_or_else(|| {
        OpError::shape("the packed weight is too large, or does not fall into groups")
    })?;
    one(dtype, vec![len.into()])
}

/// Checks that a packed operand has `len` elements.
fn check_packed(i: &Infer<'_>, operand: usize, len: Option<usize>) -> Result<(), OpError> {
    let got = &i.ranked(operand, "packed weight", 1)?[0];
    match len {
        Some(n) if can_equal(got, &n.into()) => Ok(()),
        Some(n) => Err(OpError::shape(format!(
            "the packed weight has {got} elements, not {n}"
        ))),
        None => Err(OpError::shape("the packed weight is too large")),
    }
}

fn pack_gemm(i: &Infer<'_>) -> Rule {
    i.ranked(0, "B", 2)?;
    let b = known(i, 0, "B")?;
    let (k, n) = if flag(i.attrs, "trans", false) {
        (b[1], b[0])
    } else {
        (b[0], b[1])
    };
    packed(i.dtype(0)?, packed_gemm_len(k, n))
}

fn pack_conv(i: &Infer<'_>) -> Rule {
    let w = known(i, 0, "W")?;
    if w.len() < 3 {
        return Err(OpError::shape(format!(
            "W must have rank 3 or more, not {}",
            w.len()
        )));
    }
    let volume = w[2..].iter().try_fold(1usize, |v, k| v.checked_mul(*k));
    let len = volume.and_then(|v| packed_conv_len(w[0], w[1], v, ConvAttrs::group(i.attrs).ok()?));
    packed(i.dtype(0)?, len)
}

/// The size in attribute `name`, which is required.
fn size(attrs: &Attrs, name: &str) -> Result<usize, OpError> {
    usize::try_from(attrs.int(name, -1))
        .map_err(|_| bad(name, "is required and must not be negative"))
}

fn fused_attention(i: &Infer<'_>) -> Rule {
    let (q, k, v) = (
        i.ranked(0, "Q", 4)?,
        i.ranked(1, "K", 4)?,
        i.ranked(2, "V", 4)?,
    );
    let batch = unify(&q[0], &k[0], "batch of Q and K")?;
    let batch = unify(&batch, &v[0], "batch of Q and V")?;
    unify(&k[1], &v[1], "heads of K and V")?;
    unify(&k[2], &v[2], "lengths of K and V")?;
    unify(&q[3], &k[3], "sizes of Q and K")?;
    match (q[1].as_const(), k[1].as_const()) {
        (Some(heads), Some(shared)) if shared < 1 || heads % shared != 0 => {
            let reason = format!("{heads} heads of Q are no multiple of {shared} heads of K");
            return Err(OpError::shape(reason));
        }
        _ => {}
    }
    if let Some(bias) = i.opt(3) {
        let scores = [batch.clone(), q[1].clone(), q[2].clone(), k[2].clone()];
        check_broadcasts_to(&bias.ty.shape, &scores, "bias")?;
    }
    one(
        i.dtype(0)?,
        vec![batch, q[1].clone(), q[2].clone(), v[3].clone()],
    )
}

fn fused_attention_cost(
    _: &Attrs,
    inputs: &[Option<&TensorType>],
    outputs: &[&TensorType],
) -> Cost {
    let size = |operand: usize, axis: usize| {
        let ty = inputs.get(operand).copied().flatten();
        ty.and_then(|ty| ty.shape.get(axis)?.as_const())
            .unwrap_or(0) as f64
    };
    let scores = size(0, 0) * size(0, 1) * size(0, 2) * size(1, 2);
    with_flops(
        scores * (2. * size(0, 3) + 2. * size(2, 3) + 14.),
        inputs,
        outputs,
    )
}

fn fused_gemm(i: &Infer<'_>) -> Rule {
    Activation::new(i.attrs)?;
    let b = if flag(i.attrs, "packed", false) {
        let (k, n) = (size(i.attrs, "k")?, size(i.attrs, "n")?);
        check_packed(i, 1, packed_gemm_len(k, n))?;
        vec![k.into(), n.into()]
    } else {
        i.ranked(1, "B", 2)?.to_vec()
    };
    if i.shape(0)?.len() < 2 {
        return Err(OpError::shape("A must have rank 2 or more"));
    }
    check_bias(i.opt(2), &b[1])?;
    one(i.dtype(0)?, matmul_shape(i.shape(0)?, &b)?)
}

/// Attribute `w_shape`: the shape of the weight before packing.
fn weight_shape(attrs: &Attrs) -> Result<Vec<Dim>, OpError> {
    let w = attrs.ints("w_shape").unwrap_or(&[]);
    if w.len() < 3 || w.iter().any(|d| *d < 0) {
        return Err(bad(
            "w_shape",
            format!("{w:?} is not the shape of a weight"),
        ));
    }
    Ok(w.iter().map(|d| Dim::Const(*d)).collect())
}

fn fused_conv(i: &Infer<'_>) -> Rule {
    Activation::new(i.attrs)?;
    let w = weight_shape(i.attrs)?;
    let out = conv_shape(i.attrs, i.shape(0)?, &w)?;
    if flag(i.attrs, "packed", false) {
        let n = |d: &Dim| d.as_const().and_then(|d| usize::try_from(d).ok());
        let volume = w[2..].iter().try_fold(1usize, |v, k| v.checked_mul(n(k)?));
        let form = n(&w[0]).zip(n(&w[1])).zip(volume);
        let group = ConvAttrs::group(i.attrs)?;
        check_packed(
            i,
            1,
            form.and_then(|((m, c), v)| packed_conv_len(m, c, v, group)),
        )?;
    } else if i.shape(1)?.len() != w.len()
        || i.shape(1)?.iter().zip(&w).any(|(a, b)| !can_equal(a, b))
    {
        return Err(bad(
            "w_shape",
            format!("is {w:?}, but the weight is {:?}", i.shape(1)?),
        ));
    }
    check_bias(i.opt(2), &w[0])?;
    if let Some(r) = i.opt(3) {
        let same = r.ty.shape.len() == out.len()
            && r.ty.shape.iter().zip(&out).all(|(a, b)| can_equal(a, b));
        if !same {
            return Err(OpError::shape(format!(
                "the residual is {:?}, not {out:?}",
                r.ty.shape
            )));
        }
    }
    one(i.dtype(0)?, out)
}

/// The cost of a fused op: for each output element, a product chain of `depth`, then bias, residual and activation.
fn fused_cost(
    depth: f64,
    attrs: &Attrs,
    inputs: &[Option<&TensorType>],
    outputs: &[&TensorType],
) -> Cost {
    let extra = inputs.iter().skip(2).flatten().count() as f64;
    let activation = Activation::new(attrs)
        .ok()
        .flatten()
        .map_or(0., |a| a.flops());
    let n = outputs.first().map_or(0., |t| elements(t));
    with_flops((2. * depth + extra + activation) * n, inputs, outputs)
}

fn fused_gemm_cost(attrs: &Attrs, inputs: &[Option<&TensorType>], outputs: &[&TensorType]) -> Cost {
    let k = inputs
        .first()
        .copied()
        .flatten()
        .and_then(|a| a.shape.last()?.as_const());
    fused_cost(k.unwrap_or(0) as f64, attrs, inputs, outputs)
}

fn fused_conv_cost(attrs: &Attrs, inputs: &[Option<&TensorType>], outputs: &[&TensorType]) -> Cost {
    let filter = attrs
        .ints("w_shape")
        .unwrap_or(&[])
        .iter()
        .skip(1)
        .map(|d| *d as f64)
        .product();
    fused_cost(filter, attrs, inputs, outputs)
}

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Fused(FusedOp::PackGemmB),
        "B [K, N], or [N, K] with `trans`, laid out for products: [packed length].",
        &[operand("B", WEIGHTS)],
        pack_gemm,
    )
    .attrs(&[attr("trans", AttrKind::Int)]),
    OpDef::of(
        Op::Fused(FusedOp::PackConvW),
        "W [M, C/group, ..] laid out for convolution: [packed length].",
        &[operand("W", WEIGHTS)],
        pack_conv,
    )
    .attrs(&[attr("group", AttrKind::Int)]),
    OpDef::of(
        Op::Fused(FusedOp::PackRecurrent),
        "W [directions, gates * H, K] laid out for the products of a recurrent layer, each of which has the gates that `parts` says: f32 [packed length].",
        &[operand("W", WEIGHTS)],
        super::recurrent::pack,
    )
    .attrs(&[required("parts", AttrKind::Ints)]),
    OpDef::of(
        Op::Fused(FusedOp::PackCodes),
        "Codes of `bits` bits, column by column of N, laid out row by row as unsigned codes: u8 [packed length].",
        &[operand("codes", super::quantised::PACKED)],
        super::quantised::pack_codes,
    )
    .attrs(&[required("bits", AttrKind::Int), required("N", AttrKind::Int)]),
    OpDef::of(
        Op::Fused(FusedOp::FusedAttention),
        "softmax(cap(Q [B, H, S, D] times K [B, H/n, T, D] transposed times `scale`) plus bias) times V [B, H/n, T, E]: [B, H, S, E].",
        &[
            operand("Q", WEIGHTS).class(1),
            operand("K", WEIGHTS).class(1),
            operand("V", WEIGHTS).class(1),
            operand("bias", WEIGHTS).class(1).optional(),
        ],
        fused_attention,
    )
    .attrs(&[
        required("scale", AttrKind::Float),
        attr("softcap", AttrKind::Float),
    ])
    .cost(fused_attention_cost),
    OpDef::of(
        Op::Fused(FusedOp::FusedGemm),
        "activation(A [.., M, K] times B [K, N] plus bias [N]): [.., M, N]; B may be packed.",
        &[
            operand("A", WEIGHTS).class(1),
            operand("B", WEIGHTS),
            operand("bias", WEIGHTS).class(1).optional(),
        ],
        fused_gemm,
    )
    .attrs(&[
        PACKED,
        attr("k", AttrKind::Int),
        attr("n", AttrKind::Int),
        ACTIVATION,
        ALPHA,
        BETA,
    ])
    .cost(fused_gemm_cost),
    OpDef::of(
        Op::Fused(FusedOp::FusedConv),
        "activation(X [N, C, ..] convolved with W, plus bias [M], plus residual): [N, M, ..].",
        &[
            operand("X", WEIGHTS).class(1),
            operand("W", WEIGHTS),
            operand("bias", WEIGHTS).class(1).optional(),
            operand("residual", WEIGHTS).class(1).optional(),
        ],
        fused_conv,
    )
    .attrs(&[
        attr("auto_pad", AttrKind::Str),
        attr("dilations", AttrKind::Ints),
        attr("group", AttrKind::Int),
        attr("kernel_shape", AttrKind::Ints),
        attr("pads", AttrKind::Ints),
        attr("strides", AttrKind::Ints),
        PACKED,
        required("w_shape", AttrKind::Ints),
        ACTIVATION,
        ALPHA,
        BETA,
    ])
    .cost(fused_conv_cost),
    OpDef::of(
        Op::Fused(FusedOp::MatMulNBitsInt8),
        "As MatMulNBits, of A as codes: each block of a row is divided by its scale, its greatest magnitude / 127, and rounded to even. A sum of products of codes is whole; the output is the chain over blocks of the sum * weight scale * row scale.",
        super::quantised::N_BITS_OPERANDS,
        super::quantised::matmul_n_bits_int8,
    )
    .attrs(super::quantised::N_BITS_ATTRS)
    .cost(super::quantised::n_bits_cost),
];
