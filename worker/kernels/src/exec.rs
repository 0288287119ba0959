//! How a kernel runs: on which threads, and until when.

mod rounds;

use rounds::{Over, Rounds};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

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

    /// Wakes the threads that sleep. A kernel calls this when it begins to split.
    fn wake(&self);

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

/// The tiles of a kernel, divided among threads. Each has consecutive tiles, since these often share operands; one that has
/// done its own takes half of what is left to another.
struct Parts(Vec<Part>);

/// The first tile of a part, and the end of it in the upper half. Threads use parts at the same time, so each has cache lines
/// of its own.
#[repr(align(128))]
struct Part(AtomicU64);

impl Part {
    fn pack(tiles: Range<u32>) -> u64 {
        u64::from(tiles.end) << 32 | u64::from(tiles.start)
    }

    /// Replaces the tiles by what `rest` leaves of them, as long as there are any; returns those there were.
    fn take(&self, rest: impl Fn(Range<u32>) -> Range<u32>) -> Option<Range<u32>> {
        let quiet = Ordering::Relaxed;
        let tiles = |both: u64| both as u32..(both >> 32) as u32;
        let less = |both: u64| {
            let there = tiles(both);
            (!there.is_empty()).then(|| Part::pack(rest(there)))
        };
        self.0.fetch_update(quiet, quiet, less).ok().map(tiles)
    }
}

impl Parts {
    /// Divides the tiles among `threads` of at most `most` threads.
    fn new(tiles: u32, threads: usize, most: usize) -> Parts {
        let start = |thread: usize| {
            let thread = thread.min(threads) as u64;
            (u64::from(tiles) * thread / threads as u64) as u32
        };
        let part = |thread| Part(AtomicU64::new(Part::pack(start(thread)..start(thread + 1))));
        Parts((0..most).map(part).collect())
    }

    /// The next tile of a thread. Each is given once.
    fn next(&self, thread: usize) -> Option<usize> {
        let own = &self.0[thread];
        if let Some(tiles) = own.take(|t| t.start + 1..t.end) {
            return Some(tiles.start as usize);
        }
        let middle = |t: &Range<u32>| t.start + (t.end - t.start) / 2;
        let (before, after) = self.0.split_at(thread);
        let taken = after.iter().chain(before);
        let taken = taken.filter_map(|part| part.take(|t| t.start..middle(&t)));
        let tiles = { taken }.next()?;
        let first = middle(&tiles);
        // Nobody else changes a part that has no tiles.
        let rest = Part::pack(first + 1..tiles.end);
        own.0.store(rest, Ordering::Relaxed);
        Some(first as usize)
    }
}

/// Counts a thread off that helped, even when its tile panicked.
struct Leaves<'a>(&'a AtomicUsize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// How often a thread that has nothing to do offers the processor to others before it sleeps: some 100 microseconds on a
/// machine where no one else wants it. To wake a thread that sleeps takes about as long.
const AWAKE: usize = 256;

/// Does what the calling thread's pool has to do until `done`, or until there was nothing to do for a while. The thread
/// stays awake: what comes next does not have to wait until the system has woken it.
pub fn stay_awake(done: impl Fn() -> bool) {
    let mut idle = 0;
    while idle < AWAKE && !done() {
        match rayon::yield_now() {
            Some(rayon::Yield::Executed) => idle = 0,
            _ => {
                idle += 1;
                std::thread::yield_now();
            }
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

    /// The same executor, whose kernel runs on the calling thread alone: a tile of another kernel that is split.
    #[inline]
    pub(crate) fn alone(self) -> Self {
        Exec { pool: None, ..self }
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

    /// Calls `tile(round, i)` for each `i` below `tiles`, in parallel where there are threads, and `between(round)` when all
    /// of them have ended, for one round after the other. A round should take some microseconds: threads wait for the
    /// next one without sleeping. Ends with the first error of `between`, which looks at the cancel flag.
    pub(crate) fn rounds(
        &self,
        rounds: u32,
        tiles: u32,
        tile: &(dyn Fn(usize, usize) + Sync),
        mut between: impl FnMut(usize) -> Result<(), Cancelled> + Send,
    ) -> Result<(), Cancelled> {
        let wanted = || self.threads().min(tiles as usize) - 1;
        let Some(pool) = self.pool.filter(|_| tiles > 1 && wanted() > 0) else {
            return (0..rounds as usize).try_for_each(|round| {
                (0..tiles as usize).for_each(|i| tile(round, i));
                between(round)
            });
        };
        if let Some(turn) = self.turn {
            turn.wake();
        }
        let all = &Rounds::new();
        pool.scope(|scope| {
            let _over = Over(all);
            (0..rounds).try_for_each(|round| {
                // Those that left come back where this kernel may still use as many.
                while all.helping.load(Ordering::Relaxed) < wanted() {
                    all.helping.fetch_add(1, Ordering::Relaxed);
                    scope.spawn(move |_| {
                        let _leaves = Leaves(&all.helping);
                        all.help(tile);
                    });
                }
                all.run(round, tiles, tile);
                between(round as usize)
            })
        })
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
        let threads = self.threads().min(count);
        match (self.pool, u32::try_from(count)) {
            (Some(pool), Ok(tiles)) if count > 1 => {
                if threads > 1
                    && let Some(turn) = self.turn
                {
                    turn.wake();
                }
                let most = pool.current_num_threads().min(count);
                let parts = Parts::new(tiles, threads, most);
                let cancelled = AtomicBool::new(false);
                let step = |thread: usize| {
                    let tile = parts
                        .next(thread)
                        .filter(|_| !cancelled.load(Ordering::Relaxed));
                    if tile.is_some_and(|tile| one(tile).is_err()) {
                        cancelled.store(true, Ordering::Relaxed);
                    }
                    tile.is_some()
                };
                let (step, helping) = (&step, &AtomicUsize::new(0));
                pool.scope(|scope| {
                    let help = |thread| {
                        helping.fetch_add(1, Ordering::Relaxed);
                        scope.spawn(move |_| {
                            let _leaves = Leaves(helping);
                            while step(thread) {}
                        });
                    };
                    (1..threads).for_each(help);
                    let mut used = threads;
                    while step(0) {
                        // Other jobs may have ended meanwhile.
                        while used < self.threads().min(most) {
                            help(used);
                            used += 1;
                        }
                    }
                    stay_awake(|| helping.load(Ordering::Acquire) == 0);
                });
                match cancelled.load(Ordering::Relaxed) {
                    true => Err(Cancelled),
                    false => Ok(()),
                }
            }
            _ => (0..count).try_for_each(one),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn pool(threads: usize) -> rayon::ThreadPool {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build().unwrap()
    }

    #[test]
    fn each_round_sees_what_the_one_before_left() {
        let pool = pool(3);
        for exec in [Exec::single(&NEVER), Exec::pooled(&pool, &NEVER)] {
            for (rounds, tiles) in [(0, 4), (1, 1), (50, 3), (20, 8)] {
                let parts: Vec<AtomicU64> = (0..tiles).map(|_| AtomicU64::new(0)).collect();
                let total = AtomicU64::new(1);
                let add = |round: usize, i: usize| {
                    let now = total.load(Ordering::Relaxed);
                    // A round that does not wait for its last tile would miss it.
                    (0..2000).for_each(|_| std::hint::spin_loop());
                    parts[i].fetch_add(now + round as u64 + i as u64, Ordering::Relaxed);
                };
                let mut want = 1u64;
                let run = || {
                    exec.rounds(rounds, tiles, &add, |round| {
                        want = (0..u64::from(tiles))
                            .map(|i| want.wrapping_add(round as u64 + i))
                            .fold(0, u64::wrapping_add)
                            % 1000;
                        let sum: u64 = parts.iter().map(|p| p.swap(0, Ordering::Relaxed)).sum();
                        total.store(sum % 1000, Ordering::Relaxed);
                        assert_eq!(sum % 1000, want, "round {round} of {tiles} tiles");
                        Ok(())
                    })
                };
                pool.install(run).unwrap();
            }
        }
    }

    #[test]
    fn an_error_between_rounds_ends_them() {
        let pool = pool(2);
        let exec = Exec::pooled(&pool, &NEVER);
        let ran = AtomicUsize::new(0);
        let tile = |_: usize, _: usize| {
            ran.fetch_add(1, Ordering::Relaxed);
        };
        let end = |round: usize| if round == 2 { Err(Cancelled) } else { Ok(()) };
        assert_eq!(
            pool.install(|| exec.rounds(10, 4, &tile, end)),
            Err(Cancelled)
        );
        assert_eq!(ran.into_inner(), 12);
    }

    #[test]
    fn a_panic_in_a_round_is_handed_on() {
        let pool = pool(2);
        let exec = Exec::pooled(&pool, &NEVER);
        for bad in 0..4 {
            let tile = |round: usize, i: usize| assert!(round != 3 || i != bad, "on purpose");
            let run = || pool.install(|| exec.rounds(10, 4, &tile, |_| Ok(())));
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            assert!(caught.is_err());
        }
    }

    /// Threads take tiles in the order of `turns`, over and over. Returns those of each.
    fn check(tiles: u32, threads: usize, most: usize, turns: &[usize]) -> Vec<Vec<usize>> {
        let parts = Parts::new(tiles, threads, most);
        let mut taken = vec![vec![]; most];
        let mut missed = 0;
        for thread in turns.iter().cycle() {
            match parts.next(*thread) {
                Some(tile) => taken[*thread].push(tile),
                None => missed += 1,
            }
            if missed == turns.len() {
                break;
            }
        }
        let mut all = taken.concat();
        all.sort_unstable();
        assert_eq!(all, (0..tiles as usize).collect::<Vec<_>>());
        taken
    }

    #[test]
    fn every_tile_is_taken_once() {
        assert_eq!(
            check(6, 2, 2, &[0, 1]),
            [vec![0, 1, 2], vec![3, 4, 5]],
            "each its own"
        );
        assert_eq!(check(8, 2, 2, &[0])[0], [0, 1, 2, 3, 6, 7, 5, 4]);
        assert_eq!(check(8, 2, 2, &[1])[1], [4, 5, 6, 7, 2, 3, 1, 0]);
        // A thread that joins late takes half of what is left to another.
        assert_eq!(
            check(8, 1, 2, &[0, 1]),
            [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]
        );
        for tiles in [0, 1, 2, 7, 100] {
            for threads in 1..=5 {
                check(tiles, threads, 5, &[4, 0, 2, 2, 1, 3]);
                check(tiles, threads, 5, &[3]);
            }
        }
    }
}
