//! The state that all steps of a worker share.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use convoke_common::device_spec::DeviceId;
use convoke_common::error::{Code, Error};
use convoke_common::rpc::Speed;
use convoke_common::world::Compute;
use convoke_graph::ids::FunctionId;
use convoke_graph::program::NUMERICS_PROFILE;

use crate::device::OwnedDevice;
use crate::health::blackbox::{BlackBox, NoteGuard};
use crate::health::drain::Gate;
use crate::health::failures::Failures;
use crate::health::wedge::{RETURNS, Watch};

/// The id of no function, for ops that are issued one by one.
pub(crate) const NO_FUNCTION: FunctionId = FunctionId([0; 32]);

/// The state that all steps of a worker share.
pub struct Engine {
    pub worker: String,
    pub host: String,
    pub compute: Arc<dyn Compute>,
    pub steps_done: AtomicU64,
    pub failures: Failures,
    /// Whether the worker takes new work, and the count of live steps.
    pub gate: Gate,
    /// The watch over work that ended and still runs.
    pub watch: Watch,
    /// The black box that notes running kernels, for a worker in a process of its own.
    pub black_box: Option<BlackBox>,
    /// The device of the worker, where it is not the host itself.
    pub device: Option<OwnedDevice>,
    /// The kind and number of the device, such as `cpu:0`.
    pub device_name: String,
    /// FLOP/s of the device and bytes/s of its memory, once they are known.
    pub device_speed: OnceLock<Speed>,
    /// Whether compute wants to hear of every node that is launched.
    pub(super) hears_launches: bool,
}

impl Engine {
    /// An engine that takes work and has run nothing yet.
    pub fn new(
        worker: &str,
        host: &str,
        compute: Arc<dyn Compute>,
        black_box: Option<BlackBox>,
    ) -> Engine {
        Engine {
            worker: worker.to_owned(),
            host: host.to_owned(),
            hears_launches: compute.hears_launches(),
            compute,
            steps_done: AtomicU64::new(0),
            failures: Failures::default(),
            gate: Gate::default(),
            watch: Watch::default(),
            black_box,
            device: None,
            device_speed: OnceLock::new(),
            device_name: DeviceId::default().to_string(),
        }
    }

    /// The engine of a worker that owns this device; `owned` is `None` where it is the host itself.
    pub fn with_device(self, device: &DeviceId, owned: Option<OwnedDevice>) -> Engine {
        Engine {
            device: owned,
            device_name: device.to_string(),
            ..self
        }
    }

    /// The numerics profile of the worker's device.
    pub fn profile(&self) -> &str {
        self.device
            .as_ref()
            .map_or(NUMERICS_PROFILE, |d| &d.profile)
    }

    /// The error of a worker whose device failed. Where the device will never work again, the worker is wedged.
    pub(crate) fn device_failed(&self, error: Error) -> Error {
        if error.code != Code::Wedged {
            return error;
        }
        let (worker, device) = (&self.worker, &self.device_name);
        let why = &error.message;
        let msg = format!("worker {worker} is wedged: its device {device} failed: {why}");
        let failed = Error::new(Code::Wedged, msg)
            .advise(RETURNS)
            .at(self.place());
        self.watch.device_failed(&failed);
        failed
    }

    /// Notes in the black box that this thread runs a kernel, until the note is dropped.
    pub fn note(&self, function: &FunctionId, node: &str) -> Option<NoteGuard<'_>> {
        self.black_box.as_ref()?.note(function, node)
    }
}
