//! Packed matrices: weights laid out once in the order in which the micro kernel reads them.
//!
//! The layout is part of the numerics profile and the same for every instruction set:
//! - B `[K, N]` becomes panels of 48 columns, each `[K][48]`; the last panel is as wide as it needs,
//!   rounded up to 16 columns with zeros.
//! - A `[M, K]` becomes panels of 8 rows, each `[K][8]`; the last panel `[K][rest]`, without padding.
//!
//! Packed elements are f32, or f16 or bf16 as the weights have them. Packing changes no value (f16 and bf16 widen exactly), and
//! packed operands give the same bits.

use half::{bf16, f16};
use std::ops::Range;

use super::micro::{LANE_PAD, MR, NR};
use crate::split::{tiles, units_per_tile};
use crate::{Cancelled, Exec};

/// Rows of a panel of B that are packed together: 6 KiB.
const BLOCK: usize = 32;

/// An element type that weights are stored in, as `D` are packed.
pub trait PackSource<D = f32>: Copy + Send + Sync {
    /// Converts to the packed type, exactly.
    fn packed(self) -> D;
}

macro_rules! pack_sources {
    ($($from:ty => $to:ty, $x:ident => $packed:expr;)*) => { $(
        impl PackSource<$to> for $from {
            #[inline(always)]
            fn packed(self) -> $to {
                let $x = self;
                $packed
            }
        }
    )* };
}
pack_sources! {
    f32 => f32, x => x;
    f16 => f32, x => x.to_f32();
    bf16 => f32, x => x.to_f32();
    f16 => f16, x => x;
    bf16 => bf16, x => x;
}

/// A type of packed elements: f32, or a 16-bit type that the kernels widen exactly, in registers or block by block.
pub trait Packed: Copy + Default + Send + Sync {
    /// The elements with their type as a value.
    fn elements(all: &[Self]) -> Elements<'_>;
}

/// Packed elements of any type.
#[derive(Debug, Clone, Copy)]
pub enum Elements<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
}

/// Runs an expression with `$x` bound to the slice that an [`Elements`] holds, of whichever type.
macro_rules! each_type {
    ($elements:expr, $x:ident => $body:expr) => {
        match $elements {
            $crate::gemm::Elements::F32($x) => $body,
            $crate::gemm::Elements::F16($x) => $body,
            $crate::gemm::Elements::BF16($x) => $body,
        }
    };
}
pub(crate) use each_type;

impl<'a> Elements<'a> {
    /// The elements from `at` on.
    pub(crate) fn from(self, at: usize) -> Elements<'a> {
        match self {
            Elements::F32(all) => Elements::F32(&all[at..]),
            Elements::F16(all) => Elements::F16(&all[at..]),
            Elements::BF16(all) => Elements::BF16(&all[at..]),
        }
    }

    /// One element as f32.
    #[inline]
    pub(crate) fn at(&self, i: usize) -> f32 {
        each_type!(self, all => all[i].packed())
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each_type!(self, all => all.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Packed for f32 {
    fn elements(all: &[f32]) -> Elements<'_> {
        Elements::F32(all)
    }
}
impl Packed for f16 {
    fn elements(all: &[f16]) -> Elements<'_> {
        Elements::F16(all)
    }
}
impl Packed for bf16 {
    fn elements(all: &[bf16]) -> Elements<'_> {
        Elements::BF16(all)
    }
}

/// A matrix given by strides: element `(row, col)` is `data[row * row_stride + col * col_stride]`.
#[derive(Debug, Clone, Copy)]
pub struct Strided<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// Distance between rows, in elements.
    pub row_stride: usize,
    /// Distance between columns, in elements.
    pub col_stride: usize,
}

impl<'a, T> Strided<'a, T> {
    /// A matrix whose rows lie one after the other, `row_stride` elements apart.
    pub fn row_major(data: &'a [T], row_stride: usize) -> Self {
        Strided {
            data,
            row_stride,
            col_stride: 1,
        }
    }

    /// A matrix whose columns lie one after the other, `col_stride` elements apart: the transpose of a row-major matrix
    /// with that row stride.
    pub fn col_major(data: &'a [T], col_stride: usize) -> Self {
        Strided {
            data,
            row_stride: 1,
            col_stride,
        }
    }

    /// Whether every element of a `rows` × `cols` matrix lies inside `data`.
    pub(crate) fn holds(&self, rows: usize, cols: usize) -> bool {
        rows == 0
            || cols == 0
            || (rows - 1) * self.row_stride + (cols - 1) * self.col_stride < self.data.len()
    }
}

/// Number of values in a packed `[k, n]` right-hand matrix.
pub fn packed_b_len(k: usize, n: usize) -> usize {
    k * n.next_multiple_of(LANE_PAD)
}

/// Number of values in a packed `[m, k]` left-hand matrix: exactly its elements.
pub fn packed_a_len(m: usize, k: usize) -> usize {
    m * k
}

/// Packs a `[k, n]` matrix into `dst`, whose length must be [`packed_b_len`]. An alignment of `dst` to 64 bytes is
/// faster, but not required.
pub fn pack_b_into<D: Packed, T: PackSource<D>>(
    dst: &mut [D],
    src: Strided<'_, T>,
    k: usize,
    n: usize,
) {
    check_b(dst.len(), src, k, n);
    if k == 0 {
        return;
    }
    for (p, panel) in dst.chunks_mut(k * NR).enumerate() {
        pack_panel(panel, src, k, p * NR..n.min((p + 1) * NR));
    }
}

/// Packs like [`pack_b_into`], on the threads of `exec`.
pub fn pack_b_on<D: Packed, T: PackSource<D>>(
    exec: &Exec<'_>,
    dst: &mut [D],
    src: Strided<'_, T>,
    k: usize,
    n: usize,
) -> Result<(), Cancelled> {
    check_b(dst.len(), src, k, n);
    exec.check()?;
    if k == 0 {
        return Ok(());
    }
    let (panels, rest) = dst.split_at_mut(n / NR * NR * k);
    if !rest.is_empty() {
        pack_panel(rest, src, k, n / NR * NR..n);
    }
    let unit = k * NR;
    tiles(exec, panels, unit, units_per_tile(unit), |range, part| {
        for (p, panel) in range.zip(part.chunks_exact_mut(unit)) {
            pack_panel(panel, src, k, p * NR..(p + 1) * NR);
        }
    })
}

fn check_b<T>(len: usize, src: Strided<'_, T>, k: usize, n: usize) {
    assert_eq!(
        len,
        packed_b_len(k, n),
        "destination of a packed [{k}, {n}] matrix"
    );
    assert!(src.holds(k, n), "source of a packed [{k}, {n}] matrix");
}

/// Packs `k` rows of at most [`NR`] columns; `k` is at least 1.
fn pack_panel<D: Packed, T: PackSource<D>>(
    panel: &mut [D],
    src: Strided<'_, T>,
    k: usize,
    columns: Range<usize>,
) {
    let width = panel.len() / k;
    let count = columns.len();
    let (rows, cols) = (src.row_stride, src.col_stride);
    for (at, block) in panel.chunks_mut(width * BLOCK).enumerate() {
        let first = at * BLOCK;
        if cols == 1 {
            for (i, row) in block.chunks_exact_mut(width).enumerate() {
                let from = &src.data[(first + i) * rows + columns.start..][..count];
                for (x, v) in row.iter_mut().zip(from) {
                    *x = v.packed();
                }
            }
        } else {
            // The block is copied column by column, since the columns of a transposed matrix are contiguous. It has few
            // rows, so that they stay in the cache.
            for (j, column) in columns.clone().enumerate() {
                let from = &src.data[first * rows + column * cols..];
                let written = block.iter_mut().skip(j).step_by(width);
                for (i, x) in written.enumerate() {
                    *x = from[i * rows].packed();
                }
            }
        }
        for row in block.chunks_exact_mut(width) {
            row[count..].fill(D::default());
        }
    }
}

/// Packs an `[m, k]` matrix into `dst`, whose length must be [`packed_a_len`].
pub fn pack_a_into<D: Packed, T: PackSource<D>>(
    dst: &mut [D],
    src: Strided<'_, T>,
    m: usize,
    k: usize,
) {
    assert_eq!(
        dst.len(),
        packed_a_len(m, k),
        "destination of a packed [{m}, {k}] matrix"
    );
    assert!(src.holds(m, k), "source of a packed [{m}, {k}] matrix");
    if k == 0 {
        return;
    }
    for (p, panel) in dst.chunks_mut(k * MR).enumerate() {
        let rows = panel.len() / k;
        for (i, column) in panel.chunks_exact_mut(rows).enumerate() {
            let base = p * MR * src.row_stride + i * src.col_stride;
            for (r, x) in column.iter_mut().enumerate() {
                *x = src.data[base + r * src.row_stride].packed();
            }
        }
    }
}

/// A packed right-hand matrix: a view of memory that the caller owns.
#[derive(Debug, Clone, Copy)]
pub struct PackedB<'a> {
    pub(crate) data: Elements<'a>,
    pub(crate) k: usize,
    pub(crate) n: usize,
}

impl<'a> PackedB<'a> {
    /// The packed matrix in `data`, which [`pack_b_into`] filled for the same `k` and `n`.
    pub fn new<T: Packed>(data: &'a [T], k: usize, n: usize) -> Self {
        assert_eq!(data.len(), packed_b_len(k, n), "packed [{k}, {n}] matrix");
        let data = T::elements(data);
        PackedB { data, k, n }
    }
}

/// A packed left-hand matrix: a view of memory that the caller owns.
#[derive(Debug, Clone, Copy)]
pub struct PackedA<'a> {
    pub(crate) data: Elements<'a>,
    pub(crate) m: usize,
    pub(crate) k: usize,
}

impl<'a> PackedA<'a> {
    /// The packed matrix in `data`, which [`pack_a_into`] filled for the same `m` and `k`.
    pub fn new<T: Packed>(data: &'a [T], m: usize, k: usize) -> Self {
        assert_eq!(data.len(), packed_a_len(m, k), "packed [{m}, {k}] matrix");
        let data = T::elements(data);
        PackedA { data, m, k }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_lie_as_documented() {
        let (k, n) = (3, 50);
        let src: Vec<f32> = (0..k * n).map(|i| i as f32).collect();
        let mut dst = vec![-1.0; packed_b_len(k, n)];
        pack_b_into(&mut dst, Strided::row_major(&src, n), k, n);
        assert_eq!(dst[48], src[n], "row 1 of panel 0");
        assert_eq!(
            dst[3 * 48 + 16..][..3],
            [src[n + 48], src[n + 49], 0.0],
            "row 1 of panel 1"
        );

        let (m, k) = (10, 3);
        let mut dst = vec![-1.0; packed_a_len(m, k)];
        pack_a_into(&mut dst, Strided::row_major(&src, k), m, k);
        assert_eq!(dst[8], src[1], "k = 1 of panel 0");
        assert_eq!(
            dst[24..28],
            [src[24], src[27], src[25], src[28]],
            "panel 1 has two rows"
        );
    }

    #[test]
    fn half_sources_widen() {
        let src = [half::f16::from_f32(1.5), half::f16::from_f32(-2.0)];
        let mut dst = vec![0.0f32; packed_a_len(2, 1)];
        pack_a_into(&mut dst, Strided::row_major(&src, 1), 2, 1);
        assert_eq!(dst, [1.5, -2.0]);
    }
}
