//! The last few columns of a product, by the dot products of AVX-512 VNNI.
//!
//! A vector of sums has sixteen columns, so a few columns more would cost as much as sixteen. Here a vector has 64 terms of one
//! column instead, which are multiplied by the same terms of a row; the sixteen parts of each sum are added at the end.
//! Sixteen sums are computed at once: of sixteen rows and one column, of eight and two, or of four and four.

use std::arch::x86_64::*;
use std::ops::Range;

use super::codings::{self, InRegisters, RowCodings};
use super::columns::Panel;
use super::operands::{Zeros, packed_row};
use super::product::{Output, Product};
use super::runs::PANEL;
use super::tile::BlockRows;
use crate::Exec;
use crate::gemm::scratch::with_scratch;

/// Most columns.
const MOST: usize = 4;
/// Least terms of a sum whose columns are worth a layout of their own.
const LEAST_TERMS: usize = 64;
/// Terms of a vector.
const TERMS: usize = 64;
/// Sums that are computed at once.
const SUMS: usize = 16;

/// How many of the last columns of a product that is `width` wide are computed here.
pub(super) fn columns(p: &Product<'_>, width: usize) -> usize {
    let few = width % SUMS;
    let makes_codes = matches!(p.out, Output::Codes(_, how) if how.is_of_rows());
    match makes_codes && matches!(p.zeros, Zeros::One(_)) && p.k >= LEAST_TERMS && few <= MOST {
        true => few,
        false => 0,
    }
}

/// Computes a rectangle of the output, or stops early where the step was cancelled.
///
/// # Safety
/// The columns are at most as many as [`columns`] tells, the operands cover the sizes, nobody else touches the rectangle, and the
/// processor has the instruction set.
pub(super) unsafe fn tile(
    exec: Exec<'_>,
    p: &Product<'_>,
    codings: &mut RowCodings,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    let Output::Codes(out, how) = p.out else {
        return;
    };
    let panel = Panel::new(p.right, columns.clone());
    let mut places = [None; MOST];
    for run in panel.runs().as_slice() {
        for i in 0..run.len {
            places[run.at + i] = Some(run.place + i);
        }
    }
    let depth = p.k.next_multiple_of(TERMS);
    with_scratch(columns.len() * depth / 4, |scratch| {
        let terms = scratch.as_mut_ptr().cast::<u8>();
        // SAFETY: the scratch memory has as many bytes, which are initialised.
        let terms = unsafe { std::slice::from_raw_parts_mut(terms, columns.len() * depth) };
        let sums = lay_out(p, &panel, depth, terms);
        let few = FewColumns {
            p,
            out,
            places,
            sums,
            depth,
            terms,
        };
        let order = InRegisters {
            columns: columns.len(),
            zero: p.column_zero(columns.start),
            how,
        };
        // SAFETY: the caller's contract.
        unsafe {
            match columns.len() {
                1 => few.rows::<1>(exec, order, codings, rows),
                2 => few.rows::<2>(exec, order, codings, rows),
                3 => few.rows::<3>(exec, order, codings, rows),
                _ => few.rows::<4>(exec, order, codings, rows),
            }
        }
    });
}

/// Copies each column as unsigned bytes to `depth` bytes of its own, and returns their sums.
fn lay_out(p: &Product<'_>, panel: &Panel<'_>, depth: usize, to: &mut [u8]) -> [i32; MOST] {
    let flip = if p.signed { 128 } else { 0 };
    let mut sums = [0i32; MOST];
    let mut buffer = [0; PANEL];
    for k in 0..p.k {
        let codes = panel.row(k, &mut buffer);
        for (j, (code, sum)) in codes.iter().zip(&mut sums).enumerate() {
            let code = code ^ flip;
            to[j * depth + k] = code;
            *sum = sum.wrapping_add(i32::from(code));
        }
    }
    sums
}

/// Columns that were laid out, and where the codes of their sums go.
struct FewColumns<'a> {
    p: &'a Product<'a>,
    out: *mut u8,
    /// The columns of the output, where it has them.
    places: [Option<usize>; MOST],
    /// The sums of the columns' codes.
    sums: [i32; MOST],
    /// Bytes of a column.
    depth: usize,
    terms: &'a [u8],
}

impl FewColumns<'_> {
    /// Computes rows in `C` columns.
    ///
    /// # Safety
    /// The contract is that of [`tile`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn rows<const C: usize>(
        &self,
        exec: Exec<'_>,
        order: InRegisters<'_>,
        codings: &mut RowCodings,
        rows: Range<usize>,
    ) {
        let together = SUMS / C;
        for start in rows.clone().step_by(codings::ROWS) {
            if exec.check().is_err() {
                return;
            }
            let part = start..rows.end.min(start + codings::ROWS);
            codings.fill(self.p, order, part.clone());
            for row in part.clone().step_by(together) {
                let rows = BlockRows {
                    codings,
                    at: row - start,
                    row,
                    count: together.min(part.end - row),
                };
                // SAFETY: the caller's contract.
                unsafe { self.write::<C>(rows, self.sums::<C>(row, rows.count)) };
            }
        }
    }

    /// The sums of `count` rows in `C` columns, those of a row next to each other.
    ///
    /// # Safety
    /// The contract is that of [`tile`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn sums<const C: usize>(&self, row: usize, count: usize) -> __m512i {
        let p = self.p;
        let width = packed_row(p.k);
        let mut sums = [_mm512_setzero_si512(); SUMS];
        // SAFETY: rows of the left operand are `width` bytes, which the mask keeps to; columns are `depth` bytes. Rows that are not
        // there are the last one.
        unsafe {
            let left = p.left.packed.as_ptr().add((p.first + row) * width);
            let right = self.terms.as_ptr();
            for first in (0..width).step_by(TERMS) {
                let mask = u64::MAX >> (TERMS - TERMS.min(width - first));
                let columns: [__m512i; C] = std::array::from_fn(|j| {
                    _mm512_loadu_si512(right.add(j * self.depth + first).cast())
                });
                for i in 0..SUMS / C {
                    let of_row = left.add(i.min(count - 1) * width + first);
                    let of_row = _mm512_maskz_loadu_epi8(mask, of_row.cast());
                    for j in 0..C {
                        sums[i * C + j] = _mm512_dpbusd_epi32(sums[i * C + j], columns[j], of_row);
                    }
                }
            }
            totals(sums)
        }
    }

    /// Makes the codes of sums, and writes them.
    ///
    /// # Safety
    /// The contract is that of [`tile`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn write<const C: usize>(&self, rows: BlockRows<'_>, sums: __m512i) {
        let BlockRows {
            codings,
            at,
            row,
            count,
        } = rows;
        // Lane `i * C + j` is the sum of row i and column j.
        let row_of = const { rows_of_lanes::<C>() };
        let mut of_columns = [0; SUMS];
        for (i, sum) in of_columns.iter_mut().enumerate() {
            *sum = self.sums[i % C];
        }
        let mut codes = [0u8; SUMS];
        // SAFETY: all lists are a vector, or go on for one from each row.
        unsafe {
            let row_of = _mm512_loadu_si512(row_of.as_ptr().cast());
            let of_rows = |list: *const i32| {
                _mm512_permutexvar_epi32(row_of, _mm512_loadu_si512(list.add(at).cast()))
            };
            let of_columns = _mm512_loadu_si512(of_columns.as_ptr().cast());
            let zeros = of_rows(codings.zeros.as_ptr());
            let sums = _mm512_add_epi32(sums, of_rows(codings.add.as_ptr()));
            let sums = _mm512_sub_epi32(sums, _mm512_mullo_epi32(of_columns, zeros));
            let factors = _mm512_castsi512_ps(of_rows(codings.factors.as_ptr().cast()));
            let x = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), factors);
            // What is too small, and NaN, which the minimum hands on, becomes the least number.
            let most = _mm512_set1_ps(f32::from(i16::MAX));
            let words = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(_mm512_min_ps(most, x)));
            // All of it saturates, and the range of codes lies well within that of 16 bits.
            let of_results = _mm512_cvtsepi32_epi16(of_rows(codings.of_results.as_ptr()));
            let words = _mm256_adds_epi16(words, of_results);
            let bytes = match codings.signed {
                true => _mm256_cvtsepi16_epi8(words),
                false => _mm256_cvtusepi16_epi8(_mm256_max_epi16(words, _mm256_setzero_si256())),
            };
            _mm_storeu_si128(codes.as_mut_ptr().cast(), bytes);
        }
        for i in 0..count {
            for (j, place) in self.places.iter().enumerate().take(C) {
                if let Some(place) = place {
                    let to = self.out.wrapping_add((row + i) * self.p.n + place);
                    // SAFETY: the place is of the rectangle, which the caller owns.
                    unsafe { to.write(codes[i * C + j]) };
                }
            }
        }
    }
}

/// The row of each of sixteen sums, of which those of a row, `C`, are next to each other.
const fn rows_of_lanes<const C: usize>() -> [u32; SUMS] {
    let mut rows = [0; SUMS];
    let mut i = 0;
    while i < SUMS {
        rows[i] = (i / C) as u32;
        i += 1;
    }
    rows
}

/// Adds the sixteen parts of each of sixteen sums.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn totals(v: [__m512i; SUMS]) -> __m512i {
    // SAFETY: the caller's contract.
    unsafe {
        // Each step halves the parts of a sum and the number of vectors: pairs within lanes, then lanes.
        let pair = |a: __m512i, b: __m512i| {
            _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b))
        };
        let quad = |a: __m512i, b: __m512i| {
            _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
        };
        let fours: [__m512i; 4] = std::array::from_fn(|i| {
            let v = &v[4 * i..4 * i + 4];
            quad(pair(v[0], v[1]), pair(v[2], v[3]))
        });
        let lanes = |a: __m512i, b: __m512i| {
            let low = _mm512_shuffle_i32x4::<0b1000_1000>(a, b);
            _mm512_add_epi32(low, _mm512_shuffle_i32x4::<0b1101_1101>(a, b))
        };
        lanes(lanes(fours[0], fours[1]), lanes(fours[2], fours[3]))
    }
}
