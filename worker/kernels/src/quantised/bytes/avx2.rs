//! The dot products of AVX2: bytes are widened to 16 bits, of which pairs are multiplied and added without saturation.
//!
//! A packed group has its columns in their order. Two vectors of sums belong to eight columns, each with two sums of a
//! column next to each other, which are added before they are stored.

use std::arch::x86_64::*;
use std::ops::Range;

use super::codings::InRegisters;
use super::columns::Panel;
use super::operands::packed_row;
use super::product::{Product, SumRows};
use super::runs::{PANEL, copy_few};
use super::tile::{Dots, Part};
use crate::quantised::interleave;

/// Columns whose sums are kept in registers at a time.
const COLUMNS: usize = 16;

pub(super) struct Avx2;

impl Dots for Avx2 {
    const ROWS: usize = 3;

    unsafe fn pack(
        p: &Product<'_>,
        panel: &Panel<'_>,
        rows: Range<usize>,
        _: Option<InRegisters<'_>>,
        to: *mut u8,
        sums: &mut [i32; PANEL],
    ) {
        // SAFETY: the caller keeps the same contract.
        unsafe { pack(p, panel, rows, to, sums) }
    }

    unsafe fn add(
        part: &Part<'_>,
        p: &Product<'_>,
        row: usize,
        count: usize,
        columns: &Range<usize>,
        to: SumRows,
    ) {
        // SAFETY: the caller keeps the same contract.
        unsafe {
            match count {
                1 => add::<1>(part, p, row, columns, to),
                2 => add::<2>(part, p, row, columns, to),
                _ => add::<3>(part, p, row, columns, to),
            }
        }
    }
}

/// The body of [`Dots::pack`].
///
/// # Safety
/// The contract is that of [`Dots::pack`].
#[target_feature(enable = "avx2")]
unsafe fn pack(
    p: &Product<'_>,
    panel: &Panel<'_>,
    rows: Range<usize>,
    to: *mut u8,
    sums: &mut [i32; PANEL],
) {
    let flip = _mm256_set1_epi8(if p.signed { -128 } else { 0 });
    let (ones, pairs) = (_mm256_set1_epi8(1), _mm256_set1_epi16(1));
    for (group, first) in rows.clone().step_by(4).enumerate() {
        // What is missing of a group is zeros.
        let mut codes = [[0u8; PANEL]; 4];
        let there = 4.min(rows.end - first);
        for (i, to) in codes.iter_mut().enumerate().take(there) {
            let mut buffer = [0; PANEL];
            copy_few(panel.row(first + i, &mut buffer), to);
        }
        for half in 0..2 {
            // SAFETY: 32 columns at a time are half a panel; `to` has room for the group.
            unsafe {
                let load = |i: usize| {
                    let codes = _mm256_loadu_si256(codes[i].as_ptr().add(32 * half).cast());
                    match i < there {
                        true => _mm256_xor_si256(codes, flip),
                        false => codes,
                    }
                };
                let r = [load(0), load(1), load(2), load(3)];
                let ordered = interleave::rows_of_32(r);
                for (v, columns) in ordered.into_iter().enumerate() {
                    let at = 32 * half + 8 * v;
                    _mm256_storeu_si256(to.add(group * 4 * PANEL + 4 * at).cast(), columns);
                    // Two bytes are at most 510.
                    let sum = _mm256_madd_epi16(_mm256_maddubs_epi16(columns, ones), pairs);
                    let all = sums.as_mut_ptr().add(at).cast();
                    _mm256_storeu_si256(all, _mm256_add_epi32(_mm256_loadu_si256(all), sum));
                }
            }
        }
    }
}

/// The body of [`Dots::add`] for `R` rows.
///
/// # Safety
/// The contract is that of [`Dots::add`].
#[target_feature(enable = "avx2")]
unsafe fn add<const R: usize>(
    part: &Part<'_>,
    p: &Product<'_>,
    row: usize,
    columns: &Range<usize>,
    to: SumRows,
) {
    let width = packed_row(p.k);
    let zeros = part.column_sums.map(|sums| (sums, p.column_zeros(columns)));
    let nothing = _mm256_setzero_si256();
    for first in (0..columns.len()).step_by(COLUMNS) {
        let mut sums = [[nothing; 4]; R];
        // SAFETY: rows of the left operand are `width` bytes, which is a multiple of four; the panel has `groups` groups.
        unsafe {
            let left = p.left.packed.as_ptr();
            let left = left.add((p.first + row) * width + part.first);
            for group in 0..part.groups {
                let load = |at: usize| {
                    let from = part.packed.add(group * 4 * PANEL + 4 * at);
                    _mm256_loadu_si256(from.cast())
                };
                let (b, c) = (load(first), load(first + 8));
                let b = [
                    _mm256_unpacklo_epi8(b, nothing),
                    _mm256_unpackhi_epi8(b, nothing),
                    _mm256_unpacklo_epi8(c, nothing),
                    _mm256_unpackhi_epi8(c, nothing),
                ];
                for (r, sums) in sums.iter_mut().enumerate() {
                    let a = left.add(r * width + 4 * group).cast::<i32>();
                    let a = _mm_cvtepi8_epi16(_mm_cvtsi32_si128(a.read_unaligned()));
                    let a = _mm256_broadcastq_epi64(a);
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(a, b));
                    }
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            let (zero, rest) = p.row_zero(row + r);
            let mut all = [0i32; COLUMNS];
            // SAFETY: two vectors are sixteen sums.
            unsafe {
                let all = all.as_mut_ptr();
                _mm256_storeu_si256(all.cast(), _mm256_hadd_epi32(sums[0], sums[1]));
                _mm256_storeu_si256(all.add(8).cast(), _mm256_hadd_epi32(sums[2], sums[3]));
            }
            let there = COLUMNS.min(columns.len() - first);
            for (i, sum) in all.iter_mut().enumerate().take(there) {
                let out = to.at(r, first + i);
                if part.adds {
                    // SAFETY: the caller owns the rectangle, which the part before has filled.
                    *sum = sum.wrapping_add(unsafe { out.read() });
                }
                if let Some((sums, zeros)) = &zeros {
                    let of_row = sums[first + i].wrapping_mul(zero);
                    let of_column = zeros[first + i].wrapping_mul(rest);
                    *sum = sum.wrapping_sub(of_row.wrapping_add(of_column));
                }
                // SAFETY: the caller owns the rectangle.
                unsafe { out.write(*sum) };
            }
        }
    }
}
