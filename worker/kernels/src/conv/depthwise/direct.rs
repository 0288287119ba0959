//! Depthwise convolutions of 3 × 3 and 5 × 5 that read the input in place.
//!
//! One vector of output columns is computed for several output rows at once, so that each vector of an input row is read
//! once for all outputs that it contributes to, and so that the chains of these rows keep the multipliers busy:
//!
//! ```text
//! input row q, shifted by tap column j  ──>  output row o takes it with tap (q - o * stride, j)
//! ```
//!
//! Input rows ascend, and columns of taps within each, so that every output is the chain over ascending taps. Lanes and rows
//! in the padding are loaded as zeros.

use super::super::operands::{ConvEpilogue, ConvWeights};
use super::super::{ConvShape, NarrowEnding};
use super::taps::{TILE_WORK, Taps};
use crate::element::Float;
use crate::gemm::scratch::{SCRATCH_LEN, with_scratch};
use crate::gemm::{Output, unroll};
use crate::isa::{Isa, Simd, per_isa};
use crate::split::tiles;
use crate::{Cancelled, Exec};
use std::ops::Range;

/// Output rows that are computed at once. Planes of 7, 14, 28, 56 and 112 rows are multiples of it.
const ROWS: usize = 7;
/// Most taps.
const MAX_TAPS: usize = 25;
/// Zeros that stand for a row of the padding: the sixteen values of a vector at a stride of two, from the last of five taps.
static ZEROS: [f32; 40] = [0.0; 40];

/// The smallest tile may do at most this many times [`TILE_WORK`], since the cancel flag is checked between tiles.
const MOST_TILES: usize = 16;

/// How a convolution is cut into tiles of work.
pub(in crate::conv) struct Tiling {
    shape: ConvShape,
    /// Output rows of a tile, a multiple of [`ROWS`] unless it is all.
    rows: usize,
}

impl Tiling {
    /// Plans a depthwise convolution; `None` where there is no compiled form for its kernel, or its rows are too long.
    pub(super) fn new(s: &ConvShape) -> Option<Tiling> {
        let ([_, kh, kw], [_, sh, sw]) = (s.kernel, s.stride);
        if kh != kw || sh != sw || s.dilation != [1; 3] || !matches!((kh, sh), (3 | 5, 1 | 2)) {
            return None;
        }
        let per_row = s.output[2] * s.taps();
        if per_row > MOST_TILES * TILE_WORK / ROWS {
            return None;
        }
        let rows = (TILE_WORK / per_row.max(1)).max(1).next_multiple_of(ROWS);
        Some(Tiling {
            shape: *s,
            rows: rows.min(s.output[1]),
        })
    }
}

/// A convolution of numbers of 16 bits, which are widened, and rounded once, plane by plane in scratch memory.
pub(in crate::conv) struct Narrow {
    pub shape: ConvShape,
}

impl Narrow {
    /// Plans a depthwise convolution; `None` where it has no compiled form, or its planes are too large.
    pub fn new(s: &ConvShape) -> Option<Narrow> {
        if !s.is_depthwise() {
            return None;
        }
        let plan = Tiling::new(s)?;
        let planes = s.in_plane().saturating_add(s.out_plane());
        let fits = plan.rows == s.output[1] && planes <= SCRATCH_LEN;
        fits.then_some(Narrow { shape: *s })
    }

    /// Computes the convolution as [`run`] does, and ends it.
    pub fn run<T: Float<Wide = f32>>(
        &self,
        isa: Isa,
        exec: Exec<'_>,
        input: &[T],
        weights: ConvWeights<'_>,
        epilogue: &ConvEpilogue<'_>,
        ending: NarrowEnding,
        output: &mut [T],
    ) -> Result<(), Cancelled> {
        let s = &self.shape;
        let [_, oh, ow] = s.output;
        let planes = s.in_plane() + s.out_plane();
        let grain = TILE_WORK.div_ceil(oh * ow * s.taps());
        tiles(&exec, output, s.out_plane(), grain, |channels, output| {
            with_scratch(planes, |scratch| {
                let (wide, sums) = scratch.split_at_mut(s.in_plane());
                let parts = output.chunks_exact_mut(s.out_plane());
                for (channel, output) in channels.zip(parts) {
                    let (image, oc) = (channel / s.out_channels, channel % s.out_channels);
                    let (group, sub) = (oc / s.group_out(), oc % s.group_out());
                    let from = (image * s.groups + group) * s.in_plane();
                    T::widen_run(&input[from..from + s.in_plane()], wide);
                    let plane = Plane {
                        shape: s,
                        input: wide,
                        taps: Taps::new(s, weights, group, sub),
                        bias: epilogue.bias.map(|b| b[oc]),
                        epilogue,
                        at: 0,
                        rows: 0..oh,
                        out: &Output(sums.as_mut_ptr()),
                    };
                    // SAFETY: the caller checked `isa` and all lengths; the sums are this thread's.
                    unsafe { run_plane(isa, &plane) };
                    ending.finish(&mut sums[..output.len()], output);
                }
            })
        })
    }
}

pub(super) fn run(
    isa: Isa,
    exec: Exec<'_>,
    plan: &Tiling,
    input: &[f32],
    weights: ConvWeights<'_>,
    epilogue: &ConvEpilogue<'_>,
    output: &mut [f32],
) -> Result<(), Cancelled> {
    let s = &plan.shape;
    let [_, oh, ow] = s.output;
    let blocks = oh.div_ceil(plan.rows);
    let work = plan.rows * ow * s.taps();
    let out = Output(output.as_mut_ptr());
    exec.tiles(
        s.batch * s.out_channels * blocks,
        TILE_WORK.div_ceil(work),
        |items| {
            for item in items {
                let (channel, block) = (item / blocks, item % blocks);
                let (image, oc) = (channel / s.out_channels, channel % s.out_channels);
                let (group, sub) = (oc / s.group_out(), oc % s.group_out());
                // Each group has one input channel.
                let from = image * s.groups + group;
                let plane = Plane {
                    shape: s,
                    input: &input[from * s.in_plane()..][..s.in_plane()],
                    taps: Taps::new(s, weights, group, sub),
                    bias: epilogue.bias.map(|b| b[oc]),
                    epilogue,
                    at: channel * s.out_plane(),
                    rows: block * plan.rows..((block + 1) * plan.rows).min(oh),
                    out: &out,
                };
                // SAFETY: the caller checked `isa` and all lengths; each tile is named once.
                unsafe { run_plane(isa, &plane) };
            }
        },
    )
}

/// Some rows of one output channel.
struct Plane<'a> {
    shape: &'a ConvShape,
    /// The input channel.
    input: &'a [f32],
    taps: Taps<'a>,
    bias: Option<f32>,
    epilogue: &'a ConvEpilogue<'a>,
    /// Where the channel begins in the output.
    at: usize,
    rows: Range<usize>,
    out: &'a Output<f32>,
}

per_isa! {
    /// Computes the rows of a plane.
    ///
    /// # Safety
    /// `isa` is available, all lengths were checked, and no other thread has these rows.
    unsafe fn run_plane(plane: &Plane<'_>) => plane_body
}

#[inline(always)]
unsafe fn plane_body<S: Simd>(plane: &Plane<'_>) {
    // SAFETY: the caller keeps the same contract, and whoever can use vectors can use halves of them.
    unsafe {
        if plane.shape.output[2] <= S::Half::LANES {
            return forms::<S::Half>(plane);
        }
        forms::<S>(plane)
    }
}

#[inline(always)]
unsafe fn forms<S: Simd>(plane: &Plane<'_>) {
    // SAFETY: the caller keeps the same contract; `Tiling::new` admits these forms alone.
    unsafe {
        match (plane.shape.kernel[2], plane.shape.stride[2]) {
            (3, 1) => columns::<S, 3, 1>(plane),
            (3, _) => columns::<S, 3, 2>(plane),
            (_, 1) => columns::<S, 5, 1>(plane),
            _ => columns::<S, 5, 2>(plane),
        }
    }
}

/// One vector of output columns.
#[derive(Clone, Copy)]
struct Columns<M, const K: usize> {
    /// The first column.
    x: usize,
    /// The lanes that are outputs.
    outputs: M,
    /// For each column of taps: the lanes whose input exists, as a mask and as a range.
    inputs: [M; K],
    lo: [usize; K],
    hi: [usize; K],
}

#[inline(always)]
unsafe fn columns<S: Simd, const K: usize, const STRIDE: usize>(plane: &Plane<'_>) {
    let s = plane.shape;
    let ([_, _, width], [_, _, ow]) = (s.input, s.output);
    // SAFETY: the caller keeps the same contract; masks are of ranges within LANES.
    unsafe {
        let mut numbers = [0.0; MAX_TAPS];
        plane.taps.copy(&mut numbers[..K * K]);
        let mut taps = [S::splat(0.0); MAX_TAPS];
        for i in 0..K * K {
            taps[i] = S::splat(numbers[i]);
        }
        for x in (0..ow).step_by(S::LANES) {
            let lanes = (ow - x).min(S::LANES);
            let mut c = Columns::<S::Mask, K> {
                x,
                outputs: S::mask(0, lanes),
                inputs: [S::mask(0, 0); K],
                lo: [0; K],
                hi: [0; K],
            };
            for j in 0..K {
                // Lane l reads column x * STRIDE + j - pad + l * STRIDE.
                let left = x * STRIDE + j;
                let lo = s.pad[2].saturating_sub(left).div_ceil(STRIDE).min(lanes);
                let end = (width + s.pad[2]).saturating_sub(left);
                let hi = end.div_ceil(STRIDE).clamp(lo, lanes);
                (c.lo[j], c.hi[j], c.inputs[j]) = (lo, hi, S::mask(lo, hi));
            }
            let mut y = plane.rows.start;
            while y < plane.rows.end {
                y += match plane.rows.end - y {
                    ROWS.. => block::<S, K, STRIDE, ROWS>(plane, &taps, &c, y),
                    3.. => block::<S, K, STRIDE, 3>(plane, &taps, &c, y),
                    _ => block::<S, K, STRIDE, 1>(plane, &taps, &c, y),
                };
            }
        }
        let activation = plane.epilogue.activation;
        if activation.as_bounds().is_none() {
            let start = plane.out.item(plane.at + plane.rows.start * ow);
            let rows = std::slice::from_raw_parts_mut(start, plane.rows.len() * ow);
            activation.apply(rows);
        }
    }
}

/// Computes `R` output rows from `y` on, and returns `R`.
#[inline(always)]
unsafe fn block<S: Simd, const K: usize, const STRIDE: usize, const R: usize>(
    plane: &Plane<'_>,
    taps: &[S::V; MAX_TAPS],
    c: &Columns<S::Mask, K>,
    y: usize,
) -> usize {
    let s = plane.shape;
    // SAFETY: the caller keeps the same contract: rows from y on and the lanes of `outputs` are outputs of this thread.
    unsafe {
        let mut sums = [S::splat(0.0); R];
        let top = (y * STRIDE).wrapping_sub(s.pad[1]);
        let corner = top
            .wrapping_mul(s.input[2])
            .wrapping_add(c.x * STRIDE)
            .wrapping_sub(s.pad[2]);
        let corner = plane.input.as_ptr().wrapping_add(corner);
        unroll!(H < 3, {
            unroll!(L < 8, {
                const Q: usize = H * 8 + L;
                if const { Q < (R - 1) * STRIDE + K } {
                    let row = match top.wrapping_add(Q) < s.input[1] {
                        true => corner.wrapping_add(Q * s.input[2]),
                        false => ZEROS.as_ptr(),
                    };
                    add_row::<S, K, STRIDE, R, Q>(row, taps, c, &mut sums);
                }
            });
        });
        // Whatever is left out of the epilogue is done with a value that changes nothing, since each branch here would make
        // the compiler move the sums of a row behind it.
        let bias = S::splat(plane.bias.unwrap_or(-0.0));
        unroll!(O < R, {
            sums[O] = S::canonical_nan(S::add(sums[O], bias));
        });
        let row = s.output[2];
        let at = plane.at + y * row + c.x;
        if let Some(residual) = plane.epilogue.residual {
            unroll!(O < R, {
                let residual = S::load_masked(residual.as_ptr().add(at + O * row), c.outputs);
                sums[O] = S::canonical_nan(S::add(sums[O], residual));
            });
        }
        let (lo, hi) = plane
            .epilogue
            .activation
            .as_bounds()
            .unwrap_or((None, None));
        let (lo, hi) = (
            S::splat(lo.unwrap_or(f32::NEG_INFINITY)),
            S::splat(hi.unwrap_or(f32::INFINITY)),
        );
        unroll!(O < R, {
            sums[O] = S::at_most(hi, S::at_least(lo, sums[O]));
        });
        // Where a row is no longer than a vector, the lanes beyond it are outputs of later rows, which are stored later.
        let left = (plane.rows.end - y) * row;
        unroll!(O < R, {
            let to = plane.out.item(at + O * row);
            if row <= S::LANES && O * row + S::LANES <= left {
                S::store(to, sums[O]);
            } else {
                S::store_masked(to, sums[O], c.outputs);
            }
        });
    }
    R
}

/// Adds what input row `Q` of a block contributes to each of its output rows.
#[inline(always)]
unsafe fn add_row<S: Simd, const K: usize, const STRIDE: usize, const R: usize, const Q: usize>(
    row: *const f32,
    taps: &[S::V; MAX_TAPS],
    c: &Columns<S::Mask, K>,
    sums: &mut [S::V; R],
) {
    // SAFETY: the masked lanes lie inside a row of the input, or inside the zeros.
    unsafe {
        let mut x = [S::splat(0.0); K];
        unroll!(J < K, {
            let p = row.wrapping_add(J);
            x[J] = match STRIDE {
                1 => S::load_masked(p, c.inputs[J]),
                _ => S::load_even(p, c.lo[J], c.hi[J]),
            };
        });
        unroll!(O < R, {
            if const { O * STRIDE <= Q && Q < O * STRIDE + K } {
                let first = (Q - O * STRIDE) * K;
                unroll!(J < K, {
                    sums[O] = S::fma(taps[first + J], x[J], sums[O]);
                });
            }
        });
    }
}
