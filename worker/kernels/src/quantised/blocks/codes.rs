//! Codes of several columns, row by row.
//!
//! ```text
//! eight bytes of each of 64 columns ──> eight arrays of octets, one for each column of an octet
//! ── exchange ──> one array for each of eight rows ── spread ──> rows of 64 codes
//! ```
//!
//! The bytes of eight columns are exchanged as the bytes of words. Words of one step lie side by side, so that all loops
//! over them become vector instructions.

use std::ops::Range;

use super::weights::{BlockWeights, COLUMNS};
use crate::multiversion::multiversion;

/// Codes of some columns in one row.
pub(super) type CodeRow = [u8; COLUMNS];

/// The most rows that are read at once: two lines of the cache of a column with codes of four bits.
pub(super) const DEPTH: usize = 256;
/// Columns and rows of a square of bytes.
const SIDE: usize = 8;
/// Bytes of a column in squares: [`DEPTH`] codes of eight bits.
const SQUARES: usize = DEPTH / SIDE;
/// Rows of the squares that [`DEPTH`] codes of two bits may lie in, of which the first begins within a byte.
const ROWS: usize = DEPTH + 32;

/// Squares of all columns side by side: one byte of each column, or eight bytes of each eighth.
type Octets = [[u8; SIDE]; COLUMNS / SIDE];

/// Memory in which codes are brought in order.
pub(super) struct CodeBuffer {
    /// First for each column of eight, then for each row of eight.
    squares: [[Octets; SQUARES]; SIDE],
    rows: [CodeRow; ROWS],
}

impl CodeBuffer {
    pub fn new() -> CodeBuffer {
        CodeBuffer {
            squares: [[[[0; SIDE]; COLUMNS / SIDE]; SQUARES]; SIDE],
            rows: [[0; COLUMNS]; ROWS],
        }
    }

    /// The codes of at most [`DEPTH`] rows of at most [`COLUMNS`] columns, signed ones plus their middle. What lanes beyond
    /// the columns hold is not specified.
    pub fn read(
        &mut self,
        w: &BlockWeights<'_>,
        columns: Range<usize>,
        rows: Range<usize>,
    ) -> &[CodeRow] {
        if w.packed {
            let to = &mut self.rows[..rows.len()];
            read_packed((w.codes, w.rows(), w.bits), columns, rows, to);
            return to;
        }
        let (per_byte, each) = (8 / w.bits, w.column_bytes());
        let bytes = rows.start / per_byte..rows.end.div_ceil(per_byte);
        let first = rows.start - bytes.start * per_byte;
        for (lane, column) in columns.enumerate() {
            let codes = &w.codes[column * each..][bytes.clone()];
            let (whole, rest) = codes.as_chunks::<SIDE>();
            let squares = &mut self.squares[lane % SIDE];
            for (square, bytes) in squares.iter_mut().zip(whole) {
                square[lane / SIDE] = *bytes;
            }
            if let (false, Some(square)) = (rest.is_empty(), squares.get_mut(whole.len())) {
                square[lane / SIDE][..rest.len()].copy_from_slice(rest);
            }
        }
        let squares = bytes.len().div_ceil(SIDE);
        exchange(&mut self.squares, squares);
        // Adding the middle to a signed code inverts its sign bit.
        let inverted = if w.signed { w.middle() } else { 0 };
        spread(&self.squares, squares, w.bits, inverted, &mut self.rows);
        &self.rows[first..first + rows.len()]
    }
}

/// Reads packed codes: some rows of all that there are, in at most [`COLUMNS`] columns.
pub(super) fn read_packed(
    (codes, all, bits): (&[u8], usize, usize),
    columns: Range<usize>,
    rows: Range<usize>,
    to: &mut [CodeRow],
) {
    let width = COLUMNS * bits / 8;
    let mut at = columns.start;
    while at < columns.end {
        let (strip, lane) = (at / COLUMNS, at % COLUMNS);
        let len = (COLUMNS - lane).min(columns.end - at);
        let codes = &codes[(strip * all + rows.start) * width..][..rows.len() * width];
        match (lane, at == columns.start) {
            (0, true) => split(codes, bits, to),
            _ => {
                for (code, to) in codes.chunks(width).zip(&mut *to) {
                    let mut row = [[0; COLUMNS]];
                    split(code, bits, &mut row);
                    let first = at - columns.start;
                    to[first..first + len].copy_from_slice(&row[0][lane..lane + len]);
                }
            }
        }
        at += len;
    }
}

multiversion! {
    /// Writes the codes of packed rows.
    fn split<>(codes: &[u8], bits: usize, to: &mut [CodeRow]) {
        match bits {
            2 => split_rows::<2>(codes, to),
            4 => split_rows::<4>(codes, to),
            _ => split_rows::<8>(codes, to),
        }
    }
}

#[inline(always)]
fn split_rows<const BITS: usize>(codes: &[u8], to: &mut [CodeRow]) {
    let width = COLUMNS * BITS / 8;
    for (bytes, to) in codes.chunks_exact(width).zip(to) {
        for (part, to) in to.chunks_exact_mut(width).enumerate() {
            for i in 0..width {
                to[i] = (bytes[i] >> (part * BITS)) & (255 >> (8 - BITS));
            }
        }
    }
}

/// Writes rows of codes as packed ones; those after the first `columns` become zeros.
pub(super) fn join(codes: &[CodeRow], columns: usize, bits: usize, to: &mut [u8]) {
    let width = COLUMNS * bits / 8;
    for (codes, to) in codes.iter().zip(to.chunks_exact_mut(width)) {
        to.fill(0);
        for (lane, code) in codes.iter().enumerate().take(columns) {
            to[lane % width] |= code << (lane / width * bits);
        }
    }
}

/// Exchanges the upper half of each two times `SHIFT` bits of a word with the lower half of those of another word.
#[inline(always)]
fn swap<const SHIFT: u32>(upper: &mut [[u8; SIDE]], lower: &mut [[u8; SIDE]], kept: u64) {
    let n = upper.len().min(lower.len());
    let (upper, lower) = (&mut upper[..n], &mut lower[..n]);
    for i in 0..n {
        let (u, l) = (u64::from_le_bytes(upper[i]), u64::from_le_bytes(lower[i]));
        let differing = ((u >> SHIFT) ^ l) & kept;
        lower[i] = (l ^ differing).to_le_bytes();
        upper[i] = (u ^ (differing << SHIFT)).to_le_bytes();
    }
}

multiversion! {
    /// Exchanges columns and rows of squares of bytes: byte `r` of octet `i` of column `c` becomes byte `c` of octet `i` of
    /// row `r`, for the first `len` squares.
    fn exchange<>(squares: &mut [[Octets; SQUARES]; SIDE], len: usize) {
        let len = len.min(SQUARES);
        let [a, b, c, d, e, f, g, h] = squares;
        let (a, b) = (a[..len].as_flattened_mut(), b[..len].as_flattened_mut());
        let (c, d) = (c[..len].as_flattened_mut(), d[..len].as_flattened_mut());
        let (e, f) = (e[..len].as_flattened_mut(), f[..len].as_flattened_mut());
        let (g, h) = (g[..len].as_flattened_mut(), h[..len].as_flattened_mut());
        const FOURS: u64 = 0x0000_0000_ffff_ffff;
        swap::<32>(a, e, FOURS);
        swap::<32>(b, f, FOURS);
        swap::<32>(c, g, FOURS);
        swap::<32>(d, h, FOURS);
        const PAIRS: u64 = 0x0000_ffff_0000_ffff;
        swap::<16>(a, c, PAIRS);
        swap::<16>(b, d, PAIRS);
        swap::<16>(e, g, PAIRS);
        swap::<16>(f, h, PAIRS);
        const BYTES: u64 = 0x00ff_00ff_00ff_00ff;
        swap::<8>(a, b, BYTES);
        swap::<8>(c, d, BYTES);
        swap::<8>(e, f, BYTES);
        swap::<8>(g, h, BYTES);
    }
}

multiversion! {
    /// Writes the codes of the first `len` squares, with some bits inverted: one row for each code of a byte.
    fn spread<>(
        squares: &[[Octets; SQUARES]; SIDE],
        len: usize,
        bits: usize,
        inverted: u8,
        to: &mut [CodeRow; ROWS],
    ) {
        let lowest = 255u8 >> (8 - bits);
        let mut rows = to.iter_mut();
        for i in 0..len.min(SQUARES) {
            for row in squares {
                let bytes = row[i].as_flattened();
                for shift in (0..8).step_by(bits) {
                    let Some(to) = rows.next() else {
                        return;
                    };
                    let bytes = &bytes[..COLUMNS];
                    for lane in 0..COLUMNS {
                        to[lane] = ((bytes[lane] >> shift) & lowest) ^ inverted;
                    }
                }
            }
        }
    }
}
