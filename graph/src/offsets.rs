//! An allocator of the offsets at which blocks lie in a region. It does not touch the memory.
//!
//! A worker's pools use it, and so does the planner, which predicts with it how much memory a pool will need.
//!
//! Invariants
//! 1. Ranges that were taken and not given back never overlap.
//! 2. No two gaps touch, and none touches the end.
//! 3. Equal sequences of calls give equal offsets.

use std::collections::{BTreeMap, BTreeSet};

/// The alignment of every buffer in bytes: that of a cache line, and of the widest vector register.
pub const ALIGN: usize = 64;

/// Allocates offsets below a limit, in the gap that fits best.
#[derive(Debug, Clone, Default)]
pub struct Offsets {
    limit: u64,
    /// Every offset from here on is free.
    end: u64,
    most: u64,
    used: u64,
    /// The gaps before the end: their lengths by offset. `by_length` has the same gaps by length, for the best fit.
    gaps: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
}

/// Bytes that a block of `len` bytes takes; `None` on overflow.
fn rounded(len: u64) -> Option<u64> {
    len.max(1).checked_next_multiple_of(ALIGN as u64)
}

impl Offsets {
    /// Makes an allocator of offsets below `limit`, of which none is taken.
    pub fn new(limit: u64) -> Offsets {
        Offsets {
            limit,
            ..Offsets::default()
        }
    }

    /// Takes an offset for `len` bytes: in the smallest gap that fits, the first of equal ones, else at the end.
    /// Returns `None` where there is no room.
    pub fn take(&mut self, len: u64) -> Option<u64> {
        let len = rounded(len)?;
        let fits = self.by_length.range((len, 0)..).next().copied();
        let offset = match fits {
            Some((gap, offset)) => {
                self.close(offset, gap);
                if gap > len {
                    self.open(offset + len, gap - len);
                }
                offset
            }
            None => {
                let end = self.end.checked_add(len).filter(|e| *e <= self.limit)?;
                std::mem::replace(&mut self.end, end)
            }
        };
        self.most = self.most.max(self.end);
        self.used += len;
        Some(offset)
    }

    /// Gives back an offset that [`Offsets::take`] returned for the same `len`.
    pub fn give(&mut self, offset: u64, len: u64) {
        let Some(len) = rounded(len) else { return };
        self.used -= len;
        let (mut from, mut to) = (offset, offset + len);
        if let Some((before, gap)) = self.gaps.range(..from).next_back().map(|(o, l)| (*o, *l))
            && before + gap == from
        {
            self.close(before, gap);
            from = before;
        }
        if let Some(gap) = self.gaps.get(&to).copied() {
            self.close(to, gap);
            to += gap;
        }
        match to == self.end {
            true => self.end = from,
            false => self.open(from, to - from),
        }
    }

    fn open(&mut self, offset: u64, len: u64) {
        self.gaps.insert(offset, len);
        self.by_length.insert((len, offset));
    }

    fn close(&mut self, offset: u64, len: u64) {
        self.gaps.remove(&offset);
        self.by_length.remove(&(len, offset));
    }

    /// Bytes that are taken.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// One past the highest byte that was ever taken.
    pub fn most(&self) -> u64 {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_and_merge() {
        let mut o = Offsets::new(640);
        let at: Vec<u64> = [64, 128, 64, 192].map(|n| o.take(n).unwrap()).into();
        assert_eq!(at, [0, 64, 192, 256]);
        assert_eq!((o.used(), o.most()), (448, 448));
        assert_eq!(o.take(193), None, "192 bytes are left");
        o.give(64, 128);
        o.give(192, 64);
        assert_eq!(o.take(192), Some(64), "two gaps became one");
        o.give(64, 192);
        assert_eq!(o.take(1), Some(64));
        assert_eq!(o.take(65), Some(128));
        assert_eq!(o.take(64), Some(448), "no gap is left");
        o.give(448, 64);
        o.give(256, 192);
        assert_eq!(o.take(384), Some(256), "the end moves back");
        assert_eq!(o.most(), 640);
    }

    #[test]
    fn absurd_sizes_have_no_place() {
        let mut o = Offsets::new(u64::MAX);
        assert_eq!(o.take(u64::MAX), None);
        assert_eq!(o.take(1 << 63), Some(0));
        assert_eq!(o.take(1 << 63), None);
        assert_eq!(o.take(0), Some(1 << 63), "an empty block has a place too");
    }

    /// In a random sequence of calls, ranges that are taken stay apart, and all of them can be given back.
    #[test]
    fn nothing_overlaps() {
        let (mut o, mut taken, mut seed) = (Offsets::new(1 << 16), Vec::new(), 7u64);
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (len, pick) = ((seed >> 33) % 3000, (seed >> 50) as usize);
            if pick % 2 == 0 || taken.is_empty() {
                if let Some(offset) = o.take(len) {
                    let mine = offset..offset + len.max(1);
                    let apart =
                        |(at, l): &(u64, u64)| mine.end <= *at || at + l.max(&1) <= mine.start;
                    assert!(taken.iter().all(apart), "{mine:?} {taken:?}");
                    taken.push((offset, len));
                }
            } else {
                let (offset, len) = taken.swap_remove(pick % taken.len());
                o.give(offset, len);
            }
        }
        taken
            .drain(..)
            .for_each(|(offset, len)| o.give(offset, len));
        assert_eq!((o.used(), o.gaps.len(), o.end), (0, 0, 0));
    }
}
