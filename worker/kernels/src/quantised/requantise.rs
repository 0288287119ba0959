//! From exact sums of products to quantised numbers.

use super::linear::{clamped, range_of};
use super::numbers::{Format, code_of};
use crate::Exec;
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::split::{GRAIN, tiles};

/// What is added to sums, wrapping.
#[derive(Debug, Clone, Copy)]
pub enum SumBias<'a> {
    None,
    /// A number for each row. A list that is shorter than the number of rows repeats.
    Rows(&'a [i32]),
    /// A number for each column.
    Columns(&'a [i32]),
}

/// The parameters of rows of sums. A list that is shorter than the number of rows repeats.
#[derive(Clone, Copy)]
pub struct Requantisation<'a> {
    pub bias: SumBias<'a>,
    /// The scale of each row's operand.
    pub rows: &'a [f32],
    /// The scale of each column's operand, or one for all.
    pub columns: &'a [f32],
    /// The scale of each row's results.
    pub scales: &'a [f32],
    /// The zero point of each row's results.
    pub zeros: &'a [f32],
    /// The format of the results, which is `I8` or `U8`.
    pub to: Format,
}

/// How the sums of one row become codes: the bias is added, and the code is that of the sum times `factor`.
#[derive(Clone, Copy, Default)]
pub(super) struct RowCoding {
    pub bias: i32,
    pub factor: f32,
    pub zero: f32,
    pub low: f32,
    pub high: f32,
}

#[inline(always)]
fn code(sum: i32, factor: f32, row: &RowCoding) -> u8 {
    let x = sum.wrapping_add(row.bias) as f32 * factor;
    code_of(clamped(x, row.zero, row.low, row.high))
}

multiversion! {
    fn codes_of_row<>(sums: &[i32], row: &RowCoding, y: &mut [u8]) {
        let n = y.len().min(sums.len());
        let (sums, y) = (&sums[..n], &mut y[..n]);
        for i in 0..n {
            y[i] = code(sums[i], row.factor, row);
        }
    }
}

multiversion! {
    /// The codes of rows of sums in the columns of a panel, some of which may belong to nothing.
    pub(super) fn codes_of_panel<>(sums: &[[i32; 64]], rows: &[RowCoding], y: &mut [[u8; 64]]) {
        for ((sums, row), y) in sums.iter().zip(rows).zip(y) {
            for i in 0..64 {
                y[i] = code(sums[i], row.factor, row);
            }
        }
    }
}

multiversion! {
    /// The codes of sums of columns with scales of their own, where `row.factor` is not used.
    fn codes_of_columns<>(
        sums: &[i32],
        operand: f32,
        scale: f32,
        columns: &[f32],
        row: &RowCoding,
        y: &mut [u8],
    ) {
        let n = y.len().min(sums.len());
        let (sums, columns, y) = (&sums[..n], &columns[..n], &mut y[..n]);
        for i in 0..n {
            y[i] = code(sums[i], operand * columns[i] / scale, row);
        }
    }
}

/// The place of row `number` in a list of `len` that repeats. Few rows are beyond the first round, so that a division is rare.
#[inline(always)]
fn index(number: usize, len: usize) -> usize {
    if number < len { number } else { number % len }
}

impl RowCoding {
    /// Makes codes of sums.
    pub(super) fn write(&self, sums: &[i32], y: &mut [u8]) {
        codes_of_row(sums, self, y);
    }
}

/// Sums to which numbers of columns are added at a time.
const BIASED: usize = 64;

multiversion! {
    /// Writes sums plus the numbers of their columns.
    fn add_columns<>(sums: &[i32], bias: &[i32], to: &mut [i32]) {
        let n = to.len();
        let (sums, bias) = (&sums[..n], &bias[..n]);
        for i in 0..n {
            to[i] = sums[i].wrapping_add(bias[i]);
        }
    }
}

impl Requantisation<'_> {
    /// Whether there are scales, and numbers to add, for this many columns.
    pub(super) fn fits_columns(&self, n: usize) -> bool {
        let biased = match self.bias {
            SumBias::Columns(all) => all.len() == n,
            _ => true,
        };
        biased && (self.columns.len() == 1 || self.columns.len() == n)
    }

    /// Whether a row has one coding for all of its columns.
    pub(super) fn is_of_rows(&self) -> bool {
        self.columns.len() == 1 && !matches!(self.bias, SumBias::Columns(_))
    }

    /// Whether codes are signed.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn is_signed(&self) -> bool {
        range_of(self.to).is_some_and(|(low, _)| low < 0.0)
    }

    /// The coding of row `number` in columns of this scale, without what is added to columns.
    #[inline(always)]
    pub(super) fn coding(&self, number: usize, column: f32) -> RowCoding {
        let of = |list: &[f32]| list[index(number, list.len())];
        let (low, high) = range_of(self.to).unwrap_or((0., 255.));
        RowCoding {
            bias: match self.bias {
                SumBias::Rows(all) => all[index(number, all.len())],
                _ => 0,
            },
            factor: of(self.rows) * column / of(self.scales),
            zero: of(self.zeros),
            low,
            high,
        }
    }

    /// Makes codes of the sums of row `number`, in the columns from `column` on.
    pub(super) fn part_of_row(&self, number: usize, column: usize, sums: &[i32], y: &mut [u8]) {
        let of = |list: &[f32]| list[index(number, list.len())];
        let row = self.coding(number, self.columns[0]);
        let write = |column: usize, sums: &[i32], y: &mut [u8]| match self.columns {
            [_] => row.write(sums, y),
            all => {
                let columns = &all[column..column + sums.len()];
                codes_of_columns(sums, of(self.rows), of(self.scales), columns, &row, y);
            }
        };
        let SumBias::Columns(bias) = self.bias else {
            return write(column, sums, y);
        };
        let bias = &bias[column..column + sums.len()];
        let parts = sums.chunks(BIASED).zip(bias.chunks(BIASED));
        for (i, ((sums, bias), y)) in parts.zip(y.chunks_mut(BIASED)).enumerate() {
            let mut all = [0; BIASED];
            let all = &mut all[..sums.len()];
            add_columns(sums, bias, all);
            write(column + i * BIASED, all, y);
        }
    }
}

/// `y = round((sum + bias) * (row * column / scale)) + zero` for rows of `n` sums, as codes of one byte.
pub fn requantise(
    exec: &Exec,
    sums: &[i32],
    n: usize,
    how: &Requantisation<'_>,
    y: &mut [u8],
) -> Result {
    assert_eq!(sums.len(), y.len(), "sums and results");
    assert!(how.fits_columns(n), "scales of columns");
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        let mut at = range.start;
        while at < range.end {
            let (number, column) = (at / n, at % n);
            let len = (n - column).min(range.end - at);
            let y = &mut part[at - range.start..][..len];
            how.part_of_row(number, column, &sums[at..at + len], y);
            at += len;
        }
    })?)
}
