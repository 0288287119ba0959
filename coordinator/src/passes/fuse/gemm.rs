//! Fuses a product with a constant matrix with the bias and activation that follow it.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, TensorType, ValueId};

use convoke_graph::ops::{FusedOp, MovementOp};

use super::{FusedNode, addition, as_vector};
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
    if let Some((node, other, out)) = addition(e, value)
        && let Some(v) = as_vector(e, node, other, n, 0)
    {
        bias = Some(v);
        nodes.push(node);
        value = out;
    }
    Some(finish(e, nodes, [Some(a), Some(b), bias], value))
}

/// Returns the shape of `b` if it is a constant f32 matrix and `a` is f32.
fn matrix(e: &Edit, a: ValueId, b: ValueId) -> Option<[usize; 2]> {
    let f32s = e.f.ty(a).dtype == DType::F32 && e.f.ty(b).dtype == DType::F32;
    let shape =
        e.f.ty(b)
            .fixed_shape()
            .filter(|_| f32s && e.is_constant(b))?;
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
        TensorType::fixed(DType::F32, &[cols, rows]),
    )
}

fn finish(e: &Edit, nodes: Vec<usize>, inputs: [Option<ValueId>; 3], out: ValueId) -> FusedNode {
    let attrs = Attrs::default().with("packed", Attr::Int(0));
    let mut fused = FusedNode {
        op: FusedOp::FusedGemm,
        attrs,
        inputs: inputs.to_vec(),
        nodes,
    };
    fused.absorb_activation(e, out);
    fused
}
