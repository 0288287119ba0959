//! The runs of columns that a panel consists of.

use std::ops::Range;

/// Columns of a panel.
pub(super) const PANEL: usize = 64;

/// Columns of a panel that are consecutive, in a row of the output and where they are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// The first column within the panel.
    pub at: usize,
    pub len: usize,
    /// The column of the output, or of a plane of the copy.
    pub place: usize,
}

/// The runs of a panel.
pub(super) struct Runs {
    all: [Run; PANEL],
    count: usize,
}

impl Runs {
    pub fn none() -> Runs {
        Runs {
            all: [Run::default(); PANEL],
            count: 0,
        }
    }

    pub fn one(columns: &Range<usize>) -> Runs {
        let mut runs = Runs::none();
        runs.push(Run {
            at: 0,
            len: columns.len(),
            place: columns.start,
        });
        runs
    }

    pub fn push(&mut self, run: Run) {
        self.all[self.count] = run;
        self.count += 1;
    }

    pub fn as_slice(&self) -> &[Run] {
        &self.all[..self.count]
    }
}

/// Copies at most a panel's width, without the call that a copy of unknown size is.
#[inline(always)]
pub(super) fn copy_few(from: &[u8], to: &mut [u8]) {
    let n = from.len();
    // Two pieces of one size cover each number of codes up to twice that size.
    macro_rules! pieces {
        ($($size:literal),*) => {$(
            if ($size..=2 * $size).contains(&n) {
                let (first, last) = (from.first_chunk::<$size>(), from.last_chunk::<$size>());
                if let (Some(first), Some(last)) = (first, last) {
                    to[..$size].copy_from_slice(first);
                    to[n - $size..n].copy_from_slice(last);
                }
                return;
            }
        )*};
    }
    pieces!(32, 16, 8, 4);
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}
