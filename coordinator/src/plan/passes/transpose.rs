//! Merges transposes of transposes, and makes a transpose that keeps the order of elements a reshape, which copies
//! nothing.

use convoke_graph::Dim;
use convoke_graph::graph::{Attr, Attrs, Function};
use convoke_graph::ops::attrs;
use convoke_graph::tensor::Tensor;

use convoke_graph::ops::{MovementOp, ShapeOp};

use super::edit::Edit;
use super::pass;
use super::prune;

/// Runs the pass.
pub fn run(f: Function) -> (Function, Option<String>) {
    // Most functions have no transpose; do not index those.
    if f.nodes.iter().all(|n| !n.is(MovementOp::Transpose)) {
        return (f, None);
    }
    let mut e = Edit::new(f);
    let (mut merged, mut reshaped) = (0, 0);
    for i in 0..e.f.nodes.len() {
        if is_transpose(&e, i) {
            merged += usize::from(merge(&mut e, i).is_some());
            reshaped += usize::from(reshape(&mut e, i).is_some());
        }
    }
    let told =
        |n: usize, what: &str| (n > 0).then(|| format!("{what} {}", pass::count(n, "transpose")));
    let done = [told(merged, "merged"), told(reshaped, "made a reshape of")];
    let report = done
        .into_iter()
        .flatten()
        .reduce(|a, b| format!("{a}, {b}"));
    // A transpose that lost its last use still counts as a user of its operand, which keeps later passes from fusing
    // it.
    let (f, _) = prune::run(e.finish());
    (f, report)
}

fn is_transpose(e: &Edit, node: usize) -> bool {
    e.f.nodes[node].is(MovementOp::Transpose)
}

/// Returns the operand's axes in the order of the result's.
fn order(e: &Edit, node: usize) -> Option<Vec<usize>> {
    let rank = e.f.ty(e.operand(node, 0)?).shape.len();
    attrs::transpose_perm(&e.f.nodes[node].attrs, rank).ok()
}

/// If a node transposes the result of a transpose, makes it transpose that one's operand. This costs the same even if
/// the inner transpose has other users.
fn merge(e: &mut Edit, node: usize) -> Option<()> {
    let inner = e.def(e.operand(node, 0)?)?;
    if !is_transpose(e, inner) || e.f.nodes[inner].runs_at != e.f.nodes[node].runs_at {
        return None;
    }
    let (x, first, second) = (e.operand(inner, 0)?, order(e, inner)?, order(e, node)?);
    let both: Option<Vec<i64>> = second
        .iter()
        .map(|axis| Some(*first.get(*axis)? as i64))
        .collect();
    let perm = Attr::Ints(both?);
    let node = &mut e.f.nodes[node];
    node.inputs = vec![Some(x)];
    node.attrs = Attrs::default().with("perm", perm);
    Some(())
}

/// Makes a node a reshape if it moves axes of length 1 only. If it moves no axis, it is left to the identity pass.
fn reshape(e: &mut Edit, node: usize) -> Option<()> {
    let (x, order) = (e.operand(node, 0)?, order(e, node)?);
    let from = &e.f.ty(x).shape;
    let long = order
        .iter()
        .filter(|a| !from.get(**a).is_some_and(|d| d.is(1)));
    if order.is_sorted() || !long.is_sorted() {
        return None;
    }
    let to: Vec<i64> = order
        .iter()
        .map(|a| length(from.get(*a)?))
        .collect::<Option<_>>()?;
    if to.iter().filter(|d| **d < 0).count() > 1 {
        return None;
    }
    let shape = Tensor::from_slice(&[to.len()], &to).ok()?;
    let name = format!("{}:shape", e.f.nodes[node].name);
    let shape = e.constant(&name, shape);
    let node = &mut e.f.nodes[node];
    node.op = ShapeOp::Reshape.name().into();
    node.attrs = Attrs::default();
    node.inputs = vec![Some(x), Some(shape)];
    Some(())
}

/// Returns the length in a reshape's shape: -1 if it is not known. `None` for 0, which would mean another axis's
/// length.
fn length(d: &Dim) -> Option<i64> {
    match d.as_const() {
        Some(0) => None,
        Some(n) => Some(n),
        None => Some(-1),
    }
}
