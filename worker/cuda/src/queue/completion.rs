//! The thread of a queue that waits for events, in the order of the queue, and calls back.
//!
//! A thread and no host function on the stream: the driver does not call host functions after an error of the context, and
//! does not let them call the driver, while callbacks enqueue the next launches. A thread and no poller: it sleeps in the
//! driver until its event has come.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use convoke_common::error::{Code, Error};
use convoke_common::memory::Pool;
use convoke_graph::{DType, Shape, Tensor};
use convoke_worker::device::{CopiedCallback, DeviceFailure, DeviceStep, EventCallback};

use super::faults::FaultWord;
use super::staging::StagingBlock;
use crate::device::Gpu;
use crate::driver::EventId;

/// Launches of one step between two events.
pub(crate) struct Region {
    pub step: Arc<DeviceStep>,
    pub first: u32,
    pub last: u32,
}

/// What is known about launches once an event behind them has come.
#[derive(Default)]
pub(crate) struct Behind {
    pub regions: Vec<Region>,
    pub faults: Vec<FaultWord>,
}

/// A copy to the host.
pub(crate) struct Copy {
    pub step: Arc<DeviceStep>,
    pub node: u32,
    pub dtype: DType,
    pub shape: Shape,
    pub pool: Pool,
    pub then: CopiedCallback,
    /// The pinned memory that has the elements, or why there are none.
    pub staged: Result<StagingBlock, Arc<DeviceFailure>>,
}

/// What follows an event.
pub(crate) enum Then {
    /// The pinned memory of a copy to the device is free.
    Release(#[expect(dead_code, reason = "held until the copy has ended")] StagingBlock),
    Copied(Box<Copy>),
    Call(EventCallback),
}

/// An event to wait for, where it could be recorded, and what follows.
pub(crate) struct Completion {
    pub event: Option<EventId>,
    pub behind: Behind,
    pub then: Then,
}

/// A failure at `node`; `None` stands for a cancelled step.
pub(crate) fn failed(node: u32, error: Option<Error>) -> Arc<DeviceFailure> {
    Arc::new(DeviceFailure { node, error })
}

/// Handles completions until the queue and its last work are gone.
pub(crate) fn run(gpu: &Gpu, completions: &Receiver<Completion>) {
    while let Ok(completion) = completions.recv() {
        completion.complete(gpu);
    }
}

impl Completion {
    fn complete(self, gpu: &Gpu) {
        if let Some(event) = self.event {
            let came = gpu.driver.wait_for(event);
            gpu.driver.end_event(event);
            if let Err(e) = came {
                gpu.lose(&e.message);
            }
        }
        // Regions that ended before the loss was seen may have been computed by a context that was failing.
        match gpu.lost() {
            Some(lost) => self.behind.lost(lost),
            None => self.behind.check(),
        }
        match self.then {
            Then::Release(_) => {}
            Then::Call(then) => then(),
            Then::Copied(copy) => {
                let lost = gpu.lost().map(|lost| failed(copy.node, Some(lost.clone())));
                copy.end(lost);
            }
        }
    }
}

impl Behind {
    /// Fails the steps whose launches were behind the loss.
    fn lost(&self, error: &Error) {
        for region in &self.regions {
            let mut error = error.clone();
            error.message = format!(
                "{}; it was seen behind nodes {} to {}",
                error.message, region.first, region.last
            );
            region.step.fail(&failed(region.first, Some(error)));
        }
    }

    /// Fails the steps whose kernels met elements that they cannot use.
    fn check(&self) {
        for fault in self.faults.iter().filter(|fault| fault.is_set()) {
            let error = Error::new(Code::KernelFailed, "an index is beyond its axis");
            fault.step.fail(&failed(fault.node, Some(error)));
        }
    }
}

impl Copy {
    fn end(self, lost: Option<Arc<DeviceFailure>>) {
        let known = self.step.failure().cloned().or(lost);
        let copied = match (known, self.staged) {
            (_, Err(failure)) | (Some(failure), Ok(_)) => Err(failure),
            (None, Ok(block)) => {
                let copied = copied(block, self.dtype, &self.shape, &self.pool);
                copied.map_err(|e| failed(self.node, Some(e)))
            }
        };
        (self.then)(copied);
    }
}

fn copied(
    mut block: StagingBlock,
    dtype: DType,
    shape: &[usize],
    pool: &Pool,
) -> Result<Tensor, Error> {
    let mut copy = pool.tensor(dtype, shape)?;
    let into = copy.bytes_mut();
    let into = into.ok_or_else(|| Error::internal("cuda: a new tensor is shared"))?;
    let bytes = into.len();
    into.copy_from_slice(block.contents(bytes));
    Ok(copy)
}
