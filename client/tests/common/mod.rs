//! Functions that several tests build node by node.

// Each test binary uses only a part of this module.
#![allow(dead_code)]

use convoke::graph::{Function, Node, RunsAt, ValueId};
use convoke::{Attrs, DType, Dim, TensorType};

/// A tensor type with these dimensions.
pub fn ty(dtype: DType, shape: &[Dim]) -> TensorType {
    TensorType::new(dtype, shape.to_vec())
}

/// Adds a node with one result of this type, which has the node's name.
pub fn node(
    f: &mut Function,
    name: &str,
    op: &str,
    inputs: &[ValueId],
    ty: &TensorType,
) -> ValueId {
    let made = f.add_value(name, ty.clone());
    f.nodes.push(Node {
        name: name.into(),
        op: op.into(),
        attrs: Attrs::default(),
        inputs: inputs.iter().map(|v| Some(*v)).collect(),
        outputs: vec![made],
        runs_at: RunsAt::Step,
    });
    made
}
