//! Devices: where eager tensors live and eager ops run.

mod set;

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use convoke_common::device_spec::device_name;
use convoke_common::error::{Error, Result};
use convoke_common::grant::Participant;
use convoke_graph::graph::Attrs;
use convoke_rendezvous::eager::wire::INLINE;

use crate::cluster::Cluster;
use crate::eager::direct::Line;
use crate::eager::{SessionOwner, WorkerSession};
use crate::host::ToHost;
use crate::tensor::{Operand, PlacedBy, Tensor, apply};

pub use set::DeviceSet;

/// A device of a worker, such as `w0/cpu:0`. Clones are the same device. A device keeps its connection to the cluster,
/// and with it an embedded cluster, until [`Cluster::shutdown`].
#[derive(Clone)]
pub struct Device(pub(crate) Arc<SessionOwner>);

/// The tensors that live on a device and were issued at one line of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandleUsage {
    /// The name of the device.
    pub device: String,
    /// File and line of the call, as `src/main.rs:12`.
    pub origin: String,
    /// The number of handles on the device, including those that are still to be computed.
    pub handles: u64,
    /// Bytes of the handles' tensors. Tensors that share a buffer count each.
    pub bytes: u64,
}

/// The number of issued ops that their worker had prepared already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Ops that were prepared already.
    pub hits: u64,
    /// Ops that had to be defined first.
    pub misses: u64,
}

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

/// Returns what this client holds at a worker, by the line that issued it, the largest first.
async fn held_at(session: &WorkerSession) -> Result<Vec<HandleUsage>> {
    let answer = session.account()?.await;
    let worker = &session.peer.name;
    let mut all = answer.map_err(|_| Error::lost(worker, "the session ended"))?;
    // Values that the worker knows nothing of are counted by this client.
    for here in session.line().map(Line::account).unwrap_or_default() {
        match all.iter_mut().find(|h| h.origin == here.origin) {
            Some(there) => {
                there.handles += here.handles;
                there.bytes += here.bytes;
            }
            None => all.push(here),
        }
    }
    all.sort_by_key(|h| std::cmp::Reverse(h.bytes));
    let device = device_name(worker, &session.device);
    let held = all.into_iter().map(|h| HandleUsage {
        device: device.clone(),
        origin: h.origin,
        handles: h.handles,
        bytes: h.bytes,
    });
    Ok(held.collect())
}

impl Device {
    /// The device's name: worker, kind and number.
    pub fn name(&self) -> String {
        device_name(&self.0.peer.name, &self.0.device)
    }

    /// The name of the worker that the device belongs to.
    pub fn worker(&self) -> &str {
        &self.0.peer.name
    }

    /// Copies a value to the device. Returns at once, or as soon as less than 256 MiB wait to be sent, see
    /// [`Cluster::fail_when_full`].
    #[track_caller]
    pub fn put(&self, value: impl ToHost) -> Result<Tensor> {
        let tensor = value.to_host()?;
        let at = Location::caller();
        let small = tensor.byte_len() <= INLINE;
        let line = self.0.line().filter(|_| small);
        if let Some(here) = line.and_then(|line| line.put(&tensor, at)) {
            return Ok(Tensor::made_here(&self.0, here, PlacedBy::Explicit, at));
        }
        let id = self.0.put(&tensor, at)?;
        let ty = (tensor.dtype(), tensor.shape().into());
        Ok(Tensor::remote(&self.0, id, ty, PlacedBy::Explicit, at))
    }

    /// Issues an op of the registry that has no operand on a device, such as one that makes a tensor from its shape.
    #[track_caller]
    pub(crate) fn create(
        &self,
        op: &str,
        attrs: Attrs,
        operands: &[Operand<'_>],
    ) -> Result<Tensor> {
        // With `with_device` the closure would be the caller that the op's line names.
        let _entered = enter(self);
        let made = apply(op, attrs, operands, 1)?;
        let none = || Error::internal("an op without outputs");
        made.into_iter().next().ok_or_else(none)
    }

    /// Returns once there is room to issue many ops. Fails where there never will be, with the reason.
    pub async fn ready(&self) -> Result<()> {
        self.0.room(WorkerSession::HALF).await
    }

    /// Returns once everything that was issued so far has ended. Fails with the first failure of an op since the last
    /// call of this method, even where nobody has fetched a tensor that depends on it.
    pub async fn synchronize(&self) -> Result<()> {
        self.0.room(0).await?;
        self.0.take_failure().map_or(Ok(()), Err)
    }

    /// Returns what this client holds on the device, by the line that issued it, the largest first.
    pub async fn memory(&self) -> Result<Vec<HandleUsage>> {
        held_at(&self.0).await
    }

    /// How often an op was prepared at the device's worker already.
    pub fn cache(&self) -> CacheStats {
        let (hits, misses) = self.0.hits_and_misses();
        CacheStats { hits, misses }
    }

    /// Runs `future` in the scope of this device, as [`with_device`] does.
    pub fn scope<F: Future>(&self, future: F) -> ScopedFuture<F> {
        DeviceSet::from(self).scope(future)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
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

impl Cluster {
    fn device_of(&self, worker: &Participant) -> Device {
        Device(self.eager.at(worker))
    }

    /// Returns the devices of all workers that are serving now, in the order of their names.
    pub async fn devices(&self) -> Result<Vec<Device>> {
        let status = self.status().await?;
        self.eager.note_members(&status);
        let members = self.eager.members();
        Ok(members.iter().map(|m| self.device_of(m)).collect())
    }

    /// Returns what this client holds on all devices that it uses, by the line that issued it.
    pub async fn memory(&self) -> Result<Vec<HandleUsage>> {
        let mut held = Vec::new();
        // The tensors of a worker that is lost are gone.
        let all = self.eager.all().into_iter();
        for session in all.filter(|s| s.lost_because().is_none()) {
            match held_at(&session).await {
                Ok(there) => held.extend(there),
                Err(_) if session.lost_because().is_some() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(held)
    }
}
