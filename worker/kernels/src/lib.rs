//! The CPU kernel library: plain functions over slices and dimensions.
//!
//! This crate knows no tensors, graphs or workers. Callers validate shapes; a kernel asserts them.
//!
//! Invariants
//! 1. A result depends on values, shapes and attributes only: never on thread count, alignment, cache
//!    size, instruction set or load. One lane computes one output element; a dot product is the
//!    chain `acc = fma(a[k], b[k], acc)` for k ascending from `acc = 0`; other reductions use sixteen
//!    virtual lanes combined in a fixed order; multiply-add is always fused.
//! 2. Every kernel runs through [`Exec`], which checks the cancel flag between tiles.
//! 3. No kernel allocates, with two exceptions: matrix products and convolutions keep one bounded block of scratch per
//!    thread, and fused chains take a few KiB for each tile of work.

// Index loops over several slices of one length are the form that vectorizes.
#![allow(clippy::needless_range_loop)]

pub mod attention;
pub mod binary;
pub mod cast;
mod compiled;
pub mod conv;
pub mod det;
pub mod element;
mod elimination;
pub mod error;
pub mod exec;
pub mod fused;
pub mod gemm;
pub mod inverse;
pub mod isa;
pub mod jpeg;
pub mod math;
pub mod movement;
mod multiversion;
pub mod narrow;
pub mod norm;
pub mod pooling;
pub mod quantised;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod resize;
pub mod rotary;
pub mod shape;
pub mod signal;
pub mod softmax;
mod sort;
pub mod split;
#[cfg(test)]
mod testing;
pub mod trees;
pub mod unary;
pub mod unique;
pub mod vision;

pub use error::KernelError;
pub use exec::{Cancelled, Exec, Turn, stay_awake};
