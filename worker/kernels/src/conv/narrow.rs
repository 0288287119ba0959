//! Convolutions of numbers of 16 bits: depthwise ones plane by plane, others a *block* of output lines at a time.
//!
//! ```text
//! input, 16 bits ──widened──> what the block reads, f32 ──convolution──> sums, f32 ──rounded once──> output, 16 bits
//! ```
//!
//! The copies of a block stay in a thread's cache, whereas copies of whole tensors pass through memory twice.
//!
//! Invariants
//! 1. A block is the convolution of what it reads by the same weights, so its bits are those of conversions of whole tensors.
//! 2. A thread holds one block in its bounded scratch memory, whatever the shape.

use super::operands::{ConvEpilogue, ConvWeights, check_lengths};
use super::{ConvShape, NarrowEnding, convolve, depthwise};
use crate::element::Float;
use crate::gemm::driver::{TILE_WORK, row_parts};
use crate::gemm::scratch::{BLOCK_LEN, with_block};
use crate::gemm::{MR, NR, Output};
use crate::isa::Isa;
use crate::{Cancelled, Exec};
use std::ops::Range;

/// Columns of the products of a block, if there are as many: weights of 16 bits are widened once for each block.
const LEAST_COLUMNS: usize = 4 * NR;
/// Lines of a block whose taps reach over several, if there are as many: what two blocks both read is then the smaller part.
const LEAST_LINES: usize = 4;
/// Output channels of a block, if there are as many: what a block reads is widened once for all of them.
const LEAST_CHANNELS: usize = 64;

/// To widen what a block reads, and to unfold it, takes about as long as the sums of this many output channels.
const PREPARED_CHANNELS: f64 = 16.0;

/// A convolution of numbers of 16 bits that widens them, and rounds its results once, within itself. The bits are those of
/// conversions of whole tensors before and after.
pub struct NarrowConv {
    shape: ConvShape,
    plan: NarrowPlan,
}

/// What is widened at a time.
enum NarrowPlan {
    /// A plane of a depthwise convolution.
    Planes(depthwise::Narrow),
    /// What a block of output lines reads.
    Blocks(Blocks),
}

impl NarrowConv {
    /// Plans a convolution without a residual; `None` where whole tensors must be converted.
    pub fn new(shape: &ConvShape) -> Option<NarrowConv> {
        let plan = depthwise::Narrow::new(shape)
            .map(NarrowPlan::Planes)
            .or_else(|| Blocks::new(shape).map(NarrowPlan::Blocks))?;
        Some(NarrowConv {
            shape: *shape,
            plan,
        })
    }

    /// Computes the convolution, to whose sums one value per output channel is added before they end.
    pub fn run<T: Float<Wide = f32>>(
        &self,
        exec: Exec<'_>,
        input: &[T],
        weights: ConvWeights<'_>,
        end: (Option<&[f32]>, NarrowEnding),
        output: &mut [T],
    ) -> Result<(), Cancelled> {
        self.run_on(Isa::detect(), exec, input, weights, end, output)
    }

    pub(super) fn run_on<T: Float<Wide = f32>>(
        &self,
        isa: Isa,
        exec: Exec<'_>,
        input: &[T],
        weights: ConvWeights<'_>,
        (bias, ending): (Option<&[f32]>, NarrowEnding),
        output: &mut [T],
    ) -> Result<(), Cancelled> {
        assert!(isa.available());
        let epilogue = &ConvEpilogue {
            bias,
            ..ConvEpilogue::NONE
        };
        check_lengths(&self.shape, input.len(), weights, epilogue, output.len());
        if output.is_empty() {
            return exec.check();
        }
        match &self.plan {
            NarrowPlan::Planes(plan) => {
                plan.run(isa, exec, input, weights, epilogue, ending, output)
            }
            // SAFETY: the instruction set is available and the sizes were checked above.
            NarrowPlan::Blocks(plan) => unsafe {
                plan.run(isa, exec, input, weights, epilogue, ending, output)
            },
        }
    }
}

/// A convolution that is cut into blocks.
struct Blocks {
    shape: ConvShape,
    /// The dimension whose positions are the lines; those before it have one position.
    axis: usize,
    /// Values of a line of an input channel and of an output channel.
    in_line: usize,
    out_line: usize,
    /// The most lines and output channels of a block.
    lines: usize,
    channels: usize,
}

impl Blocks {
    /// Plans a convolution; `None` where a block of it does not fit.
    pub fn new(s: &ConvShape) -> Option<Blocks> {
        let mut shape = *s;
        if s.is_pointwise() {
            shape.input = [1, 1, s.in_plane()];
            shape.output = shape.input;
        }
        let s = &shape;
        if s.in_plane() == 0 || s.output_len() == 0 || s.chain() == 0 {
            return None;
        }
        let single = |d: usize| (s.input[d], s.output[d], s.kernel[d], s.pad[d]) == (1, 1, 1, 0);
        let axis = (0..3).find(|d| !single(*d)).unwrap_or(2);
        // Each line has a tap that lies within the input or before it.
        if (s.output[axis] - 1) * s.stride[axis] >= s.input[axis] + s.pad[axis] {
            return None;
        }
        let mut blocks = Blocks {
            shape,
            axis,
            in_line: s.input[axis + 1..].iter().product(),
            out_line: s.output[axis + 1..].iter().product(),
            lines: s.output[axis],
            channels: s.group_out(),
        };
        while blocks.len() > BLOCK_LEN {
            let least = blocks.least_lines();
            if blocks.lines > least {
                blocks.lines = (blocks.lines / 2).max(least);
            } else if blocks.channels > LEAST_CHANNELS {
                blocks.channels = (blocks.channels / 2).next_multiple_of(MR);
            } else {
                return None;
            }
        }
        Some(blocks)
    }

    /// How many lines a block has at least.
    fn least_lines(&self) -> usize {
        let reach = match self.shape.kernel[self.axis] {
            1 => 1,
            _ => LEAST_LINES,
        };
        let columns = LEAST_COLUMNS.div_ceil(self.out_line);
        reach.max(columns).min(self.shape.output[self.axis])
    }

    /// Values that a block holds at most: of the input, rounded up to a line of the cache, and of the output.
    fn len(&self) -> usize {
        let inputs = self
            .shape
            .group_in()
            .saturating_mul(self.reach() * self.in_line);
        let outputs = self.channels.saturating_mul(self.lines * self.out_line);
        inputs.saturating_add(16).saturating_add(outputs)
    }

    /// The most input lines that a block reads, padding apart.
    fn reach(&self) -> usize {
        let (s, axis) = (&self.shape, self.axis);
        let taps = (s.kernel[axis] - 1) * s.dilation[axis] + 1;
        ((self.lines - 1) * s.stride[axis] + taps).min(s.input[axis])
    }

    /// The input lines that some output lines read. There is at least one.
    fn reads(&self, lines: Range<usize>) -> Range<usize> {
        let (s, axis) = (&self.shape, self.axis);
        let (stride, pad) = (s.stride[axis], s.pad[axis]);
        let start = (lines.start * stride).saturating_sub(pad);
        let taps = (s.kernel[axis] - 1) * s.dilation[axis] + 1;
        let end = ((lines.end - 1) * stride + taps).saturating_sub(pad);
        start..end.clamp(start + 1, s.input[axis])
    }

    /// Computes the convolution.
    ///
    /// # Safety
    /// `isa` is available, and all operands have the sizes of the shape.
    pub unsafe fn run<T: Float<Wide = f32>>(
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
        let (items, m, total) = (s.batch * s.groups, s.group_out(), s.output[self.axis]);
        let work = s.output_len() as f64 * s.chain() as f64;
        let wanted = match exec.threads() {
            1 => 1,
            threads => (work / TILE_WORK).min(threads as f64 * 4.0) as usize,
        };
        let wanted = wanted.max(1).div_ceil(items);
        let bands = total
            .div_ceil(self.lines)
            .max(wanted.min(total / self.least_lines()));
        let mut lines = total.div_ceil(bands);
        if self.out_line == 1 && lines > NR {
            lines = lines.next_multiple_of(NR).min(self.lines);
        }
        let bands = total.div_ceil(lines);
        let (threads, most) = (exec.threads(), wanted.div_ceil(bands));
        let parts = row_parts(threads, items * bands, most, (m, MR), PREPARED_CHANNELS)
            .max(m.div_ceil(self.channels));
        let channels = m.div_ceil(parts).next_multiple_of(MR);
        let parts = m.div_ceil(channels);
        let tiles = items * bands * parts;
        let out = Output(output.as_mut_ptr());
        let grain = (TILE_WORK / (work / tiles as f64)) as usize;
        exec.tiles(tiles, grain, |range| {
            for i in range {
                let (part, i) = (i % parts, i / parts);
                let (band, item) = (i % bands, i / bands);
                let block = Block {
                    item,
                    lines: band * lines..((band + 1) * lines).min(total),
                    channels: part * channels..((part + 1) * channels).min(m),
                };
                // SAFETY: the caller's contract; `i` names each block once.
                unsafe {
                    self.block(
                        isa,
                        exec.alone(),
                        &block,
                        input,
                        weights,
                        (epilogue, ending),
                        &out,
                    )
                };
            }
        })?;
        // A block that saw the cancel flag stopped early and could not report it.
        exec.check()
    }

    /// Computes one block, or stops when it sees the cancel flag.
    ///
    /// # Safety
    /// The contract of [`Blocks::run`], and no other thread has this block.
    unsafe fn block<T: Float<Wide = f32>>(
        &self,
        isa: Isa,
        exec: Exec<'_>,
        block: &Block,
        input: &[T],
        weights: ConvWeights<'_>,
        (epilogue, ending): (&ConvEpilogue<'_>, NarrowEnding),
        output: &Output<T>,
    ) {
        let (s, axis) = (&self.shape, self.axis);
        let (image, group) = (block.item / s.groups, block.item % s.groups);
        let reads = self.reads(block.lines.clone());
        let mut shape = ConvShape {
            batch: 1,
            groups: 1,
            in_channels: s.group_in(),
            out_channels: block.channels.len(),
            ..*s
        };
        shape.input[axis] = reads.len();
        shape.output[axis] = block.lines.len();
        shape.pad[axis] = reads.start + s.pad[axis] - block.lines.start * s.stride[axis];
        let first = group * s.group_out() + block.channels.start;
        let bias = epilogue.bias.map(|b| &b[first..][..block.channels.len()]);
        let epilogue = ConvEpilogue { bias, ..*epilogue };
        let (in_len, out_len) = (shape.input_len(), shape.output_len());
        let sums_at = in_len.next_multiple_of(16);
        with_block(sums_at + out_len, |scratch| {
            let (wide, sums) = scratch.split_at_mut(sums_at);
            let wide = &mut wide[..in_len];
            let from = (image * s.in_channels + group * s.group_in()) * s.in_plane();
            let channels = &input[from..][..s.group_in() * s.in_plane()];
            if reads.len() == s.input[axis] {
                T::widen_run(channels, wide);
            } else {
                let (at, len) = (reads.start * self.in_line, reads.len() * self.in_line);
                let channels = channels.chunks_exact(s.in_plane());
                for (channel, wide) in channels.zip(wide.chunks_exact_mut(len)) {
                    T::widen_run(&channel[at..][..len], wide);
                }
            }
            let weights = weights.from(first * s.chain());
            // SAFETY: the caller's contract; packed weights begin with a panel, since channels are cut at whole panels.
            if unsafe { convolve(isa, exec, &shape, wide, weights, &epilogue, sums) }.is_err() {
                return;
            }
            let (len, plane) = (block.lines.len() * self.out_line, s.out_plane());
            assert_eq!(sums.len(), block.channels.len() * len, "lines of a block");
            let at = (image * s.out_channels + first) * plane + block.lines.start * self.out_line;
            for (channel, sums) in sums.chunks_exact_mut(len).enumerate() {
                let to = output.item(at + channel * plane);
                // SAFETY: the lines of an output channel, which are this thread's.
                ending.finish(sums, unsafe { std::slice::from_raw_parts_mut(to, len) });
            }
        });
    }
}

/// Some lines of some output channels of one group of one image.
struct Block {
    /// The image times the number of groups, plus the group.
    item: usize,
    lines: Range<usize>,
    channels: Range<usize>,
}
