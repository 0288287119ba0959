//! Devices: where eager tensors live and eager ops run.

pub(crate) mod scope;
mod set;

use std::fmt;
use std::sync::Arc;

use convoke_common::device_spec::device_name;
use convoke_common::error::{Error, Result};
use convoke_common::grant::Participant;

use crate::cluster::Cluster;
use crate::eager::direct::Line;
use crate::eager::{SessionOwner, WorkerSession};

pub use scope::{ScopedFuture, with_device};
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
