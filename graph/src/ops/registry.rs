//! The registry: the definitions of all ops, by family and by name, and what they say of the nodes of a graph.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use super::cost::{Cost, with_flops};
use super::custom;
use super::def::OpDef;
use super::families::control::{control_cost, iterations};
use super::families::{
    binary, control, conv, fused, handle, index, learn, matmul, movement, norm, pooling, position,
    quantised, random, recurrent, reduce, resize, scan, shape, signal, slice, text, unary, vision,
};
use super::kind::Op;
use crate::Dim;
use crate::dim::Bindings;
use crate::graph::{Function, Node, TensorType, ValueId};

/// All definitions except the custom ones, by family.
static FAMILIES: [(&str, &[OpDef]); 25] = [
    ("binary", binary::OPS),
    ("control", control::OPS),
    ("conv", conv::OPS),
    ("fused", fused::OPS),
    ("function", unary::FUNCTIONS),
    ("handle", handle::OPS),
    ("index", index::OPS),
    ("learn", learn::OPS),
    ("matmul", matmul::OPS),
    ("movement", movement::OPS),
    ("norm", norm::OPS),
    ("pool", pooling::OPS),
    ("position", position::OPS),
    ("quantised", quantised::OPS),
    ("random", random::OPS),
    ("recurrent", recurrent::OPS),
    ("reduce", reduce::OPS),
    ("resize", resize::OPS),
    ("scan", scan::OPS),
    ("shape", shape::OPS),
    ("signal", signal::OPS),
    ("slice", slice::OPS),
    ("text", text::OPS),
    ("unary", unary::OPS),
    ("vision", vision::OPS),
];

/// The definitions by name. A fast hash is safe, since the keys are short and no peer chooses them.
static BY_NAME: LazyLock<FxHashMap<&'static str, &'static OpDef>> =
    LazyLock::new(|| all().map(|op| (op.name, op)).collect());

/// All definitions except the custom ones, sorted by name.
static REGISTRY: LazyLock<Vec<&'static OpDef>> = LazyLock::new(|| {
    let mut all: Vec<_> = FAMILIES.iter().flat_map(|(_, ops)| *ops).collect();
    all.sort_by_key(|op| op.name);
    all
});

/// The definition of the op called `name`: one of the registry, or a custom one that this process registered.
pub fn lookup(name: &str) -> Option<&'static OpDef> {
    BY_NAME.get(name).copied().or_else(|| custom::lookup(name))
}

/// The registry's definitions by family; each family is a module of `families`.
pub fn families() -> &'static [(&'static str, &'static [OpDef])] {
    &FAMILIES
}

/// Every definition of the registry, sorted by name.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    REGISTRY.iter().copied()
}

impl Node {
    /// The node's op; `None` where neither the registry nor this process knows it.
    pub fn kind(&self) -> Option<Op> {
        lookup(&self.op).map(|def| def.op)
    }

    /// Whether the node is a use of `op`, which is one of the registry.
    pub fn is(&self, op: impl Into<Op>) -> bool {
        *self.op == *op.into().name()
    }
}

/// The work of one execution of `node` under `bindings`; dimensions that stay unknown count as zero.
pub fn node_cost(f: &Function, node: &Node, bindings: &Bindings) -> Cost {
    let bind = |id: &ValueId| {
        let ty = &f.values.get(id.ix())?.ty;
        let shape = ty
            .shape
            .iter()
            .map(|d| Dim::Const(d.eval(bindings).unwrap_or(0)));
        Some(TensorType::new(ty.dtype, shape.collect()))
    };
    let inputs: Vec<_> = node
        .inputs
        .iter()
        .map(|i| i.as_ref().and_then(bind))
        .collect();
    let outputs: Vec<_> = node.outputs.iter().filter_map(bind).collect();
    let inputs: Vec<_> = inputs.iter().map(Option::as_ref).collect();
    let outputs: Vec<_> = outputs.iter().collect();
    match lookup(&node.op) {
        Some(OpDef {
            op: Op::Control(op),
            ..
        }) => {
            let runs = iterations(f, node, *op, bindings);
            control_cost((*op, runs), &node.attrs, &inputs, &outputs, bindings)
        }
        Some(op) => {
            custom::guarded(op, || (op.cost)(&node.attrs, &inputs, &outputs)).unwrap_or_default()
        }
        None => with_flops(0., &inputs, &outputs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let names: Vec<_> = all().map(|op| op.name).collect();
        assert!(names.windows(2).all(|w| w[0] < w[1]), "{names:?}");
        for op in all() {
            assert!(std::ptr::eq(lookup(op.name).unwrap(), op));
            assert!(op.doc.ends_with('.') && op.outputs.0 <= op.outputs.1);
        }
        assert!(lookup("NoSuchOp").is_none());
    }

    #[test]
    fn every_op_that_a_family_declares_is_defined() {
        for op in Op::all() {
            assert_eq!(lookup(op.name()).map(|def| def.op), Some(op), "{op:?}");
        }
        assert_eq!(Op::all().len(), all().count());
    }
}
