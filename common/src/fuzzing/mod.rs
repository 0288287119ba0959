//! The entries that the fuzz targets in `fuzz/` run, and the tests that replay their corpora. They are not part of the
//! public interface.
//!
//! An entry decodes its input as production does, and then makes the checks that production makes before it trusts the
//! result. It must neither panic nor allocate more at once than its memory bound.

mod control;
mod graph;
mod identity;
mod memory;
mod preface;
#[cfg(test)]
mod seeds;
pub(crate) mod target;
mod tripwire;

pub use crate::world::shared_memory::fuzzing::{Scripted, taker};
pub use graph::{trust_function, trust_install};
pub use target::{MemoryBound, Target, choose, on_runtime};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    control::TARGET,
    graph::TARGET,
    identity::TARGET,
    memory::TARGET,
    preface::TARGET,
    tripwire::TARGET,
];
