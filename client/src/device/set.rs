//! Sets of devices: what a partial specification such as `w*` or `cpu` names.

use std::fmt;
use std::sync::Arc;

use convoke_common::device_spec::DeviceSpec;
use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_graph::ops::{self, OpDef};
use convoke_graph::printable;

use super::Device;
use crate::cluster::Cluster;
use crate::eager::{SessionOwner, Sessions};

/// A set of devices, any of which may be used: see [`Cluster::device_set`]. A [`Device`] converts to the set of itself.
/// Clones share the list of devices.
#[derive(Clone)]
pub struct DeviceSet(Repr);

#[derive(Clone)]
enum Repr {
    One(Device),
    Several(Arc<DeviceList>),
}

struct DeviceList {
    spec: DeviceSpec,
    /// The devices, two at least, in the order of their workers' names.
    devices: Vec<Device>,
}

impl DeviceSet {
    /// The devices, in order of their workers' names.
    pub fn devices(&self) -> &[Device] {
        match &self.0 {
            Repr::One(device) => std::slice::from_ref(device),
            Repr::Several(several) => &several.devices,
        }
    }

    /// The device, where there is only one.
    pub(crate) fn only(&self) -> Option<&Device> {
        match &self.0 {
            Repr::One(device) => Some(device),
            Repr::Several(_) => None,
        }
    }

    /// The device of a worker, where it is in the set.
    pub(crate) fn at(&self, worker: &Arc<SessionOwner>) -> Option<&Device> {
        let mut devices = self.devices().iter();
        devices.find(|d| Arc::ptr_eq(&d.0, worker))
    }

    /// The fastest of the devices, as measured, that has a kernel of an op. A device whose worker is not a member any
    /// more counts as the slowest: an op that is issued there fails with the reason.
    pub(crate) fn fastest(&self, sessions: &Sessions, def: Option<&OpDef>) -> Option<Device> {
        let custom = def.filter(|def| ops::is_custom(def.name));
        let able = self.devices().iter();
        let able = able.filter(|d| custom.is_none_or(|def| d.0.has_op(def).is_ok()));
        let able = able.map(|d| (d, sessions.flops_of(d.worker())));
        // If several are equally fast, it is the first by name.
        let fastest = able.rev().max_by(|(_, a), (_, b)| a.total_cmp(b));
        fastest.map(|(device, _)| device.clone())
    }

    /// The specification by which a pin names the set.
    pub(crate) fn spec(&self) -> String {
        match &self.0 {
            Repr::One(device) => device.name(),
            Repr::Several(several) => several.spec.to_string(),
        }
    }
}

impl From<Device> for DeviceSet {
    fn from(device: Device) -> DeviceSet {
        DeviceSet(Repr::One(device))
    }
}

impl From<&Device> for DeviceSet {
    fn from(device: &Device) -> DeviceSet {
        DeviceSet(Repr::One(device.clone()))
    }
}

impl From<&DeviceSet> for DeviceSet {
    fn from(set: &DeviceSet) -> DeviceSet {
        set.clone()
    }
}

impl fmt::Display for DeviceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spec())
    }
}

impl fmt::Debug for DeviceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spec())
    }
}

impl Cluster {
    /// Returns the device that a specification names: `w0/cpu:0`, or a part of it that fits only one device, such as
    /// `w0`. Considers the workers that were serving when the cluster was connected to, or when [`Cluster::devices`]
    /// was last awaited.
    ///
    /// # Errors
    ///
    /// `invalid_argument` where the text is no specification, or fits several devices; `not_found` where it fits none.
    pub fn device(&self, spec: &str) -> Result<Device> {
        let set = self.device_set(spec)?;
        match set.only() {
            Some(device) => Ok(device.clone()),
            None => {
                let names = names(set.devices());
                let msg = format!("'{spec}' fits several devices: {names}");
                let advice = "name one of them, or leave the choice open with `device_set`";
                Err(Error::new(Code::InvalidArgument, msg).advise(advice))
            }
        }
    }

    /// Returns the devices that fit a specification: one device, as `w0/cpu:0`; all of a worker, as `w0`; those of all
    /// workers whose names match, as `w*`; all of a kind, as `cpu` or `kind:cpu`; or both, as `w*/cpu`. The set is for
    /// [`with_device`](crate::with_device) and [`Tensor::on`](crate::Tensor::on), which choose among its devices.
    /// Considers the same workers as [`Cluster::device`].
    ///
    /// # Errors
    ///
    /// `invalid_argument` where the text is no specification; `not_found` where it fits no device.
    pub fn device_set(&self, spec: &str) -> Result<DeviceSet> {
        let wanted: DeviceSpec = spec.parse()?;
        let members = self.eager.members();
        let fits = |m: &&Participant| wanted.contains(&m.name, &self.eager.device_at(m));
        let fits = members.iter().filter(fits);
        let mut devices: Vec<Device> = fits.map(|m| self.device_of(m)).collect();
        if devices.len() > 1 {
            let spec = wanted;
            return Ok(DeviceSet(Repr::Several(Arc::new(DeviceList {
                spec,
                devices,
            }))));
        }
        devices.pop().map(DeviceSet::from).ok_or_else(|| {
            let all: Vec<Device> = members.iter().map(|m| self.device_of(m)).collect();
            let known = match all.is_empty() {
                true => "there is none".into(),
                false => format!("there are: {}", names(&all)),
            };
            Error::new(Code::NotFound, format!("no device is '{spec}'; {known}"))
                .advise("await `cluster.devices()` where a worker has joined since")
        })
    }
}

fn names(devices: &[Device]) -> String {
    let names: Vec<String> = devices.iter().map(Device::name).collect();
    printable::list(names.iter().map(String::as_str))
}
