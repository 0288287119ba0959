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

/// The parameters of one row.
#[derive(Clone, Copy)]
struct Row {
    bias: i32,
    operand: f32,
    scale: f32,
    zero: f32,
    low: f32,
    high: f32,
}

#[inline(always)]
fn result(sum: i32, scale: f32, row: &Row) -> u8 {
    let x = sum.wrapping_add(row.bias) as f32 * scale;
    code_of(clamped(x, row.zero, row.low, row.high))
}

multiversion! {
    fn requantise_row<>(sums: &[i32], columns: &[f32], row: Row, y: &mut [u8]) {
        let n = y.len().min(sums.len());
        let (sums, y) = (&sums[..n], &mut y[..n]);
        if let [column] = columns {
            let scale = row.operand * column / row.scale;
            for i in 0..n {
                y[i] = result(sums[i], scale, &row);
            }
        } else {
            let columns = &columns[..n];
            for i in 0..n {
                y[i] = result(sums[i], row.operand * columns[i] / row.scale, &row);
            }
        }
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

    /// Makes codes of the sums of row `number`, in the columns from `column` on.
    pub(super) fn part_of_row(&self, number: usize, column: usize, sums: &[i32], y: &mut [u8]) {
        let index = |len: usize| if len == 1 { 0 } else { number % len };
        let of = |list: &[f32]| list[index(list.len())];
        let (low, high) = range_of(self.to).unwrap_or((0., 255.));
        let row = Row {
            bias: match self.bias {
                SumBias::Rows(all) => all[index(all.len())],
                _ => 0,
            },
            operand: of(self.rows),
            scale: of(self.scales),
            zero: of(self.zeros),
            low,
            high,
        };
        let columns = |from: usize, len: usize| match self.columns {
            [_] => self.columns,
            all => &all[from..from + len],
        };
        let SumBias::Columns(bias) = self.bias else {
            return requantise_row(sums, columns(column, sums.len()), row, y);
        };
        let bias = &bias[column..column + sums.len()];
        let parts = sums.chunks(BIASED).zip(bias.chunks(BIASED));
        for (i, ((sums, bias), y)) in parts.zip(y.chunks_mut(BIASED)).enumerate() {
            let mut all = [0; BIASED];
            let all = &mut all[..sums.len()];
            add_columns(sums, bias, all);
            requantise_row(all, columns(column + i * BIASED, all.len()), row, y);
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
