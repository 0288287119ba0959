//! The definitions of the registry; each module is a family of ops.

pub(super) mod binary;
pub(super) mod control;
pub(super) mod conv;
pub(super) mod fused;
pub(super) mod handle;
pub(super) mod index;
pub(super) mod learn;
pub(super) mod matmul;
pub(super) mod movement;
pub(super) mod norm;
pub(super) mod pooling;
pub(super) mod position;
pub(super) mod quantised;
pub(super) mod random;
pub(super) mod recurrent;
pub(super) mod reduce;
pub(super) mod resize;
pub(super) mod scan;
pub(super) mod shape;
pub(super) mod signal;
pub(super) mod slice;
pub(super) mod text;
pub(super) mod unary;
pub(super) mod vision;

pub use control::{
    ITERATIONS, MOST_NESTED, asks_body, check_bodies, iterations, known_iterations, split_loop,
    split_scan, typed_bodies,
};
pub use unary::{float_function, parameter_default};
