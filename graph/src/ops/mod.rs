//! The op registry: one definition of each op serves client, coordinator and worker.
//!
//! A definition states the op's operands and the memory space they live in, its attributes, its dtype and
//! shape rule, and its cost. Ops are ONNX's, in the semantics of the newest opset (importers rewrite
//! older forms), plus the fused and packed forms that optimisation introduces.
//!
//! Rules run without values on symbolic dimensions; a host operand's elements may be known (as [`Dim`]s)
//! and are then given to the rule. The same rule with concrete dimensions gives the output sizes at run
//! time.
//!
//! Invariants
//! 1. Attributes and operands come from files: every rule checks lengths, ranges and ranks, and answers
//!    with an [`OpError`], never a panic.
//! 2. An inferred type has rank at most [`crate::tensor::MAX_RANK`], no negative dimension, and a byte
//!    size that fits an address space as far as its dimensions are known.
//! 3. A default of an attribute is written once, in [`attrs`], which rules and kernels share.
//!
//! [`Dim`]: crate::Dim

pub mod attrs;
mod check;
mod concrete;
mod cost;
mod custom;
pub mod def;
mod families;
mod host;
mod infer;
mod kernel_set;
mod kind;
pub mod packing;
mod shapes;
pub mod verify;

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

pub use attrs::{normalize_axes, normalize_axis};
pub use concrete::{infer_concrete, infer_launch};
pub use convoke_functions::FloatUnary;
pub use cost::{node_cost, value_bytes};
pub use custom::{CustomOp, RegisterError, is_custom, is_custom_name, register};
pub use def::{
    AttrDef, AttrKind, ConcreteOperand, ConcreteOutputs, Cost, HostValue, Infer, InferredOutput,
    Memory, OpDef, OpError, Operand, OperandDef,
};
use families::FAMILIES;
pub use families::{
    BinaryOp, ControlOp, ConvOp, FusedOp, HandleOp, ITERATIONS, IndexOp, LearnOp, MOST_NESTED,
    MatMulOp, MovementOp, NormOp, PoolOp, PositionOp, QuantisedOp, RandomOp, RecurrentOp, ReduceOp,
    ResizeOp, ScanOp, ShapeOp, SignalOp, SliceOp, TextOp, UnaryOp, VisionOp, asks_body,
    check_bodies, float_function, iterations, known_iterations, parameter_default, split_loop,
    split_scan, typed_bodies,
};
pub use infer::{HostValues, fold_host, infer_op, infer_types};
pub use kernel_set::{DTypeSet, KernelSet, OpDTypes};
pub use kind::Op;

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

/// The elements of a small integer or bool tensor, as rules see them; `None` for any other tensor.
pub fn host_value(t: &crate::Tensor) -> Option<HostValue> {
    host::from_tensor(t, host::LIMIT)
}

/// The registry's definitions by family; each family is a module of `families`.
pub fn families() -> &'static [(&'static str, &'static [OpDef])] {
    &FAMILIES
}

/// Every definition of the registry, sorted by name.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    REGISTRY.iter().copied()
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod registry_tests {
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
