//! Devices: where eager tensors live and eager ops run.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use convoke_common::error::{Code, Error, Result};
use convoke_common::graph::Attrs;
use convoke_common::program::Participant;
use convoke_rendezvous::eager::wire::INLINE;

use crate::cluster::Cluster;
use crate::eager::WorkerSession;
use crate::eager::direct::Line;
use crate::host::ToHost;
use crate::tensor::{Operand, Placed, Tensor, apply};

/// A device of a worker, as `w0/cpu:0`. Cloning shares it.
#[derive(Clone)]
pub struct Device(pub(crate) Arc<WorkerSession>);

/// What lives on a device and was issued at one line of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The device.
    pub device: String,
    /// File and line of the call, as `src/main.rs:12`.
    pub origin: String,
    /// Handles that are there, or will be.
    pub handles: u64,
    /// Bytes of their tensors. Tensors that share a buffer count each.
    pub bytes: u64,
}

/// How often an op that was issued was ready at its worker already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Ops that were ready.
    pub hits: u64,
    /// Ops that had to be defined first.
    pub misses: u64,
}

thread_local! {
    static SCOPES: RefCell<Vec<Device>> = const { RefCell::new(Vec::new()) };
}

/// The innermost device scope of the task that runs.
pub(crate) fn scope() -> Option<Device> {
    SCOPES.with(|s| s.borrow().last().cloned())
}

/// A device scope of the task that runs, until it is dropped.
pub(crate) struct Entered;

pub(crate) fn enter(device: &Device) -> Entered {
    SCOPES.with(|s| s.borrow_mut().push(device.clone()));
    Entered
}

impl Drop for Entered {
    fn drop(&mut self) {
        SCOPES.with(|s| drop(s.borrow_mut().pop()));
    }
}

/// Runs `f` outside of all device scopes.
pub(crate) fn unscoped<T>(f: impl FnOnce() -> T) -> T {
    /// Back into them, also where `f` panics.
    struct Back(Vec<Device>);
    impl Drop for Back {
        fn drop(&mut self) {
            SCOPES.set(std::mem::take(&mut self.0));
        }
    }
    let _back = Back(SCOPES.take());
    f()
}

/// Runs `f` with ops that no other rule places on `device`. Scopes nest; they belong to the calling task.
pub fn with_device<T>(device: &Device, f: impl FnOnce() -> T) -> T {
    let _entered = enter(device);
    f()
}

/// A future under a device scope, see [`Device::scope`].
pub struct Scoped<F> {
    device: Device,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = enter(&self.device);
        self.future.as_mut().poll(cx)
    }
}

impl Device {
    /// Its name: worker, kind and number.
    pub fn name(&self) -> String {
        format!("{}/cpu:0", self.0.peer.name)
    }

    /// The worker that it belongs to.
    pub fn worker(&self) -> &str {
        &self.0.peer.name
    }

    /// Copies a value there; returns at once, or as soon as less than 256 MiB wait to be sent ([`Cluster::fail_when_full`]).
    #[track_caller]
    pub fn put(&self, value: impl ToHost) -> Result<Tensor> {
        let tensor = value.to_host()?;
        let at = Location::caller();
        let small = tensor.byte_len() <= INLINE;
        let line = self.0.line().filter(|_| small);
        if let Some(here) = line.and_then(|line| line.put(&tensor, at)) {
            return Ok(Tensor::made_here(&self.0, here, Placed::Explicit, at));
        }
        let id = self.0.put(&tensor, at)?;
        let ty = (tensor.dtype(), tensor.shape().into());
        Ok(Tensor::remote(&self.0, id, ty, Placed::Explicit, at))
    }

    /// Issues an op of the registry without operands of a device, as one that makes a tensor from its shape.
    #[track_caller]
    pub(crate) fn create(
        &self,
        op: &str,
        attrs: Attrs,
        operands: &[Operand<'_>],
    ) -> Result<Tensor> {
        // A closure would be the caller.
        let _entered = enter(self);
        let made = apply(op, attrs, operands, 1)?;
        let none = || Error::internal("an op without outputs");
        made.into_iter().next().ok_or_else(none)
    }

    /// Returns once there is room to issue many ops, or says why there never will be.
    pub async fn ready(&self) -> Result<()> {
        self.0.room(WorkerSession::HALF).await
    }

    /// Returns once everything issued so far has ended. Fails with the first failure of an op since this was last
    /// called, also where nobody has fetched what depends on it.
    pub async fn synchronize(&self) -> Result<()> {
        self.0.room(0).await?;
        self.0.take_failure().map_or(Ok(()), Err)
    }

    /// What this client holds there, by the line that issued it; the largest first.
    pub async fn memory(&self) -> Result<Vec<Held>> {
        let answer = self.0.account()?.await;
        let lost = || Error::lost(self.worker(), "the session ended");
        let mut all = answer.map_err(|_| lost())?;
        // What the worker knows nothing of is counted here.
        for here in self.0.line().map(Line::account).unwrap_or_default() {
            match all.iter_mut().find(|h| h.origin == here.origin) {
                Some(there) => {
                    there.handles += here.handles;
                    there.bytes += here.bytes;
                }
                None => all.push(here),
            }
        }
        all.sort_by_key(|h| std::cmp::Reverse(h.bytes));
        let device = self.name();
        let held = all.into_iter().map(|h| Held {
            device: device.clone(),
            origin: h.origin,
            handles: h.handles,
            bytes: h.bytes,
        });
        Ok(held.collect())
    }

    /// How often an op was ready there already.
    pub fn cache(&self) -> CacheStats {
        let (hits, misses) = self.0.hits_and_misses();
        CacheStats { hits, misses }
    }

    /// Runs `future` with ops that no other rule places on this device, as [`with_device`] does.
    pub fn scope<F: Future>(&self, future: F) -> Scoped<F> {
        Scoped {
            device: self.clone(),
            future: Box::pin(future),
        }
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

/// Whether a specification, which may leave parts out, is of the device of this worker.
fn matches(spec: &str, worker: &str) -> bool {
    let kind = |s: &str| matches!(s, "cpu" | "cpu:0");
    match spec.split_once('/') {
        Some((name, device)) => name == worker && (device.is_empty() || kind(device)),
        None => spec.is_empty() || spec == worker || kind(spec),
    }
}

impl Cluster {
    /// The first device that fits a specification, in order of the workers' names: `w0/cpu:0`, or a part of it, as `w1`
    /// or `cpu`. Looks at the workers that were there when the cluster was connected to, or when
    /// [`Cluster::devices`] was last awaited.
    pub fn device(&self, spec: &str) -> Result<Device> {
        let members = self.eager.members();
        let found = members.iter().find(|m| matches(spec, &m.name));
        let found = found.map(|m| self.device_of(m));
        found.ok_or_else(|| {
            let names: Vec<_> = members
                .iter()
                .map(|m| format!("{}/cpu:0", m.name))
                .collect();
            let known = match names.is_empty() {
                true => "there is none".into(),
                false => format!("there are: {}", names.join(", ")),
            };
            Error::new(Code::NotFound, format!("no device is '{spec}'; {known}"))
                .advise("await `cluster.devices()` where a worker has joined since")
        })
    }

    fn device_of(&self, worker: &Participant) -> Device {
        Device(self.eager.at(worker))
    }

    /// The devices of all workers that are there now, in order of their names.
    pub async fn devices(&self) -> Result<Vec<Device>> {
        let status = self.status().await?;
        self.eager.note_members(&status);
        let members = self.eager.members();
        Ok(members.iter().map(|m| self.device_of(m)).collect())
    }

    /// What this client holds on all devices that it uses, by the line that issued it.
    pub async fn memory(&self) -> Result<Vec<Held>> {
        let mut held = Vec::new();
        // What was on a worker that is lost is not there any more.
        let all = self.eager.all().into_iter();
        for session in all.filter(|s| s.lost_because().is_none()) {
            match Device(session.clone()).memory().await {
                Ok(there) => held.extend(there),
                Err(_) if session.lost_because().is_some() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_may_be_partial() {
        for spec in ["w1/cpu:0", "w1/cpu", "w1/", "w1", "cpu", "cpu:0", ""] {
            assert!(matches(spec, "w1"), "{spec}");
        }
        for spec in ["w2", "w2/cpu:0", "gpu:0", "w1/gpu:0", "cpu:1", "w"] {
            assert!(!matches(spec, "w1"), "{spec}");
        }
    }
}
