//! Drops nodes whose results have no use, unused trailing outputs, and values, constants and artifacts that nothing
//! refers to any more. Custom ops stay unless they are known to be pure: they may have side effects.

use convoke_graph::graph::{Function, Literal, Node, ValueId};
use convoke_graph::ops;

use super::pass;

const NONE: u32 = u32::MAX;

/// Runs the pass.
pub fn run(mut f: Function) -> (Function, Option<String>) {
    let before = (f.nodes.len(), f.literals.len());
    let mut live = vec![false; f.values.len()];
    f.results.iter().for_each(|(_, v)| live[v.ix()] = true);
    let mut keep = vec![false; f.nodes.len()];
    for (i, node) in f.nodes.iter().enumerate().rev() {
        keep[i] = has_effects(node) || node.outputs.iter().any(|o| live[o.ix()]);
        if keep[i] {
            node.inputs
                .iter()
                .flatten()
                .for_each(|v| live[v.ix()] = true);
        }
    }
    let mut kept = keep.iter();
    f.nodes.retain(|_| kept.next().copied().unwrap_or(true));
    for node in &mut f.nodes {
        let unused = |node: &Node| node.outputs.last().is_some_and(|o| !live[o.ix()]);
        if node.outputs.len() > 1 && unused(node) {
            let least = fewest_outputs(node);
            while node.outputs.len() > least && unused(node) {
                node.outputs.pop();
            }
        }
        // Outputs in front of a used one stay, even if they are unused.
        node.outputs.iter().for_each(|o| live[o.ix()] = true);
    }
    f.params.iter().for_each(|v| live[v.ix()] = true);
    f.literals.retain(|(v, _)| live[v.ix()]);
    let done = (before.0 - f.nodes.len(), before.1 - f.literals.len());
    drop_artifacts(&mut f);
    renumber(&mut f, &live);
    let report = (done != (0, 0)).then(|| {
        format!(
            "removed {} and {}",
            pass::count(done.0, "node"),
            pass::count(done.1, "constant")
        )
    });
    (f, report)
}

/// Returns how many outputs a node has at least. Their number has a meaning if an op has any number of them (Split),
/// and if functions within the node fix it.
fn fewest_outputs(node: &Node) -> usize {
    let op = ops::lookup(&node.op).filter(|op| op.outputs.1 < usize::MAX);
    let op = op.filter(|_| node.attrs.functions().next().is_none());
    op.map_or(node.outputs.len(), |op| op.outputs.0).max(1)
}

/// Returns whether a node has, or may have, side effects.
fn has_effects(node: &Node) -> bool {
    ops::is_custom(&node.op) && ops::lookup(&node.op).is_none_or(|op| !op.pure_op)
}

/// Drops artifacts that no literal is a range of.
fn drop_artifacts(f: &mut Function) {
    let mut new = vec![NONE; f.artifacts.len()];
    for (_, l) in &f.literals {
        if let Literal::Range { artifact, .. } = l {
            new[*artifact as usize] = 0;
        }
    }
    let mut used = new
        .iter()
        .map(|n| *n != NONE)
        .collect::<Vec<_>>()
        .into_iter();
    f.artifacts.retain(|_| used.next().unwrap_or(true));
    new.iter_mut()
        .filter(|n| **n != NONE)
        .zip(0..)
        .for_each(|(n, next)| *n = next);
    for (_, l) in &mut f.literals {
        if let Literal::Range { artifact, .. } = l {
            *artifact = new[*artifact as usize];
        }
    }
}

/// Drops values that are not live; the others keep their order.
fn renumber(f: &mut Function, live: &[bool]) {
    let mut new = vec![NONE; live.len()];
    new.iter_mut()
        .zip(live)
        .filter(|(_, l)| **l)
        .zip(0..)
        .for_each(|((n, _), next)| *n = next);
    let mut kept = live.iter();
    f.values.retain(|_| kept.next().copied().unwrap_or(true));
    let map = |v: &mut ValueId| v.0 = new[v.ix()];
    f.params.iter_mut().for_each(map);
    f.literals.iter_mut().for_each(|(v, _)| map(v));
    f.results.iter_mut().for_each(|(_, v)| map(v));
    for node in &mut f.nodes {
        node.inputs.iter_mut().flatten().for_each(map);
        node.outputs.iter_mut().for_each(map);
    }
}
