//! The kinds of devices that workers of this process may have.
//!
//! The kinds `cpu` and `simgpu` are there. Any other is registered by the program that the workers are part of, before
//! they start, as custom ops are. The other members of the cluster need not know the kind.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use convoke_common::device_spec::{DeviceId, KINDS, may_be_kind};
use convoke_common::error::{Code, Error, Result};
use convoke_common::memory::Ledger;
use convoke_common::world::Compute;
use convoke_graph::printable::Printable;
use convoke_graph::program::NUMERICS_PROFILE;

use super::simgpu::SimGpu;
use super::{ConstantCopies, Device};

/// The most bytes of the name of a numerics profile.
pub const MOST_PROFILE: usize = 64;

/// The arguments with which a device is opened.
pub struct DeviceContext<'a> {
    /// The number of the device among those of its kind at this machine: 1 of `cuda:1`.
    pub number: u32,
    /// The name of the worker that is to own the device.
    pub worker: &'a str,
    /// The worker's compute threads, for a device that runs kernels on them.
    pub compute: &'a Arc<dyn Compute>,
    /// Bytes of device memory that the worker may use.
    pub memory: u64,
}

type Open = Box<dyn Fn(&DeviceContext<'_>) -> Result<Arc<dyn Device>> + Send + Sync>;

/// A kind of device.
pub struct DeviceKind {
    name: String,
    profile: String,
    open: Open,
}

impl DeviceKind {
    /// A kind of device. `name` is the word before the colon of `cuda:1`: a lower-case letter, then lower-case letters,
    /// digits, `-` and `_`.
    ///
    /// `profile` names the rules that decide the bits of its results: which ops it has kernels for, in which order they
    /// add, how they round. Two devices of the same profile give the same bits for every program. Plans keep workers of
    /// different profiles apart. A device whose results are those of the CPU's kernels, bit by bit, has the profile
    /// [`NUMERICS_PROFILE`].
    ///
    /// `open` is called once for each worker that has such a device, when the worker starts.
    pub fn new(
        name: &str,
        profile: &str,
        open: impl Fn(&DeviceContext<'_>) -> Result<Arc<dyn Device>> + Send + Sync + 'static,
    ) -> DeviceKind {
        DeviceKind {
            name: name.to_owned(),
            profile: profile.to_owned(),
            open: Box::new(open),
        }
    }
}

static REGISTERED: RwLock<BTreeMap<String, Arc<DeviceKind>>> = RwLock::new(BTreeMap::new());

/// Registers a kind of device with this process. Where a kind of the same name and profile is registered, that one is
/// kept.
///
/// # Errors
/// `invalid_argument` where the name or the profile cannot be one, or the name is that of another kind.
pub fn register(kind: DeviceKind) -> Result<()> {
    let DeviceKind { name, profile, .. } = &kind;
    let bad = |why: &str| {
        let msg = format!("the kind of device '{}' {why}", Printable(name));
        Err(Error::new(Code::InvalidArgument, msg))
    };
    if !may_be_kind(name) {
        return bad("has no valid name: write lower-case letters, digits, - and _");
    }
    if profile.is_empty() || profile.len() > MOST_PROFILE || !profile.is_ascii() {
        return bad(&format!(
            "needs a numerics profile of 1 to {MOST_PROFILE} ASCII characters"
        ));
    }
    if KINDS.contains(&&**name) {
        return bad("is there already");
    }
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    match registered.get(name) {
        Some(before) if before.profile != *profile => bad("is registered with another profile"),
        Some(_) => Ok(()),
        None => {
            registered.insert(name.clone(), Arc::new(kind));
            Ok(())
        }
    }
}

/// Opens the device of a worker, with `memory` bytes of its own; `None` where it is the host itself.
///
/// # Errors
/// `invalid_argument` where this process has no such kind of device, and what opening the device returns.
pub fn open(
    device: &DeviceId,
    worker: &str,
    compute: &Arc<dyn Compute>,
    memory: u64,
) -> Result<Option<OwnedDevice>> {
    if device.is_cpu() {
        return Ok(None);
    }
    if device.kind() == KINDS[1] {
        let opened = Arc::new(SimGpu::new(compute.clone()));
        return Ok(Some(OwnedDevice::new(
            worker,
            opened,
            NUMERICS_PROFILE,
            memory,
        )));
    }
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let Some(kind) = registered.get(device.kind()).cloned() else {
        let own = registered.keys().map(String::as_str);
        let known: Vec<&str> = KINDS.into_iter().chain(own).collect();
        let msg = format!("there is no kind of device '{}' here", device.kind());
        let advice = format!("the kinds of devices are {}", known.join(", "));
        return Err(Error::new(Code::InvalidArgument, msg).advise(advice));
    };
    drop(registered);
    let opened = (kind.open)(&DeviceContext {
        number: device.number(),
        worker,
        compute,
        memory,
    })?;
    Ok(Some(OwnedDevice::new(
        worker,
        opened,
        &kind.profile,
        memory,
    )))
}

/// A worker's device, with its memory.
#[derive(Clone)]
pub struct OwnedDevice {
    pub device: Arc<dyn Device>,
    /// The numerics profile of the device.
    pub profile: Arc<str>,
    /// Counts the device's memory.
    pub memory: Ledger,
    /// The constants that are on the device.
    pub constants: Arc<ConstantCopies>,
}

impl OwnedDevice {
    /// A device with this much memory, none of which is used.
    pub fn new(worker: &str, device: Arc<dyn Device>, profile: &str, memory: u64) -> OwnedDevice {
        OwnedDevice {
            device,
            profile: profile.into(),
            memory: Ledger::of_device(worker, memory),
            constants: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoke_common::world::NoCompute;

    fn kind(name: &str, profile: &str) -> DeviceKind {
        DeviceKind::new(name, profile, |context| {
            let msg = format!(
                "number {} of {} B is broken",
                context.number, context.memory
            );
            Err(Error::new(Code::Io, msg))
        })
    }

    fn opened(device: &str) -> Result<Option<OwnedDevice>> {
        let compute: Arc<dyn Compute> = Arc::new(NoCompute);
        open(&device.parse().unwrap(), "w0", &compute, 64)
    }

    #[test]
    fn a_kind_is_there_once_it_is_registered() {
        let missing = opened("broken:7").err().unwrap();
        assert_eq!(missing.code, Code::InvalidArgument);
        assert!(missing.advice.contains("cpu, simgpu"), "{missing}");
        for _ in 0..2 {
            register(kind("broken", "b:1")).unwrap();
        }
        let broken = opened("broken:7").err().unwrap();
        assert_eq!(broken.message, "number 7 of 64 B is broken");
        assert!(opened("cpu").unwrap().is_none());
        assert_eq!(
            &*opened("simgpu").unwrap().unwrap().profile,
            NUMERICS_PROFILE
        );
    }

    #[test]
    fn a_name_stands_for_one_kind() {
        register(kind("twice", "t:1")).unwrap();
        for (name, profile, why) in [
            ("twice", "t:2", "another profile"),
            ("cpu", "t:1", "is there already"),
            ("simgpu", "t:1", "is there already"),
            ("Twice", "t:1", "no valid name"),
            ("other", "", "needs a numerics profile"),
        ] {
            let refused = register(kind(name, profile)).unwrap_err();
            assert!(refused.message.contains(why), "{refused}");
        }
    }
}
