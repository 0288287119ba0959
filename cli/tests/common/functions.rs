//! Functions whose steps take as long as a test needs.

use convoke::graph::Function;
use convoke::{DType, TensorType};
use convoke_common::graph::{Attrs, Node, Part, ValueId};

/// A node named after its op and its output.
pub fn node(op: &str, inputs: &[ValueId], output: ValueId, attrs: Attrs) -> Node {
    Node {
        name: format!("{op}_{}", output.0).into(),
        op: op.into(),
        attrs,
        inputs: inputs.iter().map(|v| Some(*v)).collect(),
        outputs: vec![output],
        part: Part::Step,
    }
}

/// x(i+1) = tanh(x(i)), `nodes` times, over `shape`: nodes `Tanh_1`, `Tanh_2`, ….
pub fn tanh_chain(shape: &[usize], nodes: usize) -> Function {
    let mut f = Function {
        name: "tanh".into(),
        ..Function::default()
    };
    let ty = TensorType::fixed(DType::F32, shape);
    let mut last = f.add_value("x", ty.clone());
    f.params.push(last);
    for i in 0..nodes {
        let next = f.add_value(format!("t{i}"), ty.clone());
        f.nodes.push(node("Tanh", &[last], next, Attrs::default()));
        last = next;
    }
    f.results.push(("y".into(), last));
    f
}

/// x(i+1) = tanh(x(i) · x), `nodes` times, over a square of this side: work that cannot be shortened.
pub fn product_chain(side: usize, nodes: usize) -> Function {
    let mut f = Function {
        name: "chain".into(),
        ..Function::default()
    };
    let ty = TensorType::fixed(DType::F32, &[side, side]);
    let x = f.add_value("x", ty.clone());
    f.params.push(x);
    let mut last = x;
    for i in 0..nodes {
        let product = f.add_value(format!("p{i}"), ty.clone());
        let next = f.add_value(format!("t{i}"), ty.clone());
        f.nodes
            .push(node("MatMul", &[last, x], product, Attrs::default()));
        f.nodes
            .push(node("Tanh", &[product], next, Attrs::default()));
        last = next;
    }
    f.results.push(("y".into(), last));
    f
}

/// Side of [`square`]: a matrix product of this size takes a second or more on one thread.
pub const SQUARE: usize = 3072;

/// y = x · x, in the one node `square`.
pub fn square() -> Function {
    let ty = || TensorType::fixed(DType::F32, &[SQUARE, SQUARE]);
    let mut f = Function {
        name: "squares".into(),
        ..Function::default()
    };
    let (x, y) = (f.add_value("x", ty()), f.add_value("y", ty()));
    f.params = vec![x];
    f.nodes = vec![Node {
        name: "square".into(),
        ..node("MatMul", &[x, x], y, Attrs::default())
    }];
    f.results = vec![("y".into(), y)];
    f
}
