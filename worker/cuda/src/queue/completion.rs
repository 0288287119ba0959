//! The thread of a queue that waits for events, in the order of the queue, and calls back.
//!
//! A thread and no host function on the stream: the driver does not call host functions after an error of the context, and
//! does not let them call the driver, while callbacks enqueue the next launches. A thread and no poller: it sleeps in the
//! driver until its event has come.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use convoke_common::error::Error;
use convoke_common::memory::Pool;
use convoke_graph::{DType, Shape, Tensor};
use convoke_worker::device::{CopiedCallback, DeviceFailure, DeviceStep, EventCallback};

use super::faults::{CheckedLaunch, Fate, FaultWord, failed};
use super::memory::Lanes;
use super::staging::StagingBlock;
use crate::driver::EventId;
use crate::gpu::Gpu;

/// Launches of one step between two events.
pub(crate) struct Region {
    pub step: Arc<DeviceStep>,
    pub first: u32,
    pub last: u32,
}

/// The launches before an event, and those of them that are looked at once the event has come.
#[derive(Default)]
pub(crate) struct Behind {
    pub regions: Vec<Region>,
    /// In the order of the queue.
    pub checked: Vec<CheckedLaunch>,
}

/// A copy to the host.
pub(crate) struct Copy {
    pub step: Arc<DeviceStep>,
    pub node: u32,
    pub dtype: DType,
    pub shape: Shape,
    pub pool: Pool,
    pub then: CopiedCallback,
    /// The fate of the launch that makes the elements, where it has one.
    pub fate: Option<Arc<Fate>>,
    /// The pinned memory that has the elements, or why there are none.
    pub staged: Result<StagingBlock, Arc<DeviceFailure>>,
}

/// The action that follows an event.
pub(crate) enum Then {
    /// The pinned memory of a copy to the device is free.
    Release(StagingBlock),
    Copied(Box<Copy>),
    Call(EventCallback),
}

/// An event to wait for, if it could be recorded, and the action that follows it.
pub(crate) struct Completion {
    pub event: Option<EventId>,
    pub behind: Behind,
    pub then: Then,
}

/// Handles completions until the queue and its last work are gone. The lanes are dropped after that.
pub(crate) fn run(gpu: &Gpu, lanes: Arc<Lanes>, completions: &Receiver<Completion>) {
    while let Ok(completion) = completions.recv() {
        let done = catch_unwind(AssertUnwindSafe(|| completion.complete(gpu)));
        if done.is_err() {
            gpu.lose("a callback of its queue panicked");
        }
    }
    lanes.wait();
    drop(lanes);
}

impl Completion {
    /// Waits for the event and calls back. A GPU that is lost is not waited for.
    pub fn complete(self, gpu: &Gpu) {
        if let Some(event) = self.event {
            if gpu.lost().is_none() {
                self.behind.work(true);
                let came = gpu.driver.wait_for(event);
                self.behind.work(false);
                if let Err(e) = came {
                    gpu.lose(&e.message);
                }
            }
            gpu.driver.end_event(event);
        }
        // Regions that ended before the loss was seen may have been computed by a context that was failing.
        let lost = gpu.lost();
        match lost {
            Some(lost) => self.behind.lost(lost),
            None => self.behind.check(),
        }
        match (self.then, lost) {
            // The copy of a lost GPU may not have ended, so that its pinned memory is never used again.
            (Then::Release(block), Some(_)) => std::mem::forget(block),
            (Then::Release(_), None) => {}
            (Then::Call(then), _) => then(),
            (Then::Copied(copy), Some(lost)) => copy.lost(lost),
            (Then::Copied(copy), None) => {
                let failure = copy.fate.as_ref().and_then(|fate| fate.failure());
                copy.end(failure);
            }
        }
    }
}

impl Behind {
    /// Notes that the first nodes of the regions are at work, or that none is. Nobody knows which of a region's nodes is.
    fn work(&self, begins: bool) {
        for region in &self.regions {
            region.step.works_at(begins.then_some(region.first));
        }
    }

    /// Fails the steps whose launches were behind the loss. Their words stay, because the launches may not have ended.
    fn lost(&self, error: &Error) {
        let words = self.checked.iter().flat_map(|launch| &launch.words);
        words.for_each(FaultWord::leak);
        for region in &self.regions {
            let mut error = error.clone();
            if region.first < region.last {
                error.message = format!(
                    "{}; it was seen behind nodes {} to {}",
                    error.message, region.first, region.last
                );
            }
            region.step.fail(&failed(region.first, Some(error)));
        }
    }

    /// Fails the steps whose kernels met elements that they cannot use, or read what such kernels made.
    fn check(&self) {
        self.checked.iter().for_each(CheckedLaunch::decide);
    }
}

impl Copy {
    /// Hands over the elements, or the failure of the launch that should have made them.
    fn end(self, failure: Option<Arc<DeviceFailure>>) {
        let copied = match (self.staged, failure) {
            (Err(failure), _) | (Ok(_), Some(failure)) => Err(failure),
            (Ok(block), None) => {
                let copied = copied(block, self.dtype, &self.shape, &self.pool);
                copied.map_err(|e| failed(self.node, Some(e)))
            }
        };
        (self.then)(copied);
    }

    /// Hands over the loss. The pinned memory stays, because the copy may not have ended.
    fn lost(mut self, error: &Error) {
        let own = || failed(self.node, Some(error.clone()));
        let failure = self.step.failure().cloned().unwrap_or_else(own);
        if let Ok(block) = std::mem::replace(&mut self.staged, Err(failure)) {
            std::mem::forget(block);
        }
        self.end(None);
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
