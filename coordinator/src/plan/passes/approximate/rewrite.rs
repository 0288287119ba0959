//! Compositions that exporters write out become the one op they stand for: `Gelu` and
//! `LayerNormalization`.
//!
//! Values change in the last bits (the ops sum and scale in another order), so the pass is off where
//! exact results are asked for.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, Function, Node, ValueId};

use convoke_graph::ops::{BinaryOp, NormOp, Op, ReduceOp, UnaryOp};

use crate::passes::edit::Edit;
use crate::passes::pass;

/// Runs the pass.
pub fn run(f: Function) -> (Function, Option<String>) {
    let mut e = Edit::new(f);
    let (mut gelus, mut norms) = (0, 0);
    for i in 0..e.f.nodes.len() {
        if e.is_removed(i) {
            continue;
        }
        match e.f.nodes[i].kind() {
            Some(Op::Unary(UnaryOp::Erf)) => gelus += usize::from(gelu(&mut e, i).is_some()),
            Some(Op::Unary(UnaryOp::Sqrt)) => norms += usize::from(layer_norm(&mut e, i).is_some()),
            _ => {}
        }
    }
    let report = (gelus + norms > 0).then(|| {
        format!(
            "{} and {} written out",
            pass::count(gelus, "gelu"),
            pass::count(norms, "layer norm")
        )
    });
    (e.finish(), report)
}

/// Returns the other operand of a two-operand node.
fn other(e: &Edit, node: usize, one: ValueId) -> Option<ValueId> {
    match (e.operand(node, 0)?, e.operand(node, 1)?) {
        (a, b) if a == one => Some(b),
        (a, b) if b == one => Some(a),
        _ => None,
    }
}

/// If the only user of `v` is an `op`, returns that node with its other operand and its output.
fn then(e: &Edit, v: ValueId, op: BinaryOp) -> Option<(usize, ValueId, ValueId)> {
    let user = e.sole_user(v).filter(|u| e.f.nodes[*u].is(op))?;
    Some((user, other(e, user, v)?, e.f.nodes[user].outputs[0]))
}

/// Returns the node that defines `v`, if it is an `op`.
fn from(e: &Edit, v: ValueId, op: impl Into<Op>) -> Option<usize> {
    let op = op.into();
    e.def(v).filter(|d| e.f.nodes[*d].is(op))
}

fn is_scalar(e: &Edit, v: ValueId, want: f32) -> bool {
    e.scalar(v).is_some_and(|x| (x - want).abs() <= want * 1e-6)
}

/// Replaces node `last` by `op` with `inputs`, named after all of `nodes`. The other nodes lose their last use.
fn replace(
    e: &mut Edit,
    nodes: &mut [usize],
    last: usize,
    op: impl Into<Op>,
    attrs: Attrs,
    inputs: &[ValueId],
) {
    nodes.sort_unstable();
    let names: Vec<&str> = nodes.iter().map(|n| &*e.f.nodes[*n].name).collect();
    e.f.nodes[last] = Node {
        name: names.join("+").into(),
        op: op.into().name().into(),
        attrs,
        inputs: inputs.iter().map(|v| Some(*v)).collect(),
        outputs: e.f.nodes[last].outputs.clone(),
        runs_at: e.f.nodes[last].runs_at,
    };
    nodes
        .iter()
        .filter(|n| **n != last)
        .for_each(|n| e.remove(*n));
}

/// Finds x · (1 + erf(x / √2)) · ½, in the orders that exporters use.
fn gelu(e: &mut Edit, erf: usize) -> Option<()> {
    let scaled = e.operand(erf, 0)?;
    if e.f.ty(scaled).dtype != DType::F32 || e.sole_user(scaled) != Some(erf) {
        return None;
    }
    let scale = e.def(scaled)?;
    let (a, b) = (e.operand(scale, 0)?, e.operand(scale, 1)?);
    let x = match e.f.nodes[scale].kind()? {
        Op::Binary(BinaryOp::Div) if is_scalar(e, b, std::f32::consts::SQRT_2) => a,
        Op::Binary(BinaryOp::Mul) if is_scalar(e, b, std::f32::consts::FRAC_1_SQRT_2) => a,
        Op::Binary(BinaryOp::Mul) if is_scalar(e, a, std::f32::consts::FRAC_1_SQRT_2) => b,
        _ => return None,
    };
    let (plus, one, sum) = then(e, e.f.nodes[erf].outputs[0], BinaryOp::Add)?;
    if !is_scalar(e, one, 1.0) {
        return None;
    }
    let (first, left, product) = then(e, sum, BinaryOp::Mul)?;
    let mut nodes = vec![scale, erf, plus, first];
    let last = if left == x {
        let (last, half, _) = then(e, product, BinaryOp::Mul)?;
        is_scalar(e, half, 0.5).then_some(())?;
        last
    } else if is_scalar(e, left, 0.5) {
        let (last, by, _) = then(e, product, BinaryOp::Mul)?;
        (by == x).then_some(())?;
        last
    } else {
        let halving = from(e, left, BinaryOp::Mul)?;
        let half = other(e, halving, x)?;
        (is_scalar(e, half, 0.5) && e.sole_user(left) == Some(first)).then_some(())?;
        nodes.push(halving);
        first
    };
    if last != first {
        nodes.push(last);
    }
    let out = e.f.nodes[last].outputs[0];
    if e.f.ty(out) != e.f.ty(x) {
        return None;
    }
    replace(e, &mut nodes, last, UnaryOp::Gelu, Attrs::default(), &[x]);
    Some(())
}

/// Finds d / √(mean(d²) + ε) · γ + β with d = x − mean(x), over the last axis.
fn layer_norm(e: &mut Edit, sqrt: usize) -> Option<()> {
    let shifted = e.operand(sqrt, 0)?;
    let add = from(e, shifted, BinaryOp::Add).filter(|_| e.sole_user(shifted) == Some(sqrt))?;
    let (a, b) = (e.operand(add, 0)?, e.operand(add, 1)?);
    let (variance, epsilon) = match (e.scalar(a), e.scalar(b)) {
        (None, Some(eps)) => (a, eps),
        (Some(eps), None) => (b, eps),
        _ => return None,
    };
    let mean_sq = mean_of_last(e, variance).filter(|_| e.sole_user(variance) == Some(add))?;
    let squares = e.operand(mean_sq, 0)?;
    let square = e
        .def(squares)
        .filter(|_| e.sole_user(squares) == Some(mean_sq))?;
    let d = e.operand(square, 0)?;
    let by = e.operand(square, 1)?;
    match e.f.nodes[square].kind()? {
        Op::Binary(BinaryOp::Pow)
            if is_scalar(e, by, 2.0) || e.ints(by).as_deref() == Some(&[2]) => {}
        Op::Binary(BinaryOp::Mul) if by == d => {}
        _ => return None,
    }
    let sub = from(e, d, BinaryOp::Sub)?;
    let (x, mean) = (e.operand(sub, 0)?, e.operand(sub, 1)?);
    let mean_node = mean_of_last(e, mean)?;
    if e.operand(mean_node, 0)? != x
        || e.sole_user(mean) != Some(sub)
        || e.f.ty(x).dtype != DType::F32
    {
        return None;
    }
    let root = e.f.nodes[sqrt].outputs[0];
    let div = e
        .sole_user(root)
        .filter(|u| e.f.nodes[*u].is(BinaryOp::Div))?;
    if e.operand(div, 0)? != d || e.operand(div, 1)? != root {
        return None;
    }
    if e.is_result(d)
        || e.users(d)
            .iter()
            .any(|u| ![square, div].contains(&(*u as usize)))
    {
        return None;
    }
    let (mul, gamma, scaled) = then(e, e.f.nodes[div].outputs[0], BinaryOp::Mul)?;
    let ty = e.f.ty(x);
    let row = ty.shape.last()?.clone();
    let is_row = |v: ValueId| {
        let t = e.f.ty(v);
        t.dtype == DType::F32 && t.shape.len() == 1 && t.shape[0] == row && row.as_const().is_some()
    };
    if !is_row(gamma) || e.f.ty(scaled) != ty {
        return None;
    }
    let mut nodes = vec![mean_node, sub, square, mean_sq, add, sqrt, div, mul];
    let mut inputs = vec![x, gamma];
    let mut last = mul;
    if let Some((shift, beta, _)) =
        then(e, scaled, BinaryOp::Add).filter(|(_, beta, _)| is_row(*beta))
    {
        nodes.push(shift);
        inputs.push(beta);
        last = shift;
    }
    let attrs = Attrs::default()
        .with("axis", Attr::Int(-1))
        .with("epsilon", Attr::Float(epsilon));
    replace(
        e,
        &mut nodes,
        last,
        NormOp::LayerNormalization,
        attrs,
        &inputs,
    );
    Some(())
}

/// Returns the node that defines `v`, if it is a mean over the last axis that keeps the axis.
fn mean_of_last(e: &Edit, v: ValueId) -> Option<usize> {
    let node = from(e, v, ReduceOp::ReduceMean)?;
    let axes = match e.operand(node, 1) {
        Some(axes) => e.ints(axes)?,
        None => e.f.nodes[node].attrs.ints("axes")?.to_vec(),
    };
    let rank = e.f.ty(e.operand(node, 0)?).shape.len() as i64;
    let keeps = e.f.nodes[node].attrs.int("keepdims", 1) == 1;
    (keeps && (axes == [-1] || axes == [rank - 1])).then_some(node)
}
