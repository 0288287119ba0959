//! Takes the functions of a node of control flow out of it, so that each can be placed as a function of its own.
//!
//! ```text
//! w = literal   Loop(m, c, x, w) body(i, c, x, w): …     ->   Loop(m, c, x) body(i, c, x): types only
//!                                                             body(i, c, x): w = literal  …
//! ```

use std::collections::HashMap;

use convoke_common::{Error, Result};
use convoke_graph::graph::{Attr, Function, Node, RunsAt, ValueId};
use convoke_graph::ops;
use convoke_graph::program::PARTITIONED;

use crate::passes::{Bodies, control_op, read_by};

/// Marks the values of a function that are literals, or that follow from literals at install.
pub fn constants(f: &Function) -> Vec<bool> {
    let mut constant = vec![false; f.values.len()];
    let init = f.nodes.iter().filter(|n| n.runs_at == RunsAt::Init);
    let made = init.flat_map(|n| &n.outputs);
    let literals = f.literals.iter().map(|(v, _)| v);
    literals.chain(made).for_each(|v| constant[v.ix()] = true);
    constant
}

/// Takes the functions of node `at` out, with the attribute that each was. The node keeps their types, and names them
/// by numbers from `first` on; it reads no constants any longer, which the functions then have themselves.
pub fn outline(f: &mut Function, at: usize, first: u32) -> Result<Vec<(String, Function)>> {
    let unexpected = || Error::internal("a node whose functions cannot be taken out");
    let node = &f.nodes[at];
    let op = control_op(node).ok_or_else(unexpected)?;
    let typed =
        ops::typed_bodies(op, node, &f.values).map_err(|e| Error::internal(e.to_string()))?;
    let names: Vec<&str> = typed.iter().map(|(name, _)| *name).collect();
    let mut bodies = Bodies::of(op, node, typed).ok_or_else(unexpected)?;
    let constant = constants(f);
    let of_constants = |k: &usize| constant[bodies.captured[*k].ix()];
    let captured: Vec<usize> = (0..bodies.captured.len()).filter(of_constants).collect();
    let mut made = Vec::with_capacity(names.len());
    for (b, name) in names.iter().enumerate() {
        let taken = Extraction {
            from: f,
            constant: &constant,
            stands: HashMap::new(),
        };
        made.push((name.to_string(), taken.function(&mut bodies, b, &captured)));
    }
    bodies.forget(&captured);
    bodies.functions.iter_mut().for_each(|f| *f = hollow(f));
    let node = &mut f.nodes[at];
    bodies.write(node);
    let numbers = (0..names.len() as u32).map(|b| i64::from(first + b));
    let attrs = std::mem::take(&mut node.attrs);
    node.attrs = attrs.with(PARTITIONED, Attr::Ints(numbers.collect()));
    Ok(made)
}

/// Removes the constants that nothing reads any more, such as those that only a removed body read.
pub fn forget_unread(f: &mut Function) {
    let mut read = vec![false; f.values.len()];
    f.results.iter().for_each(|(_, v)| read[v.ix()] = true);
    let mut kept = vec![true; f.nodes.len()];
    for (node, kept) in f.nodes.iter().zip(&mut kept).rev() {
        *kept = node.runs_at != RunsAt::Init || node.outputs.iter().any(|v| read[v.ix()]);
        if *kept {
            let operands = node.inputs.iter().flatten();
            operands.for_each(|v| read[v.ix()] = true);
        }
    }
    let mut kept = kept.into_iter();
    f.nodes.retain(|_| kept.next().unwrap_or(true));
    f.literals.retain(|(v, _)| read[v.ix()]);
}

/// A function that is taken out of a node of another.
struct Extraction<'a> {
    from: &'a Function,
    constant: &'a [bool],
    /// The values that stand for constants of the other function.
    stands: HashMap<ValueId, ValueId>,
}

impl Extraction<'_> {
    /// Function `b` of a node, with its own copies of the captured constants and of the nodes that make them.
    fn function(mut self, bodies: &mut Bodies, b: usize, captured: &[usize]) -> Function {
        let read = read_by(&bodies.functions[b]);
        let mut wanted = vec![false; self.from.values.len()];
        let params: Vec<ValueId> = captured.iter().map(|k| bodies.param(b, *k)).collect();
        for (k, param) in captured.iter().zip(&params) {
            if read.contains(param) {
                let outside = bodies.captured[*k];
                wanted[outside.ix()] = true;
                self.stands.insert(outside, *param);
            }
        }
        let mut init: Vec<&Node> = vec![];
        for node in self.from.nodes.iter().rev() {
            let made = node.runs_at == RunsAt::Init;
            if made && node.outputs.iter().any(|v| wanted[v.ix()]) {
                let reads = node.inputs.iter().flatten();
                reads.for_each(|v| wanted[v.ix()] = true);
                init.push(node);
            }
        }
        let mut nodes = Vec::with_capacity(init.len());
        for node in init.into_iter().rev() {
            let mut node = node.clone();
            let operands = node.inputs.iter_mut().flatten();
            operands
                .chain(&mut node.outputs)
                .for_each(|v| *v = self.here(bodies, b, *v));
            nodes.push(node);
        }
        let literals = self.from.literals.iter();
        for (v, literal) in literals.filter(|(v, _)| wanted[v.ix()]) {
            let here = self.here(bodies, b, *v);
            bodies.functions[b].literals.push((here, literal.clone()));
        }
        let mut f = bodies.functions[b].clone();
        f.params.retain(|p| !params.contains(p));
        nodes.append(&mut f.nodes);
        Function {
            name: self.from.name.clone(),
            nodes,
            artifacts: self.from.artifacts.clone(),
            ..f
        }
    }

    /// The value of function `b` that stands for a constant of the other function.
    fn here(&mut self, bodies: &mut Bodies, b: usize, outside: ValueId) -> ValueId {
        debug_assert!(self.constant[outside.ix()]);
        let value = self.from.value(outside);
        let stands = self.stands.entry(outside);
        *stands.or_insert_with(|| bodies.add_value(b, &value.name, value.ty.clone()))
    }
}

/// The parameters and results of a function, without anything that computes these from those.
fn hollow(f: &Function) -> Function {
    let mut kept = Function {
        name: f.name.clone(),
        ..Function::default()
    };
    let mut ids: HashMap<ValueId, ValueId> = HashMap::new();
    let mut keep = |v: ValueId| {
        let value = f.value(v);
        let id = ids.entry(v);
        *id.or_insert_with(|| kept.add_value(value.name.clone(), value.ty.clone()))
    };
    let params = f.params.iter().map(|v| keep(*v)).collect();
    let results = f.results.iter().map(|(n, v)| (n.clone(), keep(*v)));
    let results = results.collect();
    Function {
        params,
        results,
        ..kept
    }
}
