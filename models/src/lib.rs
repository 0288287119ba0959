//! Importers, which turn a model file into a [`Function`](convoke_graph::graph::Function) and the files that hold its
//! weights.
//!
//! ```text
//! model.onnx --skeleton--> ModelProto without payloads --import--> Function + Sources
//!                                                      ^
//! weights.safetensors --header--> ranges by name ------'
//! ```
//!
//! Invariants
//! 1. Reading a model's structure loads no weights: payloads above 4 KiB stay in the file and become ranges.
//! 2. Every length is checked against what is left of its file before anything is allocated for it, and
//!    nesting is bounded: no file, however broken, causes a panic or an unbounded allocation.
//! 3. A model cannot name a file outside of its own folder.
//! 4. The same files give the same function, in every process.

pub mod artifact_index;
mod error;
mod file;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod onnx;
mod safetensors;
mod stored;
#[cfg(test)]
mod testing;

pub use artifact_index::{ArtifactIndex, OnProgress, Progress, Source, default_cache_dir};
pub use error::{
    LISTED_OPS, ModelError, OF_PATTERNS, UnsupportedNode, UnsupportedOp, further_ops,
    unsupported_ops,
};
pub use onnx::{ImportedModel, LoadOptions, ModelInfo};
pub use stored::{StoredTensor, StoredTensors, stored_header, stored_tensors};
