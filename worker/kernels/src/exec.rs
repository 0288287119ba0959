//! How a kernel runs: on which threads, and until when.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The kernel stopped because its step was cancelled; its outputs hold garbage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

/// How a running kernel shares its threads with other jobs that wait for them. A kernel asks wherever it checks its
/// cancel flag.
pub trait Turn: Sync {
    /// Whether another job may be waiting. A kernel asks before every tile, so the answer must be fast.
    fn is_contested(&self) -> bool;

    /// Lets the other jobs run when it is their turn, and returns when the kernel has its next turn or was cancelled.
    fn give_way(&self, cancel: &AtomicBool);

    /// How many threads a kernel that begins now may use, the other jobs using the others.
    fn width(&self) -> usize;

    /// The flag that is set while the kernel may stand still for an unbounded time, so that a watch over stuck threads
    /// ignores it.
    fn excused(&self) -> &AtomicBool;
}

/// A guard during whose life a kernel may stand still for an unbounded time, because what it waits for is not known
/// here.
pub struct StallExcuse<'a>(Option<&'a AtomicBool>);

impl Drop for StallExcuse<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(excused) = self.0 {
            excused.store(false, Ordering::Relaxed);
        }
    }
}

/// Threads and cancellation flag of one kernel call.
///
/// A kernel's result never depends on the number of threads: work is split at fixed tile boundaries, and every output
/// element is computed by exactly one tile.
#[derive(Clone, Copy)]
pub struct Exec<'a> {
    pool: Option<&'a rayon::ThreadPool>,
    cancel: &'a AtomicBool,
    turn: Option<&'a dyn Turn>,
}

impl<'a> Exec<'a> {
    /// Creates an executor that runs everything on the calling thread.
    #[inline]
    pub fn single(cancel: &'a AtomicBool) -> Self {
        Exec {
            pool: None,
            cancel,
            turn: None,
        }
    }

    /// Creates an executor that splits large work over the threads of `pool`.
    #[inline]
    pub fn pooled(pool: &'a rayon::ThreadPool, cancel: &'a AtomicBool) -> Self {
        let pool = (pool.current_num_threads() > 1).then_some(pool);
        Exec {
            pool,
            cancel,
            turn: None,
        }
    }

    /// The same executor, whose kernel also lets other jobs run when it is their turn. The calling thread must not hold
    /// a lock that those jobs need.
    #[inline]
    pub fn in_turns(self, turn: &'a dyn Turn) -> Self {
        Exec {
            turn: Some(turn),
            ..self
        }
    }

    /// Excuses a kernel that may wait for an unknown event, such as one of a user's own op, until the returned guard is
    /// dropped.
    #[inline]
    pub fn excused(&self) -> StallExcuse<'a> {
        let excused = self.turn.map(Turn::excused);
        if let Some(excused) = excused {
            excused.store(true, Ordering::Relaxed);
        }
        StallExcuse(excused)
    }

    /// Number of threads that [`Exec::tiles`] may use.
    #[inline]
    pub fn threads(&self) -> usize {
        let all = self.pool.map_or(1, |p| p.current_num_threads());
        self.turn.map_or(all, |turn| turn.width().clamp(1, all))
    }

    /// Fails when the step was cancelled. A kernel calls this at least every 10 ms of work, since this is also where it
    /// lets other jobs run.
    #[inline]
    pub fn check(&self) -> Result<(), Cancelled> {
        #[cfg(test)]
        crate::testing::looks_at(self.cancel);
        if let Some(turn) = self.turn
            && turn.is_contested()
        {
            turn.give_way(self.cancel);
        }
        if self.cancel.load(Ordering::Relaxed) {
            Err(Cancelled)
        } else {
            Ok(())
        }
    }

    /// Calls `tile(range)` for consecutive ranges of `grain` items that cover `0..items`, in
    /// parallel where there are threads. `grain` must be a constant of the kernel or derived from
    /// shapes alone. The cancel flag is checked before every tile.
    pub fn tiles<F>(&self, items: usize, grain: usize, tile: F) -> Result<(), Cancelled>
    where
        F: Fn(Range<usize>) + Sync,
    {
        self.run(items, grain.max(1), &tile)
    }

    /// [`Exec::tiles`] without type parameters: the thread pool's code exists once, not once per kernel.
    fn run(
        &self,
        items: usize,
        grain: usize,
        tile: &(dyn Fn(Range<usize>) + Sync),
    ) -> Result<(), Cancelled> {
        let count = items.div_ceil(grain);
        let range = |i: usize| i * grain..((i + 1) * grain).min(items);
        let one = |i: usize| {
            self.check()?;
            tile(range(i));
            Ok(())
        };
        let threads = self.threads();
        match self.pool {
            Some(pool) if count > 1 && threads > 1 => {
                use rayon::prelude::*;
                // Fewer threads than there are: each takes the next tile until none is left.
                let next = AtomicUsize::new(0);
                let some = |_| {
                    while let i = next.fetch_add(1, Ordering::Relaxed)
                        && i < count
                    {
                        one(i)?;
                    }
                    Ok(())
                };
                pool.install(|| match threads < pool.current_num_threads() {
                    true => (0..threads).into_par_iter().try_for_each(some),
                    false => (0..count).into_par_iter().try_for_each(one),
                })
            }
            _ => (0..count).try_for_each(one),
        }
    }
}
