//! A function that a control-flow op runs, and the values that it takes from the enclosing one.

use std::collections::{HashMap, HashSet};

use convoke_graph::Tensor;
use convoke_graph::graph::{Attr, Attrs, Function, Literal, TensorType, ValueId};

use super::Builder;
use crate::error::ModelError;

/// The ops that [`Body::hoist`] moves.
const HOISTED: &[&str] = &[
    "Add",
    "Cast",
    "Concat",
    "Flatten",
    "Identity",
    "Mul",
    "Neg",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Sub",
    "Transpose",
    "Unsqueeze",
];

/// Drops nodes, constants and captured values on which no result depends.
fn trim(f: &mut Function, captured: &mut Vec<(ValueId, ValueId)>) {
    let mut read: HashSet<ValueId> = f.results.iter().map(|(_, id)| *id).collect();
    let mut live = vec![false; f.nodes.len()];
    for (node, live) in f.nodes.iter().zip(&mut live).rev() {
        *live = node.outputs.iter().any(|o| read.contains(o));
        if *live {
            read.extend(node.inputs.iter().flatten());
        }
    }
    let mut live = live.into_iter();
    f.nodes.retain(|_| live.next().unwrap_or(true));
    f.literals.retain(|(id, _)| read.contains(id));
    let unread = captured.iter().map(|(_, here)| *here);
    let unread: HashSet<ValueId> = unread.filter(|here| !read.contains(here)).collect();
    f.params.retain(|id| !unread.contains(id));
    captured.retain(|(_, here)| !unread.contains(here));
}

/// A function that a control-flow op runs.
pub(in super::super) struct Body {
    pub f: Function,
    /// The values of the enclosing function that are captured, each with the parameter that stands for it. These
    /// parameters are the last ones, in this order.
    pub captured: Vec<(ValueId, ValueId)>,
    /// By value, its type where it is known.
    types: Vec<Option<TensorType>>,
}

impl Body {
    /// A function whose values have these types, where they are known. Nodes that no result depends on are dropped.
    pub(in super::super) fn new(
        mut f: Function,
        mut captured: Vec<(ValueId, ValueId)>,
        types: Vec<Option<TensorType>>,
    ) -> Body {
        trim(&mut f, &mut captured);
        Body { f, captured, types }
    }

    /// The type of result `i`, where it is known.
    pub(in super::super) fn result(&self, i: usize) -> Option<&TensorType> {
        let (_, id) = self.f.results.get(i)?;
        self.types.get(id.ix())?.as_ref()
    }

    /// The value of the enclosing function that the parameter `here` stands for.
    pub(in super::super) fn captures(&self, here: ValueId) -> Option<ValueId> {
        let found = self.captured.iter().find(|(_, param)| *param == here);
        found.map(|(id, _)| *id)
    }

    /// Moves nodes that rearrange weights to `outer`, the enclosing function, so that they run once and not in every run
    /// of the body. These are ops that cannot fail once their rules accept them.
    pub(in super::super) fn hoist(&mut self, outer: &mut Builder) -> Result<(), ModelError> {
        let constant = self
            .captured
            .iter()
            .filter(|(id, _)| outer.is_constant(*id));
        let mut outside: HashMap<ValueId, ValueId> =
            constant.map(|(id, here)| (*here, *id)).collect();
        if outside.is_empty() {
            return Ok(());
        }
        let inline = |(id, l): &(ValueId, Literal)| match l {
            Literal::Inline(t) => Some((*id, t.clone())),
            Literal::Range { .. } => None,
        };
        let literals: HashMap<_, _> = self.f.literals.iter().filter_map(inline).collect();
        for node in std::mem::take(&mut self.f.nodes) {
            let mut read = node.inputs.iter().flatten();
            let known = read.all(|id| outside.contains_key(id) || literals.contains_key(id));
            let of_weights = node
                .inputs
                .iter()
                .flatten()
                .any(|id| outside.contains_key(id));
            let mut made = node.outputs.iter().map(|id| &self.types[id.ix()]);
            let floats = made.all(|ty| ty.as_ref().is_some_and(|ty| ty.dtype.is_float()));
            if !(known && of_weights && floats && HOISTED.contains(&&*node.op)) {
                self.f.nodes.push(node);
                continue;
            }
            let operand = |id: &Option<ValueId>| {
                let id = (*id)?;
                let copy = |t: &Tensor| outer.literal(&self.f.value(id).name, t.clone());
                outside
                    .get(&id)
                    .copied()
                    .or_else(|| literals.get(&id).map(copy))
            };
            let operands: Vec<_> = node.inputs.iter().map(operand).collect();
            let names = node
                .outputs
                .iter()
                .map(|id| self.f.value(*id).name.to_string());
            let names: Vec<String> = names.collect();
            let made = outer.emit(&node.op, &node.name, node.attrs, operands, &names)?;
            for (here, id) in node.outputs.into_iter().zip(made) {
                outside.insert(here, id);
                self.captured.push((id, here));
                self.f.params.push(here);
            }
        }
        trim(&mut self.f, &mut self.captured);
        Ok(())
    }

    /// Adds a Loop or Scan that runs the function to `b`, the enclosing one. The captured values follow the operands.
    pub(in super::super) fn emit(
        mut self,
        b: &mut Builder,
        op: &str,
        name: &str,
        attrs: Attrs,
        operands: impl Iterator<Item = Option<ValueId>>,
        outputs: &[String],
    ) -> Result<Vec<ValueId>, ModelError> {
        self.hoist(b)?;
        let captured = self.captured.iter().map(|(id, _)| Some(*id));
        let operands: Vec<_> = operands.chain(captured).collect();
        let attrs = attrs
            .with("captured", Attr::Int(self.captured.len() as i64))
            .with("body", Attr::Function(self.f.into()));
        b.emit(op, name, attrs, operands, outputs)
    }

    /// Gives the function a parameter for each of `all`, values of the enclosing function, in place of those for the
    /// values that it captures itself, which `all` includes.
    pub(in super::super) fn widen(&mut self, all: &[ValueId], outer: &Builder) {
        let own = self.f.params.len() - self.captured.len();
        self.f.params.truncate(own);
        for (i, id) in all.iter().enumerate() {
            let known = self.captured.iter().find(|(captured, _)| captured == id);
            let param = match known {
                Some((_, here)) => *here,
                None => {
                    let ty = outer.f.ty(*id).clone();
                    self.f.add_value(format!("{}~unused{i}", self.f.name), ty)
                }
            };
            self.f.params.push(param);
        }
    }
}
