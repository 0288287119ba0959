//! The device: kernels by op, and queues.

use std::sync::{Arc, OnceLock};

use convoke_common::error::{Code, Error, Result};
use convoke_common::memory::{Ledger, Purpose};
use convoke_common::world::Share;
use convoke_graph::ops::KernelSet;
use convoke_worker::device::{Device, DeviceKernel, DeviceOp, DeviceQueue};

use crate::driver::{Driver, DriverError, DriverResult, EventId, Functions, StreamId};
use crate::kernels::{Template, listing, template};
use crate::queue::CudaQueue;
use crate::queue::staging::Staging;

/// The state that all queues of a GPU share.
pub(crate) struct Gpu {
    pub driver: Arc<dyn Driver>,
    pub staging: Staging,
    lost: OnceLock<Error>,
}

impl Gpu {
    /// Why the GPU will never work again, if it will not.
    pub fn lost(&self) -> Option<&Error> {
        self.lost.get()
    }

    /// Notes that the GPU will never work again; the first cause is kept, and returned.
    pub fn lose(&self, why: &str) -> Error {
        let error = || {
            let msg = format!("the GPU {} is lost: {why}", self.driver.name());
            Error::new(Code::Wedged, msg).advise(
                "the kernel's log (dmesg) has a line NVRM: Xid with the reason; the worker starts anew",
            )
        };
        self.lost.get_or_init(error).clone()
    }

    /// Records an event behind the work that is enqueued on a stream. Without the event nobody knows when that work
    /// ends, so a driver that records none has lost the GPU.
    pub fn record(&self, stream: StreamId) -> DriverResult<EventId> {
        let event = self.driver.record(stream);
        event.inspect_err(|e| drop(self.lose(&e.message)))
    }

    /// The error of a call that the driver refused.
    pub fn error(&self, e: &DriverError) -> Error {
        match e {
            DriverError { lost: true, .. } => self.lose(&e.message),
            DriverError {
                out_of_memory: true,
                ..
            } => Error::new(
                Code::OutOfMemory,
                format!(
                    "the GPU {} has no memory left: {}",
                    self.driver.name(),
                    e.message
                ),
            )
            .advise("give the worker less device memory than the GPU has free"),
            _ => Error::new(Code::KernelFailed, e.message.clone()),
        }
    }
}

/// A kernel with its functions, or why it could not be compiled; a kernel that shares memory has none.
pub(crate) struct CudaKernel {
    pub template: Box<dyn Template>,
    pub functions: Option<DriverResult<Functions>>,
}

/// The GPU of a worker.
pub struct CudaDevice {
    gpu: Arc<Gpu>,
}

impl CudaDevice {
    /// The device behind a driver.
    pub fn new(driver: Arc<dyn Driver>) -> CudaDevice {
        let staging = Staging::new(driver.clone());
        CudaDevice {
            gpu: Arc::new(Gpu {
                driver,
                staging,
                lost: OnceLock::new(),
            }),
        }
    }
}

impl Device for CudaDevice {
    fn kernels(&self) -> KernelSet {
        listing::set()
    }

    /// A kernel that cannot be compiled is no reason to run the op elsewhere, since that would change its bits: the kernel
    /// is there, and its launches fail.
    fn resolve(&self, op: &DeviceOp<'_>) -> Option<DeviceKernel> {
        let template = template(op)?;
        let (source, count) = (template.source(), template.functions());
        let functions = source.map(|source| self.gpu.driver.functions(&source, count));
        Some(Arc::new(CudaKernel {
            template,
            functions,
        }))
    }

    fn open(
        &self,
        _: &Share,
        memory: &Ledger,
        purpose: Purpose,
        bytes: u64,
    ) -> Result<Arc<dyn DeviceQueue>> {
        if let Some(lost) = self.gpu.lost() {
            return Err(lost.clone());
        }
        let queue = CudaQueue::open(self.gpu.clone(), memory, purpose, bytes)?;
        Ok(Arc::new(queue))
    }
}
