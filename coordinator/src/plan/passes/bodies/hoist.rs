//! Moves nodes out of a function of control flow, in front of the node that runs it: those of the init part, and, of a
//! loop, those that yield the same in every iteration.

use std::collections::HashMap;

use convoke_graph::graph::{Function, Node, RunsAt, ValueId};
use convoke_graph::ops::ControlOp;
use convoke_graph::tensor::Tensor;

use super::{Bodies, infallible, inline_literals};
use crate::passes::edit::Edit;

/// The number of nodes that moved out of functions.
#[derive(Default)]
pub struct MoveCounts {
    pub to_init: usize,
    pub to_step: usize,
}

/// The move of nodes from function `body` of node `at`.
pub struct Hoist<'a> {
    pub e: &'a mut Edit,
    pub at: usize,
    pub bodies: &'a mut Bodies,
    pub body: usize,
}

impl Hoist<'_> {
    /// Moves what `op` allows to move.
    pub fn run(self, op: ControlOp, moved: &mut MoveCounts) {
        let Hoist {
            e,
            at,
            bodies,
            body,
        } = self;
        let captured = bodies.captured.iter().enumerate();
        // By value of the function, the value of the enclosing function that it stands for.
        let mut outside: HashMap<ValueId, ValueId> =
            captured.map(|(k, v)| (bodies.param(body, k), *v)).collect();
        let literals = inline_literals(&bodies.functions[body]);
        let nodes = std::mem::take(&mut bodies.functions[body].nodes);
        let (mut rest, mut made) = (Vec::with_capacity(nodes.len()), Vec::new());
        for mut node in nodes {
            let f = &bodies.functions[body];
            let leaves = node.runs_at == RunsAt::Init
                || op != ControlOp::If && is_invariant(f, &node, &outside, &literals);
            if !leaves {
                rest.push(node);
                continue;
            }
            for v in node.inputs.iter_mut().flatten() {
                if let Some(t) = literals.get(v).filter(|_| !outside.contains_key(v)) {
                    outside.insert(*v, e.constant(&f.value(*v).name, t.clone()));
                }
                *v = outside.get(v).copied().unwrap_or(*v);
            }
            let is_constant = node.runs_at == RunsAt::Init;
            for v in &mut node.outputs {
                let value = f.value(*v);
                let out = e.value(&value.name, value.ty.clone(), is_constant);
                outside.insert(*v, out);
                made.push((*v, out));
                *v = out;
            }
            match is_constant {
                true => moved.to_init += 1,
                false => moved.to_step += 1,
            }
            e.insert(at, node);
        }
        bodies.functions[body].nodes = rest;
        let read = super::read_by(&bodies.functions[body]);
        // The nodes that moved may have been the only readers of a literal.
        let literals = &mut bodies.functions[body].literals;
        literals.retain(|(v, _)| read.contains(v));
        for (here, out) in made {
            if read.contains(&here) {
                bodies.capture_as(body, out, here);
            }
        }
    }
}

/// Whether a node yields the same in every iteration, and cannot fail.
fn is_invariant(
    f: &Function,
    node: &Node,
    outside: &HashMap<ValueId, ValueId>,
    literals: &HashMap<ValueId, Tensor>,
) -> bool {
    let inputs = || node.inputs.iter().flatten();
    inputs().any(|v| outside.contains_key(v))
        && inputs().all(|v| outside.contains_key(v) || literals.contains_key(v))
        && infallible(f, node, |v| literals.contains_key(v))
}
