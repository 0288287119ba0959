//! The dot products of AVX-512 VNNI: four vectors of sixteen columns each.

use std::arch::x86_64::*;

use super::super::codes::CodeRow;
use super::{COLUMNS, Dots, Group, Nibbles, Part, Sums, TOGETHER, ZeroKind};
use crate::quantised::interleave;

/// Vectors of a row.
const VECTORS: usize = COLUMNS / 16;
/// Kinds of zero points, as parameters of the compiled loops.
const ONE: u8 = 0;
const CODES: u8 = 1;
const NUMBERS: u8 = 2;

pub(super) struct Vnni;

impl Dots for Vnni {
    const ROWS: usize = 3;

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
            match part.zeros {
                ZeroKind::One(zero) => rows::<ONE>(part, zero, row, sums),
                ZeroKind::Codes => rows::<CODES>(part, 0, row, sums),
                ZeroKind::Numbers => rows::<NUMBERS>(part, 0, row, sums),
            }
        }
    }
}

/// The body of [`Dots::group`].
///
/// # Safety
/// The processor has the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn group(codes: &[[CodeRow; TOGETHER]], to: &mut [Group]) {
    // Interleaving works within lanes of four times four bytes, so lane l is given the columns that it ends up with: those
    // from 4 * l on of each vector.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (rows, to) in codes.iter().zip(to) {
        let r: [__m512i; TOGETHER] = std::array::from_fn(|i| {
            // SAFETY: a row is 64 bytes.
            let row = unsafe { _mm512_loadu_si512(rows[i].as_ptr().cast()) };
            _mm512_permutexvar_epi32(order, row)
        });
        // SAFETY: the caller's contract.
        let columns = unsafe { interleave::within_lanes_of_64(r) };
        for (v, columns) in columns.into_iter().enumerate() {
            // SAFETY: a group is four vectors.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().add(64 * v).cast(), columns) };
        }
    }
}

/// The body of [`Dots::group_nibbles`]: rows are interleaved while two codes share a byte.
///
/// # Safety
/// The processor has the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2")]
unsafe fn group_nibbles(codes: &[[Nibbles; TOGETHER]], to: &mut [Group]) {
    let lowest = _mm512_set1_epi8(15);
    let both =
        |low: __m256i, high: __m256i| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
    for (rows, to) in codes.iter().zip(to) {
        let r: [__m256i; TOGETHER] = std::array::from_fn(|i| {
            // SAFETY: a row is 32 bytes.
            unsafe { _mm256_loadu_si256(rows[i].as_ptr().cast()) }
        });
        // SAFETY: the caller's contract.
        let x = unsafe { interleave::within_lanes_of_32(r) };
        // The lanes have columns 0 and 16, 4 and 20, 8 and 24, 12 and 28, and three after each.
        let (low, high) = (both(x[0], x[1]), both(x[2], x[3]));
        let first = _mm512_shuffle_i32x4::<0b10_00_10_00>(low, high);
        let second = _mm512_shuffle_i32x4::<0b11_01_11_01>(low, high);
        let columns = [
            _mm512_and_si512(first, lowest),
            _mm512_and_si512(second, lowest),
            _mm512_and_si512(_mm512_srli_epi16::<4>(first), lowest),
            _mm512_and_si512(_mm512_srli_epi16::<4>(second), lowest),
        ];
        for (v, columns) in columns.into_iter().enumerate() {
            // SAFETY: a group is four vectors.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().add(64 * v).cast(), columns) };
        }
    }
}

/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn rows<const ZERO: u8>(part: &Part<'_>, zero: i32, row: usize, sums: &mut [Sums]) {
    // SAFETY: the caller's contract.
    unsafe {
        match sums {
            [a, b, c] => add::<3, ZERO>(part, zero, row, [a, b, c]),
            [a, b] => add::<2, ZERO>(part, zero, row, [a, b]),
            [a] => add::<1, ZERO>(part, zero, row, [a]),
            _ => {}
        }
    }
}

/// The body of [`Dots::add`] for `R` rows.
///
/// # Safety
/// The processor has the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
unsafe fn add<const R: usize, const ZERO: u8>(
    part: &Part<'_>,
    zero: i32,
    row: usize,
    to: [&mut Sums; R],
) {
    let left: [_; R] = std::array::from_fn(|r| part.row(row + r));
    let mut sums: [[__m512; VECTORS]; R] = std::array::from_fn(|r| {
        // SAFETY: a row of sums is four vectors.
        std::array::from_fn(|v| unsafe { _mm512_loadu_ps(to[r].as_ptr().add(16 * v)) })
    });
    for (b, of) in part.of.iter().enumerate() {
        let mut whole: [[__m512i; VECTORS]; R] = std::array::from_fn(|r| {
            let minus = -left[r].2[b];
            std::array::from_fn(|v| match ZERO {
                ONE => _mm512_set1_epi32(zero * minus),
                CODES => {
                    // SAFETY: the zero points are four vectors.
                    let zeros = unsafe { _mm512_loadu_si512(of.codes.as_ptr().add(16 * v).cast()) };
                    _mm512_mullo_epi32(zeros, _mm512_set1_epi32(minus))
                }
                _ => _mm512_setzero_si512(),
            })
        });
        let first = b * part.groups;
        for (g, group) in part.packed[first..first + part.groups].iter().enumerate() {
            let weights: [__m512i; VECTORS] = std::array::from_fn(|v| {
                // SAFETY: a group is four vectors.
                unsafe { _mm512_loadu_si512(group.as_ptr().add(64 * v).cast()) }
            });
            for r in 0..R {
                // SAFETY: a row has four codes for each group of the part.
                let codes = unsafe {
                    let codes = left[r].0.as_ptr().add((first + g) * TOGETHER);
                    codes.cast::<i32>().read_unaligned()
                };
                let codes = _mm512_set1_epi32(codes);
                for v in 0..VECTORS {
                    whole[r][v] = _mm512_dpbusd_epi32(whole[r][v], weights[v], codes);
                }
            }
        }
        for r in 0..R {
            let scale = _mm512_set1_ps(left[r].1[b]);
            for v in 0..VECTORS {
                // SAFETY: the parameters are four vectors.
                let (scales, zeros) = unsafe {
                    (
                        _mm512_loadu_ps(of.scales.as_ptr().add(16 * v)),
                        _mm512_loadu_ps(of.numbers.as_ptr().add(16 * v)),
                    )
                };
                let mut term = _mm512_cvtepi32_ps(whole[r][v]);
                if ZERO == NUMBERS {
                    let codes = _mm512_set1_ps(left[r].2[b] as f32);
                    term = _mm512_fnmadd_ps(zeros, codes, term);
                }
                sums[r][v] = _mm512_fmadd_ps(_mm512_mul_ps(term, scales), scale, sums[r][v]);
            }
        }
    }
    for (to, sums) in to.into_iter().zip(sums) {
        for (v, sum) in sums.into_iter().enumerate() {
            // SAFETY: a row of sums is four vectors.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(16 * v), sum) };
        }
    }
}
