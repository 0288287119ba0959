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

mod accept;
pub mod blackbox;
pub mod cache;
pub mod code;
pub mod compute;
mod coordinator_link;
pub mod cpu;
pub mod device;
pub mod drain;
pub mod eager;
pub mod executor;
mod feed;
#[doc(hidden)]
pub mod fuzzing;
mod holdings;
mod init;
pub mod install;
pub mod installed;
mod keeper;
mod load_buffer;
pub mod loader;
mod measure;
pub mod ops;
mod order;
pub mod programs;
mod records;
mod service;
mod shell;
pub mod wedge;
pub mod weights;

pub use blackbox::BlackBox;
pub use compute::Threads;
pub use shell::{END_BOUND, RunningWorker, Worker, WorkerConfig};
