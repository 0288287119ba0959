//! Device scopes: where a task's ops run.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Device;
use super::set::DeviceSet;

thread_local! {
    static SCOPES: RefCell<Vec<DeviceSet>> = const { RefCell::new(Vec::new()) };
}

/// The innermost device scope of the running task, if it is in one.
pub(crate) fn scope() -> Option<DeviceSet> {
    SCOPES.with(|s| s.borrow().last().cloned())
}

/// Keeps the running task in a device scope until it is dropped.
pub(crate) struct ScopeGuard;

pub(crate) fn enter(devices: impl Into<DeviceSet>) -> ScopeGuard {
    SCOPES.with(|s| s.borrow_mut().push(devices.into()));
    ScopeGuard
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        // The scope may be the program's last link to its cluster, so it is dropped after the borrow has ended.
        let left = SCOPES.with(|s| s.borrow_mut().pop());
        drop(left);
    }
}

/// Runs `f` outside of all device scopes.
pub(crate) fn unscoped<T>(f: impl FnOnce() -> T) -> T {
    /// Restores the scopes, even where `f` panics.
    struct ScopesGuard(Vec<DeviceSet>);
    impl Drop for ScopesGuard {
        fn drop(&mut self) {
            SCOPES.set(std::mem::take(&mut self.0));
        }
    }
    let _back = ScopesGuard(SCOPES.take());
    f()
}

/// Runs `f` in a device scope: its ops run on `devices`, and operands that are elsewhere are moved there. If there are
/// several devices, an op runs on the one with most bytes of its operands, and on the fastest where none has an
/// operand. In the trace of a function the plan chooses among them instead. Scopes nest, and the innermost counts; a
/// scope belongs to the calling task.
pub fn with_device<T>(devices: impl Into<DeviceSet>, f: impl FnOnce() -> T) -> T {
    let _entered = enter(devices);
    f()
}

/// A future under a device scope, see [`Device::scope`].
pub struct ScopedFuture<F> {
    devices: DeviceSet,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for ScopedFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = enter(&self.devices);
        self.future.as_mut().poll(cx)
    }
}

impl Device {
    /// Runs `future` in the scope of this device, as [`with_device`] does.
    pub fn scope<F: Future>(&self, future: F) -> ScopedFuture<F> {
        DeviceSet::from(self).scope(future)
    }
}

impl DeviceSet {
    /// Runs `future` in the scope of these devices, as [`with_device`] does.
    pub fn scope<F: Future>(&self, future: F) -> ScopedFuture<F> {
        ScopedFuture {
            devices: self.clone(),
            future: Box::pin(future),
        }
    }
}
