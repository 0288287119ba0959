//! Rounds of tiles: a kernel splits short work again and again, each round of which needs the results of the round before.
//!
//! To wake a thread for each round would take longer than the round. Helping threads come once and wait for the next round
//! without sleeping; one that waits for long leaves, so that it is free for other jobs.
//!
//! Invariants
//! 1. A round begins after each tile of the round before has ended, so what `between` writes is seen by the next round's tiles.
//! 2. Each tile of a round runs once, whichever threads there are; the calling thread alone is enough.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// How often a helping thread looks for a tile before it leaves: some 200 microseconds.
const LOOKS: usize = 1 << 14;
/// How often the calling thread looks whether the others' tiles have ended before it offers the processor to them.
const PATIENCE: usize = 1 << 10;

/// The rounds of a kernel.
pub(super) struct Rounds {
    /// The round, and in the lower half how many of its tiles nobody has taken.
    left: AtomicU64,
    /// Tiles of the round that have ended.
    ended: AtomicUsize,
    /// Whether no round follows.
    over: AtomicBool,
    /// Threads that help.
    pub helping: AtomicUsize,
}

/// Counts a tile as ended even when it panics.
struct Ends<'a>(&'a AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Tells the helping threads that no round follows, even when the calling thread panics.
pub(super) struct Over<'a>(pub &'a Rounds);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
    }
}

impl Rounds {
    pub fn new() -> Rounds {
        Rounds {
            left: AtomicU64::new(0),
            ended: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            helping: AtomicUsize::new(0),
        }
    }

    /// Takes a tile of the current round and runs it; false where none is left.
    fn take(&self, tile: &(dyn Fn(usize, usize) + Sync)) -> bool {
        let less = |both: u64| (both as u32 > 0).then(|| both - 1);
        let taken = self
            .left
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, less);
        let Ok(both) = taken else {
            return false;
        };
        let _ends = Ends(&self.ended);
        tile((both >> 32) as usize, both as u32 as usize - 1);
        true
    }

    /// Runs a round of `tiles` tiles, and returns when all of them have ended.
    pub fn run(&self, round: u32, tiles: u32, tile: &(dyn Fn(usize, usize) + Sync)) {
        self.ended.store(0, Ordering::Relaxed);
        self.left
            .store(u64::from(round) << 32 | u64::from(tiles), Ordering::Release);
        while self.take(tile) {}
        let mut looks = 0;
        while self.ended.load(Ordering::Acquire) < tiles as usize {
            looks += 1;
            match looks < PATIENCE {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
    }

    /// Runs tiles of rounds until none follows, or none has come for long.
    pub fn help(&self, tile: &(dyn Fn(usize, usize) + Sync)) {
        let mut looks = 0;
        while looks < LOOKS && !self.over.load(Ordering::Acquire) {
            match self.take(tile) {
                true => looks = 0,
                false => {
                    looks += 1;
                    std::hint::spin_loop();
                }
            }
        }
    }
}
