//! The operands of products of bytes: their codes and zero points, and the rows of the left one as they are packed.

use crate::Exec;
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::split::{tiles, tiles2};

/// Codes of eight bits.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'a> {
    /// The bits of the codes.
    pub codes: &'a [u8],
    /// Whether the codes are signed.
    pub signed: bool,
}

/// The zero points of an operand: one, or one for each row of the left operand or column of the right one. They are whole
/// numbers.
#[derive(Debug, Clone, Copy)]
pub enum Zeros<'a> {
    /// One zero point serves all codes.
    One(i32),
    /// Each row, or column, has a zero point.
    Each(&'a [f32]),
}

impl Zeros<'_> {
    pub(in crate::quantised) fn at(&self, i: usize) -> i32 {
        match self {
            Zeros::One(zero) => *zero,
            Zeros::Each(all) => all[i] as i32,
        }
    }
}

/// Whether products with this right operand depend on the sums of the left one's rows: they do not where its codes are unsigned and
/// their zero point is zero, as that of the results of a rectifier is.
pub fn needs_row_sums(right: Bytes<'_>, zeros: Zeros<'_>) -> bool {
    right.signed || !matches!(zeros, Zeros::One(0))
}

/// The bytes of a packed row of `k` codes.
pub fn packed_row(k: usize) -> usize {
    k.next_multiple_of(4)
}

/// Sums of 16 bits that are kept at a time.
const LANES: usize = 64;

multiversion! {
    /// The sum of the codes of a row as signed bytes.
    fn sum_of_row<>(codes: &[u8]) -> i32 {
        let mut sum = 0i32;
        // The sum of 128 bytes fits 16 bits.
        for part in codes.chunks(128 * LANES) {
            let mut sums = [0i16; LANES];
            let (whole, rest) = part.as_chunks::<LANES>();
            for codes in whole {
                for i in 0..LANES {
                    sums[i] += i16::from(codes[i] as i8);
                }
            }
            for i in 0..LANES {
                sum = sum.wrapping_add(i32::from(sums[i]));
            }
            for code in rest {
                sum = sum.wrapping_add(i32::from(*code as i8));
            }
        }
        sum
    }
}

multiversion! {
    /// Packs the codes of a row, moved by `flip`.
    fn pack_row<>(codes: &[u8], flip: u8, to: &mut [u8]) {
        let (to, rest) = to.split_at_mut(codes.len());
        for i in 0..codes.len() {
            to[i] = codes[i] ^ flip;
        }
        rest.fill(0);
    }
}

/// Whether rows of `k` codes are packed as they are.
pub fn is_packed(signed: bool, k: usize) -> bool {
    signed && packed_row(k) == k
}

/// Writes the sums of rows of `k` codes, which are packed as they are, to `sums`.
pub fn sum_rows(exec: &Exec, rows: &[u8], k: usize, sums: &mut [i32]) -> Result {
    assert_eq!(rows.len(), sums.len() * k, "codes of the left operand");
    let grain = (crate::split::GRAIN / k.max(1)).max(1);
    Ok(tiles(exec, sums, 1, grain, |range, sums| {
        for (row, sum) in range.zip(sums) {
            *sum = sum_of_row(&rows[row * k..(row + 1) * k]);
        }
    })?)
}

/// Packs the rows of a left operand, `k` codes each, into `to`, [`packed_row`] bytes each, and their sums into `sums`.
pub fn pack_rows(
    exec: &Exec,
    left: Bytes<'_>,
    k: usize,
    to: &mut [u8],
    sums: &mut [i32],
) -> Result {
    let flip = if left.signed { 0 } else { 128 };
    let (rows, width) = (sums.len(), packed_row(k));
    assert_eq!(left.codes.len(), rows * k, "codes of the left operand");
    let grain = (crate::split::GRAIN / width.max(1)).max(1);
    Ok(tiles2(
        exec,
        (to, width),
        (sums, 1),
        rows,
        grain,
        |range, to, sums| {
            for (i, row) in range.enumerate() {
                let codes = &left.codes[row * k..(row + 1) * k];
                let to = &mut to[i * width..(i + 1) * width];
                pack_row(codes, flip, to);
                sums[i] = sum_of_row(to);
            }
        },
    )?)
}

/// A left operand that [`pack_rows`] has packed, or whose rows were so already.
#[derive(Debug, Clone, Copy)]
pub struct PackedRows<'a> {
    pub packed: &'a [u8],
    pub sums: &'a [i32],
    /// Whether the codes were signed.
    pub signed: bool,
    /// The zero points of the codes.
    pub zeros: Zeros<'a>,
}
