//! The taps of a depthwise convolution.

use crate::conv::ConvShape;
use crate::conv::operands::ConvWeights;
use crate::gemm::{Elements, MR};

/// Multiply-adds per tile of work: some microseconds.
pub(super) const TILE_WORK: usize = 1 << 18;

/// The taps of one output channel.
#[derive(Clone, Copy)]
pub(super) struct Taps<'a> {
    pub data: Elements<'a>,
    pub step: usize,
}

impl<'a> Taps<'a> {
    /// The taps of output channel `sub` of a group.
    pub fn new(s: &ConvShape, weights: ConvWeights<'a>, group: usize, sub: usize) -> Self {
        let (taps, rows) = (s.taps(), s.group_out());
        let group = group * rows * taps;
        match weights {
            ConvWeights::RowMajor(w) => Taps {
                data: Elements::F32(&w[group + sub * taps..]),
                step: 1,
            },
            ConvWeights::Packed(w) => {
                let panel = sub / MR * MR;
                Taps {
                    data: w.from(group + panel * taps + sub % MR),
                    step: MR.min(rows - panel),
                }
            }
        }
    }

    /// Writes the first taps to `to`.
    pub fn copy(&self, to: &mut [f32]) {
        if let (Elements::F32(data), 1) = (self.data, self.step) {
            return to.copy_from_slice(&data[..to.len()]);
        }
        for (i, tap) in to.iter_mut().enumerate() {
            *tap = self.data.at(i * self.step);
        }
    }
}
