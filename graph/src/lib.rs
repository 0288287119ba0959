//! The graph: tensors, dimensions, functions and their ops, and the programs that workers run.
//!
//! ```text
//! model file -> graph::Function -> (optimise) -> (place) -> (partition) -> program::Program per worker
//! ```
//!
//! Invariants
//! 1. Everything here is a pure function of its arguments, except for the registry of custom ops and the memory of
//!    tensors: there is no network, no clock and no task. `.ci/run` checks that no crate for these is in its tree.
//! 2. No other crate of the workspace is used here. Errors are types of this crate, which `convoke-common` turns
//!    into its own where they cross hops.
//! 3. Every size that comes from outside is checked before anything is allocated for it.

pub mod artifact;
pub mod codec;
pub mod csr;
pub mod dim;
pub mod dtype;
pub mod graph;
pub mod ids;
pub mod nesting;
pub mod offsets;
pub mod ops;
pub mod printable;
pub mod program;
pub mod tensor;

pub use convoke_functions::packed;
pub use dim::Dim;
pub use dtype::{DType, Element};
pub use printable::Printable;
pub use tensor::outputs::Outputs;
pub use tensor::{Shape, Tensor, block, narrow, outputs, segment, text};
