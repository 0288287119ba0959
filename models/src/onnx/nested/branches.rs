//! Nodes that only one branch of an If needs: they become part of the branch, and run where it is taken.

use std::collections::{HashMap, HashSet};

use convoke_graph::ops;

use super::super::import::Importer;
use super::super::proto::{GraphProto, NodeProto};
use super::super::scope::domain;
use super::super::sort;

/// Where a value is read.
#[derive(Clone, Copy, PartialEq)]
enum ReadBy {
    /// Only in the branch at this address.
    Branch(usize),
    /// In the graph itself, in several branches, or in a loop.
    Others,
}

impl<'a> Importer<'a> {
    /// For each node, the address of the branch that alone needs it. Nodes that depend on constants only are not moved,
    /// since they run once.
    pub(in super::super) fn of_branches(
        &self,
        nodes: &[&'a NodeProto],
        order: &[usize],
        needed: &[bool],
        results: impl Iterator<Item = &'a str>,
    ) -> Vec<Option<usize>> {
        let mut moved = vec![None; nodes.len()];
        if !nodes.iter().any(|n| is_branching(n)) {
            return moved;
        }
        let constant = self.constants(nodes, order);
        let mut readers: HashMap<&str, ReadBy> = results.map(|r| (r, ReadBy::Others)).collect();
        for i in order.iter().rev().copied().filter(|i| needed[*i]) {
            let node = nodes[i];
            let mut place = None;
            for o in node.output.iter().filter_map(|o| readers.get(o.as_str())) {
                place = Some(place.map_or(*o, |p| if p == *o { p } else { ReadBy::Others }));
            }
            if let Some(ReadBy::Branch(branch)) = place
                && !constant[i]
                && self.is_movable(node)
            {
                moved[i] = Some(branch);
                sort::reads(node, &mut |name| {
                    read(&mut readers, name, ReadBy::Branch(branch))
                });
                continue;
            }
            for input in node.input.iter().filter(|i| !i.is_empty()) {
                read(&mut readers, input, ReadBy::Others);
            }
            for g in node
                .attribute
                .iter()
                .flat_map(|a| a.g.iter().chain(&a.graphs))
            {
                let by = match is_branching(node) {
                    true => ReadBy::Branch(std::ptr::from_ref::<GraphProto>(g) as usize),
                    false => ReadBy::Others,
                };
                sort::graph_reads(g, &mut |name| read(&mut readers, name, by));
            }
        }
        moved
    }

    /// For each node, whether it depends on constants only.
    fn constants(&self, nodes: &[&'a NodeProto], order: &[usize]) -> Vec<bool> {
        let mut known: HashSet<&str> = HashSet::new();
        let mut constant = vec![false; nodes.len()];
        for i in order.iter().copied() {
            let node = nodes[i];
            let mut all = node.op_type() == "Constant" || !node.input.is_empty();
            sort::reads(node, &mut |name| {
                all &= known.contains(name) || self.names_constant(name);
            });
            if all {
                constant[i] = true;
                known.extend(node.output.iter().map(String::as_str));
            }
        }
        constant
    }

    fn names_constant(&self, name: &str) -> bool {
        for scope in self.scopes.iter().rev() {
            if let Some(id) = scope.names.get(name) {
                let outer = self.enclosing.get(scope.level).unwrap_or(&self.b);
                return id.is_some_and(|id| outer.is_constant(id));
            }
            if scope.pending.contains_key(name) {
                return true;
            }
            if !scope.open {
                break;
            }
        }
        false
    }

    /// Whether a node may run in a branch: all that runs there is pure, and an op of ONNX's own.
    fn is_movable(&self, n: &NodeProto) -> bool {
        let op = n.op_type();
        let impure = ops::lookup(op).is_some_and(|op| !op.pure_op);
        let called = self.functions.contains_key(&("", op, n.overload()));
        domain(n.domain()).is_empty() && !impure && !called && op != "Constant"
    }
}

fn is_branching(n: &NodeProto) -> bool {
    domain(n.domain()).is_empty() && n.op_type() == "If"
}

fn read<'a>(readers: &mut HashMap<&'a str, ReadBy>, name: &'a str, by: ReadBy) {
    let known = readers.entry(name).or_insert(by);
    if *known != by {
        *known = ReadBy::Others;
    }
}
