//! Depthwise convolutions by a copy of the input, for any kernel.
//!
//! A block of output rows of one channel is computed from a *window*: the padded input split by stride
//! phase, so that the taps of neighbouring outputs are neighbours:
//!
//! ```text
//! phase (py, px), row q, column x  =  padded input (q * stride_y + py, x * stride_x + px)
//! ```
//!
//! With all rows of a phase `pitch` apart, output `q * pitch + x` reads each tap at that same offset
//! from the tap's base, so whole blocks are one long vector loop, also where rows are short. The
//! `pitch - width` outputs at the end of each row are computed and thrown away.

use super::super::ConvShape;
use super::super::operands::{ConvEpilogue, ConvWeights};
use super::super::unfold::load_strided;
use super::taps::{TILE_WORK, Taps};
use crate::gemm::scratch::with_scratch;
use crate::gemm::{Output, unroll};
use crate::isa::{Isa, Simd, per_isa};
use crate::{Cancelled, Exec};

/// Largest side of a kernel, which bounds the tables of tap offsets. Larger kernels are unfolded.
const MAX_SIDE: usize = 32;
/// Vectors that the innermost loop keeps in flight: the latency of a multiply-add, times two multiply-adds per cycle.
const UNROLL: usize = 8;
/// Reads and writes of whole vectors pass the end of a block by fewer values than this.
const SLACK: usize = UNROLL * 16;
/// Values of window and sums together, which mostly stay in a level-1 cache.
const BLOCK_LEN: usize = 12 * 1024;
/// Widest block of output columns.
const MAX_COLS: usize = 1024;

/// How a depthwise convolution is cut into blocks.
pub(in crate::conv) struct Tiling {
    shape: ConvShape,
    /// Output rows and columns of a block.
    rows: usize,
    cols: usize,
    /// Distance between rows of a phase, and number of values of a phase.
    pitch: usize,
    phase: usize,
    /// The tap at kernel row i and column j begins at `row_base[i] + col_base[j]` of the window.
    row_base: [usize; MAX_SIDE],
    col_base: [usize; MAX_SIDE],
}

impl Tiling {
    /// Plans a depthwise convolution; `None` where its window is too large.
    pub(super) fn new(s: &ConvShape) -> Option<Tiling> {
        let [_, kh, kw] = s.kernel;
        if kh > MAX_SIDE || kw > MAX_SIDE {
            return None;
        }
        let [_, sh, sw] = s.stride;
        let reach = |d: usize| ((s.kernel[d] - 1) * s.dilation[d]) / s.stride[d];
        let cols = s.output[2].min(MAX_COLS);
        let pitch = cols.checked_add(reach(2))?;
        // The window takes (rows + reach) * pitch values for each phase, and the sums take rows * pitch.
        let phases = sh.checked_mul(sw)?;
        let per_row = (phases.checked_add(1)?).checked_mul(pitch)?;
        let fixed = reach(1)
            .checked_mul(phases)?
            .checked_mul(pitch)?
            .checked_add(2 * SLACK)?;
        let rows = BLOCK_LEN.checked_sub(fixed)? / per_row;
        if rows == 0 {
            return None;
        }
        let rows = rows.min(s.output[1]);
        let phase = (rows + reach(1)) * pitch;
        let mut plan = Tiling {
            shape: *s,
            rows,
            cols,
            pitch,
            phase,
            row_base: [0; MAX_SIDE],
            col_base: [0; MAX_SIDE],
        };
        for i in 0..kh {
            let at = i * s.dilation[1];
            plan.row_base[i] = at % sh * sw * phase + at / sh * pitch;
        }
        for j in 0..kw {
            let at = j * s.dilation[2];
            plan.col_base[j] = at % sw * phase + at / sw;
        }
        Some(plan)
    }

    fn window_len(&self) -> usize {
        self.shape.stride[1] * self.shape.stride[2] * self.phase
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
    let col_blocks = ow.div_ceil(plan.cols);
    let blocks = oh.div_ceil(plan.rows) * col_blocks;
    // The window is filled, whatever is computed of it.
    let sums = plan.rows * plan.cols * s.taps() * s.group_out();
    let work = plan.window_len() + sums;
    let out = Output(output.as_mut_ptr());
    exec.tiles(
        s.batch * s.groups * blocks,
        TILE_WORK.div_ceil(work),
        |items| {
            with_scratch(BLOCK_LEN, |scratch| {
                for item in items {
                    let (channel, block) = (item / blocks, item % blocks);
                    let (y, x) = (
                        block / col_blocks * plan.rows,
                        block % col_blocks * plan.cols,
                    );
                    let job = Block {
                        plan,
                        plane: &input[channel * s.in_plane()..][..s.in_plane()],
                        image: channel / s.groups,
                        group: channel % s.groups,
                        y,
                        x,
                        rows: plan.rows.min(oh - y),
                        cols: plan.cols.min(ow - x),
                        weights,
                        epilogue: *epilogue,
                        out: &out,
                    };
                    // SAFETY: the caller checked `isa` and all lengths; each block is named once.
                    unsafe { run_block(isa, exec, &job, scratch) };
                }
            });
        },
    )?;
    // A block that saw the cancel flag is not whole.
    exec.check()
}

/// One block of one input channel, with all output channels that read the channel.
struct Block<'a> {
    plan: &'a Tiling,
    /// The input channel.
    plane: &'a [f32],
    image: usize,
    group: usize,
    /// First output row and column, and the number of rows and columns.
    y: usize,
    x: usize,
    rows: usize,
    cols: usize,
    weights: ConvWeights<'a>,
    epilogue: ConvEpilogue<'a>,
    out: &'a Output<f32>,
}

per_isa! {
    /// Computes a block.
    ///
    /// # Safety
    /// `isa` is available, all lengths were checked, and no other thread has this block.
    unsafe fn run_block(exec: Exec<'_>, job: &Block<'_>, scratch: &mut [f32]) => block_body
}

#[inline(always)]
unsafe fn block_body<S: Simd>(exec: Exec<'_>, job: &Block<'_>, scratch: &mut [f32]) {
    let plan = job.plan;
    let s = &plan.shape;
    let [_, oh, ow] = s.output;
    let (window, sums) = scratch.split_at_mut(plan.window_len() + SLACK);
    // SAFETY: the caller keeps the same contract.
    unsafe { fill_window::<S>(job, window) };
    let ConvEpilogue {
        bias,
        residual,
        activation,
    } = job.epilogue;
    // Bounds are applied in registers where no residual is added before them.
    let bounds = activation.as_bounds().filter(|_| residual.is_none());
    for sub in 0..s.group_out() {
        // A channel may have very many filters, and a tile many channels.
        if exec.check().is_err() {
            return;
        }
        let oc = job.group * s.group_out() + sub;
        let finish = Finish {
            bias: bias.map(|b| b[oc]),
            bounds,
        };
        let mut taps = [0.0; MAX_SIDE * MAX_SIDE];
        let taps = &mut taps[..s.taps()];
        Taps::new(s, job.weights, job.group, sub).copy(taps);
        let len = (job.rows - 1) * plan.pitch + job.cols;
        // SAFETY: `Tiling::new` left SLACK values after the window and after the sums.
        unsafe { sum_taps::<S>(plan, window, taps, finish, sums, len) };
        let at = (job.image * s.out_channels + oc) * oh * ow;
        for r in 0..job.rows {
            let at = at + (job.y + r) * ow + job.x;
            let sums = &sums[r * plan.pitch..][..job.cols];
            // SAFETY: a row of this block, which this thread alone writes; the residual, if any,
            // has the output's shape.
            unsafe {
                let row = job.out.item(at);
                write_row::<S>(row, sums, residual.map(|r| &r[at..][..job.cols]));
                if bounds.is_none() {
                    activation.apply(std::slice::from_raw_parts_mut(row, job.cols));
                }
            }
        }
    }
}

/// Writes `row = sums + residual`.
#[inline(always)]
unsafe fn write_row<S: Simd>(row: *mut f32, sums: &[f32], residual: Option<&[f32]>) {
    for j in (0..sums.len()).step_by(S::LANES) {
        // SAFETY: the mask keeps all three inside the row.
        unsafe {
            let mask = S::mask(0, (sums.len() - j).min(S::LANES));
            let mut v = S::load_masked(sums.as_ptr().add(j), mask);
            if let Some(residual) = residual {
                let residual = S::load_masked(residual.as_ptr().add(j), mask);
                v = S::canonical_nan(S::add(v, residual));
            }
            S::store_masked(row.add(j), v, mask);
        }
    }
}

/// Copies the block's part of the padded input into the window, phase by phase.
///
/// # Safety
/// The instruction set of `S` is available.
#[inline(always)]
unsafe fn fill_window<S: Simd>(job: &Block<'_>, window: &mut [f32]) {
    let plan = job.plan;
    let s = &plan.shape;
    let ([_, sh, sw], [_, height, width]) = (s.stride, s.input);
    let phase_rows = plan.phase / plan.pitch;
    for (p, phase) in window[..plan.window_len()]
        .chunks_exact_mut(plan.phase)
        .enumerate()
    {
        let (py, px) = (p / sw, p % sw);
        // Column x reads input x * sw + left - pad: the columns lo..hi exist, and rows first..end.
        let left = job.x * sw + px;
        let lo = s.pad[2].saturating_sub(left).div_ceil(sw).min(plan.pitch);
        let hi = (width + s.pad[2])
            .saturating_sub(left)
            .div_ceil(sw)
            .clamp(lo, plan.pitch);
        let top = job.y * sh + py;
        let first = s.pad[1].saturating_sub(top).div_ceil(sh).min(phase_rows);
        let end = (height + s.pad[1])
            .saturating_sub(top)
            .div_ceil(sh)
            .clamp(first, phase_rows);
        phase[..first * plan.pitch].fill(0.0);
        phase[end * plan.pitch..].fill(0.0);
        if first == end {
            continue;
        }
        let src = job.plane[(top + first * sh - s.pad[1]) * width..].as_ptr();
        let src = src.wrapping_add(left).wrapping_sub(s.pad[2]);
        let dst = phase[first * plan.pitch..].as_mut_ptr();
        for j in (0..plan.pitch).step_by(S::LANES) {
            let cut = |x: usize| x.saturating_sub(j).min(S::LANES);
            let strip = Strip {
                dst: dst.wrapping_add(j),
                width: (plan.pitch - j).min(S::LANES),
                src: src.wrapping_add(j * sw),
                src_row: sh * width,
                lo: cut(lo),
                hi: cut(hi),
            };
            // SAFETY: lanes lo..hi of these rows exist in the plane, and all lanes in the phase.
            unsafe {
                match sw {
                    1 => copy_strip::<S, 1>(plan, &strip, end - first, sw),
                    2 => copy_strip::<S, 2>(plan, &strip, end - first, sw),
                    _ => copy_strip::<S, 0>(plan, &strip, end - first, sw),
                }
            }
        }
    }
}

/// One vector of columns of a phase: lanes `lo..hi` come from the input, the others are zero.
struct Strip {
    dst: *mut f32,
    width: usize,
    src: *const f32,
    src_row: usize,
    lo: usize,
    hi: usize,
}

/// Copies the rows of a strip. `STRIDE` 0 stands for any stride.
#[inline(always)]
unsafe fn copy_strip<S: Simd, const STRIDE: usize>(
    plan: &Tiling,
    t: &Strip,
    rows: usize,
    stride: usize,
) {
    let stride = if STRIDE == 0 { stride } else { STRIDE };
    // SAFETY: the caller's contract.
    unsafe {
        let mask = S::mask(0, t.width);
        for q in 0..rows {
            let src = t.src.wrapping_add(q * t.src_row);
            let v = load_strided::<S>(src, stride, t.lo, t.hi);
            S::store_masked(t.dst.add(q * plan.pitch), v, mask);
        }
    }
}

/// The operations on the sums while they are in registers.
#[derive(Clone, Copy)]
struct Finish {
    bias: Option<f32>,
    bounds: Option<(Option<f32>, Option<f32>)>,
}

/// `sums[q] = Σ tap * window[base of tap + q]` for `q < len`, as a chain over the taps, with `finish` applied to each
/// sum.
///
/// # Safety
/// The instruction set of `S` is available; [`SLACK`] values follow `len` in `sums` and in the window
/// after every tap's base.
#[inline(always)]
unsafe fn sum_taps<S: Simd>(
    plan: &Tiling,
    window: &[f32],
    taps: &[f32],
    finish: Finish,
    sums: &mut [f32],
    len: usize,
) {
    assert!(sums.len() >= len.next_multiple_of(UNROLL * S::LANES));
    let mut q = 0;
    while q < len {
        let vectors = (len - q).div_ceil(S::LANES);
        // SAFETY: at most UNROLL vectors from q, and UNROLL * LANES <= SLACK.
        unsafe {
            match vectors {
                1 => chunk::<S, 1>(plan, window, taps, finish, sums, q),
                2 => chunk::<S, 2>(plan, window, taps, finish, sums, q),
                3..UNROLL => chunk::<S, 4>(plan, window, taps, finish, sums, q),
                _ => chunk::<S, UNROLL>(plan, window, taps, finish, sums, q),
            }
        }
        q += S::LANES
            * match vectors {
                1 | 2 => vectors,
                3..UNROLL => 4,
                _ => UNROLL,
            };
    }
}

#[inline(always)]
unsafe fn chunk<S: Simd, const V: usize>(
    plan: &Tiling,
    window: &[f32],
    taps: &[f32],
    finish: Finish,
    sums: &mut [f32],
    q: usize,
) {
    let [_, kh, kw] = plan.shape.kernel;
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [S::splat(0.0); V];
        let mut tap = 0;
        for &row in &plan.row_base[..kh] {
            let row = window.as_ptr().add(row + q);
            for &col in &plan.col_base[..kw] {
                let p = row.add(col);
                let w = S::splat(taps[tap]);
                unroll!(I < V, {
                    acc[I] = S::fma(w, S::load(p.add(I * S::LANES)), acc[I]);
                });
                tap += 1;
            }
        }
        unroll!(I < V, {
            let mut x = acc[I];
            if let Some(bias) = finish.bias {
                x = S::add(x, S::splat(bias));
            }
            x = S::canonical_nan(x);
            if let Some((Some(lo), _)) = finish.bounds {
                x = S::at_least(S::splat(lo), x);
            }
            if let Some((_, Some(hi))) = finish.bounds {
                x = S::at_most(S::splat(hi), x);
            }
            S::store(sums.as_mut_ptr().add(q + I * S::LANES), x);
        });
    }
}
