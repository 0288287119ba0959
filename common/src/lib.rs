//! What every part of Convoke shares: tensors, the graph and its ops, programs, errors, the wire, and the
//! seams to the outside world.
//!
//! ```text
//! model file -> graph::Function -> (optimise) -> (place) -> (partition) -> program::Program per worker
//! ```
//!
//! Invariants
//! 1. Nothing here knows coordinator, worker or client; they meet in the types and services of this crate.
//! 2. Everything ambient (network, disk, clock, randomness, threads) comes through [`world::World`]; time
//!    is `tokio::time` only.
//! 3. Every size that comes from outside is checked before anything is allocated for it.

pub mod admission;
pub mod artifact;
pub mod block;
pub mod counters;
pub mod credentials;
pub mod detection;
pub mod device_spec;
pub mod dim;
pub mod dtype;
pub mod error;
#[doc(hidden)]
pub mod fuzzing;
pub mod graph;
pub mod identity;
pub mod ids;
pub mod members;
pub mod memory;
pub mod mutant;
mod nesting;
pub mod offsets;
pub mod ops;
pub mod outputs;
pub mod places;
pub mod printable;
pub mod program;
pub mod rpc;
pub mod rpc_transport;
pub mod segment;
pub mod telemetry;
pub mod tensor;
pub mod world;

/// The version of this release. All members of a cluster run the same release.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub use dim::Dim;
pub use dtype::{DType, Element};
pub use error::{Code, Error, Result, Site};
pub use outputs::Outputs;
pub use printable::Printable;
pub use tensor::{Shape, Tensor};
