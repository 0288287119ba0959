//! How small tensors share blocks of a memory, and the most bytes that they then take.

use convoke_graph::offsets::ALIGN;
use serde::{Deserialize, Serialize};

/// The largest block that a device may say its small tensors share.
const LARGEST_BLOCK: u32 = 16 << 20;

/// The blocks that small tensors share. By default each tensor takes its own bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedBlocks {
    /// Tensors of at most this many bytes share blocks; 0 where none do.
    pub small: u32,
    /// Bytes of a block; more than an aligned tensor of `small` bytes takes.
    pub block: u32,
}

impl SharedBlocks {
    /// Returns whether blocks that another process states can be some.
    pub fn is_possible(self) -> bool {
        match self.small {
            0 => self.block == 0,
            _ => self.largest() < self.block.into() && self.block <= LARGEST_BLOCK,
        }
    }

    /// Returns the most bytes that a tensor takes, with its part of what is left free at the end of full blocks. A block
    /// that is not full is [`SharedBlocks::unfilled`].
    pub fn bytes_of(self, len: u64) -> u64 {
        if len == 0 || len > self.small.into() {
            return len;
        }
        // A block may be full once less than the largest small tensor takes is free.
        let (aligned, block) = (len.next_multiple_of(ALIGN as u64), u64::from(self.block));
        let least = block.saturating_sub(self.largest()).max(1);
        (aligned * block).div_ceil(least)
    }

    /// Returns the bytes that the largest tensor which shares a block takes of it.
    fn largest(self) -> u64 {
        u64::from(self.small).next_multiple_of(ALIGN as u64)
    }

    /// Returns the most bytes of the block that is not full.
    pub fn unfilled(self) -> u64 {
        self.block.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Ledger, Pool, Purpose};
    use convoke_graph::DType;

    #[test]
    fn a_pool_takes_no_more_than_the_bound() {
        let check = |sizes: &[usize]| {
            let ledger = Ledger::new("w0", 1 << 30);
            let pool = Pool::new(&ledger, Purpose::Weights, 0).unwrap();
            let made: Vec<_> = sizes
                .iter()
                .map(|n| pool.tensor(DType::U8, &[*n]).unwrap())
                .collect();
            let used = ledger.total_and_peak().0;
            let blocks = Pool::SHARED_BLOCKS;
            let each = sizes.iter().map(|n| blocks.bytes_of(*n as u64));
            let bound = each.sum::<u64>() + blocks.unfilled();
            assert!(
                used <= bound,
                "{used} of {bound} for {} tensors",
                made.len()
            );
            // The bound is not far off, either.
            assert!(bound <= used + used / 8 + 2 * blocks.unfilled());
        };
        check(&[17]);
        check(&[1 << 20, 100, 5000]);
        check(&[4096; 100]);
        check(&[4095, 17, 2049, 640].repeat(200));
    }

    #[test]
    fn blocks_of_another_process_are_checked() {
        let check = |small: u32, block: u32, want: bool| {
            assert_eq!(
                SharedBlocks { small, block }.is_possible(),
                want,
                "{small} {block}"
            );
        };
        check(0, 0, true);
        check(4096, 65536, true);
        check(4096, 4096, false);
        // A tensor of one byte would take a whole block.
        check(1, 64, false);
        check(1, 65, true);
        check(0, 65536, false);
        check(1, u32::MAX, false);
    }
}
