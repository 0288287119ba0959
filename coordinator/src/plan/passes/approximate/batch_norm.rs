//! Folds a batch normalisation behind a convolution or matrix product into its weights: init nodes compute the new
//! weight and bias, so the step has one node less.
//!
//! ```text
//! s = scale / sqrt(var + epsilon)      W' = W · s      b' = (b - mean) · s + shift
//! ```
//! They are computed in f32, and weights and bias of 16 bits are rounded once.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, Function, TensorType, ValueId};
use convoke_graph::ops::{BinaryOp, ConvOp, MatMulOp, NormOp, Op, ShapeOp, UnaryOp};
use convoke_graph::tensor::Tensor;

use crate::passes::edit::Edit;
use crate::passes::pass;

/// Runs the pass.
pub fn run(f: Function) -> (Function, Option<String>) {
    let mut e = Edit::new(f);
    let mut folded = 0;
    for i in 0..e.f.nodes.len() {
        if e.f.nodes[i].is(NormOp::BatchNormalization) {
            folded += usize::from(fold(&mut e, i).is_some());
        }
    }
    let report = (folded > 0).then(|| format!("folded {}", pass::count(folded, "normalisation")));
    (e.finish(), report)
}

/// The convolution or matrix product in front of a normalisation.
struct Target {
    node: usize,
    weight: ValueId,
    bias: Option<ValueId>,
    channels: usize,
    /// Shape in which a vector over the output channels broadcasts over the weight.
    broadcast: Vec<i64>,
}

fn fold(e: &mut Edit, bn: usize) -> Option<()> {
    let x = e.operand(bn, 0)?;
    let target = target(e, e.def(x)?)?;
    let vectors: Option<Vec<ValueId>> = (1..5).map(|i| e.operand(bn, i)).collect();
    let [scale, shift, mean, var] = vectors?[..] else {
        return None;
    };
    let vector = TensorType::fixed(DType::F32, &[target.channels]);
    let is_vector = |e: &Edit, v: ValueId| is_vector(e, v, target.channels);
    let node = &e.f.nodes[bn];
    let foldable = e.sole_user(x) == Some(bn)
        && node.outputs.len() == 1
        && node.attrs.int("training_mode", 0) == 0
        && [scale, shift, mean, var].iter().all(|v| is_vector(e, *v));
    if !foldable {
        return None;
    }
    let epsilon = Tensor::scalar(node.attrs.float("epsilon", 1e-5));
    let broadcast = Tensor::from_slice(&[target.broadcast.len()], &target.broadcast).ok()?;
    let name = node.name.clone();
    let out = node.outputs[0];

    // All new nodes stand where the normalisation stood, since init nodes before it may come after the convolution and compute its
    // operands.
    let at = bn;
    let label = |what: &str| format!("{name}:{what}");
    let cast = |e: &mut Edit, what: &str, value: ValueId, dtype: DType| {
        let ty = e.f.ty(value).clone();
        if ty.dtype == dtype {
            return value;
        }
        let to = Attrs::default().with("to", Attr::DType(dtype));
        let inputs = &[value];
        e.init_node(
            at,
            &label(what),
            UnaryOp::Cast,
            to,
            inputs,
            TensorType { dtype, ..ty },
        )
    };
    let dtype = e.f.ty(target.weight).dtype;
    let scale = cast(e, "wide scale", scale, DType::F32);
    let shift = cast(e, "wide shift", shift, DType::F32);
    let mean = cast(e, "wide mean", mean, DType::F32);
    let var = cast(e, "wide variance", var, DType::F32);
    let wide_weight = cast(e, "wide weight", target.weight, DType::F32);
    let wide_bias = target.bias.map(|b| cast(e, "wide bias", b, DType::F32));
    let apply = |e: &mut Edit, what: &str, op: Op, inputs: &[ValueId], ty: &TensorType| {
        e.init_node(at, &label(what), op, Attrs::default(), inputs, ty.clone())
    };
    let epsilon = e.constant(&label("epsilon"), epsilon);
    let shape = e.constant(&label("shape"), broadcast);
    let sum = apply(
        e,
        "variance",
        Op::Binary(BinaryOp::Add),
        &[var, epsilon],
        &vector,
    );
    let deviation = apply(e, "deviation", Op::Unary(UnaryOp::Sqrt), &[sum], &vector);
    let factor = apply(
        e,
        "factor",
        Op::Binary(BinaryOp::Div),
        &[scale, deviation],
        &vector,
    );
    let dims: Vec<usize> = target.broadcast.iter().map(|d| *d as usize).collect();
    let wide = TensorType::fixed(DType::F32, &dims);
    let wide = apply(
        e,
        "wide factor",
        Op::Shape(ShapeOp::Reshape),
        &[factor, shape],
        &wide,
    );
    let weight_ty = e.f.ty(wide_weight).clone();
    let weight = apply(
        e,
        "weight",
        Op::Binary(BinaryOp::Mul),
        &[wide_weight, wide],
        &weight_ty,
    );
    let bias = match wide_bias {
        Some(bias) => {
            let centred = apply(
                e,
                "centred",
                Op::Binary(BinaryOp::Sub),
                &[bias, mean],
                &vector,
            );
            let scaled = apply(
                e,
                "scaled",
                Op::Binary(BinaryOp::Mul),
                &[centred, factor],
                &vector,
            );
            apply(
                e,
                "bias",
                Op::Binary(BinaryOp::Add),
                &[scaled, shift],
                &vector,
            )
        }
        None => {
            let scaled = apply(
                e,
                "scaled",
                Op::Binary(BinaryOp::Mul),
                &[mean, factor],
                &vector,
            );
            apply(
                e,
                "bias",
                Op::Binary(BinaryOp::Sub),
                &[shift, scaled],
                &vector,
            )
        }
    };
    let weight = cast(e, "narrow weight", weight, dtype);
    let bias = cast(e, "narrow bias", bias, dtype);

    let mut conv = e.f.nodes[target.node].clone();
    conv.name = format!("{}+{name}", conv.name).into();
    conv.inputs.resize(2, None);
    conv.inputs[1] = Some(weight);
    conv.inputs.push(Some(bias));
    conv.outputs = vec![out];
    e.f.nodes[bn] = conv;
    e.remove(target.node);
    Some(())
}

fn is_folded(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Whether a value is a constant vector over the channels.
fn is_vector(e: &Edit, value: ValueId, channels: usize) -> bool {
    let ty = e.f.ty(value);
    is_folded(ty.dtype) && e.is_constant(value) && *ty == TensorType::fixed(ty.dtype, &[channels])
}

/// Returns the weight and the bias that a normalisation behind `node` folds into; `None` if `node` is of another kind
/// or its weight is not constant.
fn target(e: &Edit, node: usize) -> Option<Target> {
    let weight = e.operand(node, 1)?;
    let bias = e.operand(node, 2);
    let ty = e.f.ty(weight);
    let shape = ty.fixed_shape()?;
    let attrs = &e.f.nodes[node].attrs;
    if !is_folded(ty.dtype) || !e.is_constant(weight) || shape.len() < 2 {
        return None;
    }
    // The axis of the weight that counts output channels.
    let axis = match e.f.nodes[node].kind()? {
        Op::Conv(ConvOp::Conv) => 0,
        Op::MatMul(MatMulOp::Gemm)
            if attrs.float("alpha", 1.0) == 1.0 && attrs.float("beta", 1.0) == 1.0 =>
        {
            usize::from(attrs.int("transB", 0) == 0)
        }
        _ => return None,
    };
    let channels = shape[axis];
    if bias.is_some_and(|b| !is_vector(e, b, channels) || e.f.ty(b).dtype != ty.dtype) {
        return None;
    }
    let mut broadcast = vec![1; shape.len()];
    broadcast[axis] = i64::try_from(channels).ok()?;
    Some(Target {
        node,
        weight,
        bias,
        channels,
        broadcast,
    })
}
