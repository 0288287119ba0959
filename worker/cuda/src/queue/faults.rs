//! Words by which kernels say that they met elements that they cannot use, such as an index beyond an axis.
//!
//! A word belongs to one launch from its enqueueing until an event behind it has come.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use convoke_common::error::{Code, Error};
use convoke_worker::device::{DeviceFailure, DeviceStep};
use smallvec::SmallVec;

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

/// Whether a launch or one that it depends on met elements that it cannot use, once that is known. Its results have it.
#[derive(Default)]
pub(crate) struct Fate(OnceLock<Option<Arc<DeviceFailure>>>);

impl Fate {
    /// Notes the failure, or that there is none.
    pub fn decide(&self, failure: Option<Arc<DeviceFailure>>) {
        let _ = self.0.set(failure);
    }

    /// The failure, if it is known that there is one.
    pub fn failure(&self) -> Option<Arc<DeviceFailure>> {
        self.0.get().cloned().flatten()
    }

    /// Whether it is known that there is no failure.
    pub fn is_good(&self) -> bool {
        matches!(self.0.get(), Some(None))
    }
}

/// A failure at `node`; `None` stands for a cancelled step.
pub(crate) fn failed(node: u32, error: Option<Error>) -> Arc<DeviceFailure> {
    Arc::new(DeviceFailure { node, error })
}

/// A launch whose kernels may meet such elements, or that depends on such launches of which not all are known to be good.
pub(crate) struct CheckedLaunch {
    pub step: Arc<DeviceStep>,
    pub words: SmallVec<[FaultWord; 1]>,
    /// The fates of what it reads. The launches were enqueued before, so their fates are decided before.
    pub reads: SmallVec<[Arc<Fate>; 2]>,
    pub fate: Arc<Fate>,
}

impl CheckedLaunch {
    /// Decides the launch's fate, once an event behind it has come, and fails its step where the fate is bad.
    pub fn decide(&self) {
        let met = self.words.iter().find(|word| word.is_set());
        let met = met.map(|word| {
            let error = Error::new(Code::KernelFailed, "an index is beyond its axis");
            failed(word.node, Some(error))
        });
        let failure = met.or_else(|| self.reads.iter().find_map(|fate| fate.failure()));
        if let Some(failure) = &failure {
            self.step.fail(failure);
        }
        self.fate.decide(failure);
    }
}

/// A word, and the launch that it is for.
pub(crate) struct FaultWord {
    faults: Arc<Faults>,
    address: usize,
    node: u32,
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, Words> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a word for a launch.
    pub fn take(self: &Arc<Self>, staging: &Staging, node: u32) -> DriverResult<FaultWord> {
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
            node,
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
