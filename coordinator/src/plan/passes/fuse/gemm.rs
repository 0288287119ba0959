//! Fuses a product with a constant matrix with the bias and activation that follow it.

use convoke_graph::graph::{Attr, Attrs, TensorType, ValueId};

use convoke_graph::ops::{FusedOp, MovementOp, QuantisedOp};

use super::codes::{self, CodedWeights};
use super::fused_node::{FusedNode, addition, as_vector, keeps_bits, summed_in_f32};
use crate::passes::edit::Edit;

/// Returns the fused node that replaces `Gemm` node `i`.
pub fn find_gemm(e: &mut Edit, i: usize) -> Option<FusedNode> {
    let attrs = &e.f.nodes[i].attrs;
    let plain = attrs.float("alpha", 1.0) == 1.0 && attrs.int("transA", 0) == 0;
    let trans = attrs.int("transB", 0) != 0;
    let scaled = attrs.float("beta", 1.0) != 1.0;
    let (a, b, c) = (e.operand(i, 0)?, e.operand(i, 1)?, e.operand(i, 2));
    let shape = matrix(e, a, b).filter(|_| plain && !(scaled && c.is_some()))?;
    let n = if trans { shape[0] } else { shape[1] };
    let bias = match c {
        Some(c) => Some(as_vector(e, i, c, n, 0)?),
        None => None,
    };
    if keeps_bits(e, b)
        && let Some(weights) = codes::find(e, i, b, trans)
    {
        return Some(of_codes(vec![i], a, weights, bias));
    }
    let b = if trans { transpose(e, i, b, shape) } else { b };
    let out = e.f.nodes[i].outputs[0];
    Some(finish(e, vec![i], [Some(a), Some(b), bias], out))
}

/// Returns the fused node that replaces `MatMul` node `i`.
pub fn find_matmul(e: &mut Edit, i: usize) -> Option<FusedNode> {
    let (a, b) = (e.operand(i, 0)?, e.operand(i, 1)?);
    let [_, n] = matrix(e, a, b)?;
    if e.f.ty(a).shape.len() < 2 {
        return None;
    }
    let mut value = e.f.nodes[i].outputs[0];
    let mut nodes = vec![i];
    let mut bias = None;
    if keeps_bits(e, value)
        && let Some((node, other, out)) = addition(e, value)
        && let Some(v) = as_vector(e, node, other, n, 0)
    {
        bias = Some(v);
        nodes.push(node);
        value = out;
    }
    if keeps_bits(e, b)
        && let Some(weights) = codes::find(e, i, b, false)
    {
        return Some(of_codes(nodes, a, weights, bias));
    }
    Some(finish(e, nodes, [Some(a), Some(b), bias], value))
}

/// Returns the shape of `b` if it is a constant matrix of the dtype of `a`, which is one whose products are sums in
/// f32.
fn matrix(e: &Edit, a: ValueId, b: ValueId) -> Option<[usize; 2]> {
    let fits = summed_in_f32(e, a) && e.f.ty(a).dtype == e.f.ty(b).dtype;
    let shape =
        e.f.ty(b)
            .fixed_shape()
            .filter(|_| fits && e.is_constant(b))?;
    shape.try_into().ok()
}

/// Adds an init node that transposes `b`; the packing pass reads through it.
fn transpose(e: &mut Edit, at: usize, b: ValueId, [rows, cols]: [usize; 2]) -> ValueId {
    let name = format!("{}:transposed", e.f.value(b).name);
    let attrs = Attrs::default().with("perm", Attr::Ints(vec![1, 0]));
    e.init_node(
        at,
        &name,
        MovementOp::Transpose,
        attrs,
        &[b],
        TensorType::fixed(e.f.ty(b).dtype, &[cols, rows]),
    )
}

/// The product with weights that stay codes.
fn of_codes(nodes: Vec<usize>, a: ValueId, w: CodedWeights, bias: Option<ValueId>) -> FusedNode {
    FusedNode {
        op: QuantisedOp::MatMulNBits.into(),
        attrs: w.attrs,
        inputs: vec![Some(a), Some(w.codes), Some(w.scales), w.zeros, bias],
        nodes,
    }
}

fn finish(e: &Edit, nodes: Vec<usize>, inputs: [Option<ValueId>; 3], out: ValueId) -> FusedNode {
    let attrs = Attrs::default().with("packed", Attr::Int(0));
    let mut fused = FusedNode {
        op: FusedOp::FusedGemm.into(),
        attrs,
        inputs: inputs.to_vec(),
        nodes,
    };
    if keeps_bits(e, out) {
        fused.absorb_activation(e, out);
    }
    fused
}
