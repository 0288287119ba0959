//! The atomics and cells that slots are built from. A model checker compiles `slot.rs` with primitives of its own.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

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
