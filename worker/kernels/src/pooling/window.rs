//! The geometry of a sliding window.

use crate::error::{KernelError, Result};
use crate::shape::count;
use std::ops::Range;

/// A window over up to three spatial dimensions; with fewer dimensions, the leading sizes are 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub(super) input: [usize; 3],
    pub(super) output: [usize; 3],
    pub(super) kernel: [usize; 3],
    pub(super) strides: [usize; 3],
    pub(super) dilations: [usize; 3],
    pub(super) pads: [usize; 3],
    pub(super) pads_end: [usize; 3],
}

/// The taps of a window along one dimension that lie in the input.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taps {
    /// Range of kernel positions inside the input.
    pub kernel: (usize, usize),
    /// Number of kernel positions inside the padded input, counted from the first one.
    pub padded: usize,
}

impl Taps {
    /// Number of taps in the input.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.kernel.1 - self.kernel.0
    }
}

impl Window {
    /// Creates a window. `input` and `output` are spatial dimensions; `pads` holds the padding before each dimension,
    /// then the padding after each, as in ONNX. The output dimensions decide how far the window moves, so the caller
    /// applies `ceil_mode` to them.
    pub fn new(
        input: &[usize],
        output: &[usize],
        kernel: &[usize],
        strides: &[usize],
        dilations: &[usize],
        pads: &[usize],
    ) -> Result<Self> {
        let rank = input.len();
        if rank > 3 {
            return Err(KernelError::RankTooLarge {
                rank: rank + 2,
                max: 5,
            });
        }
        assert!(
            [output, kernel, strides, dilations]
                .iter()
                .all(|s| s.len() == rank),
            "window of {rank} dimensions"
        );
        assert!(
            pads.len() == 2 * rank
                && strides
                    .iter()
                    .chain(dilations)
                    .chain(kernel)
                    .all(|&s| s > 0),
            "window {pads:?} {strides:?}"
        );
        let fill = |given: &[usize], empty: usize| {
            let mut all = [empty; 3];
            all[3 - rank..].copy_from_slice(given);
            all
        };
        Ok(Window {
            input: fill(input, 1),
            output: fill(output, 1),
            kernel: fill(kernel, 1),
            strides: fill(strides, 1),
            dilations: fill(dilations, 1),
            pads: fill(&pads[..rank], 0),
            pads_end: fill(&pads[rank..], 0),
        })
    }

    /// Number of elements of an input plane.
    pub(super) fn input_len(&self) -> usize {
        count(&self.input)
    }

    /// Number of elements of an output plane.
    pub(super) fn output_len(&self) -> usize {
        count(&self.output)
    }

    /// The number of strides of the last dimension in `distance`, rounded up.
    #[inline(always)]
    fn steps(&self, distance: usize) -> usize {
        // The common stride of 1 avoids a division, which would cost more than the taps it saves.
        if self.strides[2] == 1 {
            distance
        } else {
            distance.div_ceil(self.strides[2])
        }
    }

    /// The taps of output `o` along dimension `d`.
    #[inline(always)]
    pub(super) fn taps(&self, d: usize, o: usize) -> Taps {
        let (dilation, kernel) = (self.dilations[d], self.kernel[d]);
        let start = o * self.strides[d];
        let below = |limit: usize| {
            let distance = limit.saturating_sub(start);
            // A dilation of 1 avoids a division for every output, which would cost more than its taps.
            let taps = if dilation == 1 {
                distance
            } else {
                distance.div_ceil(dilation)
            };
            taps.min(kernel)
        };
        let first = below(self.pads[d]);
        let last = below(self.pads[d] + self.input[d]);
        Taps {
            kernel: (first, last.max(first)),
            padded: below(self.pads[d] + self.input[d] + self.pads_end[d]),
        }
    }

    /// The outputs among `range` of the last dimension whose taps all lie in the input.
    #[inline(always)]
    pub(super) fn interior(&self, range: Range<usize>) -> (usize, usize) {
        let reach = (self.kernel[2] - 1) * self.dilations[2];
        let first = self.steps(self.pads[2]).clamp(range.start, range.end);
        let room = (self.pads[2] + self.input[2]).saturating_sub(reach);
        (first, self.steps(room).clamp(first, range.end))
    }

    /// The most taps of an output that can lie in the input.
    pub(super) fn most_taps(&self) -> usize {
        let along = |d: usize| self.kernel[d].min(self.input[d].div_ceil(self.dilations[d]));
        along(0).saturating_mul(along(1)).saturating_mul(along(2))
    }

    /// The taps along the last dimension that may lie in the input for an output among `range`, which is not empty.
    #[inline(always)]
    pub(super) fn taps_of_any(&self, range: &Range<usize>) -> (usize, usize) {
        // The further on an output lies, the fewer of its taps are before the input's begin, and before its end.
        let (first, last) = (self.taps(2, range.start), self.taps(2, range.end - 1));
        (last.kernel.0, first.kernel.1)
    }

    /// The input positions along dimension `d` over which the windows of outputs `first` to `last` reach.
    pub(super) fn under(&self, d: usize, first: usize, last: usize) -> Range<usize> {
        let (stride, pad, input) = (self.strides[d], self.pads[d], self.input[d]);
        let reach = (self.kernel[d] - 1) * self.dilations[d];
        let start = (first * stride).saturating_sub(pad).min(input);
        let end = (last * stride + reach + 1).saturating_sub(pad);
        start..end.clamp(start, input)
    }

    /// The input position of tap `k` of output `o` along dimension `d`; the tap must lie inside the input.
    #[inline(always)]
    pub(super) fn position(&self, d: usize, o: usize, k: usize) -> usize {
        o * self.strides[d] + k * self.dilations[d] - self.pads[d]
    }

    /// The outputs among `range` of the last dimension whose tap `k` lies in the input.
    #[inline(always)]
    pub(super) fn outputs(&self, k: usize, range: Range<usize>) -> (usize, usize) {
        let offset = k * self.dilations[2];
        let first = self.steps(self.pads[2].saturating_sub(offset));
        let end = self.pads[2] + self.input[2];
        let last = self.steps(end.saturating_sub(offset));
        let first = first.max(range.start);
        let last = last.min(range.end);
        (first, last.max(first))
    }
}
