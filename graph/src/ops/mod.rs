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
mod cost;
mod custom;
pub mod def;
mod error;
mod families;
mod host;
mod infer;
mod kernel_set;
mod kind;
pub mod packing;
mod registry;
mod shapes;

pub use attrs::{normalize_axes, normalize_axis};
pub use convoke_functions::FloatUnary;
pub use cost::{Cost, value_bytes};
pub use custom::{CustomOp, RegisterError, is_custom, is_custom_name, register};
pub use def::{
    AttrDef, AttrKind, ConcreteOperand, ConcreteOutputs, HostValue, Infer, InferredOutput, Memory,
    OpDef, Operand, OperandDef,
};
pub use error::OpError;
pub use families::{
    ITERATIONS, MOST_NESTED, asks_body, check_bodies, float_function, iterations, known_iterations,
    parameter_default, split_loop, split_scan, typed_bodies,
};
pub use host::host_value;
pub use infer::{HostValues, fold_host, infer_concrete, infer_launch, infer_op, infer_types};
pub use kernel_set::{DTypeSet, KernelSet, OpDTypes};
pub use kind::{
    BinaryOp, ControlOp, ConvOp, FusedOp, HandleOp, IndexOp, LearnOp, MatMulOp, MovementOp, NormOp,
    Op, PoolOp, PositionOp, QuantisedOp, RandomOp, RecurrentOp, ReduceOp, ResizeOp, ScanOp,
    ShapeOp, SignalOp, SliceOp, TextOp, UnaryOp, VisionOp,
};
pub use registry::{all, families, lookup, node_cost};

#[cfg(test)]
mod tests;
