//! The choice of nodes of a sequence that become one kernel: chains of functions of single elements whose results no
//! other node reads, conversions of their operands, and one conversion or reduction of their result.
//!
//! A group is grown backwards from the node whose result is read elsewhere. It runs in the place of its first node,
//! where all that it reads from outside must be there already, so that no value has to be kept longer than without
//! fusion, and no larger value.

use std::collections::{BTreeSet, BinaryHeap};

use convoke_graph::DType;
use convoke_kernels::fused::Coding;

use crate::cpu::chain::{Elementwise, MOST_INPUTS, Tail};

/// The role that a node may have in a chain.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// A function of single elements.
    Elementwise(Elementwise),
    /// A conversion of its first operand between these dtypes, before a chain or after it.
    Cast(DType, DType),
    /// Numbers of codes of this dtype, before a chain.
    Decode(Coding, DType),
    /// Codes of this dtype of numbers, after a chain.
    Encode(Coding, DType),
    /// A reduction of its first operand, after a chain.
    Reduce(Tail),
    /// The node cannot be fused.
    Other,
}

/// A node as fusion sees it.
pub(super) struct Candidate {
    pub kind: Kind,
    /// The node's operands, without those that are left out.
    pub inputs: Vec<u32>,
    /// The node's only result.
    pub output: u32,
}

/// A sequence's nodes as fusion sees them.
pub(super) trait Graph {
    /// Node `at` of the sequence.
    fn node(&self, at: usize) -> &Candidate;
    /// The place in the sequence of the node that makes a value; `None` where no node of the sequence does.
    fn made_at(&self, value: u32) -> Option<usize>;
    /// Number of nodes that read a value and of sends of it.
    fn uses(&self, value: u32) -> u32;
    /// Whether two values have the same dtype and shape.
    fn alike(&self, a: u32, b: u32) -> bool;
    /// Whether a value outlives steps.
    fn is_constant(&self, value: u32) -> bool;
}

/// Largest number of nodes in a group.
const MOST_NODES: usize = 1 << 16;

/// The groups of at least two nodes in a sequence of `len` nodes, each as the places of its nodes, in order.
pub(super) fn groups(graph: &impl Graph, len: usize) -> Vec<Vec<usize>> {
    let mut taken = vec![false; len];
    let mut groups = Vec::new();
    for root in (0..len).rev() {
        if taken[root] {
            continue;
        }
        let node = graph.node(root);
        let group = match node.kind {
            Kind::Elementwise(_) => grown(graph, root, &taken),
            Kind::Cast(..) | Kind::Reduce(_) | Kind::Encode(..) => {
                let Some(last) = ended(graph, node, &taken) else {
                    continue;
                };
                let mut group = grown(graph, last, &taken);
                if operands(graph, &group).len() > 1 && !is_light(graph, node, &group) {
                    continue;
                }
                group.push(root);
                group
            }
            Kind::Decode(..) | Kind::Other => continue,
        };
        if group.len() > 1 {
            group.iter().for_each(|at| taken[*at] = true);
            groups.push(group);
        }
    }
    groups
}

/// The values of the step that a group reads, without constants. A single one lies in memory beside the result, as
/// without fusion; of several, all except one would be freed before a conversion or a reduction makes its result.
fn operands(graph: &impl Graph, group: &[usize]) -> BTreeSet<u32> {
    let inside = |v: &u32| graph.made_at(*v).is_some_and(|at| group.contains(&at));
    let read = group.iter().flat_map(|at| &graph.node(*at).inputs);
    let read = read.filter(|v| !inside(v) && !graph.is_constant(**v));
    read.copied().collect()
}

/// Whether codes are made of a chain that begins with numbers of codes: those numbers would take more memory, at the same time,
/// than the codes that the group makes instead of them.
fn is_light(graph: &impl Graph, root: &Candidate, group: &[usize]) -> bool {
    let first = group.first().map(|at| &graph.node(*at).kind);
    matches!(
        (first, &root.kind),
        (Some(Kind::Decode(..)), Kind::Encode(..))
    )
}

/// The last function of the chain that a conversion or a reduction ends, if it can be fused. A conversion to a wider
/// dtype is not fused: its result would take more memory, earlier.
fn ended(graph: &impl Graph, node: &Candidate, taken: &[bool]) -> Option<usize> {
    if matches!(node.kind, Kind::Cast(from, to) if to.width() > from.width()) {
        return None;
    }
    let value = *node.inputs.first()?;
    let made = graph.made_at(value)?;
    let last = match graph.node(made).kind {
        Kind::Elementwise(_) => true,
        Kind::Decode(..) => matches!(node.kind, Kind::Encode(..)),
        _ => false,
    };
    (last && !taken[made] && graph.uses(value) == 1).then_some(made)
}

fn grown(graph: &impl Graph, root: usize, taken: &[bool]) -> Vec<usize> {
    let value = graph.node(root).output;
    let mut group = vec![root];
    // The values that come from outside the group, and how often the group reads each value.
    let mut outside = BTreeSet::new();
    let mut reads = std::collections::HashMap::<u32, u32>::new();
    // The place of the last node outside the group that makes an operand of it.
    let mut latest = None;
    let mut candidates = BinaryHeap::new();
    let mut at = root;
    loop {
        for v in &graph.node(at).inputs {
            outside.insert(*v);
            *reads.entry(*v).or_default() += 1;
            let Some(made) = graph.made_at(*v) else {
                continue;
            };
            let joins = matches!(
                graph.node(made).kind,
                Kind::Elementwise(_) | Kind::Cast(..) | Kind::Decode(..)
            );
            let fits = joins && !taken[made] && graph.alike(*v, value);
            match fits {
                true => candidates.push(made),
                false => latest = latest.max(Some(made)),
            }
        }
        loop {
            let Some(next) = candidates.pop() else {
                group.reverse();
                return group;
            };
            if group.last() == Some(&next) {
                continue;
            }
            let Candidate { inputs, output, .. } = graph.node(next);
            let further = inputs.iter().filter(|v| !outside.contains(v));
            let further: BTreeSet<_> = further.collect();
            let joins = Some(next) > latest
                && group.len() < MOST_NODES
                && reads.get(output) == Some(&graph.uses(*output))
                && outside.len() - 1 + further.len() <= MOST_INPUTS;
            if joins {
                outside.remove(output);
                group.push(next);
                at = next;
                break;
            }
            latest = latest.max(Some(next));
        }
    }
}

#[cfg(test)]
mod tests {
    use DType::{F16, F32, U8};
    use convoke_kernels::reduce::Reduce;
    use convoke_kernels::unary::FloatUnary;

    use super::*;

    const NEG: Kind = Kind::Elementwise(Elementwise::Unary(FloatUnary::Neg));

    /// A graph for tests: node `i` makes value `i`; values from 100 on come from outside, and from 200 on are
    /// constants.
    struct Nodes {
        nodes: Vec<Candidate>,
        sent: Vec<u32>,
        odd: Vec<u32>,
    }

    impl Graph for Nodes {
        fn node(&self, at: usize) -> &Candidate {
            &self.nodes[at]
        }
        fn made_at(&self, value: u32) -> Option<usize> {
            (value < 100).then_some(value as usize)
        }
        fn uses(&self, value: u32) -> u32 {
            let reads = self.nodes.iter().flat_map(|n| &n.inputs);
            let reads = reads.filter(|v| **v == value).count();
            (reads + self.sent.iter().filter(|v| **v == value).count()) as u32
        }
        fn alike(&self, a: u32, b: u32) -> bool {
            self.odd.contains(&a) == self.odd.contains(&b)
        }
        fn is_constant(&self, value: u32) -> bool {
            value >= 200
        }
    }

    /// Checks the groups of nodes with these inputs. `other` lists nodes that are not elementwise, `odd` values of
    /// another shape.
    fn check(inputs: &[&[u32]], other: &[usize], sent: &[u32], odd: &[u32], want: &[&[usize]]) {
        let kind = |i: usize| match other.contains(&i) {
            true => Kind::Other,
            false => NEG,
        };
        let nodes: Vec<_> = (0..).map(kind).zip(inputs.iter().copied()).collect();
        check_kinds(&nodes, sent, odd, want);
    }

    fn check_kinds(nodes: &[(Kind, &[u32])], sent: &[u32], odd: &[u32], want: &[&[usize]]) {
        let node = |(i, (kind, inputs)): (usize, &(Kind, &[u32]))| Candidate {
            kind: kind.clone(),
            inputs: inputs.to_vec(),
            output: i as u32,
        };
        let graph = Nodes {
            nodes: nodes.iter().enumerate().map(node).collect(),
            sent: sent.to_vec(),
            odd: odd.to_vec(),
        };
        assert_eq!(groups(&graph, nodes.len()), want);
    }

    #[test]
    fn conversions_and_reductions_at_the_ends() {
        let sum = || Kind::Reduce(Tail::Reduce(Reduce::Sum, Default::default()));
        let (narrow, widen) = (Kind::Cast(F32, F16), Kind::Cast(F16, F32));
        let check = |nodes: &[(Kind, &[u32])], sent: &[u32], odd: &[u32], want: &[&[usize]]| {
            check_kinds(nodes, sent, odd, want)
        };
        // Conversions come before, a reduction or a conversion after; converted values are of another type.
        let of = |values: &'static [u32; 2]| -> Vec<(Kind, &[u32])> {
            vec![
                (widen.clone(), &values[..1]),
                (widen.clone(), &values[1..]),
                (NEG, &[0, 1]),
                (NEG, &[2]),
                (sum(), &[3]),
            ]
        };
        let all = of(&[100, 200]);
        check(&all, &[4], &[100, 200, 4], &[&[0, 1, 2, 3, 4]]);
        // A node whose result is read elsewhere is not fused, and no conversion or reduction follows it.
        check(&all, &[3, 4], &[100, 200, 4], &[&[0, 1, 2, 3]]);
        check(&all, &[0, 4], &[100, 200, 4], &[&[1, 2, 3, 4]]);
        // One of two operands would be freed before the reduction.
        check(&of(&[100, 101]), &[4], &[100, 101, 4], &[&[0, 1, 2, 3]]);
        let on: &[(Kind, &[u32])] = &[(NEG, &[100]), (narrow.clone(), &[0]), (NEG, &[1])];
        check(on, &[2], &[1, 2], &[&[1, 2]]);
        check(&on[..2], &[1], &[1], &[&[0, 1]]);
        check(&[(NEG, &[100]), (widen.clone(), &[0])], &[1], &[1], &[]);
        // Without a function between them there is no chain.
        check(&[(widen, &[100]), (narrow, &[0])], &[1], &[0], &[]);
        check(&[(sum(), &[100])], &[0], &[], &[]);
    }

    #[test]
    fn numbers_of_codes_and_codes_of_numbers_at_the_ends() {
        let (scale, zero) = (0.5, 0.);
        let decode = || Kind::Decode(Coding::Decode { scale, zero }, U8);
        let encode = || {
            let (low, high) = (0., 255.);
            let coding = Coding::Encode {
                scale,
                zero,
                low,
                high,
            };
            Kind::Encode(coding, U8)
        };
        let check = |nodes: &[(Kind, &[u32])], odd: &[u32], want: &[&[usize]]| {
            check_kinds(nodes, &[nodes.len() as u32 - 1], odd, want)
        };
        // Several operands of codes are lighter than their numbers.
        let sum: &[(Kind, &[u32])] = &[
            (decode(), &[100]),
            (decode(), &[101]),
            (NEG, &[0, 1]),
            (encode(), &[2]),
        ];
        check(sum, &[100, 101, 3], &[&[0, 1, 2, 3]]);
        // Several operands of numbers are not: one may be freed before codes are made.
        check(&[(NEG, &[100, 101]), (encode(), &[0])], &[1], &[]);
        check(&[(NEG, &[100]), (encode(), &[0])], &[1], &[&[0, 1]]);
        // Codes of another scale are made in one go.
        check(
            &[(decode(), &[100]), (encode(), &[0])],
            &[100, 1],
            &[&[0, 1]],
        );
        check(&[(decode(), &[100]), (NEG, &[0])], &[100], &[&[0, 1]]);
        check(&[(decode(), &[100])], &[100], &[]);
    }

    #[test]
    fn chains_whose_values_nobody_else_reads() {
        let chain: &[&[u32]] = &[&[100], &[0, 100], &[1]];
        check(chain, &[], &[2], &[], &[&[0, 1, 2]]);
        // Another reader, a send, another shape, and a node of another kind each end the chain.
        check(chain, &[], &[1, 2], &[], &[&[0, 1]]);
        check(chain, &[], &[2], &[0], &[&[1, 2]]);
        check(chain, &[1], &[2], &[], &[]);
        // The group reads one value several times.
        check(
            &[&[100], &[0], &[0, 1], &[2, 2]],
            &[],
            &[3],
            &[],
            &[&[0, 1, 2, 3]],
        );
        check(&[&[100], &[0], &[0]], &[2], &[1, 2], &[], &[]);
    }

    #[test]
    fn nothing_is_kept_longer() {
        // Node 1 is not elementwise and comes after node 0, which therefore stays outside.
        check(
            &[&[100], &[101], &[0, 1], &[2]],
            &[1],
            &[3],
            &[],
            &[&[2, 3]],
        );
        check(
            &[&[101], &[100], &[1, 0], &[2]],
            &[0],
            &[3],
            &[],
            &[&[1, 2, 3]],
        );
    }

    #[test]
    fn few_inputs() {
        let sum: Vec<[u32; 2]> = (0..20)
            .map(|i| [if i == 0 { 200 } else { i - 1 }, 100 + i])
            .collect();
        let sum: Vec<&[u32]> = sum.iter().map(|i| &i[..]).collect();
        let all: Vec<usize> = (0..20).collect();
        check(&sum, &[], &[19], &[], &[&all[13..], &all[6..13], &all[..6]]);
    }
}
