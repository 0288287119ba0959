//! The definitions of the registry; each module is a family of ops.

mod binary;
mod control;
mod conv;
mod fused;
mod handle;
mod index;
mod matmul;
mod movement;
mod norm;
mod pooling;
mod random;
mod reduce;
mod resize;
mod scan;
mod shape;
mod slice;
mod unary;

pub use binary::BinaryOp;
pub use control::{ControlOp, MOST_NESTED, check_bodies, split_loop, split_scan};
pub use conv::ConvOp;
pub use fused::FusedOp;
pub use handle::HandleOp;
pub use index::IndexOp;
pub use matmul::MatMulOp;
pub use movement::MovementOp;
pub use norm::NormOp;
pub use pooling::PoolOp;
pub use random::RandomOp;
pub use reduce::ReduceOp;
pub use resize::ResizeOp;
pub use scan::ScanOp;
pub use shape::ShapeOp;
pub use slice::SliceOp;
pub use unary::{UnaryOp, float_function, parameter_default};

use super::def::OpDef;

/// All definitions except the custom ones, by family.
pub(super) static FAMILIES: [(&str, &[OpDef]); 18] = [
    ("binary", binary::OPS),
    ("control", control::OPS),
    ("conv", conv::OPS),
    ("fused", fused::OPS),
    ("function", unary::FUNCTIONS),
    ("handle", handle::OPS),
    ("index", index::OPS),
    ("matmul", matmul::OPS),
    ("movement", movement::OPS),
    ("norm", norm::OPS),
    ("pool", pooling::OPS),
    ("random", random::OPS),
    ("reduce", reduce::OPS),
    ("resize", resize::OPS),
    ("scan", scan::OPS),
    ("shape", shape::OPS),
    ("slice", slice::OPS),
    ("unary", unary::OPS),
];
