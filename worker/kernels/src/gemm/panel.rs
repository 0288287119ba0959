//! Panels of B in a layout that the micro kernel reads: used in place where possible, otherwise copied to scratch.

use super::micro::{LANE_PAD, MR, NR, Piece};
use super::pack::{Elements, PackSource, each_type};
use super::vector::Weight;
use crate::conv::Im2col;
use crate::isa::{Isa, Simd, per_isa};
use crate::quantised::BlockWeights;

/// The layout of the right-hand operand in memory.
#[derive(Clone, Copy)]
pub(crate) enum BSource<'a> {
    /// Panels in the layout of [`super::pack_b_into`].
    Packed(Elements<'a>),
    /// Element (k, n) at `k * stride + n`.
    RowMajor { data: *const f32, stride: usize },
    /// Element (k, n) at `n * stride + k`.
    ColMajor { data: *const f32, stride: usize },
    /// Any other strides.
    Strided {
        data: *const f32,
        row: usize,
        col: usize,
    },
    /// The patches of a convolution's input, unfolded on the fly.
    Patches { data: *const f32, map: &'a Im2col },
    /// Weights whose codes become numbers on the fly.
    Blocks { weights: &'a BlockWeights<'a> },
}

/// From this many rows of A on, copying a row-major panel pays for itself: the kernel then reads
/// consecutive lines instead of one page per step.
const COPY_FROM_ROWS: usize = 64;

impl BSource<'_> {
    /// How many rows of A take as long as [`BSource::panel`], as was measured of convolutions and products.
    pub(crate) fn prepared(&self) -> f64 {
        match self {
            BSource::Packed(Elements::F32(_)) => 3.0,
            BSource::Packed(_) | BSource::RowMajor { .. } => 5.0,
            BSource::ColMajor { .. } => 8.0,
            BSource::Strided { .. } | BSource::Patches { .. } | BSource::Blocks { .. } => 16.0,
        }
    }

    /// Returns the address and row stride of a piece whose rows are readable up to the next multiple of 16 columns.
    ///
    /// # Safety
    /// `isa` is available; the piece lies inside a matrix of total size `k_total` × `n_total` that
    /// the source was built for; `scratch` holds `k * 48` values.
    pub(crate) unsafe fn panel(
        &self,
        isa: Isa,
        piece: Piece,
        (k_total, n_total): (usize, usize),
        rows: usize,
        scratch: &mut [f32],
    ) -> (*const f32, usize) {
        let Piece { k0, k, n0, cols } = piece;
        assert!(scratch.len() >= k * NR);
        let dst = scratch.as_mut_ptr();
        // SAFETY: the caller's contract bounds every address; the scratch was checked.
        unsafe {
            match *self {
                BSource::Packed(data) => {
                    let width = (n_total.next_multiple_of(LANE_PAD) - n0).min(NR);
                    let at = n0 * k_total + k0 * width;
                    if let Elements::F32(data) = data {
                        return (data.as_ptr().add(at), width);
                    }
                    widen(isa, dst, data, at, k * width);
                    return (dst, width);
                }
                BSource::RowMajor { data, stride } => {
                    let src = data.wrapping_add(k0 * stride + n0);
                    if cols.is_multiple_of(LANE_PAD) && rows < COPY_FROM_ROWS {
                        return (src, stride);
                    }
                    copy_rows(isa, dst, src, stride, k, cols);
                }
                BSource::ColMajor { data, stride } => {
                    transpose(
                        isa,
                        dst,
                        data.wrapping_add(n0 * stride + k0),
                        stride,
                        k,
                        cols,
                    );
                }
                BSource::Strided { data, row, col } => {
                    for i in 0..k {
                        for j in 0..NR {
                            let inside = j < cols;
                            let x = if inside {
                                *data.add((k0 + i) * row + (n0 + j) * col)
                            } else {
                                0.0
                            };
                            *dst.add(i * NR + j) = x;
                        }
                    }
                }
                BSource::Patches { data, map } => map.unfold(isa, dst, data, piece),
                BSource::Blocks { weights } => {
                    weights.panel(piece, std::slice::from_raw_parts_mut(dst, k * NR));
                }
            }
        }
        (dst, NR)
    }
}

per_isa! {
    /// Writes `len` elements from `at` on as f32.
    ///
    /// # Safety
    /// `isa` is available; both have that many elements.
    pub(crate) unsafe fn widen(dst: *mut f32, src: Elements<'_>, at: usize, len: usize) => widen_body
}

#[inline(always)]
unsafe fn widen_body<S: Simd>(dst: *mut f32, src: Elements<'_>, at: usize, len: usize) {
    let whole = len / S::LANES * S::LANES;
    // SAFETY: vectors below `whole`, and the rest one by one.
    unsafe {
        each_type!(src, src => {
            let src = src.as_ptr().add(at);
            for i in (0..whole).step_by(S::LANES) {
                S::store(dst.add(i), Weight::load::<S>(src.add(i)));
            }
            for i in whole..len {
                *dst.add(i) = PackSource::<f32>::packed(*src.add(i));
            }
        })
    }
}

per_isa! {
    /// Copies `k` rows of `cols <= 48` values into rows of 48; zeros follow up to the next multiple of 16 columns.
    ///
    /// # Safety
    /// `isa` is available; both matrices have the stated sizes.
    unsafe fn copy_rows(dst: *mut f32, src: *const f32, stride: usize, k: usize, cols: usize) => copy_body
}

#[inline(always)]
unsafe fn copy_body<S: Simd>(dst: *mut f32, src: *const f32, stride: usize, k: usize, cols: usize) {
    let whole = cols / S::LANES;
    let rest = cols % S::LANES;
    let vectors = cols.next_multiple_of(LANE_PAD) / S::LANES;
    for i in 0..k {
        // SAFETY: row i of both; `vectors * LANES <= 48`.
        unsafe {
            let (d, s) = (dst.add(i * NR), src.add(i * stride));
            if whole * S::LANES == NR {
                for v in 0..NR / S::LANES {
                    S::store(d.add(v * S::LANES), S::load(s.add(v * S::LANES)));
                }
                continue;
            }
            for v in 0..whole {
                S::store(d.add(v * S::LANES), S::load(s.add(v * S::LANES)));
            }
            let mut v = whole;
            if rest > 0 {
                S::store(
                    d.add(v * S::LANES),
                    S::load_masked(s.add(v * S::LANES), S::mask(0, rest)),
                );
                v += 1;
            }
            for v in v..vectors {
                S::store(d.add(v * S::LANES), S::splat(0.0));
            }
        }
    }
}

per_isa! {
    /// Writes the transpose of `cols <= 48` columns, `stride` apart, of `k` consecutive values into rows of 48; zeros
    /// follow up to the next multiple of 16 columns.
    ///
    /// # Safety
    /// `isa` is available; both matrices have the stated sizes.
    unsafe fn transpose(dst: *mut f32, src: *const f32, stride: usize, k: usize, cols: usize) => transpose_body
}

#[inline(always)]
unsafe fn transpose_body<S: Simd>(
    dst: *mut f32,
    src: *const f32,
    stride: usize,
    k: usize,
    cols: usize,
) {
    /// Side of a block.
    const SIDE: usize = 8;
    for j in (0..cols.next_multiple_of(LANE_PAD)).step_by(SIDE) {
        let width = cols.saturating_sub(j).min(SIDE);
        for i in (0..k).step_by(SIDE) {
            let height = (k - i).min(SIDE);
            // SAFETY: columns below `cols`, values below `k`; rows of 48 hold j + SIDE columns.
            unsafe {
                let (s, d) = (src.wrapping_add(j * stride + i), dst.add(i * NR + j));
                if (width, height) == (SIDE, SIDE) {
                    S::transpose8(s, stride, d, NR);
                    continue;
                }
                for y in 0..height {
                    for x in 0..SIDE {
                        *d.add(y * NR + x) = if x < width {
                            *s.add(x * stride + y)
                        } else {
                            0.0
                        };
                    }
                }
            }
        }
    }
}

per_isa! {
    /// Packs rows `0..rows`, values `0..k` of a strided A into panels of 8 rows, as
    /// [`super::pack_a_into`] does.
    ///
    /// # Safety
    /// `isa` is available; both matrices have the stated sizes.
    pub(crate) unsafe fn pack_block(dst: *mut f32, src: *const f32, row: usize, col: usize, rows: usize, k: usize) => pack_block_body
}

#[inline(always)]
unsafe fn pack_block_body<S: Simd>(
    dst: *mut f32,
    src: *const f32,
    row: usize,
    col: usize,
    rows: usize,
    k: usize,
) {
    for r in (0..rows).step_by(MR) {
        let height = (rows - r).min(MR);
        // SAFETY: rows below `rows`, values below `k`.
        unsafe {
            let (d, s) = (dst.add(r * k), src.add(r * row));
            let blocks = if height == MR && col == 1 { k / 8 } else { 0 };
            for i in 0..blocks {
                S::transpose8(s.add(i * 8), row, d.add(i * 8 * MR), MR);
            }
            for i in blocks * 8..k {
                for y in 0..height {
                    *d.add(i * height + y) = *s.add(y * row + i * col);
                }
            }
        }
    }
}
