//! The functions of a node of control flow under edit, and the values that they capture.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use convoke_graph::graph::{Attr, Function, Literal, Node, RunsAt, TensorType, ValueId};
use convoke_graph::ops::{self, ControlOp, Op};
use convoke_graph::tensor::Tensor;

use crate::passes::edit::Names;

/// The op of a node of control flow that runs in steps.
pub fn control_op(node: &Node) -> Option<ControlOp> {
    match node.kind()? {
        Op::Control(op) if node.runs_at == RunsAt::Step => Some(op),
        _ => None,
    }
}

/// The functions of a node of control flow. They have the same captured values, in the same order: those are the last
/// operands of the node, and the last parameters of each function.
pub struct Bodies {
    /// By function, its attribute.
    names: Vec<&'static str>,
    pub functions: Vec<Function>,
    /// The operands in front of those that are captured.
    own: Vec<Option<ValueId>>,
    /// The number of parameters in front of those for captured values.
    own_params: usize,
    /// The captured values, as the enclosing function numbers them, each once.
    pub captured: Vec<ValueId>,
    /// The number of each captured value.
    positions: HashMap<ValueId, usize>,
    /// By function, the names of its values, once they are needed.
    taken: Vec<Names>,
}

impl Bodies {
    /// The functions of `node`; `None` where its operands do not fit its op.
    pub fn of(
        op: ControlOp,
        node: &Node,
        functions: Vec<(&'static str, Function)>,
    ) -> Option<Bodies> {
        let operands = node.inputs.len();
        let captured = match op {
            ControlOp::If => operands.checked_sub(1)?,
            ControlOp::Loop => ops::split_loop(&node.attrs, operands).ok()?.1,
            ControlOp::Scan => ops::split_scan(&node.attrs, operands).ok()?.2,
        };
        let (own, captured) = node.inputs.split_at_checked(operands - captured)?;
        let (names, functions): (Vec<_>, Vec<_>) = functions.into_iter().unzip();
        let mut params = functions.iter().map(|f: &Function| f.params.len());
        let own_params = params.next()?.checked_sub(captured.len())?;
        if params.any(|n| n != own_params + captured.len()) {
            return None;
        }
        let mut bodies = Bodies {
            taken: vec![Names::default(); functions.len()],
            names,
            functions,
            own: own.to_vec(),
            own_params,
            captured: captured.iter().copied().collect::<Option<_>>()?,
            positions: HashMap::new(),
        };
        bodies.merge();
        Some(bodies)
    }

    /// Merges captured values that are listed more than once.
    fn merge(&mut self) {
        let mut first: HashMap<ValueId, usize> = HashMap::new();
        let again: Vec<(usize, usize)> = (self.captured.iter().enumerate())
            .filter_map(|(k, v)| Some(k).zip(first.insert(*v, k)))
            .collect();
        let own = self.own_params;
        for f in &mut self.functions {
            // The last parameter of a value stays.
            let last = |k: usize| first[&self.captured[k]];
            let param = |k: usize| f.params[own + k];
            let pairs = again.iter().map(|(_, k)| (param(*k), param(last(*k))));
            replace(f, &pairs.collect());
        }
        let again: Vec<usize> = again.into_iter().map(|(_, k)| k).collect();
        self.forget(&again);
    }

    /// The number of a captured value.
    pub fn position(&self, value: ValueId) -> Option<usize> {
        self.positions.get(&value).copied()
    }

    /// The parameter of function `body` for captured value `k`.
    pub fn param(&self, body: usize, k: usize) -> ValueId {
        self.functions[body].params[self.own_params + k]
    }

    /// The parameter of function `body` for a value of the enclosing function, which is captured if it is not yet.
    pub fn capture(&mut self, body: usize, value: ValueId, name: &str, ty: &TensorType) -> ValueId {
        match self.position(value) {
            Some(k) => self.param(body, k),
            None => {
                let here = self.add_value(body, name, ty.clone());
                self.capture_as(body, value, here);
                here
            }
        }
    }

    /// Captures a further value of the enclosing function, for which `here` stands in function `body`, where it has no
    /// definition.
    pub fn capture_as(&mut self, body: usize, value: ValueId, here: ValueId) {
        let is = self.functions[body].value(here).clone();
        for b in 0..self.functions.len() {
            let param = match b == body {
                true => here,
                false => self.add_value(b, &is.name, is.ty.clone()),
            };
            self.functions[b].params.push(param);
        }
        self.positions.insert(value, self.captured.len());
        self.captured.push(value);
    }

    /// The number of parameters in front of those for captured values.
    pub fn own_params(&self) -> usize {
        self.own_params
    }

    /// Replaces function `body` by one with as many parameters of its own.
    pub fn set(&mut self, body: usize, f: Function) {
        self.functions[body] = f;
        self.taken[body].clear();
    }

    /// Adds a value to function `body` whose name is `name`, or begins so.
    pub fn add_value(&mut self, body: usize, name: &str, ty: TensorType) -> ValueId {
        let f = &mut self.functions[body];
        let taken = &mut self.taken[body];
        if taken.is_empty() {
            taken.extend(f.values.iter().map(|v| v.name.clone()));
        }
        f.add_value(taken.unique(name), ty)
    }

    /// Stops capturing the values of these numbers. The parameters that stood for them are left without a definition.
    pub fn forget(&mut self, numbers: &[usize]) {
        let mut stays = vec![true; self.captured.len()];
        numbers.iter().for_each(|k| stays[*k] = false);
        let keep = |own: usize, values: &mut Vec<ValueId>| {
            let mut stays = std::iter::repeat_n(true, own).chain(stays.iter().copied());
            values.retain(|_| stays.next().unwrap_or(true));
        };
        keep(0, &mut self.captured);
        for f in &mut self.functions {
            keep(self.own_params, &mut f.params);
        }
        let captured = self.captured.iter().enumerate();
        self.positions = captured.map(|(k, v)| (*v, k)).collect();
    }

    /// Captures no value any longer that no function reads.
    pub fn forget_unread(&mut self) {
        let read: Vec<HashSet<ValueId>> = self.functions.iter().map(read_by).collect();
        let is_read = |k: usize| {
            let mut each = read.iter().enumerate();
            each.any(|(b, read)| read.contains(&self.param(b, k)))
        };
        let unread = (0..self.captured.len()).filter(|k| !is_read(*k));
        self.forget(&unread.collect::<Vec<_>>());
    }

    /// The operands and attributes of the node with these functions.
    pub fn write(self, node: &mut Node) {
        let captured = self.captured.iter().copied().map(Some);
        node.inputs = self.own.into_iter().chain(captured).collect();
        let attrs = std::mem::take(&mut node.attrs);
        let mut attrs = match node.is(ControlOp::If) {
            true => attrs,
            false => attrs.with("captured", Attr::Int(self.captured.len() as i64)),
        };
        for (name, f) in self.names.into_iter().zip(self.functions) {
            attrs = attrs.with(name, Attr::Function(Arc::new(f)));
        }
        node.attrs = attrs;
    }
}

/// The tensors of the literals that travel within a function.
pub fn inline_literals(f: &Function) -> HashMap<ValueId, Tensor> {
    let inline = f.literals.iter().filter_map(|(v, l)| match l {
        Literal::Inline(t) => Some((*v, t.clone())),
        Literal::Range { .. } => None,
    });
    inline.collect()
}

/// The values that the nodes and results of a function read.
pub fn read_by(f: &Function) -> HashSet<ValueId> {
    let nodes = f.nodes.iter().flat_map(|n| n.inputs.iter().flatten());
    nodes
        .chain(f.results.iter().map(|(_, v)| v))
        .copied()
        .collect()
}

/// Replaces values in the operands and results of a function.
fn replace(f: &mut Function, by: &HashMap<ValueId, ValueId>) {
    if by.is_empty() {
        return;
    }
    let nodes = f.nodes.iter_mut();
    let operands = nodes.flat_map(|n| n.inputs.iter_mut().flatten());
    for v in operands.chain(f.results.iter_mut().map(|(_, v)| v)) {
        *v = by.get(v).copied().unwrap_or(*v);
    }
}
