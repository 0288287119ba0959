//! A tile of the output: its panel is packed part by part, and its rows are summed over each part.

use std::ops::Range;

use super::codings::{self, InRegisters, RowCodings};
use super::columns::Panel;
use super::operands::Zeros;
use super::output::{Block, MOST_ROWS, write_strip};
use super::product::{Output, Product, SumRows};
use super::runs::PANEL;
use crate::Exec;
use crate::gemm::scratch::with_scratch;

/// Most rows of a panel: it fits the level-2 cache together with rows of the left operand.
const DEPTH: usize = 1024;
/// Blocks of rows between two looks at the cancel flag: at most a tenth of a millisecond.
const LOOK: usize = 16;

/// A part of the sums: rows `first` to `first + 4 * groups` of a panel, which are packed as groups of four rows, 256 bytes
/// each.
pub(super) struct Part<'a> {
    pub packed: *const u8,
    pub first: usize,
    pub groups: usize,
    /// Whether the output has the sums of the rows before.
    pub adds: bool,
    /// The sums of the columns, with the last part.
    pub column_sums: Option<&'a [i32; PANEL]>,
}

/// Rows of a product, some of those whose codings were computed together.
#[derive(Clone, Copy)]
pub(super) struct BlockRows<'a> {
    pub codings: &'a RowCodings,
    /// The number of the first row among the codings.
    pub at: usize,
    /// The first row of the product.
    pub row: usize,
    pub count: usize,
}

/// Makes the codes of rows of sums, at most [`Dots::ROWS`], of a part that has all products of them.
///
/// # Safety
/// The panel was packed for this and covers the part, as the rows do, and the processor has the instruction set.
pub(super) type MakeCodes = unsafe fn(
    part: &Part<'_>,
    p: &Product<'_>,
    order: InRegisters<'_>,
    rows: BlockRows<'_>,
    to: &mut [[u8; PANEL]; MOST_ROWS],
);

/// The dot products of an instruction set.
pub(super) trait Dots {
    /// Most rows whose sums are kept in registers.
    const ROWS: usize;

    /// Makes codes of sums that are in registers, where the instruction set has enough of them.
    const MAKE_CODES: Option<MakeCodes> = None;

    /// Packs rows of a panel as unsigned bytes, and adds them to the sums of the columns. Columns and sums are in the order of
    /// [`Dots::MAKE_CODES`] where codes are made in registers.
    ///
    /// # Safety
    /// `to` has room for the rows, filled up to a multiple of four; the processor has the instruction set.
    unsafe fn pack(
        p: &Product<'_>,
        panel: &Panel<'_>,
        rows: Range<usize>,
        order: Option<InRegisters<'_>>,
        to: *mut u8,
        sums: &mut [i32; PANEL],
    );

    /// Adds a part to `count` rows of sums, at most [`Dots::ROWS`], from row `row` of the product on.
    ///
    /// # Safety
    /// The panel and the rows cover the part, and the processor has the instruction set.
    unsafe fn add(
        part: &Part<'_>,
        p: &Product<'_>,
        row: usize,
        count: usize,
        columns: &Range<usize>,
        to: SumRows,
    );
}

/// Most columns of a single row whose sums are kept in the level-1 cache.
pub(super) const STRIP: usize = 16 * PANEL;
/// Rows of the right operand of a single row that are read along a strip, so that their pages stay known to the processor.
pub(super) const STREAMED: usize = 32;

/// Computes a part of the only row of a product by a matrix, or stops early where the step was cancelled.
///
/// # Safety
/// The contract is that of [`tile`].
pub(super) unsafe fn row<D: Dots>(exec: Exec<'_>, p: &Product<'_>, columns: Range<usize>) {
    let mut packed = [0u8; STREAMED * PANEL];
    for start in columns.clone().step_by(STRIP) {
        let strip = start..columns.end.min(start + STRIP);
        let mut sums = [0; STRIP];
        let mut column_sums = [[0; PANEL]; STRIP / PANEL];
        // A product over nothing is a panel of no rows.
        for first in (0..p.k.max(1)).step_by(STREAMED) {
            if exec.check().is_err() {
                return;
            }
            let depth = STREAMED.min(p.k - first);
            for (i, column_sums) in column_sums.iter_mut().enumerate() {
                let from = strip.start + i * PANEL;
                if from >= strip.end {
                    break;
                }
                let columns = from..strip.end.min(from + PANEL);
                let panel = Panel::new(p.right, columns.clone());
                // SAFETY: `packed` has room for the rows; the rest is the caller's contract.
                unsafe {
                    D::pack(
                        p,
                        &panel,
                        first..first + depth,
                        None,
                        packed.as_mut_ptr(),
                        column_sums,
                    )
                };
                let part = Part {
                    packed: packed.as_ptr(),
                    first,
                    groups: depth.div_ceil(4),
                    adds: first > 0,
                    column_sums: (first + depth == p.k).then_some(&*column_sums),
                };
                let to = SumRows {
                    start: sums[i * PANEL..].as_mut_ptr(),
                    stride: PANEL,
                };
                // SAFETY: the caller's contract; there is room for the sums of a panel.
                unsafe { D::add(&part, p, 0, 1, &columns, to) };
            }
        }
        // SAFETY: the columns are of the rectangle, which the caller owns.
        unsafe { write_strip(p, strip.start, &sums[..strip.len()]) };
    }
}

/// Computes a rectangle of the output, or stops early where the step was cancelled.
///
/// # Safety
/// The operands cover the sizes, nobody else touches the rectangle, and the processor has the instruction set.
pub(super) unsafe fn tile<D: Dots>(
    exec: Exec<'_>,
    p: &Product<'_>,
    row_codings: &mut RowCodings,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    const { assert!(D::ROWS <= MOST_ROWS) };
    let panel = Panel::new(p.right, columns.clone());
    let runs = panel.runs();
    if runs.as_slice().is_empty() {
        return;
    }
    let most = match p.out {
        Output::Sums(_) => DEPTH,
        Output::Codes(..) => p.k.max(1),
    };
    let in_registers = match (D::MAKE_CODES, p.out, p.zeros) {
        (Some(make), Output::Codes(_, how), Zeros::One(_)) if how.is_of_rows() => {
            let zero = p.column_zero(columns.start);
            let columns = columns.len();
            Some((make, InRegisters { columns, zero, how }))
        }
        _ => None,
    };
    let order = in_registers.map(|(_, order)| order);
    with_scratch(most.next_multiple_of(4) * PANEL / 4, |scratch| {
        let packed = scratch.as_mut_ptr().cast::<u8>();
        let (mut column_sums, mut output) = ([0; PANEL], Block::new());
        // A product over nothing is a panel of no rows.
        for first in (0..p.k.max(1)).step_by(most) {
            let depth = most.min(p.k - first);
            // SAFETY: `packed` has room for a panel; the rest is the caller's contract.
            unsafe {
                let rows = first..first + depth;
                D::pack(p, &panel, rows, order, packed, &mut column_sums);
            }
            let part = Part {
                packed,
                first,
                groups: depth.div_ceil(4),
                adds: false,
                column_sums: (first + depth == p.k).then_some(&column_sums),
            };
            // Rows whose codings are computed together.
            for start in rows.clone().step_by(codings::ROWS) {
                let rows = start..rows.end.min(start + codings::ROWS);
                if let Some((_, order)) = in_registers {
                    row_codings.fill(p, order, rows.clone());
                }
                let blocks = rows.len().div_ceil(D::ROWS);
                for block in 0..blocks {
                    if block % LOOK == 0 && exec.check().is_err() {
                        return;
                    }
                    // Blocks of equal sizes, as far as that goes.
                    let at = |block: usize| rows.len() * block / blocks;
                    let (row, count) = (rows.start + at(block), at(block + 1) - at(block));
                    let to = SumRows {
                        start: output.sums.as_mut_ptr().cast(),
                        stride: PANEL,
                    };
                    // SAFETY: the caller's contract; there is room for the rows, which are of the rectangle.
                    unsafe {
                        match in_registers {
                            Some((make, order)) => {
                                let rows = BlockRows {
                                    codings: row_codings,
                                    at: at(block),
                                    row,
                                    count,
                                };
                                make(&part, p, order, rows, &mut output.codes);
                            }
                            None => {
                                D::add(&part, p, row, count, &columns, to);
                                let rows = (row, count);
                                output.make_codes(p, runs.as_slice(), rows, columns.len());
                            }
                        }
                        output.write(p, runs.as_slice(), (row, count), first > 0);
                    }
                }
            }
        }
    });
}
