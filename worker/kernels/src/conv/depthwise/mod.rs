//! Depthwise convolutions (one input channel per group) in one or two dimensions.
//!
//! Two algorithms give the same chain, and so the same bits: `direct` reads the input in place and has one compiled form
//! for each of the usual kernels; `window` copies a padded part of the input and takes any other kernel.

mod direct;
mod taps;
mod window;

pub(super) use direct::Narrow;

use super::ConvShape;
use super::operands::{ConvEpilogue, ConvWeights};
use crate::isa::Isa;
use crate::{Cancelled, Exec};

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
        if !s.is_depthwise() {
            return None;
        }
        direct::Tiling::new(s)
            .map(Plan::Direct)
            .or_else(|| window::Tiling::new(s).map(Plan::Window))
    }
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
