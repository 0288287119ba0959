//! A function under edit: indexes that patterns are found by, and changes that are applied at the end.
//!
//! Invariants
//! 1. Node and value ids of the function given stay valid until [`Edit::finish`]; new values come after.
//! 2. Every look-up is constant time, so a pass over all nodes is linear.
//! 3. [`Edit::finish`] keeps topological order: a new node stands before the node it was made for.

mod names;

use convoke_graph::csr::Csr;
use convoke_graph::graph::{Function, Literal, Node, RunsAt, TensorType, ValueId};
use convoke_graph::ops::Op;
use convoke_graph::tensor::Tensor;

pub use names::Names;

const NONE: u32 = u32::MAX;

/// A function and the changes to it.
pub struct Edit {
    pub f: Function,
    /// For each value the node that defines it, or `NONE`.
    def: Vec<u32>,
    /// For each value the literal that defines it, or `NONE`.
    literal: Vec<u32>,
    /// For each value whether it is the same in every step.
    constant: Vec<bool>,
    result: Vec<bool>,
    /// The users of each value, once per operand.
    users: Csr,
    removed: Vec<bool>,
    /// For each value the value that replaces it, or itself.
    forward: Vec<u32>,
    /// Whether anything was removed, replaced or inserted, so that the nodes have to be gone through at the end.
    rewrites: bool,
    /// New nodes, each with the index of the node that it is inserted before.
    inserted: Vec<(u32, Node)>,
    names: Names,
}

impl Edit {
    /// Indexes `f`, whose ids were verified.
    pub fn new(f: Function) -> Edit {
        let n = f.values.len();
        let mut e = Edit {
            def: vec![NONE; n],
            literal: vec![NONE; n],
            constant: vec![false; n],
            result: vec![false; n],
            users: Csr::default(),
            removed: vec![false; f.nodes.len()],
            forward: (0..n as u32).collect(),
            rewrites: false,
            inserted: Vec::new(),
            names: Names::default(),
            f,
        };
        for (i, (v, _)) in e.f.literals.iter().enumerate() {
            e.literal[v.ix()] = i as u32;
            e.constant[v.ix()] = true;
        }
        for (i, node) in e.f.nodes.iter().enumerate() {
            for o in &node.outputs {
                e.def[o.ix()] = i as u32;
                e.constant[o.ix()] = node.runs_at == RunsAt::Init;
            }
        }
        let users = e.f.nodes.iter().zip(0u32..);
        let users = users.flat_map(|(node, i)| {
            let inputs = node.inputs.iter().flatten();
            inputs.map(move |v| (v.0, i))
        });
        e.users = Csr::group(n, &users.collect::<Vec<_>>());
        e.f.results
            .iter()
            .for_each(|(_, v)| e.result[v.ix()] = true);
        e
    }

    /// Returns the node of the given function that defines `v`, unless it was removed.
    pub fn def(&self, v: ValueId) -> Option<usize> {
        let i = *self.def.get(v.ix())?;
        (i != NONE && !self.removed[i as usize]).then_some(i as usize)
    }

    /// Returns the nodes that use `v`, once per operand, in order.
    pub fn users(&self, v: ValueId) -> &[u32] {
        match v.ix() < self.users.rows() {
            true => self.users.row(v.ix()),
            false => &[],
        }
    }

    /// Returns the only node that uses `v`, if `v` is no result and is used once.
    pub fn sole_user(&self, v: ValueId) -> Option<usize> {
        match self.users(v) {
            [one] if !self.result[v.ix()] && !self.removed[*one as usize] => Some(*one as usize),
            _ => None,
        }
    }

    /// Returns whether `v` is a result of the function.
    pub fn is_result(&self, v: ValueId) -> bool {
        self.result.get(v.ix()).copied().unwrap_or(false)
    }

    /// Returns whether `v` is a literal or an output of an init node.
    pub fn is_constant(&self, v: ValueId) -> bool {
        self.constant[v.ix()]
    }

    /// Returns the literal that defines `v`.
    pub fn literal(&self, v: ValueId) -> Option<&Literal> {
        let i = self.literal[v.ix()];
        (i != NONE).then(|| &self.f.literals[i as usize].1)
    }

    /// Returns the inline tensor that defines `v`.
    pub fn inline(&self, v: ValueId) -> Option<&Tensor> {
        match self.literal(v)? {
            Literal::Inline(t) => Some(t),
            Literal::Range { .. } => None,
        }
    }

    /// Returns the integers of the inline tensor that defines `v`.
    pub fn ints(&self, v: ValueId) -> Option<Vec<i64>> {
        self.inline(v)?.to_i64s()
    }

    /// Returns the only element of the inline f32 tensor that defines `v`.
    pub fn scalar(&self, v: ValueId) -> Option<f32> {
        match self.inline(v)?.as_slice::<f32>().ok()? {
            [x] => Some(*x),
            _ => None,
        }
    }

    /// Returns operand `i` of a node if it is given, or the value that replaces it.
    pub fn operand(&self, node: usize, i: usize) -> Option<ValueId> {
        self.f.nodes[node]
            .inputs
            .get(i)
            .copied()
            .flatten()
            .map(|v| self.resolve(v))
    }

    /// Returns the value that replaces `v`, or `v` itself.
    pub fn resolve(&self, v: ValueId) -> ValueId {
        let mut v = v.0;
        while self.forward[v as usize] != v {
            v = self.forward[v as usize];
        }
        ValueId(v)
    }

    /// Replaces `from` by `to`, which is defined before it, everywhere.
    pub fn forward(&mut self, from: ValueId, to: ValueId) {
        let to = self.resolve(to);
        self.forward[from.ix()] = to.0;
        self.rewrites = true;
    }

    /// Removes a node.
    pub fn remove(&mut self, node: usize) {
        self.removed[node] = true;
        self.rewrites = true;
    }

    /// Returns whether a node was removed.
    pub fn is_removed(&self, node: usize) -> bool {
        self.removed[node]
    }

    /// Adds a value whose name is `name`, or `name.2`, `name.3`, … if other values have that name.
    pub fn value(&mut self, name: &str, ty: TensorType, constant: bool) -> ValueId {
        if self.names.is_empty() {
            let names = self.f.values.iter().map(|v| v.name.clone());
            self.names.extend(names);
        }
        let id = self.f.add_value(self.names.unique(name), ty);
        self.def.push(NONE);
        self.literal.push(NONE);
        self.constant.push(constant);
        self.result.push(false);
        self.forward.push(id.0);
        id
    }

    /// Adds a literal and returns its value.
    pub fn constant(&mut self, name: &str, tensor: Tensor) -> ValueId {
        let ty = TensorType::fixed(tensor.dtype(), tensor.shape());
        let id = self.value(name, ty, true);
        self.literal[id.ix()] = self.f.literals.len() as u32;
        self.f.literals.push((id, Literal::Inline(tensor)));
        id
    }

    /// Makes the output of a removed node a literal.
    pub fn define(&mut self, v: ValueId, tensor: Tensor) {
        self.literal[v.ix()] = self.f.literals.len() as u32;
        self.constant[v.ix()] = true;
        self.f.literals.push((v, Literal::Inline(tensor)));
    }

    /// Adds `node` before node `at`.
    pub fn insert(&mut self, at: usize, node: Node) {
        self.inserted.push((at as u32, node));
        self.rewrites = true;
    }

    /// Adds an init node with one output before node `at`; returns the output.
    pub fn init_node(
        &mut self,
        at: usize,
        name: &str,
        op: impl Into<Op>,
        attrs: convoke_graph::graph::Attrs,
        inputs: &[ValueId],
        ty: TensorType,
    ) -> ValueId {
        let out = self.value(name, ty, true);
        let node = Node {
            name: self.f.value(out).name.clone(),
            op: op.into().name().into(),
            attrs,
            inputs: inputs.iter().map(|v| Some(*v)).collect(),
            outputs: vec![out],
            runs_at: RunsAt::Init,
        };
        self.insert(at, node);
        out
    }

    /// Moves a node to the init part.
    pub fn make_init(&mut self, node: usize) {
        self.f.nodes[node].runs_at = RunsAt::Init;
        for o in self.f.nodes[node].outputs.clone() {
            self.constant[o.ix()] = true;
        }
    }

    /// Returns the function with all changes applied.
    pub fn finish(mut self) -> Function {
        if !self.rewrites {
            return self.f;
        }
        self.inserted.sort_by_key(|(at, _)| *at);
        let old = std::mem::take(&mut self.f.nodes);
        let mut nodes = Vec::with_capacity(old.len() + self.inserted.len());
        let mut inserted = std::mem::take(&mut self.inserted).into_iter().peekable();
        for (i, node) in old.into_iter().enumerate() {
            while let Some((_, new)) = inserted.next_if(|(at, _)| *at as usize == i) {
                nodes.push(new);
            }
            if !self.removed[i] {
                nodes.push(node);
            }
        }
        for v in nodes.iter_mut().flat_map(|n| n.inputs.iter_mut().flatten()) {
            *v = self.resolve(*v);
        }
        let mut results = std::mem::take(&mut self.f.results);
        results.iter_mut().for_each(|(_, v)| *v = self.resolve(*v));
        self.f.nodes = nodes;
        self.f.results = results;
        self.f
    }
}
