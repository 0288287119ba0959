//! Ops on quantised numbers: a tensor of codes stands for the numbers `(code - zero point) * scale`.

use super::conv::{CONV_ATTRS, check_bias, conv_shape};
use super::matmul::matmul_shape;
use crate::Dim;
use crate::graph::{Attrs, TensorType};
use crate::ops::attrs::{
    BlockWeightAttrs, Granularity, PackCodesAttrs, ParameterShape, QUANTISED, QuantiseAttrs, bad,
    product_granularity,
};
use crate::ops::cost::{Cost, elements, per_element, with_flops};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{Op, QuantisedOp};
use crate::ops::packing::packed_codes_len;
use crate::ops::shapes::*;

const CODES: &[crate::DType] = &[U8, I8];
const COMPUTED: &[crate::DType] = &[F32, F16, BF16];
const QUANTISABLE: &[crate::DType] = &[F32, F16, BF16, I32];
const SCALES: &[crate::DType] = &[F32, F16, BF16, F8E8M0];
const DIVISORS: &[crate::DType] = &[F32, F16, BF16, I32, F8E8M0];
const DEQUANTISABLE: &[crate::DType] = &[
    U8, I8, U16, I16, I32, U4, I4, U2, I2, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1,
];
pub(super) const PACKED: &[crate::DType] = &[U8, I8, U4, I4, U2, I2];
const ZERO_POINTS: &[crate::DType] = &[U8, I8, F32, F16, BF16];

/// What decides the granularity of parameters of this shape.
fn parameters(shape: &[Dim]) -> ParameterShape {
    ParameterShape {
        rank: shape.len(),
        single: shape.iter().all(|d| d.is(1)),
    }
}

/// Checks that `shape` is that of parameters of this granularity for a tensor of shape `x`.
fn check_parameters(
    x: &[Dim],
    shape: &[Dim],
    granularity: Granularity,
    name: &str,
) -> Result<(), OpError> {
    let of_blocks = |axis: usize, along: Dim| {
        for (i, (d, p)) in x.iter().zip(shape).enumerate() {
            let want = if i == axis { &along } else { d };
            unify(p, want, name)?;
        }
        Ok(())
    };
    match granularity {
        Granularity::Tensor => match shape.iter().find(|d| known_other(d, 1)) {
            Some(_) => Err(OpError::shape(format!(
                "{name}: {shape:?} is not one number"
            ))),
            None => Ok(()),
        },
        Granularity::Axis(axis) => unify(&shape[0], &x[axis], name).map(drop),
        Granularity::Blocks { axis, size } => {
            let size = i64::try_from(size).unwrap_or(i64::MAX);
            of_blocks(axis, x[axis].ceil_div(&Dim::Const(size)))
        }
        Granularity::Whole { axis } => of_blocks(axis, Dim::Const(1)),
    }
}

/// Checks scales and zero points, which have one shape.
fn check_linear(i: &Infer<'_>, attrs: &QuantiseAttrs) -> Result<(), OpError> {
    let (x, scales) = (i.shape(0)?, i.shape(1)?);
    let granularity = attrs.granularity(x.len(), parameters(scales))?;
    check_parameters(x, scales, granularity, "scales")?;
    match i.opt(2).map(|zero| zero.ty.shape.as_slice()) {
        None => Ok(()),
        Some(zeros) => {
            // A scalar and a list of one number are the same.
            let own = attrs.granularity(x.len(), parameters(zeros))?;
            let one = zeros.iter().all(|d| d.is(1)) && scales.iter().all(|d| d.is(1));
            if own != granularity && !one {
                return Err(OpError::shape(format!(
                    "scales of shape {scales:?} and zero points of shape {zeros:?} differ"
                )));
            }
            check_parameters(x, zeros, own, "zero points")
        }
    }
}

fn quantise(i: &Infer<'_>) -> Rule {
    let attrs = QuantiseAttrs::new(i.attrs)?;
    check_linear(i, &attrs)?;
    let zero = i.opt(2).map(|zero| zero.ty.dtype);
    let dtype = match (zero, attrs.output_dtype) {
        (Some(zero), Some(stated)) if zero != stated => {
            return Err(OpError::DTypeMismatch {
                left: zero,
                right: stated,
            });
        }
        (zero, stated) => zero.or(stated).unwrap_or(U8),
    };
    match QUANTISED.contains(&dtype) {
        true => one(dtype, i.shape(0)?.to_vec()),
        false => Err(bad(
            "output_dtype",
            format!("{dtype} is no quantised dtype"),
        )),
    }
}

fn dequantise(i: &Infer<'_>) -> Rule {
    let attrs = QuantiseAttrs::new(i.attrs)?;
    check_linear(i, &attrs)?;
    let stated = attrs.output_dtype.or(match i.dtype(1)? {
        F8E8M0 => None,
        scale => Some(scale),
    });
    let dtype = stated.unwrap_or(F32);
    match COMPUTED.contains(&dtype) {
        true => one(dtype, i.shape(0)?.to_vec()),
        false => Err(bad(
            "output_dtype",
            format!("{dtype} is none of f32, f16 and bf16"),
        )),
    }
}

fn dynamic(i: &Infer<'_>) -> Rule {
    Ok(vec![
        InferredOutput::of(U8, i.shape(0)?.to_vec()),
        InferredOutput::of(F32, vec![]),
        InferredOutput::of(U8, vec![]),
    ])
}

/// Checks the zero points of an operand of a product, where they are given.
fn check_side(i: &Infer<'_>, operand: usize, zero: usize, left: bool) -> Result<(), OpError> {
    let Some(zeros) = i.opt(zero).map(|z| z.ty.shape.as_slice()) else {
        return Ok(());
    };
    let x = i.shape(operand)?;
    let granularity = product_granularity(left, x.len(), parameters(zeros))?;
    check_parameters(x, zeros, granularity, "zero points")
}

fn matmul_integer(i: &Infer<'_>) -> Rule {
    let out = matmul_shape(i.shape(0)?, i.shape(1)?)?;
    check_side(i, 0, 2, true)?;
    check_side(i, 1, 3, false)?;
    one(I32, out)
}

/// Checks that parameter `p` is one number, or one for each index of `axis`.
fn check_list(i: &Infer<'_>, p: usize, axis: Option<&Dim>, name: &str) -> Result<(), OpError> {
    let Some(shape) = i.opt(p).map(|o| o.ty.shape.as_slice()) else {
        return Ok(());
    };
    match (shape, axis) {
        ([], _) => Ok(()),
        ([one], _) if one.is(1) => Ok(()),
        ([n], Some(axis)) => unify(n, axis, name).map(drop),
        _ => Err(OpError::shape(format!(
            "{name} of shape {shape:?} are neither one number nor a list of one for each row or column"
        ))),
    }
}

fn qlinear_matmul(i: &Infer<'_>) -> Rule {
    let (a, b) = (i.shape(0)?, i.shape(3)?);
    let out = matmul_shape(a, b)?;
    let rows = (a.len() > 1).then(|| &a[a.len() - 2]);
    let columns = (b.len() > 1).then(|| &b[b.len() - 1]);
    check_list(i, 1, rows, "scales of a")?;
    check_side(i, 0, 2, true)?;
    check_list(i, 4, columns, "scales of b")?;
    check_side(i, 3, 5, false)?;
    check_list(i, 6, rows, "scales of y")?;
    check_list(i, 7, rows, "zero points of y")?;
    check_bias(i.opt(8), columns.unwrap_or(&Dim::Const(1)))?;
    one(i.dtype(7)?, out)
}

fn product_cost<const B: usize>(
    _: &Attrs,
    inputs: &[Option<&TensorType>],
    outputs: &[&TensorType],
) -> Cost {
    let b = inputs.get(B).copied().flatten();
    let k = b.and_then(|b| match b.shape.as_slice() {
        [.., k, _] | [k] => k.as_const(),
        [] => None,
    });
    let flops = 2. * k.unwrap_or(0) as f64 * outputs.first().map_or(0., |t| elements(t));
    with_flops(flops, inputs, outputs)
}

fn conv_integer(i: &Infer<'_>) -> Rule {
    let w = i.shape(1)?;
    let out = conv_shape(i.attrs, i.shape(0)?, w)?;
    check_list(i, 2, None, "zero points of x")?;
    check_list(i, 3, Some(&w[0]), "zero points of w")?;
    one(I32, out)
}

fn qlinear_conv(i: &Infer<'_>) -> Rule {
    let w = i.shape(3)?;
    let out = conv_shape(i.attrs, i.shape(0)?, w)?;
    for (p, name) in [
        (1, "scales of x"),
        (2, "zero points of x"),
        (6, "scales of y"),
        (7, "zero points of y"),
    ] {
        check_list(i, p, None, name)?;
    }
    check_list(i, 4, Some(&w[0]), "scales of w")?;
    check_list(i, 5, Some(&w[0]), "zero points of w")?;
    check_bias(i.opt(8), &w[0])?;
    one(i.dtype(7)?, out)
}

fn conv_cost<const W: usize>(
    _: &Attrs,
    inputs: &[Option<&TensorType>],
    outputs: &[&TensorType],
) -> Cost {
    let filter = inputs.get(W).copied().flatten().map_or(0., |w| {
        let sizes = w.shape.iter().skip(1);
        sizes.map(|d| d.as_const().unwrap_or(0) as f64).product()
    });
    let flops = 2. * filter * outputs.first().map_or(0., |t| elements(t));
    with_flops(flops, inputs, outputs)
}

/// Checks that operand `o` has `n` elements.
fn check_elements(i: &Infer<'_>, o: usize, n: usize, name: &str) -> Result<(), OpError> {
    match i.opt(o) {
        None => Ok(()),
        Some(given) => match product(&given.ty.shape) {
            Some(elements) => unify(&elements, &Dim::from(n), name).map(drop),
            None => Ok(()),
        },
    }
}

fn matmul_n_bits(i: &Infer<'_>) -> Rule {
    let attrs = BlockWeightAttrs::new(i.attrs)?;
    let Some((k, batch)) = i.shape(0)?.split_last() else {
        return Err(OpError::shape("a scalar has no matrix product"));
    };
    unify(k, &Dim::from(attrs.k), "inner dimensions")?;
    let size = |each: usize| {
        let all = attrs.n.checked_mul(attrs.blocks())?.checked_mul(each);
        all.filter(|n| i64::try_from(*n).is_ok())
    };
    let too_large = || OpError::shape("the weights are too large");
    let (codes, blocks) = (
        size(attrs.blob()).ok_or_else(too_large)?,
        size(1).ok_or_else(too_large)?,
    );
    let dtype = i.dtype(1)?;
    let laid_out = |rows| packed_codes_len(attrs.bits, rows, attrs.n).ok_or_else(too_large);
    let codes = match (dtype, attrs.bits) {
        (U8, _) if attrs.packed => laid_out(attrs.blocks() * attrs.block)?,
        _ if attrs.packed => return Err(bad("packed", format!("B is {dtype}, not u8"))),
        (U8, _) | (I8, 8) => codes,
        (U4 | I4, 4) | (U2 | I2, 2) => codes.checked_mul(8 / attrs.bits).ok_or_else(too_large)?,
        (_, bits) => {
            return Err(OpError::shape(format!(
                "B is {dtype}, which has not {bits} bits"
            )));
        }
    };
    check_elements(i, 1, codes, "elements of B")?;
    check_elements(i, 2, blocks, "scales")?;
    let signed = matches!(dtype, I8 | I4 | I2);
    let zeros = match i.opt(3).map(|z| z.ty.dtype) {
        Some(zeros) if !attrs.packed && (zeros == I8) != signed => {
            let reason = format!("zero points are {zeros}, of codes that are {dtype}");
            return Err(OpError::shape(reason));
        }
        Some(U8) if attrs.packed => laid_out(attrs.packed_zeros() * 8 / attrs.bits)?,
        Some(U8) => attrs.n * attrs.packed_zeros(),
        _ => blocks,
    };
    check_elements(i, 3, zeros, "zero points")?;
    check_elements(i, 4, attrs.n, "bias")?;
    let mut out = batch.to_vec();
    out.push(Dim::from(attrs.n));
    one(i.dtype(0)?, out)
}

/// The shape rule of products of codes, which the family of fused ops defines.
pub(super) fn matmul_n_bits_int8(i: &Infer<'_>) -> Rule {
    let attrs = BlockWeightAttrs::new(i.attrs)?;
    if !attrs.fits_codes() {
        return Err(bad(
            "block_size",
            "must be a multiple of 16, and at most 256",
        ));
    }
    matmul_n_bits(i)
}

/// The shape rule of packing, which the family of fused ops defines.
pub(super) fn pack_codes(i: &Infer<'_>) -> Rule {
    let attrs = PackCodesAttrs::new(i.attrs)?;
    let codes = super::fused::known(i, 0, "codes")?;
    let dtype = i.dtype(0)?;
    let elements = codes.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let elements = elements.ok_or_else(|| OpError::shape("the codes are too many"))?;
    let rows = attrs.rows(dtype, elements)?;
    super::fused::packed(U8, packed_codes_len(attrs.bits, rows, attrs.n))
}

pub(super) fn n_bits_cost(
    attrs: &Attrs,
    inputs: &[Option<&TensorType>],
    outputs: &[&TensorType],
) -> Cost {
    let k = attrs.int("K", 0).max(0) as f64;
    // Each weight is made a number first.
    let weights = k * attrs.int("N", 0).max(0) as f64;
    let flops = 2. * k * outputs.first().map_or(0., |t| elements(t)) + 2. * weights;
    with_flops(flops, inputs, outputs)
}

pub(super) const N_BITS_OPERANDS: &[OperandDef] = &[
    operand("A", COMPUTED).class(1),
    operand("B", PACKED),
    operand("scales", COMPUTED).class(1),
    operand("zero_points", ZERO_POINTS).optional(),
    operand("bias", COMPUTED).class(1).optional(),
];
pub(super) const N_BITS_ATTRS: &[AttrDef] = &[
    required("K", AttrKind::Int),
    required("N", AttrKind::Int),
    attr("bits", AttrKind::Int),
    required("block_size", AttrKind::Int),
    attr("packed", AttrKind::Int),
    // It changes nothing by itself: the optimiser makes another op of a product of level 4.
    attr("accuracy_level", AttrKind::Int),
];

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Quantised(QuantisedOp::ConvInteger),
        "X [N, C, ..] convolved with W [M, C/group, ..], each less its zero point, as exact sums that wrap: [N, M, ..].",
        &[
            operand("X", CODES).class(1),
            operand("W", CODES).class(2),
            operand("x_zero_point", CODES).class(1).optional(),
            operand("w_zero_point", CODES).class(2).optional(),
        ],
        conv_integer,
    )
    .attrs(CONV_ATTRS)
    .cost(conv_cost::<1>),
    OpDef::of(
        Op::Quantised(QuantisedOp::DequantizeLinear),
        "(x - zero point) * scale: the numbers that codes stand for.",
        &[
            operand("x", DEQUANTISABLE).class(1),
            operand("x_scale", SCALES),
            operand("x_zero_point", DEQUANTISABLE).class(1).optional(),
        ],
        dequantise,
    )
    .attrs(&[
        attr("axis", AttrKind::Int),
        attr("block_size", AttrKind::Int),
        attr("output_dtype", AttrKind::DType),
    ])
    .cost(per_element::<2>),
    OpDef::of(
        Op::Quantised(QuantisedOp::DynamicQuantizeLinear),
        "The codes of x from 0 to 255, with the scale and the zero point that x and 0 span.",
        &[operand("x", &[F32])],
        dynamic,
    )
    .outputs(3, 3)
    .cost(per_element::<5>),
    OpDef::of(
        Op::Quantised(QuantisedOp::MatMulInteger),
        "A [.., M, K] times B [.., K, N], each less its zero point, as exact sums that wrap: [.., M, N].",
        &[
            operand("A", CODES).class(1),
            operand("B", CODES).class(2),
            operand("a_zero_point", CODES).class(1).optional(),
            operand("b_zero_point", CODES).class(2).optional(),
        ],
        matmul_integer,
    )
    .cost(product_cost::<1>),
    OpDef::of(
        Op::Quantised(QuantisedOp::MatMulNBits),
        "A [.., K] times weights [K, N], of which each column's blocks are codes of a few bits, plus bias: [.., N].",
        N_BITS_OPERANDS,
        matmul_n_bits,
    )
    .attrs(N_BITS_ATTRS)
    .cost(n_bits_cost),
    OpDef::of(
        Op::Quantised(QuantisedOp::QLinearConv),
        "The codes of X [N, C, ..] convolved with W [M, C/group, ..], plus bias [M] in units of both scales: [N, M, ..].",
        &[
            operand("x", CODES).class(1),
            operand("x_scale", COMPUTED).class(4),
            operand("x_zero_point", CODES).class(1),
            operand("w", CODES).class(2),
            operand("w_scale", COMPUTED).class(4),
            operand("w_zero_point", CODES).class(2),
            operand("y_scale", COMPUTED).class(4),
            operand("y_zero_point", CODES),
            operand("B", &[I32]).optional(),
        ],
        qlinear_conv,
    )
    .attrs(CONV_ATTRS)
    .cost(conv_cost::<3>),
    OpDef::of(
        Op::Quantised(QuantisedOp::QLinearMatMul),
        "The codes of a [.., M, K] times b [.., K, N], plus bias [N] in units of both scales: [.., M, N].",
        &[
            operand("a", CODES).class(1),
            operand("a_scale", COMPUTED).class(4),
            operand("a_zero_point", CODES).class(1),
            operand("b", CODES).class(2),
            operand("b_scale", COMPUTED).class(4),
            operand("b_zero_point", CODES).class(2),
            operand("y_scale", COMPUTED).class(4),
            operand("y_zero_point", CODES),
            operand("bias", &[I32]).optional(),
        ],
        qlinear_matmul,
    )
    .cost(product_cost::<3>),
    OpDef::of(
        Op::Quantised(QuantisedOp::QuantizeLinear),
        "x / scale, rounded half to even, plus the zero point: codes, saturated.",
        &[
            operand("x", QUANTISABLE),
            operand("y_scale", DIVISORS),
            operand("y_zero_point", QUANTISED).optional(),
        ],
        quantise,
    )
    .attrs(&[
        attr("axis", AttrKind::Int),
        attr("block_size", AttrKind::Int),
        attr("output_dtype", AttrKind::DType),
        attr("precision", AttrKind::DType),
        attr("saturate", AttrKind::Int),
    ])
    .cost(per_element::<4>),
];
