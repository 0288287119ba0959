//! Vectors in plain Rust.

use half::{bf16, f16};

use super::simd::Simd;
use crate::element::canonical_nan;
use crate::element::halves::{bf16_to_f32, f16_to_f32};

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
