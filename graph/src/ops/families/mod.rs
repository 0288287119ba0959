//! The definitions of the registry; each module is a family of ops.

mod binary;
mod control;
mod conv;
mod fused;
mod handle;
mod index;
mod learn;
mod matmul;
mod movement;
mod norm;
mod pooling;
mod position;
mod quantised;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod scan;
mod shape;
mod signal;
mod slice;
mod text;
mod unary;
mod vision;

pub use binary::BinaryOp;
pub use control::{
    ControlOp, ITERATIONS, MOST_NESTED, asks_body, check_bodies, control_cost, iterations,
    known_iterations, split_loop, split_scan, typed_bodies,
};
pub use conv::ConvOp;
pub use fused::FusedOp;
pub use handle::HandleOp;
pub use index::IndexOp;
pub use learn::LearnOp;
pub use matmul::MatMulOp;
pub use movement::MovementOp;
pub use norm::NormOp;
pub use pooling::PoolOp;
pub use position::PositionOp;
pub use quantised::QuantisedOp;
pub use random::RandomOp;
pub use recurrent::RecurrentOp;
pub use reduce::ReduceOp;
pub use resize::ResizeOp;
pub use scan::ScanOp;
pub use shape::ShapeOp;
pub use signal::SignalOp;
pub use slice::SliceOp;
pub use text::TextOp;
pub use unary::{UnaryOp, float_function, parameter_default};
pub use vision::VisionOp;

use super::def::OpDef;

/// All definitions except the custom ones, by family.
pub(super) static FAMILIES: [(&str, &[OpDef]); 25] = [
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
