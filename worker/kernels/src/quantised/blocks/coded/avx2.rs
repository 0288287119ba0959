//! The dot products of AVX2: sixteen columns at a time. Codes of at most four bits are multiplied as bytes, of which two
//! products fit 16 bits; others are widened first.

use std::arch::x86_64::*;

use super::super::codes::CodeRow;
use super::{COLUMNS, Dots, Group, Nibbles, Part, Sums, TOGETHER, ZeroKind};
use crate::quantised::interleave;

/// Vectors of sums that are kept for a row, of eight columns each.
const VECTORS: usize = 2;

pub(super) struct Avx2;

impl Dots for Avx2 {
    const ROWS: usize = 2;

    unsafe fn group(codes: &[[CodeRow; TOGETHER]], to: &mut [Group]) {
        // SAFETY: the caller's contract.
        unsafe { group(codes, to) }
    }

    unsafe fn group_nibbles(codes: &[[Nibbles; TOGETHER]], to: &mut [Group]) {
        // SAFETY: the caller's contract.
        unsafe { group_nibbles(codes, to) }
    }

    unsafe fn add(part: &Part<'_>, row: usize, sums: &mut [Sums]) {
        // SAFETY: the caller's contract.
        unsafe {
            match (sums, part.wide) {
                ([a, b], false) => add::<2, false>(part, row, [a, b]),
                ([a, b], true) => add::<2, true>(part, row, [a, b]),
                ([a], false) => add::<1, false>(part, row, [a]),
                ([a], true) => add::<1, true>(part, row, [a]),
                _ => {}
            }
        }
    }
}

/// The body of [`Dots::group_nibbles`]: rows are interleaved while two codes share a byte.
///
/// # Safety
/// The processor has the instruction set.
#[target_feature(enable = "avx2")]
unsafe fn group_nibbles(codes: &[[Nibbles; TOGETHER]], to: &mut [Group]) {
    let lowest = _mm256_set1_epi8(15);
    for (rows, to) in codes.iter().zip(to) {
        let r: [__m256i; TOGETHER] = std::array::from_fn(|i| {
            // SAFETY: a row is 32 bytes.
            unsafe { _mm256_loadu_si256(rows[i].as_ptr().cast()) }
        });
        // SAFETY: the caller's contract.
        let both = unsafe { interleave::rows_of_32(r) };
        for (v, both) in both.into_iter().enumerate() {
            let low = _mm256_and_si256(both, lowest);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), lowest);
            // SAFETY: a group is eight vectors.
            unsafe {
                let to = to.as_mut_ptr().add(32 * v);
                _mm256_storeu_si256(to.cast(), low);
                _mm256_storeu_si256(to.add(4 * 32).cast(), high);
            }
        }
    }
}

/// The body of [`Dots::group`].
///
/// # Safety
/// The processor has the instruction set.
#[target_feature(enable = "avx2")]
unsafe fn group(codes: &[[CodeRow; TOGETHER]], to: &mut [Group]) {
    for (rows, to) in codes.iter().zip(to) {
        for half in 0..2 {
            let r: [__m256i; TOGETHER] = std::array::from_fn(|i| {
                // SAFETY: 32 columns are half a row.
                unsafe { _mm256_loadu_si256(rows[i].as_ptr().add(32 * half).cast()) }
            });
            // SAFETY: the caller's contract.
            let ordered = unsafe { interleave::rows_of_32(r) };
            for (v, columns) in ordered.into_iter().enumerate() {
                // SAFETY: half a group is four vectors.
                unsafe {
                    let to = to.as_mut_ptr().add(TOGETHER * 32 * half + 32 * v);
                    _mm256_storeu_si256(to.cast(), columns);
                }
            }
        }
    }
}

/// The sums of products of the codes of eight columns with four codes of a row, which `codes` repeats.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn dot<const WIDE: bool>(weights: __m256i, codes: __m256i) -> __m256i {
    // SAFETY: the caller's contract.
    unsafe {
        if !WIDE {
            // Two products of at most 15 and 127 are added within 16 bits.
            let pairs = _mm256_maddubs_epi16(weights, codes);
            return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        }
        let codes = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(codes));
        let half = |weights: __m128i| _mm256_madd_epi16(_mm256_cvtepu8_epi16(weights), codes);
        let low = half(_mm256_castsi256_si128(weights));
        let high = half(_mm256_extracti128_si256::<1>(weights));
        // Neighbours belong to one column; adding them leaves columns 0, 1, 4, 5 and 2, 3, 6, 7.
        _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_hadd_epi32(low, high))
    }
}

/// The body of [`Dots::add`] for `R` rows.
///
/// # Safety
/// The processor has the instruction set.
#[target_feature(enable = "avx2,fma")]
unsafe fn add<const R: usize, const WIDE: bool>(
    part: &Part<'_>,
    row: usize,
    mut to: [&mut Sums; R],
) {
    let left: [_; R] = std::array::from_fn(|r| part.row(row + r));
    for column in (0..COLUMNS).step_by(8 * VECTORS) {
        let mut sums: [[__m256; VECTORS]; R] = std::array::from_fn(|r| {
            // SAFETY: the columns are of the row.
            std::array::from_fn(|v| unsafe { _mm256_loadu_ps(to[r].as_ptr().add(column + 8 * v)) })
        });
        for (b, of) in part.of.iter().enumerate() {
            let mut whole: [[__m256i; VECTORS]; R] = std::array::from_fn(|r| {
                let minus = -left[r].2[b];
                std::array::from_fn(|v| match part.zeros {
                    ZeroKind::One(zero) => _mm256_set1_epi32(zero * minus),
                    ZeroKind::Codes => {
                        // SAFETY: the columns are of the row.
                        let zeros = unsafe {
                            _mm256_loadu_si256(of.codes.as_ptr().add(column + 8 * v).cast())
                        };
                        _mm256_mullo_epi32(zeros, _mm256_set1_epi32(minus))
                    }
                    ZeroKind::Numbers => _mm256_setzero_si256(),
                })
            });
            let first = b * part.groups;
            for (g, group) in part.packed[first..first + part.groups].iter().enumerate() {
                let weights: [__m256i; VECTORS] = std::array::from_fn(|v| {
                    // SAFETY: the columns are of the group.
                    unsafe {
                        let from = group.as_ptr().add((column + 8 * v) * TOGETHER);
                        _mm256_loadu_si256(from.cast())
                    }
                });
                for r in 0..R {
                    // SAFETY: a row has four codes for each group of the part.
                    let codes = unsafe {
                        let codes = left[r].0.as_ptr().add((first + g) * TOGETHER);
                        codes.cast::<i32>().read_unaligned()
                    };
                    let codes = _mm256_set1_epi32(codes);
                    for v in 0..VECTORS {
                        // SAFETY: the caller's contract.
                        let sum = unsafe { dot::<WIDE>(weights[v], codes) };
                        whole[r][v] = _mm256_add_epi32(whole[r][v], sum);
                    }
                }
            }
            for r in 0..R {
                let scale = _mm256_set1_ps(left[r].1[b]);
                for v in 0..VECTORS {
                    // SAFETY: the columns are of the parameters.
                    let (scales, zeros) = unsafe {
                        (
                            _mm256_loadu_ps(of.scales.as_ptr().add(column + 8 * v)),
                            _mm256_loadu_ps(of.numbers.as_ptr().add(column + 8 * v)),
                        )
                    };
                    let mut term = _mm256_cvtepi32_ps(whole[r][v]);
                    if part.zeros == ZeroKind::Numbers {
                        let codes = _mm256_set1_ps(left[r].2[b] as f32);
                        term = _mm256_fnmadd_ps(zeros, codes, term);
                    }
                    sums[r][v] = _mm256_fmadd_ps(_mm256_mul_ps(term, scales), scale, sums[r][v]);
                }
            }
        }
        for (to, sums) in to.iter_mut().zip(sums) {
            for (v, sum) in sums.into_iter().enumerate() {
                // SAFETY: the columns are of the row.
                unsafe { _mm256_storeu_ps(to.as_mut_ptr().add(column + 8 * v), sum) };
            }
        }
    }
}
