//! A GPU as its queues share it, and a kernel with its compiled functions.

use std::sync::{Arc, OnceLock};

use convoke_common::error::{Code, Error};

use crate::driver::{Driver, DriverError, DriverResult, EventId, Functions, StreamId};
use crate::kernels::Template;
use crate::queue::staging::Staging;

/// The state that all queues of a GPU share.
pub(crate) struct Gpu {
    pub driver: Arc<dyn Driver>,
    pub staging: Staging,
    lost: OnceLock<Error>,
}

impl Gpu {
    /// The GPU behind a driver.
    pub fn new(driver: Arc<dyn Driver>) -> Gpu {
        let staging = Staging::new(driver.clone());
        Gpu {
            driver,
            staging,
            lost: OnceLock::new(),
        }
    }

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
