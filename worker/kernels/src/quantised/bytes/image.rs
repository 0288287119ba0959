//! The input of a convolution as a matrix whose rows are the taps of channels, without patches that are unfolded.
//!
//! The input is copied once. The copy of a channel has its padding, and a *plane* for each remainder of a tap's place by the
//! strides, whose neighbours are a stride apart in the input:
//!
//! ```text
//! input, stride 2, padded     p a b c d e f p        the taps of a filter of three:
//! plane of remainder 0        p b d f                tap 0: from 0 on, tap 2: from 1 on
//! plane of remainder 1        a c e p                tap 1: from 0 on
//! ```
//!
//! A row of the matrix is thus a part of a plane. Its columns count all places of the lines of a plane, so the matrix is as
//! wide as the output with some places after each line of it, whose sums belong to no output. Where there would be many of
//! those, the columns are the outputs, and the lines of each row are gathered when they are used.
//!
//! Invariants
//! 1. Each place that a column of a row names lies in the copy of the row's channel.
//! 2. Along each axis a plane is as long as the output plus the most whole strides between the first tap and another one.

use std::ops::Range;

use super::runs::{PANEL, Run, Runs, copy_few};
use crate::Exec;
use crate::conv::{Axis, ConvShape};
use crate::error::Result;
use crate::split::{GRAIN, tiles};

/// How the input of a convolution is copied, and where the rows of its matrix lie in the copy.
pub(super) struct Image {
    pub shape: ConvShape,
    axes: [Axis; 3],
    /// The sizes of a plane.
    extents: [usize; 3],
    /// Codes of the copy of a channel.
    channel: usize,
    /// The first code of each row in the copy of the channels of a group.
    rows: Vec<usize>,
    /// The width of the matrix.
    pub width: usize,
    /// Whether the columns are the outputs.
    pub gathers: bool,
}

/// To gather a line of a row takes about as long as this many products of vectors.
const GATHERED: usize = 3;

/// Vectors of sums of a matrix this wide; a few columns after them cost little.
fn vectors(width: usize) -> usize {
    width / 16 + usize::from(width % 16 > 4)
}

impl Image {
    /// The copy of a convolution's input; `None` where it would have more than `most` codes.
    pub fn new(shape: &ConvShape, most: usize) -> Option<Image> {
        let axes: [Axis; 3] = std::array::from_fn(|d| Axis::new(shape, d));
        let extents: [usize; 3] = std::array::from_fn(|d| shape.output[d] + axes[d].reach);
        let product = |list: [usize; 3]| list.iter().try_fold(1usize, |n, m| n.checked_mul(*m));
        let plane = product(extents)?;
        let planes = product(std::array::from_fn(|d| axes[d].remainders.len()))?;
        let channel = plane.checked_mul(planes)?;
        let all = channel.checked_mul(shape.batch.checked_mul(shape.in_channels)?)?;
        if all > most {
            return None;
        }
        let [_, height, width] = extents;
        let [_, ys, xs] = std::array::from_fn(|d| axes[d].remainders.len());
        let mut rows = Vec::with_capacity(shape.in_channels / shape.groups * shape.taps());
        for number in 0..shape.in_channels / shape.groups {
            for (rz, z) in &axes[0].places {
                for (ry, y) in &axes[1].places {
                    for (rx, x) in &axes[2].places {
                        let of = (rz * ys + ry) * xs + rx;
                        rows.push(number * channel + of * plane + (z * height + y) * width + x);
                    }
                }
            }
        }
        let [depth, lines, columns] = shape.output;
        let outputs = product(shape.output)?;
        let all = ((depth.max(1) - 1) * height + lines.max(1) - 1) * width + columns;
        // Each vector of sums that gathering saves takes a product for each filter and four rows.
        let saved = vectors(all).saturating_sub(vectors(outputs));
        let products = saved.saturating_mul(shape.out_channels / shape.groups) / 4;
        let gathers = products > depth.saturating_mul(lines).saturating_mul(GATHERED);
        Some(Image {
            shape: *shape,
            channel,
            rows,
            width: if gathers { outputs } else { all },
            gathers,
            extents,
            axes,
        })
    }

    /// Codes of the copy of the channels of one group of one batch item.
    pub fn group(&self) -> usize {
        self.shape.in_channels / self.shape.groups * self.channel
    }

    /// Codes of the whole copy.
    pub fn len(&self) -> usize {
        self.shape.batch * self.shape.in_channels * self.channel
    }

    /// The first code of row `k` in the copy of a group.
    #[inline(always)]
    pub fn row(&self, k: usize) -> usize {
        self.rows[k]
    }

    /// The parts of a panel of places that the output has.
    pub fn outputs(&self, columns: &Range<usize>) -> Runs {
        let [_, height, width] = self.extents;
        let [_, lines, places] = self.shape.output;
        let (mut runs, mut at) = (Runs::none(), columns.start);
        while at < columns.end {
            let (x, y, z) = (at % width, at / width % height, at / width / height);
            let next = (at - x + width).min(columns.end);
            if x < places && y < lines {
                runs.push(Run {
                    at: at - columns.start,
                    len: (places - x).min(next - at),
                    place: (z * lines + y) * places + x,
                });
            }
            at = next;
        }
        runs
    }

    /// The places of a panel of outputs in a plane.
    pub fn places(&self, columns: &Range<usize>) -> Runs {
        let [_, height, width] = self.extents;
        let [_, lines, places] = self.shape.output;
        let (mut runs, mut at) = (Runs::none(), columns.start);
        while at < columns.end {
            let (x, y, z) = (at % places, at / places % lines, at / places / lines);
            let len = (places - x).min(columns.end - at);
            runs.push(Run {
                at: at - columns.start,
                len,
                place: (z * height + y) * width + x,
            });
            at += len;
        }
        runs
    }

    /// Copies the input, whose padding has the code `padding`.
    pub fn copy(&self, exec: &Exec, input: &[u8], padding: u8, to: &mut [u8]) -> Result {
        assert_eq!(to.len(), self.len(), "the copy of an input");
        let [_, height, width] = self.extents;
        let grain = (GRAIN / width).max(1);
        tiles(exec, to, width, grain, |lines, mut to| {
            to.fill(padding);
            let mut line = lines.start;
            while line < lines.end {
                let count = (height - line % height).min(lines.end - line);
                let (first, rest) = to.split_at_mut(count * width);
                self.copy_lines(input, line / height, line % height, first);
                (to, line) = (rest, line + count);
            }
        })?;
        // A tile that saw the cancel flag is not copied.
        Ok(exec.check()?)
    }

    /// Fills lines of the copy, from `line` on, from the input. `number` is the number of their depth among those of all
    /// planes.
    fn copy_lines(&self, input: &[u8], number: usize, line: usize, to: &mut [u8]) {
        let [zs, ys, xs] = &self.axes;
        let (s, [depth, _, width]) = (&self.shape, self.extents);
        let (z, rest) = (number % depth, number / depth);
        let (rx, rest) = (rest % xs.remainders.len(), rest / xs.remainders.len());
        let (ry, rest) = (rest % ys.remainders.len(), rest / ys.remainders.len());
        let (rz, channel) = (rest % zs.remainders.len(), rest / zs.remainders.len());
        let place = |d: usize, remainder: usize, i: usize| {
            let at = (i * s.stride[d] + remainder).checked_sub(s.pad[d])?;
            (at < s.input[d]).then_some(at)
        };
        let Some(z) = place(0, zs.remainders[rz], z) else {
            return;
        };
        let from = &input[(channel * s.input[0] + z) * s.input[1] * s.input[2]..];
        let along = self.along(xs.remainders[rx], width);
        for (y, to) in to.chunks_exact_mut(width).enumerate() {
            if let Some(y) = place(1, ys.remainders[ry], line + y) {
                along.copy(&from[y * s.input[2]..][..s.input[2]], to);
            }
        }
    }

    /// What the input has of lines of `len` places of the copy, from the place `remainder` of the padded lines on.
    fn along(&self, remainder: usize, len: usize) -> Along {
        let (stride, pad, width) = (self.shape.stride[2], self.shape.pad[2], self.shape.input[2]);
        let first = pad.saturating_sub(remainder).div_ceil(stride).min(len);
        let start = (first * stride + remainder).saturating_sub(pad).min(width);
        Along {
            first,
            start,
            count: (width - start).div_ceil(stride).min(len - first),
            stride,
        }
    }
}

/// The codes of lines that are copied.
#[derive(Clone, Copy)]
struct Along {
    /// The place in the copy of the first one.
    first: usize,
    /// Its place in the input.
    start: usize,
    count: usize,
    /// How far they are apart in the input.
    stride: usize,
}

impl Along {
    #[inline(always)]
    fn copy(self, from: &[u8], to: &mut [u8]) {
        let from = &from[self.start..];
        let to = &mut to[self.first..][..self.count];
        match self.stride {
            1 if self.count <= PANEL => copy_few(&from[..self.count], to),
            1 => to.copy_from_slice(&from[..self.count]),
            2 => {
                // The last code may have no neighbour.
                let (pairs, _) = from.as_chunks::<2>();
                for (to, [code, _]) in to.iter_mut().zip(pairs) {
                    *to = *code;
                }
                if let Some(last) = to.last_mut() {
                    *last = from[2 * (self.count - 1)];
                }
            }
            stride => {
                for (to, code) in to.iter_mut().zip(from.iter().step_by(stride)) {
                    *to = *code;
                }
            }
        }
    }
}
