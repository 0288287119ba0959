//! One worker's program.

use convoke_graph::dim::Bindings;
use convoke_graph::graph::{Literal, Node, ValueId};
use convoke_graph::ids::FunctionId;
use convoke_graph::ops;
use convoke_graph::program::{NO_OPERAND, Program, ProgramNode, RecvSlot, SendEdge};

use super::Crossings;
use crate::place::{NONE, Placement, needed};

/// Builds the program of participant `m`.
pub fn build(placed: &Placement, crossings: &Crossings, m: usize) -> Program {
    let work = &placed.work;
    let mut b = Builder {
        placed,
        local: vec![NONE; placed.function.values.len()],
        program: Program {
            name: placed.function.name.clone(),
            function: FunctionId::default(),
            profile: placed.team.workers[m].profile.to_string(),
            values: vec![],
            literals: vec![],
            artifacts: vec![],
            nodes: vec![],
            init_nodes: 0,
            recvs: vec![],
            sends: vec![],
        },
    };
    let positions: Vec<usize> = (0..work.positions())
        .filter(|p| usize::from(placed.participant[*p]) == m)
        .collect();

    let mut wanted = vec![false; work.const_value.len()];
    for p in &positions {
        work.weights
            .row(*p)
            .iter()
            .for_each(|c| wanted[*c as usize] = true);
    }
    for (c, home) in work.const_results.iter().zip(&placed.homes) {
        wanted[*c as usize] |= usize::from(*home) == m;
    }
    let needed = needed(work, &wanted);
    b.literals(&needed.constants);
    for (i, node) in work
        .inits
        .iter()
        .enumerate()
        .filter(|(i, _)| needed.nodes[*i])
    {
        debug_assert!(
            work.init_writes
                .row(i)
                .iter()
                .any(|c| needed.constants[*c as usize])
        );
        let node = &placed.function.nodes[*node as usize];
        let cost = ops::node_cost(&placed.function, node, &Bindings::new());
        // Init nodes run in their order, which bounds the bytes that are loaded at once.
        b.node(node, 0, placed.team.workers[m].init_ns(&cost));
    }
    b.program.init_nodes = b.program.nodes.len() as u32;

    for (value, from) in &crossings.recvs[m] {
        let value = b.value(*value);
        b.program.recvs.push(RecvSlot { value, from: *from });
    }
    for p in positions {
        let node = &placed.function.nodes[work.steps[p] as usize];
        b.node(
            node,
            placed.schedule.priority[p],
            placed.team.time_ns(m, work, p),
        );
    }
    for s in &crossings.sends[m] {
        let value = b.value(s.value);
        b.program.sends.push(SendEdge {
            value,
            to: s.to,
            slot: s.slot,
            priority: s.priority,
        });
    }
    b.program
}

struct Builder<'a> {
    placed: &'a Placement,
    /// Index in the program of each value of the function.
    local: Vec<u32>,
    program: Program,
}

impl Builder<'_> {
    fn value(&mut self, v: ValueId) -> u32 {
        if self.local[v.ix()] == NONE {
            self.local[v.ix()] = self.program.values.len() as u32;
            self.program
                .values
                .push(self.placed.function.value(v).clone());
        }
        self.local[v.ix()]
    }

    /// Adds the literals among `constants`, and the artifacts that they are ranges of.
    fn literals(&mut self, constants: &[bool]) {
        let f = &self.placed.function;
        let mut artifacts = vec![NONE; f.artifacts.len()];
        // The first constants are the literals, in order.
        for (v, literal) in f
            .literals
            .iter()
            .zip(constants)
            .filter(|(_, c)| **c)
            .map(|(l, _)| l)
        {
            let literal = match literal {
                Literal::Inline(t) => Literal::Inline(t.clone()),
                Literal::Range {
                    artifact,
                    offset,
                    len,
                } => {
                    let local = &mut artifacts[*artifact as usize];
                    if *local == NONE {
                        *local = self.program.artifacts.len() as u32;
                        self.program
                            .artifacts
                            .push(f.artifacts[*artifact as usize].clone());
                    }
                    Literal::Range {
                        artifact: *local,
                        offset: *offset,
                        len: *len,
                    }
                }
            };
            let local = self.value(*v);
            self.program.literals.push((local, literal));
        }
    }

    fn node(&mut self, node: &Node, priority: u64, cost: u64) {
        let inputs = node
            .inputs
            .iter()
            .map(|v| v.map_or(NO_OPERAND, |v| self.value(v)))
            .collect();
        let outputs = node.outputs.iter().map(|v| self.value(*v)).collect();
        self.program.nodes.push(ProgramNode {
            name: node.name.clone(),
            op: node.op.clone(),
            attrs: node.attrs.clone(),
            inputs,
            outputs,
            priority,
            cost,
        });
    }
}
