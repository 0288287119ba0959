//! Interleaving four rows of bytes, so that the four bytes of a column become neighbours: one operand of a dot product of
//! four bytes.

use std::arch::x86_64::*;

/// Interleaves rows of 32 bytes. Vector v of the result has columns 8 v to 8 v + 7.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn rows_of_32(r: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: the caller's contract.
    unsafe {
        // The lanes have columns 0 and 16, 4 and 20, 8 and 24, 12 and 28, and three after each.
        let x = within_lanes_of_32(r);
        [
            _mm256_permute2x128_si256::<0x20>(x[0], x[1]),
            _mm256_permute2x128_si256::<0x20>(x[2], x[3]),
            _mm256_permute2x128_si256::<0x31>(x[0], x[1]),
            _mm256_permute2x128_si256::<0x31>(x[2], x[3]),
        ]
    }
}

/// Interleaves rows of 32 bytes within lanes of 16. Lane l of vector v of the result has columns 16 l + 4 v to
/// 16 l + 4 v + 3.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn within_lanes_of_32(r: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: the caller's contract.
    unsafe {
        let (a, b) = (
            _mm256_unpacklo_epi8(r[0], r[1]),
            _mm256_unpacklo_epi8(r[2], r[3]),
        );
        let (c, d) = (
            _mm256_unpackhi_epi8(r[0], r[1]),
            _mm256_unpackhi_epi8(r[2], r[3]),
        );
        [
            _mm256_unpacklo_epi16(a, b),
            _mm256_unpackhi_epi16(a, b),
            _mm256_unpacklo_epi16(c, d),
            _mm256_unpackhi_epi16(c, d),
        ]
    }
}

/// Interleaves rows of 64 bytes within lanes of 16. Lane l of vector v of the result has columns 16 l + 4 v to
/// 16 l + 4 v + 3.
///
/// # Safety
/// The processor has AVX-512 F and BW.
#[inline(always)]
pub(super) unsafe fn within_lanes_of_64(r: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: the caller's contract.
    unsafe {
        let (a, b) = (
            _mm512_unpacklo_epi8(r[0], r[1]),
            _mm512_unpacklo_epi8(r[2], r[3]),
        );
        let (c, d) = (
            _mm512_unpackhi_epi8(r[0], r[1]),
            _mm512_unpackhi_epi8(r[2], r[3]),
        );
        [
            _mm512_unpacklo_epi16(a, b),
            _mm512_unpackhi_epi16(a, b),
            _mm512_unpacklo_epi16(c, d),
            _mm512_unpackhi_epi16(c, d),
        ]
    }
}
