//! The atomics and locks of the modules that a model checker compiles with primitives of its own:
//! `eager/{room,told}.rs` and `tensor/donation.rs`; see `tests/models`.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};

pub(crate) use tokio::sync::Notify;
