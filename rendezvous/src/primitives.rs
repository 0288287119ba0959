//! What slots are made of. A model checker compiles `slot.rs` over primitives of its own.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

/// A cell that its user guards.
pub(crate) struct Cell<T>(std::cell::UnsafeCell<T>);

impl<T> Cell<T> {
    pub(crate) fn new(value: T) -> Cell<T> {
        Cell(std::cell::UnsafeCell::new(value))
    }

    /// Gives `f` the place. Dereferencing it needs the exclusion that the user provides.
    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
