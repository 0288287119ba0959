//! The ops of the registry as types, for code that treats ops differently.
//!
//! Each family declares its ops beside their definitions. A `match` on a family's type that leaves out an op does not
//! compile, so a device that lacks a kernel, and a pass that has to decide about every op, are found by the compiler.

use super::families::{
    BinaryOp, ControlOp, ConvOp, FusedOp, HandleOp, IndexOp, LearnOp, MatMulOp, MovementOp, NormOp,
    PoolOp, PositionOp, QuantisedOp, RandomOp, RecurrentOp, ReduceOp, ResizeOp, ScanOp, ShapeOp,
    SignalOp, SliceOp, TextOp, UnaryOp, VisionOp,
};

/// Declares a family of ops: its type, and the names that its ops have in a graph.
macro_rules! family {
    ($(#[$doc:meta])* $ty:ident in $family:ident { $($op:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        // The variants have the names that ONNX gives them.
        #[allow(missing_docs, clippy::enum_variant_names, clippy::upper_case_acronyms)]
        pub enum $ty { $($op),* }

        impl $ty {
            /// Every op of the family.
            pub const ALL: &'static [$ty] = &[$($ty::$op),*];

            /// The op's name in a graph.
            pub const fn name(self) -> &'static str {
                match self { $($ty::$op => stringify!($op)),* }
            }
        }

        impl From<$ty> for $crate::ops::Op {
            fn from(op: $ty) -> $crate::ops::Op {
                $crate::ops::Op::$family(op)
            }
        }
    };
}
pub(super) use family;

macro_rules! families {
    ($($family:ident($ty:ident)),* $(,)?) => {
        /// An op, by family.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Op {
            $($family($ty),)*
            /// An op that a user defines and registers. Its name is in its definition.
            Custom,
        }

        impl Op {
            /// The op's name in a graph; empty for a custom op.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Op::$family(op) => op.name(),)*
                    Op::Custom => "",
                }
            }

            /// Every op of the registry.
            #[cfg(test)]
            pub fn all() -> Vec<Op> {
                let families: &[Vec<Op>] = &[$($ty::ALL.iter().map(|op| Op::from(*op)).collect()),*];
                families.concat()
            }
        }
    };
}
families! {
    Binary(BinaryOp),
    Control(ControlOp),
    Conv(ConvOp),
    Fused(FusedOp),
    Handle(HandleOp),
    Index(IndexOp),
    Learn(LearnOp),
    MatMul(MatMulOp),
    Movement(MovementOp),
    Norm(NormOp),
    Pool(PoolOp),
    Position(PositionOp),
    Quantised(QuantisedOp),
    Random(RandomOp),
    Recurrent(RecurrentOp),
    Reduce(ReduceOp),
    Resize(ResizeOp),
    Scan(ScanOp),
    Shape(ShapeOp),
    Signal(SignalOp),
    Slice(SliceOp),
    Text(TextOp),
    Unary(UnaryOp),
    Vision(VisionOp),
}
