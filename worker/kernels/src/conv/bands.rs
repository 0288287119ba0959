//! Convolutions over one or two dimensions that read their input from a copy with padding, a *band* of output lines at a time.
//!
//! Unfolding writes each value of the input once for each tap. Where few output channels share what was unfolded, that takes
//! as long as a good part of the products. Here a thread copies once what a band needs:
//!
//! ```text
//! input, stride 2, padded     p a b c d e f p        the taps of a filter of three:
//! plane of remainder 0        p b d f                tap 0: from 0 on, tap 2: from 1 on
//! plane of remainder 1        a c e p                tap 1: from 0 on
//! ```
//!
//! A channel of the copy has a *plane* for each remainder of the taps' places by the strides. A tap is an offset into a channel,
//! and the *places* of a plane's line are the outputs of that line and some more, whose sums belong to no output.
//!
//! Invariants
//! 1. Bits are those of the unfolded kernel: the same chain, padding included, and the same operations after it.
//! 2. A thread holds one band in its bounded scratch memory, whatever the shape.

use super::operands::ConvWeights;
use super::taps::{Run, TapPanel, tap_panel};
use super::unfold::load_strided;
use super::{Axis, ConvShape};
use crate::gemm::driver::{TILE_WORK, row_parts};
use crate::gemm::panel::widen;
use crate::gemm::scratch::{SCRATCH_LEN, with_scratch};
use crate::gemm::{Elements, Epilogue, MR, NR, Output, OutputTile, Post, finish_tile};
use crate::isa::{Isa, Simd, per_isa};
use crate::{Cancelled, Exec};
use std::ops::Range;

/// The most values of the copy of a band together with the weights that are widened beside it: a level-2 cache keeps them.
const MOST_COPY: usize = SCRATCH_LEN - SLACK;
/// The most weights that are widened beside it.
const MOST_WIDENED: usize = 1 << 16;
/// Values behind the copy that the last panel reads, and that are no operand of an output.
const SLACK: usize = NR;
/// From how many times on that unfolding would write each value of the input, a copy is faster.
const LEAST_SHARED: usize = 4;
/// The most output channels. More of them share what is unfolded, whose vectors lie in one line of the cache each.
const MOST_CHANNELS: usize = 128;
/// The sums of this many output channels for a place that is no output take as long as a place's part of unfolding.
const UNFOLD_CHANNELS: f64 = 8.0;
/// Lines of a band, if there are as many: with filters of three lines, two bands then both copy half of what each copies.
const LEAST_LINES: usize = 2;

/// How a convolution is cut into bands.
pub(super) struct Bands<'a> {
    shape: &'a ConvShape,
    weights: Elements<'a>,
    /// The taps along lines, and along the places of a line.
    axes: [Axis; 2],
    /// The offset in the copy of each tap of each channel, in the order of the weights.
    taps: Vec<u32>,
    /// Values of the copy of a channel.
    channel: usize,
    /// Places of a line.
    width: usize,
    /// Lines of a band's outputs, but for the last band.
    lines: usize,
    /// Output channels of a tile.
    rows: usize,
}

impl<'a> Bands<'a> {
    /// Plans a convolution for `threads` threads; `None` where unfolding is faster, or a band does not fit.
    pub fn new(s: &'a ConvShape, weights: ConvWeights<'a>, threads: usize) -> Option<Bands<'a>> {
        let ConvWeights::Packed(weights) = weights else {
            return None;
        };
        let (m, chain) = (s.group_out(), s.chain());
        let widened = match weights {
            Elements::F32(_) => 0,
            _ => m * chain,
        };
        if !s.is_flat()
            || s.in_plane() == 0
            || chain == 0
            || s.taps() < LEAST_SHARED * s.stride[1] * s.stride[2]
            || m > MOST_CHANNELS
            || widened > MOST_WIDENED
            // Each tap has a place of its own in a copy, so these never fit one.
            || chain > MOST_COPY
        {
            return None;
        }
        let axes = [Axis::new(s, 1), Axis::new(s, 2)];
        let [_, height, columns] = s.output;
        let wasted = m as f64 * axes[1].reach as f64 / columns as f64;
        if wasted > UNFOLD_CHANNELS {
            return None;
        }
        let width = columns + axes[1].reach;
        // What one line of the planes takes for all channels.
        let line = axes
            .iter()
            .map(|axis| axis.remainders.len())
            .try_fold(s.group_in(), usize::checked_mul)?
            .checked_mul(width)?;
        let most = ((MOST_COPY - widened) / line).checked_sub(axes[0].reach)?;
        let least = LEAST_LINES.min(height);
        if most < least {
            return None;
        }
        let items = s.batch * s.groups;
        let work = (items * m * s.out_plane()) as f64 * chain as f64;
        let wanted = match threads {
            1 => 1.0,
            _ => (work / TILE_WORK).min(threads as f64 * 4.0),
        };
        let wanted = (wanted as usize).max(1).div_ceil(items);
        let bands = height.div_ceil(most).max(wanted.min(height / least));
        let lines = height.div_ceil(bands);
        let bands = height.div_ceil(lines);
        let most = wanted.div_ceil(bands);
        let row_tiles = row_parts(threads, items * bands, most, (m, MR), UNFOLD_CHANNELS);
        let [ys, xs] = &axes;
        let plane = (lines + ys.reach) * width;
        let channel = ys.remainders.len() * xs.remainders.len() * plane;
        debug_assert!(s.group_in() * channel + widened <= MOST_COPY);
        let mut taps = Vec::with_capacity(chain);
        for number in 0..s.group_in() {
            for (ry, y) in &ys.places {
                for (rx, x) in &xs.places {
                    let of = number * channel + (ry * xs.remainders.len() + rx) * plane;
                    taps.push((of + y * width + x) as u32);
                }
            }
        }
        Some(Bands {
            shape: s,
            weights,
            taps,
            channel,
            axes,
            width,
            lines,
            rows: m.div_ceil(row_tiles).next_multiple_of(MR),
        })
    }

    /// Convolves. `head` gives the epilogue of each pair of image and group, whose residual is that of the whole output.
    ///
    /// # Safety
    /// `isa` is available, and all operands have the sizes of the shape.
    pub unsafe fn run<'e>(
        &self,
        isa: Isa,
        exec: Exec<'_>,
        input: &[f32],
        head: impl Fn(usize) -> Epilogue<'e> + Sync,
        output: &mut [f32],
    ) -> Result<(), Cancelled> {
        let s = self.shape;
        let (m, plane) = (s.group_out(), s.out_plane());
        let bands = s.output[1].div_ceil(self.lines);
        let row_tiles = m.div_ceil(self.rows);
        let out = Output(output.as_mut_ptr());
        let tiles = s.batch * s.groups * bands * row_tiles;
        // Many small groups share a thread: one tile of theirs is not worth waking another.
        let work = s.output_len() as f64 * s.chain() as f64 / tiles.max(1) as f64;
        exec.tiles(tiles, (TILE_WORK / work.max(1.0)) as usize, |range| {
            for i in range {
                let (tile, i) = (i % row_tiles, i / row_tiles);
                let (band, item) = (i % bands, i / bands);
                let (image, group) = (item / s.groups, item % s.groups);
                let from = (image * s.in_channels + group * s.group_in()) * s.in_plane();
                let (head, at) = (head(item), item * m * plane);
                let job = Job {
                    isa,
                    bands: self,
                    input: &input[from..][..s.group_in() * s.in_plane()],
                    weights: self.weights.from(group * m * s.chain()),
                    lines: band * self.lines..((band + 1) * self.lines).min(s.output[1]),
                    rows: tile * self.rows..((tile + 1) * self.rows).min(m),
                    output: out.item(at),
                    post: Post::new(&head, if head.residual.is_some() { at } else { 0 }),
                    // What is added to each value would have to be read at the places of outputs.
                    in_regs: head.residual.is_none(),
                };
                // SAFETY: the caller's contract; `i` names each part of the output once.
                unsafe { job.run(&exec) };
            }
        })?;
        // A tile that saw the cancel flag stopped early and could not report it.
        exec.check()
    }

    /// The outputs among the places of a panel of a band that begins at `line`.
    fn runs<'r>(&self, line: usize, panel: &Range<usize>, runs: &'r mut [Run; NR]) -> &'r [Run] {
        let columns = self.shape.output[2];
        let (mut at, mut count) = (panel.start, 0);
        while at < panel.end {
            let (y, x) = (at / self.width, at % self.width);
            let next = (at - x + self.width).min(panel.end);
            if x < columns {
                runs[count] = Run {
                    at: at - panel.start,
                    len: (columns - x).min(next - at),
                    output: (line + y) * columns + x,
                };
                count += 1;
            }
            at = next;
        }
        &runs[..count]
    }
}

/// One tile: some output channels of a band of one group of one image.
struct Job<'a> {
    isa: Isa,
    bands: &'a Bands<'a>,
    /// The channels of the group.
    input: &'a [f32],
    /// The packed weights of the group.
    weights: Elements<'a>,
    lines: Range<usize>,
    rows: Range<usize>,
    /// The plane of the group's first output channel.
    output: *mut f32,
    post: Post,
    /// Whether the operations after the chain run in registers, as far as they can.
    in_regs: bool,
}

impl Job<'_> {
    /// Computes the tile, or stops when it sees the cancel flag.
    ///
    /// # Safety
    /// The instruction set is available, the operands have the sizes of the shape, and no other thread has this tile.
    unsafe fn run(&self, exec: &Exec<'_>) {
        let (bands, s) = (self.bands, self.bands.shape);
        let (chain, lines) = (s.chain(), self.lines.len());
        let copied = s.group_in() * bands.channel + SLACK;
        let widened = match self.weights {
            Elements::F32(_) => 0,
            _ => self.rows.len() * chain,
        };
        let places = (lines - 1) * bands.width + s.output[2];
        with_scratch(copied + widened, |scratch| {
            let (copy, room) = scratch.split_at_mut(copied);
            let first = self.rows.start * chain;
            let weights = match self.weights {
                Elements::F32(all) => all[first..].as_ptr(),
                all => {
                    // SAFETY: panels of rows lie one after the other, and the room holds them.
                    unsafe { widen(self.isa, room.as_mut_ptr(), all, first, widened) };
                    room.as_ptr()
                }
            };
            // SAFETY: the caller's contract.
            unsafe { copy_band(self.isa, self, copy) };
            for place in (0..places).step_by(NR) {
                if exec.check().is_err() {
                    return;
                }
                let panel = place..(place + NR).min(places);
                let mut runs = [Run::default(); NR];
                let runs = bands.runs(self.lines.start, &panel, &mut runs);
                let panel = TapPanel {
                    weights,
                    rows: &self.rows,
                    copy: copy[place..].as_ptr(),
                    taps: &bands.taps,
                    places: panel.len(),
                    output: self.output,
                    plane: s.out_plane(),
                    runs,
                    post: self.in_regs.then_some(&self.post),
                };
                // SAFETY: the caller's contract; the copy goes on for `SLACK` values behind the last place of a tap.
                unsafe {
                    tap_panel(self.isa, &panel);
                    self.finish(runs);
                }
            }
        });
    }

    /// Applies those operations to the outputs of a panel that did not run in registers.
    ///
    /// # Safety
    /// The contract of [`Job::run`].
    unsafe fn finish(&self, runs: &[Run]) {
        let post = match self.in_regs {
            true if !self.post.needs_pass() => return,
            true => self.post,
            false => self.post.all_in_pass(),
        };
        let plane = self.bands.shape.out_plane();
        for run in runs {
            let at = OutputTile {
                c: self
                    .output
                    .wrapping_add(self.rows.start * plane + run.output),
                c_row: plane,
                row: self.rows.start,
                col: run.output,
                rows: self.rows.len(),
                cols: run.len,
            };
            // SAFETY: the outputs of a run are this thread's.
            unsafe { finish_tile(self.isa, &post, at) };
        }
    }
}

per_isa! {
    /// Copies what a band needs of the input, with zeros for padding.
    ///
    /// # Safety
    /// `isa` is available.
    unsafe fn copy_band(job: &Job<'_>, copy: &mut [f32]) => copy_body
}

#[inline(always)]
unsafe fn copy_body<S: Simd>(job: &Job<'_>, copy: &mut [f32]) {
    let (bands, s) = (job.bands, job.bands.shape);
    let ([ys, xs], width) = (&bands.axes, bands.width);
    let [_, height, columns] = s.input;
    // The last band may have fewer lines than its copy has room for.
    let lines = bands.lines + ys.reach;
    assert!(s.group_in() * bands.channel + S::LANES <= copy.len());
    assert_eq!(job.input.len(), s.group_in() * height * columns);
    let mut to = copy.as_mut_ptr();
    for input in job.input.chunks_exact(height * columns) {
        for ry in &ys.remainders {
            for rx in &xs.remainders {
                // The places whose input exists, and the input of the first place, which may lie before the line.
                let (stride, from) = (s.stride[2], *rx as isize - s.pad[2] as isize);
                let lo = ((-from).max(0) as usize).div_ceil(stride).min(width);
                let hi = ((columns as isize - from).max(0) as usize).div_ceil(stride);
                let hi = hi.clamp(lo, width);
                // The lines whose input exists.
                let start = job.lines.start * s.stride[1] + ry;
                let above = s.pad[1]
                    .saturating_sub(start)
                    .div_ceil(s.stride[1])
                    .min(lines);
                let below = (height + s.pad[1])
                    .saturating_sub(start)
                    .div_ceil(s.stride[1]);
                let below = below.clamp(above, lines);
                let src = input
                    .as_ptr()
                    .wrapping_add((start + above * s.stride[1]).saturating_sub(s.pad[1]) * columns)
                    .wrapping_offset(from);
                // What a vector writes beyond its line is overwritten by the next line's first vector, or lies in the slack.
                for at in (0..width).step_by(S::LANES).rev() {
                    let cut = |place: usize| place.saturating_sub(at).min(S::LANES);
                    let (lo, hi) = (cut(lo), cut(hi));
                    let (mut src, mut to) = (src.wrapping_add(at * stride), to.wrapping_add(at));
                    // SAFETY: places between `lo` and `hi` lie in a line of the input, and all lines in the copy.
                    unsafe {
                        for line in 0..lines {
                            let mut v = S::splat(0.0);
                            if (above..below).contains(&line) {
                                v = match hi - lo {
                                    lanes if lanes == S::LANES && stride == 1 => S::load(src),
                                    _ => load_strided::<S>(src, stride, lo, hi),
                                };
                                src = src.wrapping_add(s.stride[1] * columns);
                            }
                            S::store(to, v);
                            to = to.wrapping_add(width);
                        }
                    }
                }
                to = to.wrapping_add(lines * width);
            }
        }
    }
}
