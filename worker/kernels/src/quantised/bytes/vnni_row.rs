//! The only row of a product by a matrix, by the dot products of AVX-512 VNNI.
//!
//! Four rows of the matrix are interleaved in registers and used at once; nothing of them is stored. The operand that is
//! unsigned is the matrix, if its codes are, else the row, whose codes are moved by 128 as they are loaded: the codes of the matrix,
//! of which there are many, are never changed.
//!
//! Sums lie in the order that interleaving gives until all rows are added ([`vnni`](super::vnni)).

use std::arch::x86_64::*;
use std::ops::Range;

use super::columns::Columns;
use super::operands::packed_row;
use super::output::write_strip;
use super::product::Product;
use super::runs::PANEL;
use super::tile::{STREAMED, STRIP};
use super::vnni::{Sums, VECTORS, transposed};
use crate::Exec;
use crate::quantised::interleave;

/// A part of the rows of a matrix in the columns of a panel.
struct Part<'a> {
    codes: &'a [u8],
    /// Codes of a row of the matrix.
    n: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    /// The packed row of the left operand.
    left: &'a [u8],
    /// Whether the codes of the matrix are signed.
    signed: bool,
}

/// Computes a part of the only row of a product by a matrix, or stops early where the step was cancelled.
///
/// # Safety
/// The operands cover the sizes, the right one is a matrix, nobody else touches the columns, and the processor has the
/// instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn row(exec: Exec<'_>, p: &Product<'_>, columns: Range<usize>) {
    let Columns::Matrix { codes, n } = p.right else {
        return;
    };
    let left = &p.left.packed[p.first * packed_row(p.k)..][..packed_row(p.k)];
    for start in columns.clone().step_by(STRIP) {
        let strip = start..columns.end.min(start + STRIP);
        let (mut sums, mut column_sums) = ([0i32; STRIP], [0i32; STRIP]);
        for first in (0..p.k).step_by(STREAMED) {
            if exec.check().is_err() {
                return;
            }
            let parts = sums
                .chunks_exact_mut(PANEL)
                .zip(column_sums.chunks_exact_mut(PANEL));
            for (from, (sums, column_sums)) in strip.clone().step_by(PANEL).zip(parts) {
                let part = Part {
                    codes,
                    n,
                    rows: first..p.k.min(first + STREAMED),
                    columns: from..strip.end.min(from + PANEL),
                    left,
                    signed: p.signed,
                };
                // SAFETY: the caller's contract; both parts of sums are a panel.
                unsafe { add(&part, sums, column_sums) };
            }
        }
        let parts = sums
            .chunks_exact_mut(PANEL)
            .zip(column_sums.chunks_exact_mut(PANEL));
        for (from, (sums, column_sums)) in strip.clone().step_by(PANEL).zip(parts) {
            // SAFETY: both parts of sums are a panel.
            unsafe { subtract_zeros(p, from..strip.end.min(from + PANEL), sums, column_sums) };
        }
        // SAFETY: the columns are of the rectangle, which the caller owns.
        unsafe { write_strip(p, strip.start, &sums[..strip.len()]) };
    }
}

/// Loads the sums of a panel.
///
/// # Safety
/// The processor has AVX-512 F, and there are as many sums.
#[inline(always)]
unsafe fn load(sums: &[i32]) -> Sums {
    debug_assert_eq!(sums.len(), PANEL);
    // SAFETY: the caller's contract.
    unsafe { std::array::from_fn(|v| _mm512_loadu_si512(sums.as_ptr().add(16 * v).cast())) }
}

/// Adds rows to the sums of a panel.
///
/// # Safety
/// The part lies in its operands, and the processor has the instruction set. Both kinds of sums are a panel long.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add(part: &Part<'_>, sums: &mut [i32], column_sums: &mut [i32]) {
    // SAFETY: the caller's contract.
    let (mut totals, mut column_totals) = unsafe { (load(sums), load(column_sums)) };
    let mask = u64::MAX >> (PANEL - part.columns.len());
    let ones = _mm512_set1_epi8(1);
    for first in part.rows.clone().step_by(4) {
        let mut r = [_mm512_setzero_si512(); 4];
        for (i, r) in r.iter_mut().enumerate().take(part.rows.end - first) {
            let codes = &part.codes[(first + i) * part.n + part.columns.start..];
            // The rows after these, which the processor does not expect since they are far apart.
            let ahead = codes.as_ptr().wrapping_add(STREAMED * part.n);
            _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
            // SAFETY: the mask covers codes of the row only.
            *r = unsafe { _mm512_maskz_loadu_epi8(mask, codes.as_ptr().cast()) };
        }
        let left = &part.left[first..first + 4];
        let left = i32::from_le_bytes([left[0], left[1], left[2], left[3]]);
        // SAFETY: the caller's contract.
        let codes = unsafe { interleave::within_lanes_of_64(r) };
        if part.signed {
            let left = _mm512_set1_epi32(left ^ 0x8080_8080u32 as i32);
            for v in 0..VECTORS {
                totals[v] = _mm512_dpbusd_epi32(totals[v], left, codes[v]);
                column_totals[v] = _mm512_dpbusd_epi32(column_totals[v], ones, codes[v]);
            }
        } else {
            let left = _mm512_set1_epi32(left);
            for v in 0..VECTORS {
                totals[v] = _mm512_dpbusd_epi32(totals[v], codes[v], left);
                column_totals[v] = _mm512_dpbusd_epi32(column_totals[v], codes[v], ones);
            }
        }
    }
    for (all, totals) in [(sums, totals), (column_sums, column_totals)] {
        for (v, total) in totals.into_iter().enumerate() {
            // SAFETY: a panel is four vectors.
            unsafe { _mm512_storeu_si512(all.as_mut_ptr().add(16 * v).cast(), total) };
        }
    }
}

/// Puts the sums of a panel in the order of its columns, and subtracts what zero points give.
///
/// # Safety
/// The processor has the instruction set, and both kinds of sums are a panel long.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn subtract_zeros(
    p: &Product<'_>,
    columns: Range<usize>,
    sums: &mut [i32],
    column_sums: &[i32],
) {
    // A row that is unsigned for a signed matrix was moved by 128, and so is its zero point.
    let (zero, rest) = p.row_zero(0);
    let zero = zero.wrapping_add(if p.signed { 128 } else { 0 });
    let mut zeros = [0; PANEL];
    for (zero, j) in zeros.iter_mut().zip(columns) {
        *zero = p.zeros.at(j);
    }
    // SAFETY: a panel is four vectors.
    unsafe {
        let (totals, of_columns) = (transposed(load(sums)), transposed(load(column_sums)));
        let zeros = load(&zeros);
        for v in 0..VECTORS {
            let of_row = _mm512_mullo_epi32(of_columns[v], _mm512_set1_epi32(zero));
            let of_column = _mm512_mullo_epi32(zeros[v], _mm512_set1_epi32(rest));
            let sum = _mm512_sub_epi32(totals[v], _mm512_add_epi32(of_row, of_column));
            _mm512_storeu_si512(sums.as_mut_ptr().add(16 * v).cast(), sum);
        }
    }
}
