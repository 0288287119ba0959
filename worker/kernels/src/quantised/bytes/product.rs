//! One product of bytes: its operands, and where its sums, or the codes that they become, are written.

#[cfg(target_arch = "x86_64")]
use std::ops::Range;

use super::columns::Columns;
use super::operands::{PackedRows, Zeros};
#[cfg(target_arch = "x86_64")]
use super::runs::PANEL;
use crate::quantised::requantise::Requantisation;

/// Most rows of a panel whose sums become codes at once.
pub const DEEPEST: usize = 8192;

/// What is made of the sums.
pub enum Destination<'a> {
    /// The sums are the result.
    Sums(&'a mut [i32]),
    /// The sums become codes. Each is a sum of at most [`DEEPEST`] products.
    Codes(&'a mut [u8], &'a Requantisation<'a>),
}

impl<'a> Destination<'a> {
    pub(in crate::quantised) fn len(&self) -> usize {
        match self {
            Destination::Sums(out) => out.len(),
            Destination::Codes(out, _) => out.len(),
        }
    }

    /// The start of the output, for products over `k` terms with `n` columns.
    pub(super) fn start(self, n: usize, k: usize) -> Output<'a> {
        match self {
            Destination::Sums(out) => Output::Sums(out.as_mut_ptr()),
            Destination::Codes(out, how) => {
                assert!(k <= DEEPEST, "codes of sums of {k} products");
                assert!(how.fits_columns(n), "scales of columns");
                Output::Codes(out.as_mut_ptr(), how)
            }
        }
    }
}

/// The start of an output.
#[derive(Clone, Copy)]
pub(super) enum Output<'a> {
    Sums(*mut i32),
    Codes(*mut u8, &'a Requantisation<'a>),
}

// SAFETY: tiles of the output are disjoint (invariant 2 of the products).
unsafe impl Sync for Output<'_> {}

impl Output<'_> {
    pub fn after(self, elements: usize) -> Self {
        match self {
            Output::Sums(at) => Output::Sums(at.wrapping_add(elements)),
            Output::Codes(at, how) => Output::Codes(at.wrapping_add(elements), how),
        }
    }
}

/// One product with its operands.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    /// Columns of the output.
    pub n: usize,
    pub k: usize,
    pub left: PackedRows<'a>,
    /// The first row of the left operand.
    pub first: usize,
    /// The number of the first row among the rows of all products.
    pub number: usize,
    pub right: Columns<'a>,
    /// Whether the codes of the right operand are signed.
    pub signed: bool,
    pub zeros: Zeros<'a>,
    /// The output, row-major and `n` wide.
    pub out: Output<'a>,
}

/// Where tiles write sums: the first row's first one, and the distance of rows.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct SumRows {
    pub start: *mut i32,
    pub stride: usize,
}

#[cfg(target_arch = "x86_64")]
impl SumRows {
    pub fn at(self, row: usize, column: usize) -> *mut i32 {
        self.start.wrapping_add(row * self.stride + column)
    }
}

impl Product<'_> {
    /// The zero point of row `i` as the packed bytes have it, and the sum of the row's numbers.
    pub fn row_zero(&self, i: usize) -> (i32, i32) {
        let moved = if self.left.signed { 0 } else { 128 };
        let zero = self.left.zeros.at(self.first + i).wrapping_sub(moved);
        let codes = self.left.sums[self.first + i];
        (zero, codes.wrapping_sub((self.k as i32).wrapping_mul(zero)))
    }

    /// Whether the zero points of all rows are zero, as the packed bytes have them.
    #[cfg(target_arch = "x86_64")]
    pub fn rows_have_no_zeros(&self) -> bool {
        let moved = if self.left.signed { 0 } else { 128 };
        matches!(self.left.zeros, Zeros::One(zero) if zero == moved)
    }

    /// The zero point of a column as panels have it.
    #[cfg(target_arch = "x86_64")]
    pub fn column_zero(&self, j: usize) -> i32 {
        let moved = if self.signed { 128 } else { 0 };
        self.zeros.at(j).wrapping_add(moved)
    }

    /// The zero points of columns as panels have them, with zeros after them.
    #[cfg(target_arch = "x86_64")]
    pub fn column_zeros(&self, columns: &Range<usize>) -> [i32; PANEL] {
        let mut all = [0; PANEL];
        for (zero, j) in all.iter_mut().zip(columns.clone()) {
            *zero = self.column_zero(j);
        }
        all
    }
}
