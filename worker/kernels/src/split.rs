//! Hands disjoint parts of an output to the tiles of a kernel.
//!
//! This is the one place where a mutable slice is divided among threads.

use crate::{Cancelled, Exec};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

/// Elements per tile of memory-bound kernels.
pub const GRAIN: usize = 16 * 1024;

/// Elements between two checks of the cancel flag: a millisecond of the slowest fold, and a multiple of a reduction's
/// virtual lanes.
pub(crate) const PIECE: usize = 1 << 16;

thread_local! {
    /// The work of short loops of this thread since one of them checked a cancel flag, in parts of [`PIECE`].
    static UNCHECKED: Cell<usize> = const { Cell::new(0) };
}

/// Ranges of `piece` items that cover `0..items`, until the step is cancelled, for a loop within one tile whose length
/// nothing bounds. Short loops count together, since there may be many of them within another loop; once a loop has seen that
/// the step is cancelled, all that follow are empty. A kernel that uses them ends with [`Exec::check`], since a tile that stopped early left garbage.
#[inline(always)]
pub(crate) fn pieces(
    exec: &Exec,
    items: usize,
    piece: usize,
) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..items).step_by(piece);
    let goes_on = move |start: &usize| match *start {
        0 => short(exec, items.min(piece), piece),
        _ => checked(exec),
    };
    let until = move |start: usize| start..(start + piece).min(items);
    starts.take_while(goes_on).map(until)
}

/// Counts a loop of `items` items of which `piece` are due a check; false where the step was cancelled.
#[inline(always)]
fn short(exec: &Exec, items: usize, piece: usize) -> bool {
    let unchecked = UNCHECKED.get() + items * (PIECE / piece.min(PIECE));
    if unchecked >= PIECE {
        return checked(exec);
    }
    UNCHECKED.set(unchecked);
    true
}

/// Checks the cancel flag. Where the step is cancelled, the thread's next loop checks it again at once.
fn checked(exec: &Exec) -> bool {
    let goes_on = exec.check().is_ok();
    UNCHECKED.set(if goes_on { 0 } else { PIECE });
    goes_on
}

/// The result of work that ends early where the step is cancelled.
pub(crate) type Finished<T = ()> = std::result::Result<T, Cancelled>;

/// Counts the work of a loop within one tile, and looks at the cancel flag whenever there was `piece` of it. A kernel that
/// uses it ends with [`Exec::check`], since a tile that stopped early left garbage.
pub(crate) struct Pace<'a> {
    exec: &'a Exec<'a>,
    piece: usize,
    since: usize,
}

impl<'a> Pace<'a> {
    pub fn new(exec: &'a Exec<'a>, piece: usize) -> Pace<'a> {
        Pace {
            exec,
            piece,
            since: 0,
        }
    }

    /// Counts `work`; fails where the step was cancelled.
    #[inline(always)]
    pub fn count(&mut self, work: usize) -> Finished {
        self.since = self.since.saturating_add(work);
        if self.since < self.piece {
            return Ok(());
        }
        self.since = 0;
        self.exec.check()
    }
}

/// A mutable slice that several threads hold, each touching its own range.
struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: `part` is the only access, and its callers hand every element to one thread at a time; moving
// a `&mut T` to another thread needs `T: Send`.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    fn new(all: &'a mut [T]) -> Self {
        Shared {
            start: all.as_mut_ptr(),
            len: all.len(),
            life: PhantomData,
        }
    }

    /// # Safety
    /// Two slices that are alive at the same time must not overlap.
    #[allow(clippy::mut_from_ref)]
    unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "tile {range:?} of {}",
            self.len
        );
        // SAFETY: in bounds by the assertion, alive for 'a, and unaliased by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Units of `unit` elements per tile such that a tile holds about [`GRAIN`] elements.
pub(crate) fn units_per_tile(unit: usize) -> usize {
    (GRAIN / unit.max(1)).max(1)
}

/// Splits `out` into units of `unit` elements and calls `tile(units, part)` for groups of `grain`
/// units, where `part` is the slice of exactly these units. `unit` must divide the length of `out`.
pub(crate) fn tiles<T, F>(
    exec: &Exec,
    out: &mut [T],
    unit: usize,
    grain: usize,
    tile: F,
) -> Result<(), Cancelled>
where
    T: Send,
    F: Fn(Range<usize>, &mut [T]) + Sync,
{
    if out.is_empty() {
        return exec.check();
    }
    let units = out.len() / unit;
    assert_eq!(
        units * unit,
        out.len(),
        "output of {} elements in units of {unit}",
        out.len()
    );
    let shared = Shared::new(out);
    exec.tiles(units, grain, |range| {
        // SAFETY: `Exec::tiles` calls with disjoint ranges of 0..units, so their images are disjoint.
        let part = unsafe { shared.part(range.start * unit..range.end * unit) };
        tile(range, part);
    })
}

/// Like [`tiles`] for two outputs that are split at the same units.
pub(crate) fn tiles2<T, U, F>(
    exec: &Exec,
    (out, unit): (&mut [T], usize),
    (out2, unit2): (&mut [U], usize),
    units: usize,
    grain: usize,
    tile: F,
) -> Result<(), Cancelled>
where
    T: Send,
    U: Send,
    F: Fn(Range<usize>, &mut [T], &mut [U]) + Sync,
{
    assert_eq!(
        (units * unit, units * unit2),
        (out.len(), out2.len()),
        "outputs of {units} units"
    );
    let (shared, shared2) = (Shared::new(out), Shared::new(out2));
    exec.tiles(units, grain, |range| {
        // SAFETY: `Exec::tiles` calls with disjoint ranges of 0..units, so their images are disjoint.
        let part = unsafe { shared.part(range.start * unit..range.end * unit) };
        // SAFETY: as above.
        let part2 = unsafe { shared2.part(range.start * unit2..range.end * unit2) };
        tile(range, part, part2);
    })
}

/// Like [`tiles`], where each tile also gets `per_tile` elements of scratch memory of its own.
pub(crate) fn tiles_with_scratch<T, U, F>(
    exec: &Exec,
    (out, unit): (&mut [T], usize),
    (scratch, per_tile): (&mut [U], usize),
    grain: usize,
    tile: F,
) -> Result<(), Cancelled>
where
    T: Send,
    U: Send,
    F: Fn(Range<usize>, &mut [T], &mut [U]) + Sync,
{
    let scratch = Shared::new(scratch);
    tiles(exec, out, unit, grain, |range, part| {
        let number = range.start / grain;
        // SAFETY: each tile has a number of its own, so that the ranges are disjoint.
        let own = unsafe { scratch.part(number * per_tile..(number + 1) * per_tile) };
        tile(range, part, own);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{each_exec, exec};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn many_short_loops_stop_together() {
        let cancel = AtomicBool::new(false);
        let exec = Exec::single(&cancel);
        let run = |loops: usize, items, piece| -> usize {
            let of_one = |_| pieces(&exec, items, piece).map(|r| r.len()).sum::<usize>();
            (0..loops).map(of_one).sum()
        };
        assert_eq!(run(1000, 1000, PIECE), 1_000_000);
        cancel.store(true, Ordering::Relaxed);
        assert!(run(1000, 1000, PIECE) <= PIECE);
        assert_eq!(run(1000, 1000, PIECE), 0, "what follows looks again");
        cancel.store(false, Ordering::Relaxed);
        assert_eq!(run(1000, 10, PIECE / 64), 10_000);
        cancel.store(true, Ordering::Relaxed);
        assert!(run(1000, 10, PIECE / 64) <= PIECE / 64);
    }

    #[test]
    fn tiles_cover_the_output_once() {
        each_exec(|exec| {
            for (units, unit, grain) in [
                (1, 1, 1),
                (7, 3, 2),
                (1000, 5, 13),
                (64, 1, 64),
                (65, 2, 64),
            ] {
                let mut out = vec![0u32; units * unit];
                tiles(exec, &mut out, unit, grain, |range, part| {
                    assert_eq!(part.len(), range.len() * unit);
                    for (i, y) in part.iter_mut().enumerate() {
                        *y += (range.start * unit + i) as u32 + 1;
                    }
                })
                .unwrap();
                assert!(out.iter().enumerate().all(|(i, &y)| y == i as u32 + 1));
                let mut out2 = vec![0u8; units];
                tiles2(
                    exec,
                    (&mut out, unit),
                    (&mut out2, 1),
                    units,
                    grain,
                    |range, part, part2| {
                        assert_eq!((part.len(), part2.len()), (range.len() * unit, range.len()));
                        part2.iter_mut().for_each(|y| *y += 1);
                    },
                )
                .unwrap();
                assert!(out2.iter().all(|&y| y == 1));
            }
        });
    }

    #[test]
    fn empty_and_cancelled() {
        tiles(&exec(), &mut [0u8; 0], 0, 4, |_, _| unreachable!()).unwrap();
        let cancel = AtomicBool::new(true);
        let mut out = [0u8; 8];
        assert_eq!(
            tiles(
                &Exec::single(&cancel),
                &mut out,
                1,
                4,
                |_, _| unreachable!()
            ),
            Err(Cancelled)
        );
    }
}
