//! The worker: owns a device, and runs its part of leased programs.
//!
//! ```text
//! coordinator ──rpc──> service ──> install (loader, cache, init part) ──> code ──> executor ──> cpu
//! driver, peers ──lanes, streams──> hub ──> lease ──> executor
//! ```
//!
//! Invariants
//! 1. Nothing is allocated for a program outside the [`convoke_common::memory::Ledger`].
//! 2. A lease owns its executor, links, weights and pins; dropping the lease frees them all.
//! 3. Compute threads never wait for the network. Network tasks run kernels only of programs that are predicted, or
//!    were measured, to take less time than waking a compute thread.

pub mod compute;
pub mod cpu;
pub mod device;
pub mod eager;
pub mod executor;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod health;
mod node;
pub mod ops;
pub mod program;
pub mod weights;

pub use compute::Threads;
pub use health::blackbox::BlackBox;
pub use node::shell::{END_BOUND, RunningWorker, Worker, WorkerConfig};
