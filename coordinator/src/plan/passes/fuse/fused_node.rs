//! The node that replaces several, and the conditions under which it may.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, Node, RunsAt, TensorType, ValueId};
use convoke_graph::ops::{BinaryOp, Op, ShapeOp};
use convoke_graph::tensor::Tensor;

use super::activation;
use crate::passes::edit::Edit;

/// A node that replaces several.
pub struct FusedNode {
    pub op: Op,
    pub attrs: Attrs,
    pub inputs: Vec<Option<ValueId>>,
    /// The replaced nodes in graph order; the output of the last one stays.
    pub nodes: Vec<usize>,
}

impl FusedNode {
    /// Puts the node in the place of the last one that it replaces, and removes the others.
    pub fn apply(mut self, e: &mut Edit) {
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
    pub fn absorb_activation(&mut self, e: &Edit, value: ValueId) {
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

/// Returns whether products and convolutions of this dtype are sums in f32.
pub fn summed_in_f32(e: &Edit, v: ValueId) -> bool {
    matches!(e.f.ty(v).dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Returns whether a fused node may take in the op that reads this value. The separate ops would round the value to its
/// dtype first, which changes nothing in f32 alone.
pub fn keeps_bits(e: &Edit, v: ValueId) -> bool {
    e.f.ty(v).dtype == DType::F32
}

/// Returns the addition that is the only user of `value`, with its other operand and its output; `None` if it
/// broadcasts `value`.
pub fn addition(e: &Edit, value: ValueId) -> Option<(usize, ValueId, ValueId)> {
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
pub fn as_vector(
    e: &mut Edit,
    at: usize,
    bias: ValueId,
    n: usize,
    from_end: usize,
) -> Option<ValueId> {
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
