//! Words by which kernels say that they met elements that they cannot use, such as an index beyond an axis.
//!
//! A word belongs to one launch from its enqueueing until an event behind it has come.

use std::sync::{Arc, Mutex, PoisonError};

use convoke_worker::device::DeviceStep;

use super::staging::{Staging, StagingBlock};
use crate::driver::DriverResult;

/// Words of a queue. A queue has few launches that can fail so; more of them in flight at once are refused as busy.
const WORDS: usize = 512;

/// The words of a queue, in memory that the GPU writes and the host reads.
pub(crate) struct Faults {
    words: StagingBlock,
    free: Mutex<Vec<usize>>,
}

// SAFETY: a word is read and written by its holder alone, through atomic or volatile accesses.
unsafe impl Sync for Faults {}

/// A word, and the launch that it is for.
pub(crate) struct FaultWord {
    faults: Arc<Faults>,
    at: usize,
    pub step: Arc<DeviceStep>,
    pub node: u32,
}

impl Faults {
    pub fn new(staging: &Staging) -> DriverResult<Faults> {
        let mut words = staging.block(WORDS * 8)?;
        words.contents(WORDS * 8).fill(0);
        Ok(Faults {
            words,
            free: Mutex::new((0..WORDS).collect()),
        })
    }

    /// Takes a word for a launch; `None` where all are taken.
    pub fn take(self: &Arc<Self>, step: &Arc<DeviceStep>, node: u32) -> Option<FaultWord> {
        let at = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()?;
        Some(FaultWord {
            faults: self.clone(),
            at,
            step: step.clone(),
            node,
        })
    }
}

impl FaultWord {
    fn pointer(&self) -> *mut i64 {
        self.faults
            .words
            .address()
            .cast::<i64>()
            .wrapping_add(self.at)
    }

    /// The address that the kernel writes.
    pub fn address(&self) -> u64 {
        self.pointer() as u64
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
        let mut free = self
            .faults
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        free.push(self.at);
    }
}
