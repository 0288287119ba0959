//! Depthwise convolutions (one input channel per group) in one or two dimensions.
//!
//! Two algorithms give the same chain, and so the same bits: `direct` reads the input in place and has one compiled form
//! for each of the usual kernels; `window` copies a padded part of the input and takes any other kernel.

mod direct;
mod window;

pub(super) use direct::Narrow;

use super::{ConvEpilogue, ConvShape, ConvWeights};
use crate::gemm::{Elements, MR};
use crate::isa::Isa;
use crate::{Cancelled, Exec};

/// Multiply-adds per tile of work: some microseconds.
const TILE_WORK: usize = 1 << 18;

/// How a depthwise convolution is computed.
#[allow(
    clippy::large_enum_variant,
    reason = "a plan lives on the stack of one call"
)]
pub(super) enum Plan {
    Direct(direct::Tiling),
    Window(window::Tiling),
}

impl Plan {
    /// Plans a convolution; `None` where it is not depthwise, or is too large for its algorithm.
    pub(super) fn new(s: &ConvShape) -> Option<Plan> {
        if !is_depthwise(s) {
            return None;
        }
        direct::Tiling::new(s)
            .map(Plan::Direct)
            .or_else(|| window::Tiling::new(s).map(Plan::Window))
    }
}

/// Whether each group has one input channel, in one or two dimensions.
fn is_depthwise(s: &ConvShape) -> bool {
    s.group_in() == 1 && s.is_flat()
}

pub(super) fn run(
    isa: Isa,
    exec: Exec<'_>,
    plan: &Plan,
    input: &[f32],
    weights: ConvWeights<'_>,
    epilogue: &ConvEpilogue<'_>,
    output: &mut [f32],
) -> Result<(), Cancelled> {
    match plan {
        Plan::Direct(plan) => direct::run(isa, exec, plan, input, weights, epilogue, output),
        Plan::Window(plan) => window::run(isa, exec, plan, input, weights, epilogue, output),
    }
}

/// The taps of one output channel.
#[derive(Clone, Copy)]
struct Taps<'a> {
    data: Elements<'a>,
    step: usize,
}

impl<'a> Taps<'a> {
    /// The taps of output channel `sub` of a group.
    fn new(s: &ConvShape, weights: ConvWeights<'a>, group: usize, sub: usize) -> Self {
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
    fn copy(&self, to: &mut [f32]) {
        if let (Elements::F32(data), 1) = (self.data, self.step) {
            return to.copy_from_slice(&data[..to.len()]);
        }
        for (i, tap) in to.iter_mut().enumerate() {
            *tap = self.data.at(i * self.step);
        }
    }
}
