//! Vectors of x86-64.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::simd::Simd;

// SAFETY (all blocks here): the trait's contract gives the instruction set and valid lanes;
// loads and stores are the unaligned forms, masked lanes are not touched.

/// Transposes an 8 × 8 block. Halves of rows j and j + 4 share a register, so that no value crosses 128-bit lanes
/// afterwards.
#[inline(always)]
unsafe fn transpose8_avx(src: *const f32, src_row: usize, dst: *mut f32, dst_row: usize) {
    // SAFETY: the trait's contract gives the instruction set; the caller vouches for both blocks.
    unsafe {
        for half in 0..2 {
            let pair = |j: usize| {
                let at = |j: usize| _mm_loadu_ps(src.add(j * src_row + half * 4));
                _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(at(j)), at(j + 4))
            };
            let (a, b, c, d) = (pair(0), pair(1), pair(2), pair(3));
            let (ab_lo, ab_hi) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd_lo, cd_hi) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let rows = [
                _mm256_shuffle_ps::<0b01_00_01_00>(ab_lo, cd_lo),
                _mm256_shuffle_ps::<0b11_10_11_10>(ab_lo, cd_lo),
                _mm256_shuffle_ps::<0b01_00_01_00>(ab_hi, cd_hi),
                _mm256_shuffle_ps::<0b11_10_11_10>(ab_hi, cd_hi),
            ];
            for (i, row) in rows.into_iter().enumerate() {
                _mm256_storeu_ps(dst.add((half * 4 + i) * dst_row), row);
            }
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Avx512Simd;

impl Simd for Avx512Simd {
    type V = __m512;
    type Mask = __mmask16;
    type Half = Avx2Simd;
    const LANES: usize = 16;
    const ROWS: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> __m512 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> __m512 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn mask(lo: usize, hi: usize) -> __mmask16 {
        ((1u32 << hi) - (1u32 << lo)) as __mmask16
    }
    #[inline(always)]
    unsafe fn load_masked(p: *const f32, mask: __mmask16) -> __m512 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm512_maskz_loadu_ps(mask, p) }
    }
    #[inline(always)]
    unsafe fn load_even(p: *const f32, lo: usize, hi: usize) -> __m512 {
        // Bit i selects value i of 32 consecutive ones; lane j takes value 2 * j.
        let wanted = (1u64 << (2 * hi)) - (1u64 << (2 * lo));
        let wanted = wanted as u32 & 0x5555_5555;
        // SAFETY: the trait's contract gives the instruction set and valid lanes; the masks keep both loads inside
        // them.
        unsafe {
            let low = _mm512_maskz_loadu_ps(wanted as u16, p);
            let high = _mm512_maskz_loadu_ps((wanted >> 16) as u16, p.wrapping_add(16));
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            _mm512_permutex2var_ps(low, even, high)
        }
    }
    #[inline(always)]
    unsafe fn store_masked(p: *mut f32, v: __m512, mask: __mmask16) {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm512_mask_storeu_ps(p, mask, v) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, acc: __m512) -> __m512 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm512_fmadd_ps(a, b, acc) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn transpose8(src: *const f32, src_row: usize, dst: *mut f32, dst_row: usize) {
        // SAFETY: the caller keeps the same contract.
        unsafe { transpose8_avx(src, src_row, dst, dst_row) }
    }
    #[inline(always)]
    unsafe fn at_least(lo: __m512, v: __m512) -> __m512 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm512_max_ps(lo, v) }
    }
    #[inline(always)]
    unsafe fn at_most(hi: __m512, v: __m512) -> __m512 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm512_min_ps(hi, v) }
    }
    #[inline(always)]
    unsafe fn canonical_nan(v: __m512) -> __m512 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe {
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            _mm512_mask_mov_ps(v, nan, _mm512_set1_ps(f32::NAN))
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Avx2Simd;

impl Simd for Avx2Simd {
    type V = __m256;
    type Mask = __m256i;
    type Half = Avx2Simd;
    const LANES: usize = 8;
    const ROWS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> __m256 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> __m256 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn mask(lo: usize, hi: usize) -> __m256i {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let below = |n: usize| _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lane);
            _mm256_andnot_si256(below(lo), below(hi))
        }
    }
    #[inline(always)]
    unsafe fn load_masked(p: *const f32, mask: __m256i) -> __m256 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm256_maskload_ps(p, mask) }
    }
    #[inline(always)]
    unsafe fn load_even(p: *const f32, lo: usize, hi: usize) -> __m256 {
        // Value 2 * hi - 1 is not wanted, and need not exist.
        let (first, end) = (2 * lo, (2 * hi).saturating_sub(1).max(2 * lo));
        let low = (first.min(8), end.min(8));
        let high = (first.max(8) - 8, end.max(8) - 8);
        // SAFETY: the trait's contract gives the instruction set and valid lanes; the masks keep both loads inside
        // them.
        unsafe {
            let a = _mm256_maskload_ps(p, Self::mask(low.0, low.1));
            let b = _mm256_maskload_ps(p.wrapping_add(8), Self::mask(high.0, high.1));
            let pairs = _mm256_shuffle_ps::<0b10_00_10_00>(a, b);
            let even = _mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(pairs));
            _mm256_castpd_ps(even)
        }
    }
    #[inline(always)]
    unsafe fn store_masked(p: *mut f32, v: __m256, mask: __m256i) {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm256_maskstore_ps(p, mask, v) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, acc: __m256) -> __m256 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm256_fmadd_ps(a, b, acc) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn transpose8(src: *const f32, src_row: usize, dst: *mut f32, dst_row: usize) {
        // SAFETY: the caller keeps the same contract.
        unsafe { transpose8_avx(src, src_row, dst, dst_row) }
    }
    #[inline(always)]
    unsafe fn at_least(lo: __m256, v: __m256) -> __m256 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm256_max_ps(lo, v) }
    }
    #[inline(always)]
    unsafe fn at_most(hi: __m256, v: __m256) -> __m256 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe { _mm256_min_ps(hi, v) }
    }
    #[inline(always)]
    unsafe fn canonical_nan(v: __m256) -> __m256 {
        // SAFETY: the trait's contract gives the instruction set and valid lanes.
        unsafe {
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(v, v);
            _mm256_blendv_ps(v, _mm256_set1_ps(f32::NAN), nan)
        }
    }
}
