//! Fuses a convolution with the bias, residual and activation that follow it.

use convoke_graph::graph::Attr;

use convoke_graph::ops::{ConvOp, FusedOp};

use super::fused_node::{FusedNode, addition, as_vector, keeps_bits, summed_in_f32};
use crate::passes::edit::Edit;

/// Returns the fused node that replaces convolution `i`.
pub fn find(e: &mut Edit, i: usize) -> Option<FusedNode> {
    let (x, weight) = (e.operand(i, 0)?, e.operand(i, 1)?);
    let shape = e.f.ty(weight).fixed_shape()?;
    if !summed_in_f32(e, x) || !e.is_constant(weight) || shape.len() < 3 {
        return None;
    }
    let dims: Vec<i64> = shape.iter().map(|d| *d as i64).collect();
    let mut value = e.f.nodes[i].outputs[0];
    let mut fused = FusedNode {
        op: FusedOp::FusedConv.into(),
        attrs: e.f.nodes[i]
            .attrs
            .clone()
            .with("packed", Attr::Int(0))
            .with("w_shape", Attr::Ints(dims)),
        inputs: vec![Some(x), Some(weight), e.operand(i, 2), None],
        nodes: vec![i],
    };
    if !keeps_bits(e, value) {
        fused.absorb_activation(e, value);
        return Some(fused);
    }
    if fused.inputs[2].is_none()
        && let Some((node, other, out)) = addition(e, value)
        && e.is_constant(other)
        && let Some(bias) = as_vector(e, node, other, shape[0], shape.len() - 2)
    {
        fused.inputs[2] = Some(bias);
        fused.nodes.push(node);
        value = out;
    }
    if let Some((node, other, out)) = addition(e, value) {
        // If two convolutions meet in an addition, the later one takes it.
        let later_conv = e
            .def(other)
            .is_some_and(|d| d > i && e.f.nodes[d].is(ConvOp::Conv));
        if e.f.ty(other) == e.f.ty(out) && !later_conv {
            fused.inputs[3] = Some(other);
            fused.nodes.push(node);
            value = out;
        }
    }
    fused.absorb_activation(e, value);
    Some(fused)
}
