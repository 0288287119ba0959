//! The kernel for the few columns that a matrix leaves after its last whole panel: its lanes are rows
//! of a packed A, so one column costs one lane per output instead of a vector.
//!
//! Each output is the same chain as in the micro kernel, so the bits are the same.

use super::micro::MR;
use crate::isa::{Isa, Simd};

/// Up to this many columns, this kernel is faster than the micro kernel with a single vector per row.
pub(crate) const NARROW: usize = 8;
/// Columns that are computed at once.
const STEP: usize = 4;
/// Panels of A that are computed at once, at most.
pub(crate) const PANELS: usize = 4;

/// Operands of a narrow tile: `panels` whole panels of A, `cols` columns.
#[derive(Clone, Copy)]
pub(crate) struct NarrowTile {
    pub k: usize,
    /// The first panel at the first k of the block; element (row, i) of a panel at `i * 8 + row`.
    pub a: *const f32,
    pub a_panel: usize,
    /// Number of panels, 1..=4.
    pub panels: usize,
    pub b: *const f32,
    pub b_k: usize,
    pub c: *mut f32,
    pub c_row: usize,
    /// Number of columns, 1..=8.
    pub cols: usize,
    pub first: bool,
}

/// Computes the sums of a narrow tile, without an epilogue.
///
/// # Safety
/// `isa` is available; all operands cover the tile, and C is written by this thread alone.
pub(crate) unsafe fn narrow_tile(isa: Isa, t: &NarrowTile) {
    #[cfg(target_arch = "x86_64")]
    {
        /// Uses the 256-bit vectors of AVX2 with the thirty-two registers that AVX-512 has.
        #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
        unsafe fn avx512(t: &NarrowTile) {
            // SAFETY: the caller keeps the same contract.
            unsafe { steps::<crate::isa::Avx2Simd, 1, PANELS>(t) }
        }
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2(t: &NarrowTile) {
            // SAFETY: the caller keeps the same contract.
            unsafe { steps::<crate::isa::Avx2Simd, 1, 2>(t) }
        }
        // SAFETY: the caller keeps the same contract.
        unsafe {
            match isa {
                Isa::Avx512 => return avx512(t),
                Isa::Avx2Fma => return avx2(t),
                Isa::Portable => {}
            }
        }
    }
    let _ = isa;
    // SAFETY: the caller keeps the same contract.
    unsafe { steps::<crate::isa::PortableSimd, 2, 1>(t) }
}

/// Computes the tile with `W` vectors for the rows of a panel, and `P` panels at once.
#[inline(always)]
unsafe fn steps<S: Simd, const W: usize, const P: usize>(t: &NarrowTile) {
    const { assert!(W * S::LANES == MR) };
    for j in (0..t.cols).step_by(STEP) {
        let mut p = 0;
        while p < t.panels {
            let at_once = if t.panels - p >= P { P } else { 1 };
            // SAFETY: columns from j and panels from p lie inside the tile.
            unsafe {
                let part = NarrowTile {
                    a: t.a.add(p * t.a_panel),
                    b: t.b.add(j),
                    c: t.c.add(p * MR * t.c_row + j),
                    cols: (t.cols - j).min(STEP),
                    ..*t
                };
                match (at_once == P, part.cols) {
                    (true, 1) => sums::<S, W, P, 1>(&part),
                    (true, 2) => sums::<S, W, P, 2>(&part),
                    (true, 3) => sums::<S, W, P, 3>(&part),
                    (true, _) => sums::<S, W, P, 4>(&part),
                    (false, 1) => sums::<S, W, 1, 1>(&part),
                    (false, 2) => sums::<S, W, 1, 2>(&part),
                    (false, 3) => sums::<S, W, 1, 3>(&part),
                    (false, _) => sums::<S, W, 1, 4>(&part),
                }
            }
            p += at_once;
        }
    }
}

#[inline(always)]
unsafe fn sums<S: Simd, const W: usize, const P: usize, const C: usize>(t: &NarrowTile) {
    use super::micro::unroll;
    // SAFETY: the caller's contract covers P panels and C columns.
    unsafe {
        let mut acc = [[[S::splat(0.0); W]; P]; C];
        let mut lanes = [0.0f32; MR];
        if !t.first {
            for (c, column) in acc.iter_mut().enumerate() {
                for (p, panel) in column.iter_mut().enumerate() {
                    for (r, lane) in lanes.iter_mut().enumerate() {
                        *lane = *t.c.add((p * MR + r) * t.c_row + c);
                    }
                    for (w, x) in panel.iter_mut().enumerate() {
                        *x = S::load(lanes.as_ptr().add(w * S::LANES));
                    }
                }
            }
        }
        let (mut a, mut b) = (t.a, t.b);
        for _ in 0..t.k {
            let mut bv = [S::splat(0.0); C];
            unroll!(J < C, {
                bv[J] = S::splat(*b.add(J));
            });
            unroll!(I < P, {
                unroll!(H < W, {
                    let av = S::load(a.add(I * t.a_panel + H * S::LANES));
                    unroll!(J < C, {
                        acc[J][I][H] = S::fma(av, bv[J], acc[J][I][H]);
                    });
                });
            });
            a = a.wrapping_add(MR);
            b = b.wrapping_add(t.b_k);
        }
        for (c, column) in acc.iter().enumerate() {
            for (p, panel) in column.iter().enumerate() {
                for (w, x) in panel.iter().enumerate() {
                    let x = S::canonical_nan(*x);
                    S::store(lanes.as_mut_ptr().add(w * S::LANES), x);
                }
                for (r, lane) in lanes.iter().enumerate() {
                    *t.c.add((p * MR + r) * t.c_row + c) = *lane;
                }
            }
        }
    }
}
