//! The dot products of AVX-512 VNNI.
//!
//! Within each lane of 128 bits the four vectors of a packed group have columns 0 to 3, 4 to 7, 8 to 11 and 12 to 15 of
//! the lane's sixteen. So have the sums, until they are stored: the lanes of four vectors are transposed then, which
//! gives four times sixteen columns in their order.

use std::arch::x86_64::*;
use std::ops::Range;

use super::columns::Panel;
use super::tile::{Dots, Part};
use super::{PANEL, Product, SumRows, packed_row};
use crate::quantised::interleave;

/// Vectors of sums in a row of a panel.
pub(super) const VECTORS: usize = PANEL / 16;

pub(super) type Sums = [__m512i; VECTORS];

pub(super) struct Vnni;

impl Dots for Vnni {
    const ROWS: usize = 6;

    unsafe fn pack(
        p: &Product<'_>,
        panel: &Panel<'_>,
        rows: Range<usize>,
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
                3 => add::<3>(part, p, row, columns, to),
                4 => add::<4>(part, p, row, columns, to),
                5 => add::<5>(part, p, row, columns, to),
                _ => add::<6>(part, p, row, columns, to),
            }
        }
    }
}

/// The body of [`Dots::pack`].
///
/// # Safety
/// The contract is that of [`Dots::pack`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn pack(
    p: &Product<'_>,
    panel: &Panel<'_>,
    rows: Range<usize>,
    to: *mut u8,
    column_sums: &mut [i32; PANEL],
) {
    let flip = _mm512_set1_epi8(if p.signed { -128 } else { 0 });
    let ones = _mm512_set1_epi8(1);
    let mut sums = [_mm512_setzero_si512(); VECTORS];
    for (group, first) in rows.clone().step_by(4).enumerate() {
        let mut r = [_mm512_setzero_si512(); 4];
        for (i, r) in r.iter_mut().enumerate().take(rows.end - first) {
            let mut buffer = [0; PANEL];
            let codes = panel.row(first + i, &mut buffer);
            let mask = u64::MAX >> (PANEL - codes.len());
            // SAFETY: the mask covers the codes only.
            let codes = unsafe { _mm512_maskz_loadu_epi8(mask, codes.as_ptr().cast()) };
            *r = _mm512_xor_si512(codes, flip);
        }
        // SAFETY: the caller's contract.
        let columns = unsafe { interleave::within_lanes_of_64(r) };
        for (v, (column, sum)) in columns.into_iter().zip(sums.iter_mut()).enumerate() {
            // SAFETY: the caller's contract.
            unsafe { _mm512_storeu_si512(to.add(group * 4 * PANEL + v * 64).cast(), column) };
            *sum = _mm512_dpbusd_epi32(*sum, column, ones);
        }
    }
    // SAFETY: the sums are four vectors.
    unsafe {
        for (v, sum) in transposed(sums).into_iter().enumerate() {
            let at = column_sums.as_mut_ptr().add(16 * v);
            let before = _mm512_loadu_si512(at.cast());
            _mm512_storeu_si512(at.cast(), _mm512_add_epi32(before, sum));
        }
    }
}

/// Transposes the lanes of four vectors.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
pub(super) unsafe fn transposed(v: Sums) -> Sums {
    // SAFETY: the caller's contract.
    unsafe {
        let ab = _mm512_shuffle_i32x4::<0b0100_0100>(v[0], v[1]);
        let cd = _mm512_shuffle_i32x4::<0b0100_0100>(v[2], v[3]);
        let ab_high = _mm512_shuffle_i32x4::<0b1110_1110>(v[0], v[1]);
        let cd_high = _mm512_shuffle_i32x4::<0b1110_1110>(v[2], v[3]);
        [
            _mm512_shuffle_i32x4::<0b1000_1000>(ab, cd),
            _mm512_shuffle_i32x4::<0b1101_1101>(ab, cd),
            _mm512_shuffle_i32x4::<0b1000_1000>(ab_high, cd_high),
            _mm512_shuffle_i32x4::<0b1101_1101>(ab_high, cd_high),
        ]
    }
}

/// The body of [`Dots::add`] for `R` rows.
///
/// # Safety
/// The contract is that of [`Dots::add`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add<const R: usize>(
    part: &Part<'_>,
    p: &Product<'_>,
    row: usize,
    columns: &Range<usize>,
    to: SumRows,
) {
    let width = packed_row(p.k);
    let mut sums = [[_mm512_setzero_si512(); VECTORS]; R];
    // SAFETY: rows of the left operand are `width` bytes, which is a multiple of four; the panel has `groups` groups; the
    // masks keep loads and stores inside the columns.
    unsafe {
        let left = p.left.packed.as_ptr();
        let left = left.add((p.first + row) * width + part.first);
        for group in 0..part.groups {
            let b: Sums = std::array::from_fn(|v| {
                _mm512_loadu_si512(part.packed.add(group * 4 * PANEL + v * 64).cast())
            });
            for (r, sums) in sums.iter_mut().enumerate() {
                let a = left.add(r * width + 4 * group).cast::<i32>();
                let a = _mm512_set1_epi32(a.read_unaligned());
                for v in 0..VECTORS {
                    sums[v] = _mm512_dpbusd_epi32(sums[v], b[v], a);
                }
            }
        }
        let zeros = part.column_sums.map(|sums| (sums, p.column_zeros(columns)));
        for (r, sums) in sums.into_iter().enumerate() {
            let (zero, rest) = p.row_zero(row + r);
            for (v, mut sum) in transposed(sums).into_iter().enumerate() {
                let there = columns.len().saturating_sub(16 * v).min(16);
                let mask = ((1u32 << there) - 1) as __mmask16;
                let out = to.at(r, 16 * v);
                if part.adds {
                    sum = _mm512_add_epi32(sum, _mm512_maskz_loadu_epi32(mask, out));
                }
                if let Some((sums, zeros)) = &zeros {
                    let load =
                        |all: &[i32; PANEL]| _mm512_loadu_si512(all.as_ptr().add(16 * v).cast());
                    let of_row = _mm512_mullo_epi32(load(sums), _mm512_set1_epi32(zero));
                    let of_column = _mm512_mullo_epi32(load(zeros), _mm512_set1_epi32(rest));
                    sum = _mm512_sub_epi32(sum, _mm512_add_epi32(of_row, of_column));
                }
                _mm512_mask_storeu_epi32(out, mask, sum);
            }
        }
    }
}
