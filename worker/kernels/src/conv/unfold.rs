//! Unfolds patches of the input into panels of B, one panel at a time, never the whole matrix.
//!
//! Row `k` of the unfolded matrix is the tap (channel, kd, kh, kw) in the order of the weights, and column `n` is an
//! output position. Padding is an ordinary zero that takes part in the chain.
//!
//! The columns of a panel are cut into *runs* at the ends of output rows; within a run a tap reads the
//! input at a constant stride. Taps are the outer loop and channels the inner one, so that a run is
//! resolved once per tap into vector operations, which all channels share.

use super::ConvShape;
use crate::gemm::{NR, Piece};
use crate::isa::{Isa, Simd, per_isa};
use std::mem::MaybeUninit;

/// How positions of the unfolded matrix map to the input of one group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Im2col {
    shape: ConvShape,
    /// The row of the unfolded matrix that is row 0 of a piece.
    first: usize,
}

impl Im2col {
    /// The unfolded matrix from row `first` on.
    pub(crate) fn new(shape: &ConvShape, first: usize) -> Self {
        Im2col {
            shape: *shape,
            first,
        }
    }

    /// Writes a piece as rows of 48 values; zeros follow its columns up to the next multiple of 16.
    ///
    /// # Safety
    /// `isa` is available; `data` is the input of one group of one batch item; the piece lies inside
    /// the unfolded matrix; `dst` holds `piece.k` rows.
    pub(crate) unsafe fn unfold(&self, isa: Isa, dst: *mut f32, data: *const f32, piece: Piece) {
        let piece = Piece {
            k0: self.first + piece.k0,
            ..piece
        };
        // SAFETY: the caller keeps the same contract.
        unsafe { unfold(isa, &self.shape, dst, data, piece) }
    }
}

per_isa! {
    /// The body of [`Im2col::unfold`].
    ///
    /// # Safety
    /// The contract is that of [`Im2col::unfold`].
    unsafe fn unfold(s: &ConvShape, dst: *mut f32, data: *const f32, piece: Piece) => unfold_body
}

#[inline(always)]
unsafe fn unfold_body<S: Simd>(s: &ConvShape, dst: *mut f32, data: *const f32, piece: Piece) {
    // SAFETY: the caller keeps the same contract.
    unsafe {
        match s.stride[2] {
            1 => unfold_stride::<S, 1>(s, dst, data, piece),
            2 => unfold_stride::<S, 2>(s, dst, data, piece),
            _ => unfold_stride::<S, 0>(s, dst, data, piece),
        }
    }
}

/// Consecutive outputs of one output row that lie in the panel.
#[derive(Clone, Copy)]
struct Run {
    /// First column in the panel, and number of columns.
    at: usize,
    len: usize,
    /// Input position of tap (0, 0, 0) for the first output; may be negative in the padding.
    origin: [isize; 3],
}

/// One vector of a row, for every channel: lanes `lo..hi` come from the input, the others are zero.
#[derive(Clone, Copy)]
struct Op<M> {
    at: usize,
    /// Offset of lane 0 within the channel; may be negative.
    from: isize,
    lo: u32,
    hi: u32,
    load: M,
}

/// Unfolds a piece. `STRIDE` 0 stands for any stride.
#[inline(always)]
unsafe fn unfold_stride<S: Simd, const STRIDE: usize>(
    s: &ConvShape,
    dst: *mut f32,
    data: *const f32,
    piece: Piece,
) {
    let mut runs = [const { MaybeUninit::uninit() }; NR];
    let runs = cut_runs(s, piece, &mut runs);
    let mut ops = [const { MaybeUninit::uninit() }; NR];
    let taps = s.taps();
    // The piece begins at tap `first` of `channel`, and ends before tap `last` of `end`.
    let (channel, first) = (piece.k0 / taps, piece.k0 % taps);
    let (end, last) = ((piece.k0 + piece.k) / taps, (piece.k0 + piece.k) % taps);
    // A piece may be shorter than a large kernel; then it has only the taps from `first` on.
    let [kd, kh, kw] = s.kernel;
    let (mut tap, mut place) = (first, [first / (kh * kw), first / kw % kh, first % kw]);
    for _ in 0..taps.min(piece.k) {
        let start = channel + usize::from(tap < first);
        let count = (end + usize::from(tap < last)).saturating_sub(start);
        if count > 0 {
            // SAFETY: rows from `start`'s on, `taps` apart, lie inside the piece; the
            // operations' lanes lie inside a channel.
            unsafe {
                let ops = resolve::<S, STRIDE>(s, place, runs, &mut ops);
                let rows = Rows {
                    dst: dst.add((start * taps + tap - piece.k0) * NR),
                    dst_step: taps * NR,
                    src: data.add(start * s.in_plane()),
                    src_step: s.in_plane(),
                    count,
                    cols: piece.cols,
                    stride: s.stride[2],
                };
                copy::<S, STRIDE>(&rows, ops);
            }
        }
        (tap, place) = next_tap(tap, place, [kd, kh, kw]);
    }
}

/// The tap after `tap`, with its place in the kernel; the first tap follows the last.
#[inline(always)]
fn next_tap(tap: usize, [d, h, w]: [usize; 3], [kd, kh, kw]: [usize; 3]) -> (usize, [usize; 3]) {
    if w + 1 < kw {
        (tap + 1, [d, h, w + 1])
    } else if h + 1 < kh {
        (tap + 1, [d, h + 1, 0])
    } else if d + 1 < kd {
        (tap + 1, [d + 1, 0, 0])
    } else {
        (0, [0; 3])
    }
}

/// Cuts the columns of a piece at the ends of output rows.
#[inline(always)]
fn cut_runs<'a>(s: &ConvShape, piece: Piece, runs: &'a mut [MaybeUninit<Run>; NR]) -> &'a [Run] {
    let [_, height, width] = s.output;
    let (mut x, mut y) = (piece.n0 % width, piece.n0 / width);
    let mut z = y / height;
    y %= height;
    let (mut at, mut count) = (0, 0);
    while at < piece.cols {
        let len = (width - x).min(piece.cols - at);
        let origin = |d: usize, o: usize| (o * s.stride[d]) as isize - s.pad[d] as isize;
        runs[count].write(Run {
            at,
            len,
            origin: [origin(0, z), origin(1, y), origin(2, x)],
        });
        (at, count, x, y) = (at + len, count + 1, 0, y + 1);
        if y == height {
            (y, z) = (0, z + 1);
        }
    }
    // SAFETY: the first `count` runs were written.
    unsafe { std::slice::from_raw_parts(runs.as_ptr().cast(), count) }
}

/// The vector operations of one tap, in ascending columns.
///
/// # Safety
/// The instruction set of `S` is available.
#[inline(always)]
unsafe fn resolve<'a, S: Simd, const STRIDE: usize>(
    s: &ConvShape,
    tap: [usize; 3],
    runs: &[Run],
    ops: &'a mut [MaybeUninit<Op<S::Mask>>; NR],
) -> &'a [Op<S::Mask>] {
    let step = if STRIDE == 0 { s.stride[2] } else { STRIDE };
    let mut count = 0;
    for run in runs {
        let at = |d: usize| run.origin[d] + (tap[d] * s.dilation[d]) as isize;
        let inside = |d: usize| (0..s.input[d] as isize).contains(&at(d));
        let (x, width) = (at(2), s.input[2] as isize);
        // First and one-past-last columns whose input exists.
        let (mut lo, mut hi) = (0, 0);
        if inside(0) && inside(1) {
            lo = ((-x).max(0) as usize).div_ceil(step).min(run.len);
            hi = ((width - x).max(0) as usize)
                .div_ceil(step)
                .clamp(lo, run.len);
        }
        let from = (at(0) * s.input[1] as isize + at(1)) * width + x;
        let mut j = 0;
        while j < run.len {
            let cut = |x: usize| x.saturating_sub(j).min(S::LANES);
            let (lo, hi) = (cut(lo), cut(hi));
            // SAFETY: lo <= hi <= LANES.
            let load = unsafe { S::mask(lo, hi) };
            let from = from + (j * step) as isize;
            ops[count].write(Op {
                at: run.at + j,
                from,
                lo: lo as u32,
                hi: hi as u32,
                load,
            });
            count += 1;
            j += S::LANES;
        }
    }
    // SAFETY: the first `count` operations were written, at most one per column.
    unsafe { std::slice::from_raw_parts(ops.as_ptr().cast(), count) }
}

/// Rows of a panel that share a tap: one per channel.
struct Rows {
    dst: *mut f32,
    dst_step: usize,
    src: *const f32,
    src_step: usize,
    count: usize,
    cols: usize,
    stride: usize,
}

/// # Safety
/// The instruction set of `S` is available; rows and operations lie inside their matrices.
#[inline(always)]
unsafe fn copy<S: Simd, const STRIDE: usize>(rows: &Rows, ops: &[Op<S::Mask>]) {
    // Operations before `whole` may store a whole vector: lanes past their run are overwritten by later operations, or
    // are zeros after the columns. The other operations would write past the row of 48.
    let whole = ops
        .iter()
        .position(|op| op.at + S::LANES > NR)
        .unwrap_or(ops.len());
    let (whole, rest) = ops.split_at(whole);
    let padded = rows.cols.next_multiple_of(16);
    // SAFETY: the masks keep loads inside the channel and stores inside the row.
    unsafe {
        let load = |src: *const f32, op: &Op<S::Mask>| {
            let p = src.wrapping_offset(op.from);
            match STRIDE {
                1 => S::load_masked(p, op.load),
                2 => S::load_even(p, op.lo as usize, op.hi as usize),
                _ => load_strided::<S>(p, rows.stride, op.lo as usize, op.hi as usize),
            }
        };
        for i in 0..rows.count {
            let dst = rows.dst.add(i * rows.dst_step);
            let src = rows.src.add(i * rows.src_step);
            if padded > rows.cols {
                for v in (padded - 16..padded).step_by(S::LANES) {
                    S::store(dst.add(v), S::splat(0.0));
                }
            }
            for op in whole {
                S::store(dst.add(op.at), load(src, op));
            }
            for op in rest {
                S::store_masked(dst.add(op.at), load(src, op), S::mask(0, NR - op.at));
            }
        }
    }
}

/// Loads lanes `lo..hi`, lane i from `p + i * stride`; the other lanes are zero.
///
/// # Safety
/// The instruction set of `S` is available, and those lanes are readable.
#[inline(always)]
pub(super) unsafe fn load_strided<S: Simd>(
    p: *const f32,
    stride: usize,
    lo: usize,
    hi: usize,
) -> S::V {
    // SAFETY: the caller keeps the same contract; sixteen values are at least LANES.
    unsafe {
        match stride {
            1 => S::load_masked(p, S::mask(lo, hi)),
            2 => S::load_even(p, lo, hi),
            _ => {
                let mut values = [0.0f32; 16];
                for (i, value) in values.iter_mut().enumerate().take(hi).skip(lo) {
                    *value = *p.wrapping_add(i * stride);
                }
                S::load(values.as_ptr())
            }
        }
    }
}
