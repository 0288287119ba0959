//! Fuses convolutions and matrix products with the bias, residual and activation that follow them, and matrix products
//! with the dequantisation of their weights. The fused kernels round like the separate ops, so no bit changes.
//!
//! The fused node stands where the last of its nodes stood and keeps that node's output. A value that is
//! a result, or that something else uses too, is never fused away.

mod activation;
mod codes;
mod conv;
mod gemm;

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, Function, Node, RunsAt, TensorType, ValueId};
use convoke_graph::ops::{BinaryOp, ConvOp, IndexOp, MatMulOp, Op, ShapeOp};
use convoke_graph::tensor::Tensor;

use super::edit::Edit;

/// Runs the pass.
pub fn run(f: Function) -> (Function, Option<String>) {
    let mut e = Edit::new(f);
    let (mut convs, mut gemms, mut absorbed, mut tables) = (0, 0, 0, 0);
    for i in 0..e.f.nodes.len() {
        if e.is_removed(i) || e.f.nodes[i].runs_at == RunsAt::Init {
            continue;
        }
        let (fused, count) = match e.f.nodes[i].kind() {
            Some(Op::Conv(ConvOp::Conv)) => (conv::find(&mut e, i), &mut convs),
            Some(Op::MatMul(MatMulOp::Gemm)) => (gemm::find_gemm(&mut e, i), &mut gemms),
            Some(Op::MatMul(MatMulOp::MatMul)) => (gemm::find_matmul(&mut e, i), &mut gemms),
            Some(Op::Index(IndexOp::Gather)) => {
                tables += usize::from(codes::gather(&mut e, i).is_some());
                continue;
            }
            _ => continue,
        };
        let Some(fused) = fused else { continue };
        *count += 1;
        absorbed += fused.nodes.len() - 1;
        fused.apply(&mut e);
    }
    let fused = (convs + gemms > 0).then(|| {
        format!(
            "{} and {} absorbed {}",
            super::count(convs, "convolution"),
            super::count(gemms, "matrix product"),
            super::count(absorbed, "node")
        )
    });
    let tables =
        (tables > 0).then(|| format!("kept the codes of {}", super::count(tables, "table")));
    let report = fused
        .into_iter()
        .chain(tables)
        .reduce(|a, b| format!("{a}, {b}"));
    (e.finish(), report)
}

/// A node that replaces several.
struct FusedNode {
    op: Op,
    attrs: Attrs,
    inputs: Vec<Option<ValueId>>,
    /// The replaced nodes in graph order; the output of the last one stays.
    nodes: Vec<usize>,
}

impl FusedNode {
    fn apply(mut self, e: &mut Edit) {
        let Some(last) = self.nodes.last().copied() else {
            return;
        };
        let names: Vec<&str> = self.nodes.iter().map(|n| &*e.f.nodes[*n].name).collect();
        let name = names.join("+").into();
        while self.inputs.last().is_some_and(Option::is_none) {
            self.inputs.pop();
        }
        self.nodes
            .iter()
            .filter(|n| **n != last)
            .for_each(|n| e.remove(*n));
        e.f.nodes[last] = Node {
            name,
            op: self.op.name().into(),
            attrs: self.attrs,
            inputs: self.inputs,
            outputs: vec![e.f.nodes[last].outputs[0]],
            runs_at: RunsAt::Step,
        };
    }

    /// Fuses the activation that is the only user of `value`.
    fn absorb_activation(&mut self, e: &Edit, value: ValueId) {
        if let Some(a) = activation::following(e, value) {
            self.nodes.extend(a.nodes);
            let attrs = std::mem::take(&mut self.attrs);
            self.attrs = attrs.with("activation", Attr::Str(a.name.into()));
            for (name, v) in ["act_alpha", "act_beta"].into_iter().zip(a.parameters) {
                self.attrs = std::mem::take(&mut self.attrs).with(name, Attr::Float(v));
            }
        }
    }
}

/// Whether products and convolutions of this dtype are sums in f32.
fn summed_in_f32(e: &Edit, v: ValueId) -> bool {
    matches!(e.f.ty(v).dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Whether a fused node may take in the op that reads this value. The separate ops would round the value to its dtype
/// first, which changes nothing in f32 alone.
fn keeps_bits(e: &Edit, v: ValueId) -> bool {
    e.f.ty(v).dtype == DType::F32
}

/// Returns the addition that is the only user of `value`, with its other operand and its output; `None` if it
/// broadcasts `value`.
fn addition(e: &Edit, value: ValueId) -> Option<(usize, ValueId, ValueId)> {
    let user = e
        .sole_user(value)
        .filter(|u| e.f.nodes[*u].is(BinaryOp::Add))?;
    let out = e.f.nodes[user].outputs[0];
    if e.f.ty(out) != e.f.ty(value) {
        return None;
    }
    let (a, b) = (e.operand(user, 0)?, e.operand(user, 1)?);
    Some((user, if a == value { b } else { a }, out))
}

/// Returns `bias` as a vector of `n` elements, if all of its `n` elements lie along the axis `from_end` (0: the last).
fn as_vector(e: &mut Edit, at: usize, bias: ValueId, n: usize, from_end: usize) -> Option<ValueId> {
    let ty = e.f.ty(bias);
    let shape = ty.fixed_shape()?;
    let dtype = ty.dtype;
    let axis = shape.len().checked_sub(from_end + 1)?;
    if shape[axis] != n || shape.iter().enumerate().any(|(i, d)| i != axis && *d != 1) {
        return None;
    }
    if shape.len() == 1 {
        return Some(bias);
    }
    if !e.is_constant(bias) {
        return None;
    }
    let name = e.f.value(bias).name.clone();
    let dims = Tensor::from_slice(&[1], &[i64::try_from(n).ok()?]).ok()?;
    let dims = e.constant(&format!("{name}:dims"), dims);
    let ty = TensorType::fixed(dtype, &[n]);
    Some(e.init_node(
        at,
        &format!("{name}:vector"),
        ShapeOp::Reshape,
        Attrs::default(),
        &[bias, dims],
        ty,
    ))
}
