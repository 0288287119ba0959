//! Predicts the memory of values inside the functions of control flow, which exist while their node runs.

use convoke_graph::graph::{Function, Node, ValueId};
use convoke_graph::ops::ControlOp;
use convoke_graph::program::PARTITIONED;

use super::bytes::{At, bytes_of, of_unknown_size, widened_bytes};

/// Returns the peak of the bytes of the values that the functions of a node make while they run. The results of a
/// branch are not counted, because they are the results of its node. For a partitioned body only its results are
/// counted, which its owner holds beside the node's results that they are collected into; other workers hold the rest.
pub fn inner_bytes(node: &Node, axes: At<'_>) -> u64 {
    let is_if = node.is(ControlOp::If);
    let each = node.attrs.functions();
    if node.attrs.get(PARTITIONED).is_some() {
        return match is_if {
            true => 0,
            false => each.map(|(_, f)| result_bytes(f, axes)).max().unwrap_or(0),
        };
    }
    each.map(|(_, f)| most(f, axes, is_if)).max().unwrap_or(0)
}

fn result_bytes(f: &Function, axes: At<'_>) -> u64 {
    let results = f.results.iter();
    let each = results.filter_map(|(_, v)| bytes_of(f.ty(*v), axes));
    each.fold(0, u64::saturating_add)
}

/// Returns the peak of the bytes of the values that the nodes of `f` make. Each value exists until its last reader has
/// run, and results exist until the end. The results count unless they are `lent`. Beside them count the copies in f32 that kernels
/// make of what other nodes of `f` made; a parameter may be a weight, which is widened as it is used.
fn most(f: &Function, axes: At<'_>, lent: bool) -> u64 {
    let mut last = vec![0; f.values.len()];
    for (i, node) in f.nodes.iter().enumerate() {
        let values = node.inputs.iter().flatten().chain(&node.outputs);
        values.for_each(|v| last[v.ix()] = i);
    }
    for (_, v) in &f.results {
        last[v.ix()] = f.nodes.len();
    }
    let mut ends: Vec<Vec<ValueId>> = vec![vec![]; f.nodes.len() + 1];
    let mut bytes = vec![0u64; f.values.len()];
    for p in &f.params {
        bytes[p.ix()] = bytes_of(f.ty(*p), axes).unwrap_or(0);
    }
    let mut is_made = vec![false; f.values.len()];
    let (mut now, mut most) = (0u64, 0u64);
    for (i, node) in f.nodes.iter().enumerate() {
        let read = of_unknown_size(node.inputs.iter().flatten().map(|v| bytes[v.ix()]));
        for v in &node.outputs {
            bytes[v.ix()] = bytes_of(f.ty(*v), axes).unwrap_or(read);
            if !lent || last[v.ix()] < f.nodes.len() {
                now = now.saturating_add(bytes[v.ix()]);
                ends[last[v.ix()]].push(*v);
            }
        }
        let made = node.inputs.iter().flatten().filter(|v| is_made[v.ix()]);
        let beside = inner_bytes(node, axes).saturating_add(widened_bytes(f, node, made, axes));
        most = most.max(now.saturating_add(beside));
        node.outputs.iter().for_each(|v| is_made[v.ix()] = true);
        for v in &ends[i] {
            now -= bytes[v.ix()].min(now);
        }
    }
    most
}
