//! From the sums of a tile to the output: the sums themselves, or the codes that are made of them.

use super::product::{Output, Product};
use super::runs::{PANEL, Run, copy_few};
use crate::quantised::requantise::{RowCoding, codes_of_panel};

/// Most rows whose sums an instruction set keeps in registers.
pub(super) const MOST_ROWS: usize = 6;

/// The sums of a few rows in the columns of a panel, and the codes that are made of them.
pub(super) struct Block {
    pub sums: [[i32; PANEL]; MOST_ROWS],
    pub codes: [[u8; PANEL]; MOST_ROWS],
}

impl Block {
    pub fn new() -> Block {
        Block {
            sums: [[0; PANEL]; MOST_ROWS],
            codes: [[0; PANEL]; MOST_ROWS],
        }
    }

    /// Makes codes of the first `count` rows of sums, from row `row` of the product on, where codes are the output. Their panel has
    /// `width` columns.
    pub fn make_codes(
        &mut self,
        p: &Product<'_>,
        runs: &[Run],
        (row, count): (usize, usize),
        width: usize,
    ) {
        let Output::Codes(_, how) = p.out else {
            return;
        };
        let (sums, codes) = (&self.sums[..count], &mut self.codes[..count]);
        let number = p.number + row;
        if how.is_of_rows() {
            let mut rows = [RowCoding::default(); MOST_ROWS];
            for (r, coding) in rows.iter_mut().enumerate().take(count) {
                *coding = how.coding(number + r, how.columns[0]);
            }
            codes_of_panel(sums, &rows, codes);
        } else {
            // Columns with parameters of their own are those of a matrix: they are all one run.
            let first = runs[0].place;
            for (r, (sums, codes)) in sums.iter().zip(codes).enumerate() {
                how.part_of_row(number + r, first, &sums[..width], &mut codes[..width]);
            }
        }
    }

    /// Writes the first `count` rows of sums or codes, from row `row` of the product on, to the runs of their panel. `adds` tells
    /// that the output has the sums of the terms before.
    ///
    /// # Safety
    /// The output has the rows and runs, and nobody else touches them.
    pub unsafe fn write(
        &self,
        p: &Product<'_>,
        runs: &[Run],
        (row, count): (usize, usize),
        adds: bool,
    ) {
        match p.out {
            Output::Sums(out) => {
                for (r, sums) in self.sums[..count].iter().enumerate() {
                    for run in runs {
                        let from = &sums[run.at..run.at + run.len];
                        // SAFETY: the caller's contract.
                        let to = unsafe {
                            let to = out.wrapping_add((row + r) * p.n + run.place);
                            std::slice::from_raw_parts_mut(to, run.len)
                        };
                        match adds {
                            true => {
                                for (to, sum) in to.iter_mut().zip(from) {
                                    *to = to.wrapping_add(*sum);
                                }
                            }
                            false => to.copy_from_slice(from),
                        }
                    }
                }
            }
            Output::Codes(out, _) => {
                for (r, codes) in self.codes[..count].iter().enumerate() {
                    for run in runs {
                        // SAFETY: the caller's contract.
                        let to = unsafe {
                            let to = out.wrapping_add((row + r) * p.n + run.place);
                            std::slice::from_raw_parts_mut(to, run.len)
                        };
                        copy_few(&codes[run.at..run.at + run.len], to);
                    }
                }
            }
        }
    }
}

/// Writes the sums of the only row of a product, from column `start` on.
///
/// # Safety
/// The output has the columns, and nobody else touches them.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn write_strip(p: &Product<'_>, start: usize, sums: &[i32]) {
    // SAFETY: the caller's contract.
    unsafe {
        match p.out {
            Output::Sums(out) => {
                std::slice::from_raw_parts_mut(out.wrapping_add(start), sums.len())
                    .copy_from_slice(sums);
            }
            Output::Codes(out, how) => {
                let to = std::slice::from_raw_parts_mut(out.wrapping_add(start), sums.len());
                how.part_of_row(p.number, start, sums, to);
            }
        }
    }
}
