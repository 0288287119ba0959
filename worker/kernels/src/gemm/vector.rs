//! The product of one row and a packed matrix.
//!
//! One row takes as long as the matrix takes to read, so that 16-bit weights are widened in registers. It leaves a vector unit
//! idle while each sum waits for the one before, so that several panels are computed at once. Each output is the same chain
//! as in the micro kernel, so the bits are the same.

use half::{bf16, f16};

use super::micro::{NR, unroll};
use super::output::Output;
use super::pack::{Elements, PackedB, each_type};
use crate::isa::{Isa, Simd, per_isa};
use crate::{Cancelled, Exec};
use std::ops::Range;

/// Least work of a tile, in multiply-adds. It is that of other products, since a recurrent layer calls for each of its steps,
/// with weights that stay in the cache.
const TILE_WORK: usize = 1 << 18;
/// Vectors of columns that belong together.
const VECTORS: usize = 3;
/// How many such columns are computed at once.
const STREAMS: usize = 4;
/// Columns of a group: whole panels, whose rows up to [`BLOCK`] stay in a level-2 cache for those instruction sets that read
/// them twice.
const GROUP: usize = STREAMS * NR;
/// Rows of the matrix between two checks of the cancel flag.
const BLOCK: usize = 1024;
/// How many rows ahead of their use 16-bit weights are prefetched. With f32 in a cache, prefetches take as long as the loads do.
const AHEAD: usize = 24;

/// `y = x · b`.
pub fn product_of_row(
    exec: &Exec,
    x: &[f32],
    b: PackedB<'_>,
    y: &mut [f32],
) -> Result<(), Cancelled> {
    product_on(Isa::detect(), exec, x, b, y)
}

fn product_on(
    isa: Isa,
    exec: &Exec,
    x: &[f32],
    b: PackedB<'_>,
    y: &mut [f32],
) -> Result<(), Cancelled> {
    let (k, n) = (b.k, b.n);
    assert!(isa.available());
    assert_eq!((x.len(), y.len()), (k, n), "a row and its product");
    let grain = (TILE_WORK / (NR * k.max(1))).max(1);
    let y = Output(y.as_mut_ptr());
    exec.tiles(n.div_ceil(NR), grain, |panels| {
        let (from, to) = (panels.start * NR, n.min(panels.end * NR));
        // SAFETY: tiles are disjoint columns of `y`, which is borrowed mutably for the whole call.
        let y = unsafe { std::slice::from_raw_parts_mut(y.item(from), to - from) };
        columns_of_row(isa, exec, x, b.data, from, y, |_, _| {});
    })?;
    // A tile that saw the cancel flag stopped early and could not report it.
    exec.check()
}

/// Writes the products of a row with the columns of some panels of 48 to `y`, which has those columns, on the calling thread.
/// Stops early where the step was cancelled.
pub(crate) fn panels_of_row(
    exec: &Exec,
    x: &[f32],
    b: PackedB<'_>,
    panels: Range<usize>,
    y: &mut [f32],
) {
    assert_eq!(x.len(), b.k, "a row and a matrix");
    let first = panels.start * NR;
    assert_eq!(
        y.len(),
        b.n.min(panels.end * NR) - first,
        "columns of panels"
    );
    columns_of_row(Isa::detect(), exec, x, b.data, first, y, |_, _| {});
}

/// Writes the products of a row with the columns from `first` on, a multiple of [`NR`], of a packed matrix to `y`, which ends
/// with the matrix or with a panel. `finish` is called with each group of columns that is complete, and its first column.
/// Stops early where the step was cancelled.
pub(super) fn columns_of_row(
    isa: Isa,
    exec: &Exec,
    x: &[f32],
    b: Elements<'_>,
    first: usize,
    y: &mut [f32],
    finish: impl Fn(usize, &mut [f32]),
) {
    assert!(isa.available() && first.is_multiple_of(NR));
    let k = x.len();
    for (g, y) in y.chunks_mut(GROUP).enumerate() {
        let at = first + g * GROUP;
        let end = (at + y.len().next_multiple_of(super::micro::LANE_PAD)) * k;
        assert!(end <= b.len(), "columns of a packed matrix");
        y.fill(0.0);
        for rows in (0..k).step_by(BLOCK) {
            if exec.check().is_err() {
                return;
            }
            let rows = rows..k.min(rows + BLOCK);
            // SAFETY: the instruction set is available; the columns lie inside the matrix.
            unsafe { add_rows(isa, x, rows, b, at * k, y) };
        }
        finish(at, y);
    }
}

per_isa! {
    /// Continues the chains in `y` by some rows of the columns that begin at `at`.
    ///
    /// # Safety
    /// `isa` is available; from `at` on, `b` has the panels of at most [`GROUP`] columns.
    unsafe fn add_rows(x: &[f32], rows: std::ops::Range<usize>, b: Elements<'_>, at: usize, y: &mut [f32]) => rows_body
}

#[inline(always)]
unsafe fn rows_body<S: Simd>(
    x: &[f32],
    rows: std::ops::Range<usize>,
    b: Elements<'_>,
    at: usize,
    y: &mut [f32],
) {
    // SAFETY: the caller keeps the same contract.
    unsafe { each_type!(b, b => typed_rows::<S, _>(x, rows, &b[at..], y)) }
}

/// A weight that is widened to f32 in registers.
pub(super) trait Weight: Copy {
    /// # Safety
    /// The instruction set of `S` is available, and `p` has its lanes.
    unsafe fn load<S: Simd>(p: *const Self) -> S::V;
}

impl Weight for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> S::V {
        // SAFETY: the caller keeps the same contract.
        unsafe { S::load(p) }
    }
}
impl Weight for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f16) -> S::V {
        // SAFETY: the caller keeps the same contract.
        unsafe { S::load_f16(p) }
    }
}
impl Weight for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const bf16) -> S::V {
        // SAFETY: the caller keeps the same contract.
        unsafe { S::load_bf16(p) }
    }
}

#[inline(always)]
unsafe fn typed_rows<S: Simd, T: Weight>(
    x: &[f32],
    rows: std::ops::Range<usize>,
    b: &[T],
    y: &mut [f32],
) {
    let k = x.len();
    let x = &x[rows.clone()];
    let (whole, last) = y.split_at_mut(y.len() / NR * NR);
    let panel = |column: usize| column / NR * NR * k + rows.start * NR + column % NR;
    let step = VECTORS * S::LANES;
    let mut column = 0;
    // SAFETY: streams of whole panels, whose rows have [`NR`] columns; then those of the last panel, which has whole vectors.
    unsafe {
        while column + STREAMS * step <= whole.len() {
            let from: [*const T; STREAMS] =
                std::array::from_fn(|s| b.as_ptr().add(panel(column + s * step)));
            streams::<S, T, STREAMS, VECTORS>(x, from, NR, whole.as_mut_ptr().add(column));
            column += STREAMS * step;
        }
        while column < whole.len() {
            let from = [b.as_ptr().add(panel(column))];
            streams::<S, T, 1, VECTORS>(x, from, NR, whole.as_mut_ptr().add(column));
            column += step;
        }
        let width = last.len().next_multiple_of(super::micro::LANE_PAD);
        for j in (0..last.len()).step_by(S::LANES) {
            let from = [b.as_ptr().add(whole.len() * k + rows.start * width + j)];
            let mut sums = [0.0f32; super::micro::LANE_PAD];
            let lanes = (last.len() - j).min(S::LANES);
            sums[..lanes].copy_from_slice(&last[j..][..lanes]);
            streams::<S, T, 1, 1>(x, from, width, sums.as_mut_ptr());
            last[j..][..lanes].copy_from_slice(&sums[..lanes]);
        }
    }
}

/// Continues the chains of `P * V` vectors of consecutive outputs: `V` for each stream of weights, whose rows are `pitch`
/// apart.
#[inline(always)]
unsafe fn streams<S: Simd, T: Weight, const P: usize, const V: usize>(
    x: &[f32],
    mut from: [*const T; P],
    pitch: usize,
    y: *mut f32,
) {
    // SAFETY: the caller's contract: each stream has `V` vectors in each of its rows, and as many outputs.
    unsafe {
        let mut acc = [[S::splat(0.0); V]; P];
        unroll!(I < P, {
            unroll!(J < V, {
                acc[I][J] = S::load(y.add((I * V + J) * S::LANES));
            });
        });
        for x in x {
            let x = S::splat(*x);
            unroll!(I < P, {
                if size_of::<T>() < size_of::<f32>() {
                    let ahead = from[I].wrapping_add(AHEAD * pitch);
                    for l in (0..V * S::LANES).step_by(64 / size_of::<T>()) {
                        S::prefetch(ahead.wrapping_add(l).cast());
                    }
                }
                unroll!(J < V, {
                    acc[I][J] = S::fma(x, T::load::<S>(from[I].add(J * S::LANES)), acc[I][J]);
                });
                from[I] = from[I].wrapping_add(pitch);
            });
        }
        unroll!(I < P, {
            unroll!(J < V, {
                S::store(y.add((I * V + J) * S::LANES), S::canonical_nan(acc[I][J]));
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Epilogue, Lhs, Rhs, Strided, gemm, pack_b_into, packed_b_len};
    use super::*;
    use crate::testing::{bits, each_exec, exec, random};

    #[test]
    fn a_row_has_the_bits_of_a_product() {
        for (k, n) in [
            (0, 5),
            (1, 1),
            (7, 47),
            (64, 256),
            (33, 48 * 9 + 17),
            (700, 1024),
        ] {
            let mut x = random::<f32>(k, 1.0, 1);
            if let Some(last) = x.last_mut() {
                *last = f32::NAN;
            }
            for x in [random::<f32>(k, 1.0, 2), x] {
                let b = random::<f32>(k * n, 1.0, 3);
                let plain = Strided::row_major(&b, n);
                let mut packed = vec![0.0; packed_b_len(k, n)];
                pack_b_into(&mut packed, plain, k, n);
                let mut want = vec![0.0; n];
                let a = Lhs::Strided(Strided::row_major(&x, k));
                let none = &Epilogue::NONE;
                // Packed, the product would take this way itself.
                gemm(exec(), (1, n, k), a, Rhs::Strided(plain), &mut want, none).unwrap();
                let b = PackedB::new(&packed, k, n);
                for isa in Isa::all_available() {
                    each_exec(|exec| {
                        let mut y = vec![1.0; n];
                        product_on(isa, exec, &x, b, &mut y).unwrap();
                        assert_eq!(bits(&y), bits(&want), "[{k}, {n}] {isa:?}");
                    });
                }
            }
        }
    }
}
