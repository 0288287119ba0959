//! The worker: owns devices, and runs its part of leased programs.
//!
//! ```text
//! coordinator ──rpc──> service ──> install (loader, cache, init part) ──> executor ──> cpu
//! driver, peers ──lanes, streams──> hub ──> lease ──> executor
//! ```
//!
//! Invariants
//! 1. Nothing is allocated for a program outside the [`convoke_common::memory::Ledger`].
//! 2. A lease owns its executor, links, weights and pins; dropping the lease frees them all.
//! 3. Compute threads never wait for the network, and network tasks run kernels only of programs that are
//!    predicted to be briefer than waking a compute thread.

pub mod cache;
pub mod compute;
pub mod cpu;
pub mod executor;
pub mod install;
pub mod installed;
pub mod loader;
mod measure;
mod node;
mod service;
mod shell;

pub use compute::Threads;
pub use shell::{Running, Worker, WorkerConfig};
