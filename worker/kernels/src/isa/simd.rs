//! The vector operations that the micro kernels are written in.

use half::{bf16, f16};

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
