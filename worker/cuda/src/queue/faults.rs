//! Words by which kernels say that they met elements that they cannot use, such as an index beyond an axis.
//!
//! A word belongs to one launch from its enqueueing until an event behind it has come.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use convoke_worker::device::{DeviceFailure, DeviceStep};

use super::staging::{Staging, StagingBlock};
use crate::driver::DriverResult;

/// Words of a block of memory. A queue has few launches that can fail so, and takes another block where they are not enough.
const WORDS: usize = 512;

/// The words of a queue, in memory that the GPU writes and the host reads.
#[derive(Default)]
pub(crate) struct Faults(Mutex<Words>);

#[derive(Default)]
struct Words {
    blocks: Vec<StagingBlock>,
    /// Addresses of words that belong to no launch, which are all 0.
    free: Vec<usize>,
}

/// Whether a launch met elements that it cannot use, once that is known. Its results have it, and so do the results of every
/// launch that reads them.
pub(crate) struct Fate {
    /// The step of the launch.
    step: Weak<DeviceStep>,
    decided: OnceLock<Option<Arc<DeviceFailure>>>,
}

impl Fate {
    /// Notes that the launch has ended, and its failure.
    pub fn decide(&self, failure: Option<Arc<DeviceFailure>>) {
        let _ = self.decided.set(failure);
    }

    /// Whether the launch is one of this step.
    pub fn is_of(&self, step: &Arc<DeviceStep>) -> bool {
        std::ptr::eq(self.step.as_ptr(), Arc::as_ptr(step))
    }

    /// The failure of the launch, if it is known to have failed.
    pub fn failure(&self) -> Option<Arc<DeviceFailure>> {
        self.decided.get().cloned().flatten()
    }

    /// Whether the launch is known to have met nothing.
    pub fn is_good(&self) -> bool {
        matches!(self.decided.get(), Some(None))
    }
}

/// The first known failure of these launches.
pub(crate) fn failure_of(fates: &[Arc<Fate>]) -> Option<Arc<DeviceFailure>> {
    fates.iter().find_map(|fate| fate.failure())
}

/// A word, and the launch that it is for.
pub(crate) struct FaultWord {
    faults: Arc<Faults>,
    address: usize,
    pub step: Arc<DeviceStep>,
    pub node: u32,
    pub fate: Arc<Fate>,
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, Words> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a word for a launch.
    pub fn take(
        self: &Arc<Self>,
        staging: &Staging,
        step: &Arc<DeviceStep>,
        node: u32,
    ) -> DriverResult<FaultWord> {
        let mut words = self.lock();
        let address = match words.free.pop() {
            Some(address) => address,
            None => {
                let mut block = staging.block(WORDS * 8)?;
                block.contents(WORDS * 8).fill(0);
                let first = block.address() as usize;
                words.free.extend((1..WORDS).map(|i| first + i * 8));
                words.blocks.push(block);
                first
            }
        };
        Ok(FaultWord {
            faults: self.clone(),
            address,
            step: step.clone(),
            node,
            fate: Arc::new(Fate {
                step: Arc::downgrade(step),
                decided: OnceLock::new(),
            }),
        })
    }
}

impl FaultWord {
    fn pointer(&self) -> *mut i64 {
        self.address as *mut i64
    }

    /// Keeps the memory of the words for ever, for a launch of which nobody knows when it ends.
    pub fn leak(&self) {
        std::mem::forget(self.faults.clone());
    }

    /// The address that the kernel writes.
    pub fn address(&self) -> u64 {
        self.address as u64
    }

    /// Whether the kernel, which has ended, wrote the word.
    pub fn is_set(&self) -> bool {
        // SAFETY: the word is within the block, and the launch that may write it has ended.
        unsafe { self.pointer().read_volatile() != 0 }
    }
}

impl Drop for FaultWord {
    fn drop(&mut self) {
        // SAFETY: the word is within the block, and this is its only holder.
        unsafe { self.pointer().write_volatile(0) };
        self.faults.lock().free.push(self.address);
    }
}
