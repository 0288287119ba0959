//! The atomics, cells and locks of the modules that a model checker compiles with primitives of its own:
//! `step/slot.rs`, `step/table.rs`, `hub/links.rs`, `link/batches.rs`, `link/remote/queue.rs` and
//! `sharing/{lending,loan,staging}.rs`; see `tests/models`.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) use tokio::sync::Notify;

/// A cell whose user must exclude concurrent access.
pub(crate) struct Cell<T>(std::cell::UnsafeCell<T>);

impl<T> Cell<T> {
    pub(crate) fn new(value: T) -> Cell<T> {
        Cell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer to the value. The user must exclude every other access while `f` dereferences it.
    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
