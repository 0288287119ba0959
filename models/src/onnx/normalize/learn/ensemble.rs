//! Ensembles of trees: their nodes, put into an order in which branches lead forward, and the tables that hold them.

use convoke_graph::Tensor;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::import::Importer;
use super::super::node::{ImportFailure, ImportedNode};
use super::rows::{Rows, floats};

/// Where a branch leads.
#[derive(Debug, Clone, Copy)]
pub(super) enum To {
    Node(usize),
    Leaf(usize),
}

/// A node that is no leaf.
#[derive(Debug, Clone, Copy)]
pub(super) struct Branching {
    pub feature: i64,
    pub mode: u8,
    pub split: f64,
    /// The nodes that follow: the first one where the comparison holds, the second one where it does not.
    pub to: [To; 2],
}

/// An ensemble whose nodes are in any order.
#[derive(Debug, Default)]
pub(super) struct Ensemble {
    pub nodes: Vec<Branching>,
    pub roots: Vec<To>,
    /// By leaf, its targets and their weights.
    pub leaves: Vec<Vec<(i64, f64)>>,
}

impl Ensemble {
    /// Puts the nodes into an order in which every branch leads forward, and leaves out those that no root leads to. `None`
    /// where there is no such order.
    fn ordered(&mut self) -> Option<()> {
        let count = self.nodes.len();
        let mut before = vec![0usize; count];
        for to in self.nodes.iter().flat_map(|n| n.to) {
            if let To::Node(n) = to {
                *before.get_mut(n)? += 1;
            }
        }
        let mut ready: Vec<usize> = (0..count).rev().filter(|n| before[*n] == 0).collect();
        let mut order = Vec::with_capacity(count);
        while let Some(n) = ready.pop() {
            order.push(n);
            for to in self.nodes[n].to.into_iter().rev() {
                if let To::Node(next) = to {
                    before[next] -= 1;
                    if before[next] == 0 {
                        ready.push(next);
                    }
                }
            }
        }
        // The nodes of a cycle wait for each other.
        if order.len() < count {
            return None;
        }
        let mut reached = vec![false; count];
        for root in &self.roots {
            if let To::Node(n) = root {
                *reached.get_mut(*n)? = true;
            }
        }
        order.retain(|n| {
            for to in self.nodes[*n].to {
                if let To::Node(next) = to {
                    reached[next] |= reached[*n];
                }
            }
            reached[*n]
        });
        let mut place = vec![0; count];
        order.iter().enumerate().for_each(|(at, n)| place[*n] = at);
        let moved = |to: To| match to {
            To::Node(n) => To::Node(place[n]),
            leaf => leaf,
        };
        let nodes = order.iter().map(|n| Branching {
            to: self.nodes[*n].to.map(moved),
            ..self.nodes[*n]
        });
        self.nodes = nodes.collect();
        self.roots = self.roots.iter().map(|r| moved(*r)).collect();
        Some(())
    }

    /// Adds the node that computes the ensemble of rows `x`. Returns the scores, and which were reached.
    pub fn emit(
        mut self,
        i: &mut Importer<'_>,
        c: &ImportedNode,
        (x, dtype, columns): Rows,
        targets: usize,
        aggregate: &str,
    ) -> Result<(ValueId, ValueId), ImportFailure> {
        let error = |why: String| ImportFailure::from(c.error(why));
        self.ordered()
            .ok_or_else(|| error("has a cycle, or a branch to no node".into()))?;
        for n in &self.nodes {
            let feature = usize::try_from(n.feature).ok();
            if feature.is_none_or(|f| columns.is_some_and(|columns| f >= columns)) {
                let msg = format!("compares feature {} of {columns:?}", n.feature);
                return Err(error(msg));
            }
        }
        let weights: Vec<(i64, f64)> = self.leaves.iter().flatten().copied().collect();
        let outside = |t: &(i64, f64)| usize::try_from(t.0).map_or(true, |t| t >= targets);
        if let Some((target, _)) = weights.iter().find(|t| outside(t)) {
            return Err(error(format!(
                "has a weight of target {target} of {targets}"
            )));
        }
        let number = |to: To| match to {
            To::Node(n) => n as i64,
            To::Leaf(leaf) => !(leaf as i64),
        };
        let to_leaves = |to: &To| matches!(to, To::Leaf(leaf) if *leaf >= self.leaves.len());
        let branches = self.nodes.iter().flat_map(|n| n.to);
        if branches
            .clone()
            .chain(self.roots.iter().copied())
            .any(|to| to_leaves(&to))
        {
            return Err(error("has a branch to no leaf".into()));
        }
        let count = self.nodes.len();
        let ints = |shape: &[usize], v: Vec<i64>| {
            Tensor::from_slice(shape, &v).map_err(|e| c.error(e.to_string()))
        };
        let list = |v: Vec<i64>| ints(&[v.len()], v);
        let mut begins = vec![0i64];
        for leaf in &self.leaves {
            begins.push(begins.last().copied().unwrap_or(0) + leaf.len() as i64);
        }
        let modes: Vec<u8> = self.nodes.iter().map(|n| n.mode).collect();
        let splits: Vec<f64> = self.nodes.iter().map(|n| n.split).collect();
        let folded: Vec<f64> = weights.iter().map(|(_, w)| *w).collect();
        let tables = [
            (
                "features",
                list(self.nodes.iter().map(|n| n.feature).collect())?,
            ),
            (
                "modes",
                Tensor::from_slice(&[count], &modes).map_err(|e| c.error(e.to_string()))?,
            ),
            ("splits", floats(c, dtype, &[count], &splits)?),
            (
                "branches",
                ints(&[count, 2], branches.map(number).collect())?,
            ),
            (
                "roots",
                list(self.roots.iter().map(|r| number(*r)).collect())?,
            ),
            ("leaves", list(begins)?),
            ("targets", list(weights.iter().map(|(t, _)| *t).collect())?),
            ("weights", floats(c, dtype, &[weights.len()], &folded)?),
        ];
        let mut operands = vec![Some(x)];
        for (name, t) in tables {
            operands.push(Some(i.table(&c.sub(name), t)?));
        }
        let attrs = Attrs::default()
            .with("aggregate_function", Attr::Str(aggregate.into()))
            .with("n_targets", Attr::Int(targets as i64));
        let name = c.sub("TreeEnsemble");
        let outputs = [name.clone(), c.sub("reached")];
        let made = i.b.emit("TreeEnsemble", &name, attrs, operands, &outputs)?;
        match made[..] {
            [scores, reached] => Ok((scores, reached)),
            _ => Err(error("has no scores".into())),
        }
    }
}
