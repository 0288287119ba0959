//! Which nodes of a region become one kernel: chains of functions of single elements whose results nobody else reads.
//!
//! A group is grown backwards from the node whose result is read elsewhere. It runs where its first node stood, when all that
//! comes from outside of it is there, so that nothing has to be kept longer than without it.

use std::collections::{BTreeSet, BinaryHeap};

use crate::cpu::chain::{Elementwise, MOST_INPUTS};

/// What fusion looks at of a node.
pub(super) struct Candidate {
    /// Its function; none where it is not one of single elements.
    pub elementwise: Option<Elementwise>,
    /// Its operands, all of which are there.
    pub inputs: Vec<u32>,
    /// Its only result.
    pub output: u32,
}

/// A graph as fusion sees it.
pub(super) trait Graph {
    /// Node `at` of the region.
    fn node(&self, at: usize) -> &Candidate;
    /// Where in the region a value is made, if it is there.
    fn made_at(&self, value: u32) -> Option<usize>;
    /// Reads of a value by nodes, and sends of it.
    fn uses(&self, value: u32) -> u32;
    /// Whether two values have one type.
    fn alike(&self, a: u32, b: u32) -> bool;
}

/// Most nodes of a group.
const MOST_NODES: usize = 1 << 16;

/// Groups of at least two nodes of a region of `len`: their places in it, in order.
pub(super) fn groups(graph: &impl Graph, len: usize) -> Vec<Vec<usize>> {
    let mut taken = vec![false; len];
    let mut groups = Vec::new();
    for root in (0..len).rev() {
        if taken[root] || graph.node(root).elementwise.is_none() {
            continue;
        }
        let group = grown(graph, root, &taken);
        if group.len() > 1 {
            group.iter().for_each(|at| taken[*at] = true);
            groups.push(group);
        }
    }
    groups
}

fn grown(graph: &impl Graph, root: usize, taken: &[bool]) -> Vec<usize> {
    let value = graph.node(root).output;
    let mut group = vec![root];
    // Values that come from outside, and how often the group reads values.
    let mut outside = BTreeSet::new();
    let mut reads = std::collections::HashMap::<u32, u32>::new();
    // Where the last of what stays outside is made.
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
            let fits =
                !taken[made] && graph.node(made).elementwise.is_some() && graph.alike(*v, value);
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
    use convoke_kernels::unary::FloatUnary;

    use super::*;

    /// Node `i` makes value `i`; values from 100 on come from outside.
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
    }

    /// `other`: nodes that are not of single elements; `odd`: values of another shape.
    fn check(inputs: &[&[u32]], other: &[usize], sent: &[u32], odd: &[u32], want: &[&[usize]]) {
        let node = |(i, inputs): (usize, &&[u32])| Candidate {
            elementwise: (!other.contains(&i)).then_some(Elementwise::Unary(FloatUnary::Neg)),
            inputs: inputs.to_vec(),
            output: i as u32,
        };
        let graph = Nodes {
            nodes: inputs.iter().enumerate().map(node).collect(),
            sent: sent.to_vec(),
            odd: odd.to_vec(),
        };
        assert_eq!(groups(&graph, inputs.len()), want);
    }

    #[test]
    fn chains_whose_values_nobody_else_reads() {
        let chain: &[&[u32]] = &[&[100], &[0, 100], &[1]];
        check(chain, &[], &[2], &[], &[&[0, 1, 2]]);
        // Another reader, a send, another shape, a node of another kind.
        check(chain, &[], &[1, 2], &[], &[&[0, 1]]);
        check(chain, &[], &[2], &[0], &[&[1, 2]]);
        check(chain, &[1], &[2], &[], &[]);
        // A value that the group reads several times.
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
        // 1 is not elementwise and comes after 0, which therefore stays outside.
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
