//! Memory of dropped tensors that is kept for the next ones of their size: the system clears memory before a process
//! has it, which takes longer than most kernels take to fill it.
//!
//! Invariants
//! 1. Kept memory and memory in use together never exceed the ledger's limit, nor the most that was ever in use at
//!    once: keeping memory raises no peak.
//! 2. Memory passes only between tensors of the same token, or of none.
//! 3. Memory that was kept for two periods of [`IDLE`] is released, as long as [`Ledger::release_idle`] runs.
//! 4. No memory is released under the ledger's lock, since the system takes a while for it.

use std::collections::VecDeque;
use std::time::Duration;

use convoke_graph::block::Block;

use super::{Ledger, Purpose, Reservation};
use crate::error::Result;
use crate::identity::TokenId;

/// The smallest block that is kept, in bytes: the allocator itself keeps smaller ones.
const LEAST: usize = 128 << 10;
/// The most bytes that a ledger keeps, and the fraction of its limit that they may be.
const MOST: u64 = 256 << 20;
const PART: u64 = 8;
/// The period in which memory that nobody took is released.
const IDLE: Duration = Duration::from_secs(1);

/// The kept memory of a ledger, in the order in which it was dropped.
#[derive(Default)]
pub(super) struct BlockCache {
    blocks: VecDeque<KeptBlock>,
    bytes: u64,
    /// Counts the periods.
    period: u64,
}

struct KeptBlock {
    memory: Block,
    /// The token of the tensor that was here.
    token: Option<TokenId>,
    /// The period in which that tensor was dropped.
    since: u64,
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes kept", self.bytes)
    }
}

impl BlockCache {
    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn put(&mut self, memory: Block, token: Option<TokenId>) {
        self.bytes += memory.len() as u64;
        self.blocks.push_back(KeptBlock {
            memory,
            token,
            since: self.period,
        });
    }

    /// The place of the block of this length and token that was dropped last.
    fn find(&self, len: usize, token: Option<&TokenId>) -> Option<usize> {
        let fits = |b: &KeptBlock| b.memory.len() == len && b.token.as_ref() == token;
        self.blocks.iter().rposition(fits)
    }

    fn take(&mut self, at: usize) -> Option<Block> {
        let memory = self.blocks.remove(at)?.memory;
        self.bytes -= memory.len() as u64;
        Some(memory)
    }

    /// Takes out the blocks that were kept longest, as long as `goes` holds.
    fn oldest(&mut self, mut goes: impl FnMut(&BlockCache, &KeptBlock) -> bool) -> Vec<Block> {
        let mut all = vec![];
        while self.blocks.front().is_some_and(|b| goes(self, b)) {
            all.extend(self.take(0));
        }
        all
    }

    /// Takes out blocks until at most `most` bytes are kept.
    pub fn above(&mut self, most: u64) -> Vec<Block> {
        self.oldest(|kept, _| kept.bytes > most)
    }

    /// Begins a period, and takes out the blocks that were dropped before the period that ends now.
    fn next_period(&mut self) -> Vec<Block> {
        let idle = self.oldest(|kept, block| block.since < kept.period);
        self.period += 1;
        idle
    }
}

impl Ledger {
    /// The same ledger, which also keeps memory of dropped tensors for the next ones.
    pub fn keeping(self) -> Ledger {
        Ledger {
            keeps: MOST.min(self.limit / PART),
            ..self
        }
    }

    /// Memory of `len` bytes with unspecified content that a tensor of this ledger's token has left, reserved for
    /// `purpose`; `None` where there is none. Fails where the owner may not have as much.
    pub(super) fn kept(
        &self,
        purpose: Purpose,
        len: usize,
    ) -> Result<Option<(Block, Reservation)>> {
        if len < LEAST || self.keeps == 0 {
            return Ok(None);
        }
        let (bytes, owner) = (len as u64, self.owner());
        let mut b = self.books();
        let Some(at) = b.kept.find(len, owner.map(|owner| &owner.token)) else {
            return Ok(None);
        };
        owner.map_or(Ok(()), |o| b.afford(o, bytes, &self.place.name))?;
        let Some(memory) = b.kept.take(at) else {
            return Ok(None);
        };
        b.add(owner, purpose, bytes);
        drop(b);
        let ledger = self.clone();
        let reservation = Reservation {
            ledger,
            purpose,
            bytes,
        };
        Ok(Some((memory, reservation)))
    }

    /// Releases kept memory that nobody takes, for as long as the future runs.
    pub async fn release_idle(&self) {
        loop {
            self.keeps_some.notified().await;
            while self.books().kept.bytes > 0 {
                tokio::time::sleep(IDLE).await;
                let idle = self.books().kept.next_period();
                drop(idle);
            }
        }
    }
}

impl Reservation {
    /// Ends the reservation, whose memory is no longer used: the ledger keeps or releases it.
    pub(super) fn keep(mut self, memory: Block) {
        let (ledger, len) = (self.ledger.clone(), memory.len());
        if len < LEAST || len as u64 > ledger.keeps {
            // The memory is released before its reservation.
            return drop(memory);
        }
        let bytes = std::mem::take(&mut self.bytes);
        let mut b = ledger.books();
        b.subtract(ledger.owner(), self.purpose, bytes);
        b.kept
            .put(memory, ledger.owner().map(|owner| owner.token.clone()));
        let above = b.kept.above(ledger.keeps);
        drop(b);
        drop(above);
        ledger.freed.notify_waiters();
        ledger.keeps_some.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use convoke_graph::Tensor;
    use convoke_graph::dtype::DType;

    use super::super::{Owner, Pool};
    use super::*;
    use crate::error::Code;

    const SIZE: u64 = 4 << 20;

    fn tensor(pool: &Pool, len: u64) -> Result<Tensor> {
        pool.tensor(DType::U8, &[len as usize])
    }

    fn place(t: &Tensor) -> *const u8 {
        t.bytes().as_ptr()
    }

    /// Bytes in use, and bytes kept.
    fn counted(l: &Ledger) -> (u64, u64) {
        let kept = l.used().get(&Purpose::Kept).copied();
        (l.total_and_peak().0, kept.unwrap_or(0))
    }

    fn pool(l: &Ledger) -> Pool {
        Pool::new(l, Purpose::Leases, 0).unwrap()
    }

    #[test]
    fn memory_is_kept_for_the_next_tensor_of_its_size_and_counts_as_free() {
        let l = Ledger::new("w0", 16 * SIZE).keeping();
        let p = pool(&l);
        drop(l.reserve(Purpose::Weights, 4 * SIZE).unwrap());
        let (a, b) = (tensor(&p, SIZE).unwrap(), tensor(&p, LEAST as u64).unwrap());
        let places = [place(&a), place(&b)];
        drop((a, b));
        assert_eq!(counted(&l), (0, SIZE + LEAST as u64));
        assert_eq!(p.live_bytes(), 0);
        let (b, a) = (tensor(&p, LEAST as u64).unwrap(), tensor(&p, SIZE).unwrap());
        assert_eq!([place(&a), place(&b)], places);
        assert_eq!(counted(&l), (SIZE + LEAST as u64, 0));
        drop((a, b));
        // Small blocks are left to the allocator.
        drop(tensor(&p, LEAST as u64 - 1).unwrap());
        assert_eq!(counted(&l).1, SIZE + LEAST as u64);
        // All memory can be reserved, whatever is kept.
        let all = l.reserve(Purpose::Weights, 16 * SIZE).unwrap();
        assert_eq!(counted(&l), (16 * SIZE, 0));
        drop(all);
        // A ledger that was not asked to keeps nothing.
        let plain = Ledger::new("w0", 16 * SIZE);
        drop(tensor(&pool(&plain), SIZE).unwrap());
        assert_eq!(counted(&plain), (0, 0));
    }

    #[test]
    fn keeping_raises_no_peak_and_has_a_bound() {
        let l = Ledger::new("w0", 64 * SIZE).keeping();
        let p = pool(&l);
        let three = [(); 3].map(|()| tensor(&p, SIZE).unwrap());
        drop(three);
        assert_eq!(counted(&l), (0, 3 * SIZE));
        // A block of another size takes the place of the kept ones.
        let other = tensor(&p, SIZE + 1).unwrap();
        assert_eq!(counted(&l), (SIZE + 1, SIZE));
        assert_eq!(l.total_and_peak().1, 3 * SIZE);
        drop(other);
        let many = [(); 9].map(|()| tensor(&p, SIZE).unwrap());
        drop(many);
        assert_eq!(counted(&l), (0, 8 * SIZE));
        // A block larger than all that may be kept is released, and the others stay, although the peak leaves room for
        // both.
        drop(l.reserve(Purpose::Weights, 20 * SIZE).unwrap());
        let many = [(); 8].map(|()| tensor(&p, SIZE).unwrap());
        drop(many);
        drop(tensor(&p, 9 * SIZE).unwrap());
        assert_eq!(counted(&l), (0, 8 * SIZE));
    }

    #[test]
    fn a_block_as_large_as_all_that_may_be_kept_is_kept() {
        let l = Ledger::new("w0", PART * SIZE).keeping();
        drop(tensor(&pool(&l), SIZE).unwrap());
        assert_eq!(counted(&l), (0, SIZE));
    }

    #[test]
    fn memory_passes_within_a_token_which_is_not_charged_for_what_is_kept() {
        let l = Ledger::new("w0", 64 * SIZE).keeping();
        let of = |token: &str, limit: u64| {
            let owner = Owner {
                token: token.parse().unwrap(),
                member: "client".into(),
                limit,
            };
            pool(&l.of(owner))
        };
        let (a, b) = (of("aaaa", SIZE), of("bbbb", SIZE));
        let mut mine = tensor(&a, SIZE).unwrap();
        mine.bytes_mut().unwrap().fill(7);
        drop(mine);
        assert!(l.holdings().is_empty());
        let theirs = tensor(&b, SIZE).unwrap();
        assert!(theirs.bytes().iter().all(|byte| *byte == 0));
        drop(theirs);
        let mine = tensor(&a, SIZE).unwrap();
        assert_eq!(l.holdings()[0].total(), SIZE);
        // Kept memory is no way around a budget.
        drop((tensor(&b, SIZE).unwrap(), mine));
        let held = tensor(&a, LEAST as u64).unwrap();
        assert_eq!(tensor(&a, SIZE).unwrap_err().code, Code::OutOfMemory);
        drop(held);
        tensor(&a, SIZE).unwrap();
    }

    #[test]
    fn what_is_shared_is_not_kept() {
        let l = Ledger::new("w0", 64 * SIZE).keeping();
        let p = pool(&l);
        let made = tensor(&p, SIZE).unwrap();
        let (shared, charge) = p.share(&made).unwrap();
        drop((made, charge, shared));
        assert_eq!(counted(&l), (0, 0));
    }

    #[test]
    fn what_nobody_took_for_a_period_is_released() {
        let l = Ledger::new("w0", 64 * SIZE).keeping();
        let p = pool(&l);
        drop(l.reserve(Purpose::Weights, 4 * SIZE).unwrap());
        let period = || drop(l.books().kept.next_period());
        drop(tensor(&p, SIZE).unwrap());
        period();
        drop(tensor(&p, LEAST as u64).unwrap());
        assert_eq!(counted(&l), (0, SIZE + LEAST as u64));
        period();
        assert_eq!(counted(&l), (0, LEAST as u64));
        // Blocks that are used again and again stay.
        for _ in 0..3 {
            drop(tensor(&p, LEAST as u64).unwrap());
            period();
            assert_eq!(counted(&l), (0, LEAST as u64));
        }
        period();
        assert_eq!(counted(&l), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_ledger_that_releases_idle_memory_ends_with_none() {
        let l = Ledger::new("w0", 64 * SIZE).keeping();
        drop(tensor(&pool(&l), SIZE).unwrap());
        let released = tokio::time::timeout(5 * IDLE, l.release_idle());
        released.await.unwrap_err();
        assert_eq!(counted(&l), (0, 0));
    }
}
