//! Detection of the instruction set that kernels use, and the few vector operations that the micro kernels are written
//! in.
//!
//! Invariants
//! 1. [`Isa::detect`] answers the same for the whole life of the process.
//! 2. Every `Simd` type computes lane by lane with IEEE rounding and fused multiply-add, so a kernel that is generic
//!    over `Simd` gives equal bits for every type, provided that it makes every NaN that it stores the canonical one:
//!    which of two NaN operands survives an operation is not specified.

use std::sync::OnceLock;

use half::{bf16, f16};

use crate::element::canonical_nan;
use crate::element::halves::{bf16_to_f32, f16_to_f32};

/// An instruction set for which there are micro kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// x86-64 with AVX-512 F, BW, DQ and VL (and AVX2, FMA and F16C).
    Avx512,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2Fma,
    /// Plain Rust with `f32::mul_add`: slow where the target has no fused multiply-add by default.
    Portable,
}

impl Isa {
    /// The best instruction set of this processor.
    #[inline]
    pub fn detect() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            Isa::ALL
                .into_iter()
                .find(|i| i.available())
                .unwrap_or(Isa::Portable)
        })
    }

    const ALL: [Isa; 3] = [Isa::Avx512, Isa::Avx2Fma, Isa::Portable];

    /// Whether this processor can run kernels of this instruction set.
    pub fn available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let fma = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            match self {
                Isa::Avx512 => {
                    fma && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                }
                Isa::Avx2Fma => fma,
                Isa::Portable => true,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Isa::Portable
        }
    }

    /// The instruction sets that this processor can run, best first, for tests that compare their results.
    pub fn all_available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|i| i.available())
    }
}

/// A vector of `LANES` f32 values.
///
/// # Safety
/// Every function needs a processor with the type's instruction set, and pointers that are valid for the lanes that the
/// function is said to touch; no alignment is needed.
pub(crate) trait Simd: Copy {
    /// The register type.
    type V: Copy;
    /// A selection of lanes.
    type Mask: Copy;
    /// Vectors of half as many lanes, or this type where there are none.
    type Half: Simd;
    /// Lanes of a register; divides 16.
    const LANES: usize;
    /// Rows of the largest micro tile that fits in registers with three vectors in each row; divides 8.
    const ROWS: usize;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    /// Loads `LANES` values and widens them exactly, except for the bits of a NaN.
    unsafe fn load_f16(p: *const f16) -> Self::V;
    /// Loads `LANES` values and widens them exactly, except for the bits of a NaN.
    unsafe fn load_bf16(p: *const bf16) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// The mask that selects lanes `lo..hi`, with `lo <= hi <= LANES`.
    unsafe fn mask(lo: usize, hi: usize) -> Self::Mask;
    /// Loads the lanes of the mask, lane i from `p + i`; the other lanes are zero, and their addresses are not touched.
    unsafe fn load_masked(p: *const f32, mask: Self::Mask) -> Self::V;
    /// Loads lanes `lo..hi`, lane i from `p + 2 * i`, and touches no address outside of `p + 2 * lo..p + 2 * hi`; the
    /// other lanes are zero.
    unsafe fn load_even(p: *const f32, lo: usize, hi: usize) -> Self::V;
    /// Stores the lanes of the mask, lane i to `p + i`, and touches no other address.
    unsafe fn store_masked(p: *mut f32, v: Self::V, mask: Self::Mask);
    /// `a * b + acc`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, acc: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// Prefetches the cache line at `p`, which may be any address.
    unsafe fn prefetch(p: *const f32);
    /// Transposes an 8 × 8 block: `dst[i * dst_row + j] = src[j * src_row + i]`.
    unsafe fn transpose8(src: *const f32, src_row: usize, dst: *mut f32, dst_row: usize);
    /// `if lo > v { lo } else { v }`: a NaN or `-0` in `v` stays.
    unsafe fn at_least(lo: Self::V, v: Self::V) -> Self::V;
    /// `if hi < v { hi } else { v }`: a NaN in `v` stays.
    unsafe fn at_most(hi: Self::V, v: Self::V) -> Self::V;
    /// [`crate::element::canonical_nan`] of each lane.
    unsafe fn canonical_nan(v: Self::V) -> Self::V;
}

/// Four lanes in plain Rust, as many as a 128-bit register of AArch64 holds.
#[derive(Clone, Copy)]
pub(crate) struct PortableSimd;

#[inline(always)]
unsafe fn gather_even<const N: usize>(p: *const f32, lo: usize, hi: usize) -> [f32; N] {
    let mut lanes = [0.0; N];
    for (i, lane) in lanes.iter_mut().enumerate().take(hi).skip(lo) {
        // SAFETY: the caller vouches for lanes `lo..hi`.
        *lane = unsafe { p.wrapping_add(2 * i).read() };
    }
    lanes
}

impl Simd for PortableSimd {
    type V = [f32; 4];
    type Mask = [bool; 4];
    type Half = PortableSimd;
    const LANES: usize = 4;
    const ROWS: usize = if cfg!(target_arch = "aarch64") { 8 } else { 4 };

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 4] {
        // SAFETY: the caller vouches for four readable lanes.
        unsafe { p.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> [f32; 4] {
        // SAFETY: the caller vouches for four readable lanes.
        unsafe { p.cast::<[f16; 4]>().read_unaligned() }.map(f16_to_f32)
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> [f32; 4] {
        // SAFETY: the caller vouches for four readable lanes.
        unsafe { p.cast::<[bf16; 4]>().read_unaligned() }.map(bf16_to_f32)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; 4]) {
        // SAFETY: the caller vouches for four writable lanes.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn mask(lo: usize, hi: usize) -> [bool; 4] {
        std::array::from_fn(|i| (lo..hi).contains(&i))
    }
    #[inline(always)]
    unsafe fn load_masked(p: *const f32, mask: [bool; 4]) -> [f32; 4] {
        let mut lanes = [0.0; 4];
        for i in 0..4 {
            if mask[i] {
                // SAFETY: the caller vouches for the lanes of the mask.
                lanes[i] = unsafe { p.wrapping_add(i).read() };
            }
        }
        lanes
    }
    #[inline(always)]
    unsafe fn load_even(p: *const f32, lo: usize, hi: usize) -> [f32; 4] {
        // SAFETY: the caller vouches for lanes `lo..hi`.
        unsafe { gather_even(p, lo, hi) }
    }
    #[inline(always)]
    unsafe fn store_masked(p: *mut f32, v: [f32; 4], mask: [bool; 4]) {
        for i in 0..4 {
            if mask[i] {
                // SAFETY: the caller vouches for the lanes of the mask.
                unsafe { p.wrapping_add(i).write(v[i]) }
            }
        }
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; 4], b: [f32; 4], acc: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i].mul_add(b[i], acc[i]))
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn prefetch(_p: *const f32) {}
    #[inline(always)]
    unsafe fn transpose8(src: *const f32, src_row: usize, dst: *mut f32, dst_row: usize) {
        for i in 0..8 {
            for j in 0..8 {
                // SAFETY: the caller vouches for both blocks.
                unsafe { *dst.add(i * dst_row + j) = *src.add(j * src_row + i) }
            }
        }
    }
    #[inline(always)]
    unsafe fn at_least(lo: [f32; 4], v: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| if lo[i] > v[i] { lo[i] } else { v[i] })
    }
    #[inline(always)]
    unsafe fn at_most(hi: [f32; 4], v: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| if hi[i] < v[i] { hi[i] } else { v[i] })
    }
    #[inline(always)]
    unsafe fn canonical_nan(v: [f32; 4]) -> [f32; 4] {
        v.map(canonical_nan)
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2Simd, Avx512Simd};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Simd, bf16, f16};
    use std::arch::x86_64::*;

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
                let even =
                    _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
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
}

/// Defines `unsafe fn name(isa, args…)` that runs `body::<S>(args…)` compiled for `isa`.
///
/// `body` must be `#[inline(always)]`: only then are its loops compiled with the instruction set.
macro_rules! per_isa {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?) => $body:ident) => {
        $(#[$meta])*
        $vis unsafe fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
            unsafe fn avx512($($arg: $ty),*) {
                // SAFETY: the caller's contract is this function's, plus the features enabled here.
                unsafe { $body::<$crate::isa::Avx512Simd>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2($($arg: $ty),*) {
                // SAFETY: as above.
                unsafe { $body::<$crate::isa::Avx2Simd>($($arg),*) }
            }
            unsafe fn portable($($arg: $ty),*) {
                // SAFETY: as above; the portable type needs no feature.
                unsafe { $body::<$crate::isa::PortableSimd>($($arg),*) }
            }
            // SAFETY: the caller passes an available `isa` and keeps the body's contract.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    $crate::isa::Isa::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::isa::Isa::Avx2Fma => avx2($($arg),*),
                    _ => portable($($arg),*),
                }
            }
        }
    };
}
pub(crate) use per_isa;
