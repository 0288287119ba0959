//! Pinned host memory, through which all copies pass.
//!
//! Pinning takes longer than a copy of a few kilobytes, so blocks are kept by size up to a limit. The largest are given up first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::driver::{Driver, DriverResult};

/// The most bytes of blocks that are kept while nothing uses them.
const KEPT: usize = 256 << 20;

/// The least bytes of a block.
const LEAST: usize = 4 << 10;

/// Blocks of more bytes are no power of two: they have the next multiple of this.
const LARGE: usize = 1 << 20;

#[derive(Default)]
struct Idle {
    /// Addresses of blocks by their bytes.
    blocks: BTreeMap<usize, Vec<usize>>,
    bytes: usize,
}

/// The pinned memory of a GPU.
pub(crate) struct Staging(Arc<Pinned>);

struct Pinned {
    driver: Arc<dyn Driver>,
    idle: Mutex<Idle>,
}

/// A block of pinned memory, which is used again once it is dropped.
pub(crate) struct StagingBlock {
    pinned: Arc<Pinned>,
    address: *mut u8,
    bytes: usize,
}

// SAFETY: the block is plain memory, and only its owner has the address.
unsafe impl Send for StagingBlock {}

impl Staging {
    pub fn new(driver: Arc<dyn Driver>) -> Staging {
        Staging(Arc::new(Pinned {
            driver,
            idle: Mutex::default(),
        }))
    }

    /// A block of at least this many bytes.
    pub fn block(&self, bytes: usize) -> DriverResult<StagingBlock> {
        let bytes = match bytes > LARGE {
            true => bytes.checked_next_multiple_of(LARGE).unwrap_or(bytes),
            false => bytes.max(LEAST).next_power_of_two(),
        };
        let idle = {
            let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let found = idle.blocks.get_mut(&bytes).and_then(Vec::pop);
            idle.bytes -= found.map_or(0, |_| bytes);
            found
        };
        let address = match idle {
            Some(address) => address as *mut u8,
            None => self.0.driver.pin(bytes)?,
        };
        Ok(StagingBlock {
            pinned: self.0.clone(),
            address,
            bytes,
        })
    }
}

impl StagingBlock {
    /// The block's first byte.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// The first `bytes` bytes, which nothing else uses.
    pub fn contents(&mut self, bytes: usize) -> &mut [u8] {
        let bytes = bytes.min(self.bytes);
        // SAFETY: the block has as many bytes, pinned memory is initialised, and `self` is borrowed alone. The GPU uses
        // the block only between a copy's enqueueing and its event, and the queue calls this before and after.
        unsafe { std::slice::from_raw_parts_mut(self.address, bytes) }
    }
}

impl Idle {
    /// Keeps a block where there is room, for which larger blocks give way; returns the blocks that are not kept.
    fn keep(&mut self, block: usize, bytes: usize) -> Vec<usize> {
        let mut given_up = vec![];
        while self.bytes + bytes > KEPT {
            let larger = self.blocks.last_entry().filter(|of| *of.key() > bytes);
            let Some(mut larger) = larger else {
                given_up.push(block);
                return given_up;
            };
            match larger.get_mut().pop() {
                Some(block) => {
                    self.bytes -= *larger.key();
                    given_up.push(block);
                }
                None => drop(larger.remove()),
            }
        }
        self.bytes += bytes;
        self.blocks.entry(bytes).or_default().push(block);
        given_up
    }
}

impl Drop for StagingBlock {
    fn drop(&mut self) {
        let idle = self.pinned.idle.lock();
        let mut idle = idle.unwrap_or_else(PoisonError::into_inner);
        let given_up = idle.keep(self.address as usize, self.bytes);
        drop(idle);
        for address in given_up {
            // SAFETY: the block came from the driver, its owner ended, and nobody else can find it.
            unsafe { self.pinned.driver.unpin(address as *mut u8) };
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let idle = self.idle.get_mut().unwrap_or_else(PoisonError::into_inner);
        for address in idle.blocks.values().flatten() {
            // SAFETY: the block came from the driver, and nothing uses it.
            unsafe { self.driver.unpin(*address as *mut u8) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_give_way_to_small_ones() {
        let mut idle = Idle::default();
        for block in 1..=4 {
            assert!(idle.keep(block, KEPT / 4).is_empty());
        }
        assert_eq!(idle.keep(5, KEPT / 2), [5]);
        assert_eq!(idle.keep(6, LEAST), [4]);
        assert!(idle.keep(7, LEAST).is_empty());
        assert_eq!(idle.bytes, KEPT / 4 * 3 + LEAST * 2);
    }
}
