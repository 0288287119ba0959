//! Removes nodes that yield their operand unchanged.

use convoke_graph::graph::{Function, ValueId};

use convoke_graph::ops::{BinaryOp, MovementOp, Op, ShapeOp, SliceOp, UnaryOp};

use super::edit::Edit;
use super::pass;

/// Runs the pass.
pub fn run(f: Function) -> (Function, Option<String>) {
    let mut e = Edit::new(f);
    let mut removed = 0;
    for i in 0..e.f.nodes.len() {
        if let Some(from) = yields(&e, i) {
            let out = e.f.nodes[i].outputs[0];
            e.remove(i);
            e.forward(out, from);
            removed += 1;
        }
    }
    let report =
        (removed > 0).then(|| format!("removed {} without effect", pass::count(removed, "node")));
    (e.finish(), report)
}

/// Returns the operand that node `i` yields unchanged.
fn yields(e: &Edit, i: usize) -> Option<ValueId> {
    let node = &e.f.nodes[i];
    let x = e.operand(i, 0)?;
    let out = *node.outputs.first()?;
    if e.f.ty(x) != e.f.ty(out) {
        return None;
    }
    // The types agree, so only the order of elements, or their values, could differ.
    let rest_unused = node.outputs[1..]
        .iter()
        .all(|o| e.users(*o).is_empty() && !e.is_result(*o));
    let all = |operand: usize, value: i64| match e.operand(i, operand) {
        None => true,
        Some(v) => e.ints(v).is_some_and(|v| v.iter().all(|x| *x == value)),
    };
    let same = match node.kind()? {
        Op::Unary(UnaryOp::Identity | UnaryOp::Cast | UnaryOp::CastLike) => true,
        Op::Unary(UnaryOp::Dropout) => rest_unused && all(2, 0),
        // It refuses some lengths.
        Op::Shape(ShapeOp::Squeeze) => node.attrs.get("kept").is_none(),
        Op::Shape(ShapeOp::Reshape | ShapeOp::Flatten | ShapeOp::Unsqueeze) => true,
        Op::Binary(BinaryOp::Sum | BinaryOp::Max | BinaryOp::Min | BinaryOp::Mean) => {
            node.inputs.len() == 1
        }
        Op::Slice(op) => match op {
            SliceOp::Expand | SliceOp::Tile => true,
            SliceOp::Concat => node.inputs.len() == 1,
            SliceOp::Split => node.outputs.len() == 1,
            SliceOp::Slice => all(4, 1),
            SliceOp::Pad => e.operand(i, 1).is_some() && all(1, 0),
        },
        Op::Movement(MovementOp::Transpose) => match node.attrs.ints("perm") {
            Some(perm) => perm.iter().enumerate().all(|(i, p)| i as i64 == *p),
            None => e.f.ty(x).shape.len() <= 1,
        },
        _ => false,
    };
    same.then_some(x)
}
