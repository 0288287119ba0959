//! What the sums of rows need to become codes, for many rows at once.
//!
//! The code of a sum is `round((sum + bias - rest * column zero - row zero * sum of the column) * factor) + zero`; all of it but
//! the sum and the column's sum belongs to the row.

use std::ops::Range;

use super::operands::Zeros;
use super::product::Product;
use crate::multiversion::multiversion;
use crate::quantised::requantise::{Requantisation, SumBias};

/// Most rows at once: a multiple of the rows whose sums are kept in registers.
pub(super) const ROWS: usize = 384;
/// Rows beyond the last one that may be read, so that whole vectors can be.
const BEYOND: usize = 16;

/// The order of a panel's columns where the codes of its sums are made in registers.
#[derive(Clone, Copy)]
pub(super) struct InRegisters<'a> {
    /// The columns, at most those of a panel.
    pub columns: usize,
    /// The zero point of all columns, as panels have it.
    pub zero: i32,
    pub how: &'a Requantisation<'a>,
}

/// The parameters of each row, by its number among the rows at once. Those beyond the last row have no meaning.
pub(super) struct RowCodings {
    /// Each sum of a row gets this added: the row's bias, and what the zero point of the columns gives.
    pub add: [i32; ROWS + BEYOND],
    /// The zero point of a row. A sum of the row is less by this times the sum of its column's codes.
    pub zeros: [i32; ROWS + BEYOND],
    /// Each sum of a row is multiplied by this factor before it is rounded.
    pub factors: [f32; ROWS + BEYOND],
    /// The zero point of a row's results, which is added after rounding.
    pub of_results: [i32; ROWS + BEYOND],
    /// Whether codes are signed.
    pub signed: bool,
    /// The rows: the first one among the rows of the left operand, and among those of all products, and how many there are.
    rows: Option<(usize, usize, usize)>,
}

/// Copies the part of a list that repeats which belongs to consecutive rows.
fn part<T: Copy>(list: &[T], first: usize, to: &mut [T]) {
    let at = first % list.len();
    match list {
        [all] => to.fill(*all),
        _ if at + to.len() <= list.len() => to.copy_from_slice(&list[at..at + to.len()]),
        _ => {
            for (to, all) in to.iter_mut().zip(list.iter().cycle().skip(at)) {
                *to = *all;
            }
        }
    }
}

multiversion! {
    /// Completes the parameters of rows with these sums of codes: `add` holds the biases, `factors` the scales of the rows'
    /// operands. `of` is the number of products in a sum, the zero point of the columns, and their scale.
    fn combine<>(
        sums: &[i32],
        of: (i32, i32, f32),
        add: &mut [i32],
        zeros: &[i32],
        factors: &mut [f32],
        scales: &[f32],
    ) {
        let (n, (k, column_zero, column)) = (sums.len(), of);
        let (add, zeros) = (&mut add[..n], &zeros[..n]);
        let (factors, scales) = (&mut factors[..n], &scales[..n]);
        for i in 0..n {
            let rest = sums[i].wrapping_sub(k.wrapping_mul(zeros[i]));
            add[i] = add[i].wrapping_sub(rest.wrapping_mul(column_zero));
            factors[i] = factors[i] * column / scales[i];
        }
    }
}

impl RowCodings {
    /// Room for parameters.
    pub fn new() -> RowCodings {
        RowCodings {
            add: [0; ROWS + BEYOND],
            zeros: [0; ROWS + BEYOND],
            factors: [0.0; ROWS + BEYOND],
            of_results: [0; ROWS + BEYOND],
            signed: false,
            rows: None,
        }
    }

    /// Computes the parameters of rows of a product, at most [`ROWS`], unless they are there. All products have the same operand on
    /// the left, and the same scales.
    pub fn fill(&mut self, p: &Product<'_>, order: InRegisters<'_>, rows: Range<usize>) {
        let (how, n) = (order.how, rows.len());
        let (first, number) = (p.first + rows.start, p.number + rows.start);
        let rows = Some((first, number, n));
        if std::mem::replace(&mut self.rows, rows) == rows {
            return;
        }
        let moved = if p.left.signed { 0 } else { 128 };
        let zeros = &mut self.zeros[..n];
        match p.left.zeros {
            Zeros::One(zero) => zeros.fill(zero.wrapping_sub(moved)),
            Zeros::Each(all) => {
                for (to, zero) in zeros.iter_mut().zip(&all[first..first + n]) {
                    *to = (*zero as i32).wrapping_sub(moved);
                }
            }
        }
        let add = &mut self.add[..n];
        match how.bias {
            SumBias::Rows(all) => part(all, number, add),
            _ => add.fill(0),
        }
        let (mut scales, mut results) = ([0.0; ROWS], [0.0; ROWS]);
        part(how.rows, number, &mut self.factors[..n]);
        part(how.scales, number, &mut scales[..n]);
        part(how.zeros, number, &mut results[..n]);
        for (to, zero) in self.of_results[..n].iter_mut().zip(results) {
            *to = i32::from(zero as i16);
        }
        self.signed = how.is_signed();
        let sums = &p.left.sums[first..first + n];
        let of = (p.k as i32, order.zero, how.columns[0]);
        combine(sums, of, add, zeros, &mut self.factors, &scales);
    }
}
