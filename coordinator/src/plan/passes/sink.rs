//! Moves nodes whose results only one branch of an `If` reads into that branch, so that they run where it is taken.
//!
//! ```text
//! y = If(cond, h)  then: Relu(h)  else: …     h = MatMul(x, w)
//!                                      ->     y = If(cond, x, w)  then: Relu(MatMul(x, w))  else: …
//! ```
//! A node moves with all its consumers, never into the body of a loop, which runs often. Constants stay, since they are
//! computed once; so do nodes that the caller keeps in their place, ops that are not pure, and ops of control flow,
//! whose functions would be nested deeper.

use std::collections::HashMap;

use convoke_graph::graph::{Function, Literal, Node, RunsAt, ValueId};
use convoke_graph::ops::{self, ControlOp};
use convoke_graph::tensor::Tensor;

use super::bodies::{Bodies, inline_literals, read_by};
use super::pass;

/// Tells of a node's name whether the node stays where it is.
pub type StaysInPlace<'a> = &'a dyn Fn(&str) -> bool;

/// The branch of an `If` of the function: its node, and 0 for the first branch.
type Branch = (usize, usize);

/// The readers of a value.
#[derive(Clone, Copy, PartialEq)]
enum ReadBy {
    Nobody,
    /// By one branch alone.
    Branch(Branch),
    Others,
}

impl ReadBy {
    fn and(self, other: ReadBy) -> ReadBy {
        match (self, other) {
            (ReadBy::Nobody, by) | (by, ReadBy::Nobody) => by,
            (a, b) if a == b => a,
            _ => ReadBy::Others,
        }
    }
}

/// Runs the pass.
pub fn run(mut f: Function, stays: StaysInPlace<'_>) -> (Function, Option<String>) {
    if !f.nodes.iter().any(|n| n.is(ControlOp::If)) {
        return (f, None);
    }
    forget_unread(&mut f);
    let mut moved: HashMap<usize, [Vec<usize>; 2]> = HashMap::new();
    for (node, branch) in destinations(&f, stays).into_iter().enumerate() {
        if let Some((at, which)) = branch {
            moved.entry(at).or_default()[which].push(node);
        }
    }
    let mut gone = vec![false; f.nodes.len()];
    let small = inline_literals(&f);
    for (at, nodes) in moved {
        if let Some(with) = with_nodes(&f, at, &nodes, &small) {
            f.nodes[at] = with;
            nodes.iter().flatten().for_each(|n| gone[*n] = true);
        }
    }
    let count = gone.iter().filter(|gone| **gone).count();
    let mut gone = gone.into_iter();
    f.nodes.retain(|_| !gone.next().unwrap_or(false));
    let report = || format!("{} to the branch that needs it", pass::count(count, "node"));
    let report = (count > 0).then(report);
    (f, report)
}

/// Captures nothing in an `If` that neither of its branches reads.
fn forget_unread(f: &mut Function) {
    for node in f.nodes.iter_mut().filter(|n| n.is(ControlOp::If)) {
        let unread = |c: [Vec<bool>; 2]| c[0].iter().zip(&c[1]).any(|(yes, no)| !yes && !no);
        if captures(node).is_some_and(unread)
            && let Some(mut bodies) = branches(node)
        {
            bodies.forget_unread();
            bodies.write(node);
        }
    }
}

/// The branches of an `If`.
fn branches(node: &Node) -> Option<Bodies> {
    let branch = |name| Some((name, Function::clone(node.attrs.function(name)?)));
    let both = vec![branch("then_branch")?, branch("else_branch")?];
    Bodies::of(ControlOp::If, node, both)
}

/// For each node, the branch that it moves to.
fn destinations(f: &Function, stays: StaysInPlace<'_>) -> Vec<Option<Branch>> {
    let mut read = vec![ReadBy::Nobody; f.values.len()];
    for (_, v) in &f.results {
        read[v.ix()] = ReadBy::Others;
    }
    let mut to = vec![None; f.nodes.len()];
    for (i, node) in f.nodes.iter().enumerate().rev() {
        let by = node.outputs.iter().map(|o| read[o.ix()]);
        let by = by.fold(ReadBy::Nobody, ReadBy::and);
        to[i] = match by {
            ReadBy::Branch(branch) if is_movable(node) && !stays(&node.name) => Some(branch),
            _ => None,
        };
        let operands = node.inputs.iter().enumerate();
        let inside = to[i].is_none() && node.is(ControlOp::If);
        let branches = inside.then(|| captures(node)).flatten();
        for (k, v) in operands.filter_map(|(k, v)| Some(k).zip(*v)) {
            let by = match (to[i], k.checked_sub(1), &branches) {
                (Some(branch), ..) => ReadBy::Branch(branch),
                (None, Some(k), Some([yes, no])) => match (yes[k], no[k]) {
                    (true, false) => ReadBy::Branch((i, 0)),
                    (false, true) => ReadBy::Branch((i, 1)),
                    _ => ReadBy::Others,
                },
                _ => ReadBy::Others,
            };
            read[v.ix()] = read[v.ix()].and(by);
        }
    }
    to
}

/// For each branch of an `If`, which of its parameters it reads.
fn captures(node: &Node) -> Option<[Vec<bool>; 2]> {
    let of = |name| {
        let f = node.attrs.function(name)?;
        let read = read_by(f);
        let all: Vec<bool> = f.params.iter().map(|p| read.contains(p)).collect();
        (all.len() + 1 == node.inputs.len()).then_some(all)
    };
    Some([of("then_branch")?, of("else_branch")?])
}

/// Whether a node may run in a branch.
fn is_movable(node: &Node) -> bool {
    node.runs_at == RunsAt::Step
        && !ops::is_custom(&node.op)
        && ops::lookup(&node.op).is_some_and(|op| op.pure_op)
        && !node.inputs.is_empty()
        && node.attrs.functions().next().is_none()
}

/// The `If` node `at` with these nodes in its branches; `None` where it would break a bound of control flow.
fn with_nodes(
    f: &Function,
    at: usize,
    nodes: &[Vec<usize>; 2],
    small: &HashMap<ValueId, Tensor>,
) -> Option<Node> {
    let mut node = f.nodes[at].clone();
    let mut bodies = branches(&node)?;
    for (b, nodes) in nodes.iter().enumerate() {
        move_into(f, &mut bodies, b, nodes, small);
    }
    bodies.write(&mut node);
    ops::typed_bodies(ControlOp::If, &node, &f.values).ok()?;
    Some(node)
}

/// Moves nodes of `f` to the front of branch `b`.
fn move_into(
    f: &Function,
    bodies: &mut Bodies,
    b: usize,
    nodes: &[usize],
    small: &HashMap<ValueId, Tensor>,
) {
    // By value of the function, the value of the branch that stands for it.
    let mut here: HashMap<ValueId, ValueId> = HashMap::new();
    let mut made = Vec::new();
    for v in nodes.iter().flat_map(|n| &f.nodes[*n].outputs) {
        let known = bodies.position(*v);
        let inner = match known {
            Some(k) => bodies.param(b, k),
            None => bodies.add_value(b, &f.value(*v).name, f.ty(*v).clone()),
        };
        here.insert(*v, inner);
        made.extend(known);
    }
    bodies.forget(&made);
    // A small constant is copied, so that sizes that follow from it are known in the branch, too.
    let mut taken = |bodies: &mut Bodies, v: ValueId| {
        *here.entry(v).or_insert_with(|| {
            let (name, ty) = (&f.value(v).name, f.ty(v));
            let Some(t) = small.get(&v) else {
                return bodies.capture(b, v, name, ty);
            };
            let copy = bodies.add_value(b, name, ty.clone());
            let literal = Literal::Inline(t.clone());
            bodies.functions[b].literals.push((copy, literal));
            copy
        })
    };
    let mut moved = Vec::with_capacity(nodes.len());
    for n in nodes {
        let mut node = f.nodes[*n].clone();
        let values = node.inputs.iter_mut().flatten().chain(&mut node.outputs);
        values.for_each(|v| *v = taken(bodies, *v));
        moved.push(node);
    }
    let after = std::mem::take(&mut bodies.functions[b].nodes);
    moved.extend(after);
    bodies.functions[b].nodes = moved;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::prune;
    use crate::testing::{dedent, dump, parse, parse_with};

    /// The branches of the tests: one reads its first parameter, the other its second.
    fn branches() -> [Function; 2] {
        [("Relu", "h"), ("Neg", "g")].map(|(op, v)| {
            parse(&format!(
                "param h: f32[2, 3]
                 param g: f32[2, 3]
                 made = {op}({v})
                 result made"
            ))
        })
    }

    /// Checks the nodes of the function and of both branches of its first `If`, after the pass.
    fn check(before: &str, stays: StaysInPlace<'_>, outside: &str, then: &str, other: &str) {
        let [yes, no] = branches();
        let f = parse_with(before, &[("yes", &yes), ("no", &no)]);
        let (f, _) = prune::run(run(f, stays).0);
        f.verify().unwrap_or_else(|e| panic!("{e}\n{}", dump(&f)));
        assert_eq!(dump(&f), dedent(outside));
        let node = f.nodes.iter().find(|n| n.is(ControlOp::If)).unwrap();
        for (name, want) in [("then_branch", then), ("else_branch", other)] {
            assert_eq!(
                dump(node.attrs.function(name).unwrap()),
                dedent(want),
                "{name}"
            );
        }
    }

    const BEFORE: &str = "param c: bool[]
        param x: f32[2, 4]
        weight w: f32[4, 3]
        h = MatMul(x, w)
        e = Exp(x)
        g = MatMul(e, w)
        y = If(c, h, g) {then_branch=&yes; else_branch=&no}
        result y";

    #[test]
    fn what_one_branch_reads_moves_into_it_with_all_that_it_needs() {
        check(
            BEFORE,
            &|_| false,
            "y = If(c, x, w) {else_branch=3 nodes; then_branch=2 nodes}
             result y = y",
            "h = MatMul(x, w)
             made = Relu(h)
             result made = made",
            "e = Exp(x)
             g = MatMul(e, w)
             made = Neg(g)
             result made = made",
        );
    }

    #[test]
    fn nodes_that_are_kept_in_place_stay_with_what_they_need() {
        check(
            BEFORE,
            &|name| name == "g",
            "e = Exp(x)
             g = MatMul(e, w)
             y = If(c, g, x, w) {else_branch=1 nodes; then_branch=2 nodes}
             result y = y",
            "h = MatMul(x, w)
             made = Relu(h)
             result made = made",
            "made = Neg(g)
             result made = made",
        );
    }

    #[test]
    fn what_others_read_and_what_is_constant_stays() {
        check(
            "param c: bool[]
             param x: f32[2, 3]
             weight w: f32[2, 3]
             h = Exp(x)
             init g = Exp(w)
             y = If(c, h, g) {then_branch=&yes; else_branch=&no}
             result y
             result h",
            &|_| false,
            "h = Exp(x)
             init g = Exp(w)
             y = If(c, h, g) {else_branch=1 nodes; then_branch=1 nodes}
             result y = y
             result h = h",
            "made = Relu(h)
             result made = made",
            "made = Neg(g)
             result made = made",
        );
        // The condition is read whichever branch is taken, and so is what both branches read.
        check(
            "param x: f32[2, 3]
             const none: f32[] = 0
             const no: i64[2] = 0, 1
             s = ReduceSum(x, no) {keepdims=0}
             c = Greater(s, none)
             h = Exp(x)
             y = If(c, h, h) {then_branch=&yes; else_branch=&no}
             result y",
            &|_| false,
            "s = ReduceSum(x, no) {keepdims=0}
             c = Greater(s, none)
             h = Exp(x)
             y = If(c, h, h) {else_branch=1 nodes; then_branch=1 nodes}
             result y = y",
            "made = Relu(h)
             result made = made",
            "made = Neg(g)
             result made = made",
        );
    }

    #[test]
    fn small_constants_are_copied_into_the_branch() {
        check(
            "param c: bool[]
             param x: f32[6]
             param g: f32[2, 3]
             const shape: i64[2] = 2, 3
             h = Reshape(x, shape)
             y = If(c, h, g) {then_branch=&yes; else_branch=&no}
             result y",
            &|_| false,
            "y = If(c, g, x) {else_branch=1 nodes; then_branch=2 nodes}
             result y = y",
            "h = Reshape(x, shape)
             made = Relu(h)
             result made = made",
            "made = Neg(g)
             result made = made",
        );
    }

    #[test]
    fn what_nobody_reads_in_the_branches_is_not_captured() {
        check(
            "param c: bool[]
             param x: f32[2, 3]
             h = Exp(x)
             g = Exp(h)
             z = Exp(g)
             y = If(c, g, h) {then_branch=&yes; else_branch=&yes}
             result y",
            &|_| false,
            "h = Exp(x)
             g = Exp(h)
             y = If(c, g) {else_branch=1 nodes; then_branch=1 nodes}
             result y = y",
            "made = Relu(h)
             result made = made",
            "made = Relu(h)
             result made = made",
        );
    }
}
