//! The checker's primitives, under the names of `src/primitives.rs`.

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub(crate) use loom::sync::{Mutex, MutexGuard};

pub(crate) use crate::notify::{Notify, block_on};

/// Whether loads are made as read-modify-writes that never match. The checker reorders a load with a later write of
/// another thread only if nobody loaded in between, but it tries every order of read-modify-writes.
pub(crate) static EVERY_ORDER: std::sync::atomic::AtomicBool =
    std::sync::atomic::AtomicBool::new(false);
/// A value that no word ever has.
const NEVER: u64 = u64::MAX;

pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> AtomicU64 {
        AtomicU64(loom::sync::atomic::AtomicU64::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        match EVERY_ORDER.load(Ordering::SeqCst) {
            true => match self.0.compare_exchange(NEVER, NEVER, order, order) {
                Ok(value) | Err(value) => value,
            },
            false => self.0.load(order),
        }
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    pub(crate) fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, success, failure)
    }
}

/// A spinning thread has no effect, so the schedule in which it runs later stands for this one.
pub(crate) fn spin_loop() {
    loom::skip_branch();
    loom::hint::spin_loop();
}

pub(crate) struct Cell<T>(loom::cell::UnsafeCell<T>);

impl<T> Cell<T> {
    pub(crate) fn new(value: T) -> Cell<T> {
        Cell(loom::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(f)
    }
}
