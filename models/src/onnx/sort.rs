//! The order of nodes. ONNX demands a topological order; files that break this rule are sorted stably.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::proto::{GraphProto, NodeProto};
use super::scope::Initializer;
use crate::error::ModelError;

/// Calls `see` with every name that is read by `node` or by a node of its nested graphs.
pub(super) fn all_reads<'a>(node: &'a NodeProto, see: &mut dyn FnMut(&'a str)) {
    node.input.iter().for_each(|n| see(n));
    for g in node
        .attribute
        .iter()
        .flat_map(|a| a.g.iter().chain(&a.graphs))
    {
        g.node.iter().for_each(|n| all_reads(n, see));
        g.output.iter().for_each(|o| see(o.name()));
    }
}

/// Calls `see` with every name that `node` reads, including those that its nested graphs capture.
pub(super) fn reads<'a>(node: &'a NodeProto, see: &mut dyn FnMut(&'a str)) {
    node.input
        .iter()
        .filter(|n| !n.is_empty())
        .for_each(|n| see(n));
    for a in &node.attribute {
        a.g.iter()
            .chain(&a.graphs)
            .for_each(|g| graph_reads(g, see));
    }
}

/// Calls `see` with every name that a nested graph reads from the graphs around it.
pub(super) fn graph_reads<'a>(g: &'a GraphProto, see: &mut dyn FnMut(&'a str)) {
    let inputs = g.input.iter().map(|i| i.name());
    let constants = Initializer::all(g).map(|(name, _)| name);
    let made = g.node.iter().flat_map(|n| &n.output).map(String::as_str);
    let own: HashSet<&str> = inputs.chain(constants).chain(made).collect();
    let mut see = |name: &'a str| {
        if !own.contains(name) {
            see(name);
        }
    };
    g.node.iter().for_each(|n| reads(n, &mut see));
    g.output.iter().for_each(|o| see(o.name()));
}

/// The indices of `nodes` in an order in which each node follows the nodes that it reads from. Fails where there is a
/// cycle.
pub(super) fn order(nodes: &[&NodeProto]) -> Result<Vec<usize>, ModelError> {
    let mut definer: HashMap<&str, usize> = HashMap::new();
    for (i, n) in nodes.iter().enumerate() {
        n.output.iter().for_each(|o| {
            definer.entry(o).or_insert(i);
        });
    }
    let mut sorted = true;
    let mut waits = vec![0usize; nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (i, n) in nodes.iter().enumerate() {
        reads(n, &mut |name| {
            if let Some(d) = definer.get(name) {
                sorted &= *d < i;
                waits[i] += 1;
                readers[*d].push(i);
            }
        });
    }
    if sorted {
        return Ok((0..nodes.len()).collect());
    }
    let mut ready: BinaryHeap<Reverse<usize>> = (0..nodes.len())
        .filter(|i| waits[*i] == 0)
        .map(Reverse)
        .collect();
    let mut out = Vec::with_capacity(nodes.len());
    while let Some(Reverse(i)) = ready.pop() {
        out.push(i);
        for r in &readers[i] {
            waits[*r] -= 1;
            if waits[*r] == 0 {
                ready.push(Reverse(*r));
            }
        }
    }
    if out.len() == nodes.len() {
        return Ok(out);
    }
    let stuck = stuck(&readers, waits.iter().map(|w| *w > 0).collect());
    Err(ModelError::Cycle {
        nodes: stuck.into_iter().map(|i| node_name(nodes[i], i)).collect(),
    })
}

/// Whether `results` depend on each node, where `order` is that of [`order`].
pub(super) fn needed<'a>(
    nodes: &[&'a NodeProto],
    order: &[usize],
    results: impl Iterator<Item = &'a str>,
) -> Vec<bool> {
    let mut wanted: HashSet<&str> = results.collect();
    let mut needed = vec![false; nodes.len()];
    for i in order.iter().rev() {
        let node = nodes[*i];
        if node.output.iter().any(|o| wanted.contains(o.as_str())) {
            reads(node, &mut |name| {
                wanted.insert(name);
            });
            needed[*i] = true;
        }
    }
    needed
}

/// The nodes of `waiting` that are part of a cycle or between cycles, without those that merely read from one.
fn stuck(readers: &[Vec<usize>], mut waiting: Vec<bool>) -> Vec<usize> {
    // The number of waiting nodes that read from each node, and the waiting nodes that each node reads from.
    let mut leads_to = vec![0usize; readers.len()];
    let mut sources: Vec<Vec<usize>> = vec![Vec::new(); readers.len()];
    for (i, all) in readers.iter().enumerate().filter(|(i, _)| waiting[*i]) {
        for r in all.iter().filter(|r| waiting[**r]) {
            leads_to[i] += 1;
            sources[*r].push(i);
        }
    }
    let mut ends: Vec<usize> = (0..readers.len())
        .filter(|i| waiting[*i] && leads_to[*i] == 0)
        .collect();
    while let Some(i) = ends.pop() {
        waiting[i] = false;
        for s in &sources[i] {
            leads_to[*s] -= 1;
            if leads_to[*s] == 0 {
                ends.push(*s);
            }
        }
    }
    (0..readers.len()).filter(|i| waiting[*i]).collect()
}

/// The name of the node, or a name made from its op and index.
pub(super) fn node_name(n: &NodeProto, index: usize) -> String {
    match n.name() {
        "" => format!("{}_{index}", n.op_type()),
        name => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(inputs: &[&str], output: &str) -> NodeProto {
        NodeProto {
            input: inputs.iter().map(|s| s.to_string()).collect(),
            output: vec![output.into()],
            op_type: Some("Add".into()),
            ..NodeProto::default()
        }
    }

    #[test]
    fn nodes_without_effect_on_results_are_not_needed() {
        let nodes = [
            node(&["x"], "a"),
            node(&["a"], "dead"),
            node(&["a"], "b"),
            node(&["dead"], "c"),
        ];
        let nodes: Vec<&NodeProto> = nodes.iter().collect();
        let order = order(&nodes).unwrap();
        let needed = needed(&nodes, &order, ["b"].into_iter());
        assert_eq!(needed, [true, false, true, false]);
    }

    #[test]
    fn sorts_stably_and_finds_cycles() {
        let sorted = [node(&["x"], "a"), node(&["x"], "b"), node(&["b", "a"], "c")];
        let order = |nodes: &[NodeProto]| order(&nodes.iter().collect::<Vec<_>>());
        assert_eq!(order(&sorted).unwrap(), [0, 1, 2]);
        let mixed = [node(&["b", "x"], "c"), node(&["x"], "a"), node(&["a"], "b")];
        assert_eq!(order(&mixed).unwrap(), [1, 2, 0]);
        let cycle = [
            node(&["x"], "a"),
            node(&["c"], "b"),
            node(&["b"], "c"),
            node(&["c"], "d"),
        ];
        assert_eq!(
            order(&cycle).unwrap_err().to_string(),
            "the graph has a cycle through Add_1, Add_2"
        );
    }
}
