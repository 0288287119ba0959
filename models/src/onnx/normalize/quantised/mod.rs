//! Ops on quantised numbers: older forms, and those of ONNX Runtime's domain `com.microsoft`.
//!
//! Most ops of `com.microsoft` are imported by their meaning: codes become numbers, a float op computes, and its
//! results become codes again. ONNX Runtime's own kernels compute some of them with integers, and give a code that is
//! one higher or lower where a number lies close to the middle of two codes.

mod blocks;
mod qlinear_matmul;

pub(super) use blocks::{First, unpacked};
pub(super) use qlinear_matmul::qlinear_matmul;

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::{DType, Dim, Tensor};

use super::super::builder::Builder;
use super::contrib::{Packed, channels_first, channels_last_order, rank};
use super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, perm_of, to_dtype,
};
use super::softmax;

/// Whether [`microsoft`] imports the op.
pub(super) fn is_known(op: &str) -> bool {
    matches!(
        op,
        "QuantizeLinear"
            | "DequantizeLinear"
            | "DynamicQuantizeMatMul"
            | "GatherBlockQuantized"
            | "MatMulIntegerToFloat"
            | "MatMulNBits"
            | "QAttention"
            | "QGemm"
            | "QLinearAdd"
            | "QLinearAveragePool"
            | "QLinearConcat"
            | "QLinearConv"
            | "QLinearGlobalAveragePool"
            | "QLinearLeakyRelu"
            | "QLinearMul"
            | "QLinearSigmoid"
            | "QLinearSoftmax"
            | "QLinearWhere"
    )
}

/// Imports a node on quantised numbers of the domain `com.microsoft`.
pub(super) fn microsoft(b: &mut Builder, c: ImportedNode) -> Outputs {
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    match c.op.as_str() {
        "QuantizeLinear" | "DequantizeLinear" => linear(b, c),
        "DynamicQuantizeMatMul" => dynamic_matmul(b, c),
        "GatherBlockQuantized" => blocks::gather_blocks(b, c),
        "MatMulIntegerToFloat" => matmul_to_float(b, c),
        "MatMulNBits" => blocks::matmul_n_bits(b, c),
        "QAttention" => attention(b, c),
        "QGemm" => gemm(b, c),
        "QLinearAdd" => binary(b, c, "Add"),
        "QLinearMul" => binary(b, c, "Mul"),
        "QLinearConcat" => concat(b, c),
        "QLinearConv" => conv(b, c),
        "QLinearSoftmax" => softmax_of_codes(b, c),
        "QLinearWhere" => choice(b, c),
        _ => unary(b, c),
    }
}

/// Imports QuantizeLinear and DequantizeLinear.
pub(super) fn linear(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    // Without an effect is a dtype that is undefined, which ONNX writes as 0.
    for attr in ["output_dtype", "precision"] {
        if let Some(Attr::Int(0)) = c.attrs.get(attr) {
            c.take(attr);
        }
    }
    // Operator sets before 23 leave the dtype of the division open, later ones name that of the scales. Models of the
    // former are made for ONNX Runtime, which divides in f32.
    if c.op == "QuantizeLinear" && c.opset < 23 && c.attrs.get("precision").is_none() {
        c.attrs = c.attrs.with("precision", Attr::DType(DType::F32));
    }
    c.emit(b)
}

/// Operand `i`, a scale that must be one number. A list whose length is not known is checked at run time.
fn one_number(b: &mut Builder, c: &ImportedNode, i: usize) -> Made {
    let scale = c.need(i)?;
    let mut e = Expansion { b, c };
    match e.shape(scale)?.as_slice() {
        [] => Ok(scale),
        [one] if one.is(1) => Ok(scale),
        [length] if length.as_const().is_none() => e.scalar(scale),
        shape => {
            let shape: Vec<_> = shape.iter().map(Dim::to_string).collect();
            let reason = format!("scale {i} is not one number but [{}]", shape.join(", "));
            Err(c.error(reason).into())
        }
    }
}

/// Operand `i`, the scale of a right operand of a product: one number, or one for each column of each matrix.
fn by_column(b: &Builder, c: &ImportedNode, i: usize, matrices: ValueId) -> Made {
    let scale = c.need(i)?;
    let shape = |x| Ok::<_, ImportFailure>(&b.ty(x).ok_or(ImportFailure::Consequence)?.shape);
    let (own, all) = (shape(scale)?, shape(matrices)?);
    // The columns lie along the last axis; the axis before it, along which sums go, has no scales of its own.
    let fits = own.len() <= all.len()
        && own
            .iter()
            .rev()
            .zip(all.iter().rev())
            .enumerate()
            .all(
                |(axis, (own, all))| match (own.as_const(), all.as_const()) {
                    (Some(1), _) | (None, _) => true,
                    (Some(_), _) if axis == 1 => false,
                    (Some(own), all) => all.is_none_or(|all| all == own),
                },
            );
    match fits {
        true => Ok(scale),
        false => Err(c
            .error(format!("scale {i} has not one number for each column"))
            .into()),
    }
}

/// The numbers that codes stand for. The operands are the codes from `first` on, a scale and perhaps a zero point.
fn numbers(b: &mut Builder, c: &ImportedNode, first: usize) -> Made {
    let (codes, scale) = (c.need(first)?, one_number(b, c, first + 1)?);
    let operands = vec![Some(codes), Some(scale), c.input(first + 2)];
    Ok(c.before(b, "DequantizeLinear", Attrs::default(), operands)?)
}

/// Adds the last node: the codes of `y` by the scale that is operand `i` and perhaps the zero point behind it, which
/// has the dtype of the codes.
fn codes(b: &mut Builder, c: ImportedNode, y: ValueId, i: usize, dtype: DType) -> Outputs {
    let (attrs, operands) = quantised(b, &c, y, i, dtype)?;
    c.finish(b, "QuantizeLinear", attrs, operands)
}

/// The attributes and operands of the node of [`codes`].
fn quantised(
    b: &mut Builder,
    c: &ImportedNode,
    y: ValueId,
    i: usize,
    dtype: DType,
) -> Result<(Attrs, Vec<Option<ValueId>>), ImportFailure> {
    let (scale, zero) = (one_number(b, c, i)?, c.input(i + 1));
    let attrs = match zero {
        Some(_) => Attrs::default(),
        None => Attrs::default().with("output_dtype", Attr::DType(dtype)),
    };
    Ok((attrs, vec![Some(y), Some(scale), zero]))
}

/// Imports an op of two tensors of codes.
fn binary(b: &mut Builder, c: ImportedNode, op: &str) -> Outputs {
    let dtype = c.dtype(b, 0);
    let (left, right) = (numbers(b, &c, 0)?, numbers(b, &c, 3)?);
    let y = c.before(b, op, Attrs::default(), vec![Some(left), Some(right)])?;
    codes(b, c, y, 6, dtype)
}

/// Imports a concatenation of tensors of codes, whose operands begin with those of the result.
fn concat(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let axis = c.take_int("axis")?;
    let axis = axis.ok_or_else(|| c.error("attribute 'axis' is missing"))?;
    c.no_more_attributes()?;
    if c.inputs.len() < 5 || !(c.inputs.len() - 2).is_multiple_of(3) {
        return Err(c
            .error(format!("takes no {} operands", c.inputs.len()))
            .into());
    }
    let dtype = c.dtype(b, 2);
    let mut parts = Vec::new();
    for first in (2..c.inputs.len()).step_by(3) {
        parts.push(Some(numbers(b, &c, first)?));
    }
    let y = c.before(b, "Concat", axis_of(axis), parts)?;
    codes(b, c, y, 0, dtype)
}

/// Imports a choice between the elements of two tensors of codes.
fn choice(b: &mut Builder, c: ImportedNode) -> Outputs {
    let dtype = c.dtype(b, 1);
    let condition = c.need(0)?;
    let (yes, no) = (numbers(b, &c, 1)?, numbers(b, &c, 4)?);
    let operands = vec![Some(condition), Some(yes), Some(no)];
    let y = c.before(b, "Where", Attrs::default(), operands)?;
    codes(b, c, y, 7, dtype)
}

/// Imports a convolution of codes. The weights lie as ONNX has them also where the channels of the others are the last
/// axis.
fn conv(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if !c.take_flag("channels_last", false)? {
        return c.emit(b);
    }
    let x = c.need(0)?;
    let attrs = std::mem::take(&mut c.attrs);
    let mut e = Expansion { b, c: &c };
    let rank = rank(&e, x)?;
    let x = channels_first(&mut e, x, rank)?;
    c.set(0, Some(x));
    let y = c.before(b, "QLinearConv", attrs, c.inputs.clone())?;
    let perm = perm_of(&channels_last_order(rank));
    c.finish(b, "Transpose", perm, vec![Some(y)])
}

/// Imports an op of one tensor of codes. Where the channels are the last axis, it is codes that are transposed: a
/// transpose that is next to the one of another op goes away with it.
fn unary(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let dtype = c.dtype(b, 0);
    let x = c.need(0)?;
    let rank = b.ty(x).map_or(0, |ty| ty.shape.len());
    let last = c.take_flag("channels_last", false)? && rank > 2;
    if last {
        let x = channels_first(&mut Expansion { b, c: &c }, x, rank)?;
        c.set(0, Some(x));
    }
    let x = numbers(b, &c, 0)?;
    let (op, attrs) = match c.op.as_str() {
        "QLinearSigmoid" => ("Sigmoid", Attrs::default()),
        "QLinearLeakyRelu" => {
            let alpha = c.take_float("alpha")?.unwrap_or(0.01);
            (
                "LeakyRelu",
                Attrs::default().with("alpha", Attr::Float(alpha)),
            )
        }
        "QLinearGlobalAveragePool" => ("GlobalAveragePool", Attrs::default()),
        _ => ("AveragePool", average_pool(&mut c)?),
    };
    c.no_more_attributes()?;
    let y = c.before(b, op, attrs, vec![Some(x)])?;
    if !last {
        return codes(b, c, y, 3, dtype);
    }
    let (attrs, operands) = quantised(b, &c, y, 3, dtype)?;
    let y = c.before(b, "QuantizeLinear", attrs, operands)?;
    let perm = perm_of(&channels_last_order(rank));
    c.finish(b, "Transpose", perm, vec![Some(y)])
}

/// The attributes of an average pool. Where padding counts, ONNX Runtime divides by the size of the kernel also where
/// `ceil_mode` lets the last window reach beyond the padding. So does padding that reaches as far as that window may.
fn average_pool(c: &mut ImportedNode) -> Result<Attrs, ImportFailure> {
    let attrs = std::mem::take(&mut c.attrs);
    let flag = |attr| attrs.int(attr, 0) != 0;
    let auto_pad = attrs.str("auto_pad", "NOTSET");
    // Padding that follows from the operand's size ends with the last window.
    if !flag("ceil_mode") || !flag("count_include_pad") || auto_pad.starts_with("SAME") {
        return Ok(attrs);
    }
    let kernel = attrs.ints("kernel_shape").unwrap_or_default();
    let rank = kernel.len();
    let list = |attr, default, len| {
        let given = attrs.ints(attr).filter(|all| !all.is_empty());
        given.map_or_else(|| vec![default; len], <[i64]>::to_vec)
    };
    let strides = list("strides", 1, rank);
    let mut pads = match auto_pad {
        "VALID" => vec![0; 2 * rank],
        _ => list("pads", 0, 2 * rank),
    };
    if strides.len() != rank || pads.len() != 2 * rank {
        return Err(c
            .wrong("pads", "of two numbers for each spatial axis")
            .into());
    }
    for ((pad, stride), kernel) in pads[rank..].iter_mut().zip(strides).zip(kernel) {
        // With more padding than that, a window might begin behind the operand.
        let most = kernel.saturating_sub(1).max(*pad);
        *pad = pad.saturating_add(stride).saturating_sub(1).min(most);
    }
    Ok(attrs
        .with("auto_pad", Attr::Str("NOTSET".into()))
        .with("ceil_mode", Attr::Int(0))
        .with("pads", Attr::Ints(pads)))
}

/// Imports a softmax of codes, in the form of the operator set that the node names.
fn softmax_of_codes(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let dtype = c.dtype(b, 0);
    let axis = c.take_int("axis")?.unwrap_or(-1);
    let opset = c.take_int("opset")?;
    let opset = opset.ok_or_else(|| c.error("attribute 'opset' is missing"))?;
    c.no_more_attributes()?;
    let x = numbers(b, &c, 0)?;
    let name = c.sub("Softmax");
    let of_numbers = ImportedNode {
        op: "Softmax".into(),
        inputs: vec![Some(x)],
        attrs: axis_of(axis),
        opset,
        ..ImportedNode::of_expansion(&name, vec![name.clone()])
    };
    let made = match opset < 13 {
        true => softmax::flattening(b, of_numbers)?,
        false => of_numbers.emit(b)?,
    };
    let y = made.first().copied();
    let y = y.ok_or_else(|| c.error("has no result"))?;
    codes(b, c, y, 3, dtype)
}

/// Operands of a product of codes as numbers: sums, scales of both operands, a bias.
struct ScaledProduct {
    sums: ValueId,
    scales: [ValueId; 2],
    bias: Option<ValueId>,
}

/// Adds the last nodes of a product of codes: the sums times both scales, plus the bias. They are f32, which has room
/// for all sums; the result has the dtype of the right scale.
fn scaled(b: &mut Builder, c: ImportedNode, of: ScaledProduct) -> Outputs {
    let [left, right] = of.scales;
    let dtype = b.ty(right).map_or(DType::F32, |ty| ty.dtype);
    let mut e = Expansion { b, c: &c };
    let sums = e.cast(of.sums, DType::F32)?;
    let (left, right) = (e.cast(left, DType::F32)?, e.cast(right, DType::F32)?);
    let scale = e.plain("Mul", &[left, right])?;
    let (op, operands) = match of.bias {
        None => ("Mul", [sums, scale]),
        Some(bias) => {
            let y = e.plain("Mul", &[sums, scale])?;
            ("Add", [y, e.cast(bias, DType::F32)?])
        }
    };
    if dtype == DType::F32 {
        return c.finish(b, op, Attrs::default(), operands.map(Some).into());
    }
    let y = e.plain(op, &operands)?;
    c.finish(b, "Cast", to_dtype(dtype), vec![Some(y)])
}

/// Imports MatMulIntegerToFloat.
fn matmul_to_float(b: &mut Builder, c: ImportedNode) -> Outputs {
    let operands = vec![c.input(0), c.input(1), c.input(4), c.input(5)];
    let sums = c.before(b, "MatMulInteger", Attrs::default(), operands)?;
    let scales = [one_number(b, &c, 2)?, by_column(b, &c, 3, c.need(1)?)?];
    let bias = c.input(6);
    scaled(b, c, ScaledProduct { sums, scales, bias })
}

/// Imports DynamicQuantizeMatMul: the left operand is quantised by its own span.
fn dynamic_matmul(b: &mut Builder, c: ImportedNode) -> Outputs {
    let (a, weights) = (c.need(0)?, c.need(1)?);
    let scale = by_column(b, &c, 2, weights)?;
    let name = c.sub("DynamicQuantizeLinear");
    let names = ["codes", "scale", "zero"].map(|what| c.sub(what));
    let dynamic = b.emit(
        "DynamicQuantizeLinear",
        &name,
        Attrs::default(),
        vec![Some(a)],
        &names,
    )?;
    let [codes, own, zero] = dynamic[..] else {
        return Err(c.error("has no codes").into());
    };
    let operands = vec![Some(codes), Some(weights), Some(zero), c.input(3)];
    let sums = c.before(b, "MatMulInteger", Attrs::default(), operands)?;
    let (scales, bias) = ([own, scale], c.input(4));
    scaled(b, c, ScaledProduct { sums, scales, bias })
}

/// Imports QAttention: a product of codes gives queries, keys and values.
fn attention(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let mut attention = Packed::take(&mut c)?;
    c.no_more_attributes()?;
    let (own, bias) = (one_number(b, &c, 3)?, c.need(2)?);
    let other = by_column(b, &c, 4, c.need(1)?)?;
    let operands = vec![c.input(0), c.input(1), c.input(6), c.input(7)];
    let sums = c.before(b, "MatMulInteger", Attrs::default(), operands)?;
    let mut e = Expansion { b, c: &c };
    let dtype = e.ty(bias)?.dtype;
    let wide = |e: &mut Expansion<'_>, x| e.cast(x, DType::F32);
    let (sums, bias) = (wide(&mut e, sums)?, wide(&mut e, bias)?);
    let (own, other) = (wide(&mut e, own)?, wide(&mut e, other)?);
    let both = e.plain("Mul", &[own, other])?;
    let all = e.plain("Mul", &[sums, both])?;
    let all = e.plain("Add", &[all, bias])?;
    let all = e.cast(all, dtype)?;
    attention.past = c.input(8);
    attention.mask = c.input(5);
    attention.attend(&mut e, all, None)
}

/// Imports QGemm: `alpha * (A · B + C)` of codes, whose result is codes where it has a zero point.
fn gemm(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let alpha = c.take_float("alpha")?.unwrap_or(1.0);
    let transposed = [c.take_flag("transA", false)?, c.take_flag("transB", false)?];
    c.no_more_attributes()?;
    let mut matrices = [c.need(0)?, c.need(3)?];
    for (matrix, flip) in matrices.iter_mut().zip(transposed) {
        if flip {
            *matrix = c.before(b, "Transpose", perm_of(&[1, 0]), vec![Some(*matrix)])?;
        }
    }
    let [left, right] = matrices;
    let operands = vec![Some(left), Some(right), c.input(2), c.input(5)];
    let mut sums = c.before(b, "MatMulInteger", Attrs::default(), operands)?;
    if let Some(bias) = c.input(6) {
        sums = c.before(b, "Add", Attrs::default(), vec![Some(sums), Some(bias)])?;
    }
    let (mut own, other) = (one_number(b, &c, 1)?, by_column(b, &c, 4, right)?);
    if alpha != 1.0 {
        let factor = b.literal(&c.sub("alpha"), Tensor::scalar(alpha));
        own = c.before(b, "Mul", Attrs::default(), vec![Some(own), Some(factor)])?;
    }
    let (scale, zero) = (c.input(7), c.input(8));
    if scale.is_none() && zero.is_some() {
        return Err(c.error("y_zero_point needs y_scale").into());
    }
    if zero.is_none() {
        // As in ONNX Runtime, the results are numbers, and divided by the scale all the same.
        if scale.is_some() {
            let scale = one_number(b, &c, 7)?;
            own = c.before(b, "Div", Attrs::default(), vec![Some(own), Some(scale)])?;
        }
        let of = ScaledProduct {
            sums,
            scales: [own, other],
            bias: None,
        };
        return scaled(b, c, of);
    }
    let sums = c.before(b, "Cast", to_dtype(DType::F32), vec![Some(sums)])?;
    let both = c.before(b, "Mul", Attrs::default(), vec![Some(own), Some(other)])?;
    let y = c.before(b, "Mul", Attrs::default(), vec![Some(sums), Some(both)])?;
    let dtype = c.dtype(b, 0);
    codes(b, c, y, 7, dtype)
}
