//! Convolutions over one, two or three spatial dimensions, f32, channels first.
//!
//! Every output is the chain `acc = 0; acc = fma(w, x, acc)` over (input channel of the group, kd, kh, kw) ascending,
//! the order of the weights. **Padding is a zero like any other**: it takes part in the chain in every code path (so an
//! infinite weight over padding gives NaN, as in a padded input). The bias, the residual and the activation follow,
//! each rounded as the separate op rounds.
//!
//! Invariants
//! 1. Pointwise, unfolded, grouped and depthwise kernels give equal bits where they overlap; packed
//!    weights, threads, alignment and instruction set change nothing.
//! 2. Winograd and FFT algorithms are not used, since they change the chain. The only allocations are the bounded block
//!    of scratch for each thread, and a list of the taps.

mod axis;
mod bands;
mod depthwise;
mod ending;
mod narrow;
mod operands;
mod shape;
mod taps;
#[cfg(test)]
pub(crate) mod tests;
mod unfold;

pub(crate) use axis::Axis;
pub use ending::NarrowEnding;
pub use narrow::NarrowConv;
use operands::check_lengths;
pub use operands::{ConvEpilogue, ConvWeights, pack_conv_weights_into};
pub use shape::{ConvShape, ConvShapeError, ConvSizes};
pub(crate) use unfold::Im2col;

use crate::gemm::driver;
use crate::gemm::panel::BSource;
use crate::gemm::product::{ASource, Product};
use crate::gemm::{Epilogue, Output, Post};
use crate::isa::Isa;
use crate::{Cancelled, Exec};
use std::ops::Range;

/// `output = activation(conv(input, weights) + bias + residual)`.
pub fn conv(
    exec: Exec<'_>,
    shape: &ConvShape,
    input: &[f32],
    weights: ConvWeights<'_>,
    epilogue: &ConvEpilogue<'_>,
    output: &mut [f32],
) -> Result<(), Cancelled> {
    conv_on(Isa::detect(), exec, shape, input, weights, epilogue, output)
}

pub(crate) fn conv_on(
    isa: Isa,
    exec: Exec<'_>,
    shape: &ConvShape,
    input: &[f32],
    weights: ConvWeights<'_>,
    epilogue: &ConvEpilogue<'_>,
    output: &mut [f32],
) -> Result<(), Cancelled> {
    assert!(isa.available());
    check_lengths(shape, input.len(), weights, epilogue, output.len());
    if output.is_empty() {
        return exec.check();
    }
    // SAFETY: the instruction set is available and the sizes were checked above.
    unsafe { convolve(isa, exec, shape, input, weights, epilogue, output) }
}

/// The convolution of [`conv`] by the fastest of its kernels.
///
/// # Safety
/// `isa` is available, and all operands have the sizes of `shape`, of which none is zero. More weights may follow those of the
/// shape.
unsafe fn convolve(
    isa: Isa,
    exec: Exec<'_>,
    shape: &ConvShape,
    input: &[f32],
    weights: ConvWeights<'_>,
    epilogue: &ConvEpilogue<'_>,
    output: &mut [f32],
) -> Result<(), Cancelled> {
    if let Some(plan) = depthwise::Plan::new(shape) {
        return depthwise::run(isa, exec, &plan, input, weights, epilogue, output);
    }
    let (m, chain) = (shape.group_out(), shape.chain());
    let head = |item: usize| {
        let group = item % shape.groups;
        let bias = epilogue.bias.map(|b| &b[group * m..][..m]);
        let head = bias.map_or(Epilogue::NONE, Epilogue::row_bias);
        Epilogue {
            residual: epilogue.residual,
            activation: epilogue.activation,
            ..head
        }
    };
    // SAFETY: the caller's contract.
    unsafe {
        match bands::Bands::new(shape, weights, exec.threads()) {
            Some(bands) => bands.run(isa, exec, input, head, output),
            None => unfolded(isa, exec, shape, input, weights, 0..chain, head, output),
        }
    }
}

/// The sums of some consecutive terms of each output's chain, of which there are as many as `weights`, which are row-major,
/// has for each output channel.
pub fn conv_terms(
    exec: Exec<'_>,
    shape: &ConvShape,
    input: &[f32],
    weights: &[f32],
    terms: Range<usize>,
    output: &mut [f32],
) -> Result<(), Cancelled> {
    assert_eq!(input.len(), shape.input_len(), "input of a convolution");
    assert_eq!(
        weights.len(),
        shape.weights_len(),
        "weights of a convolution"
    );
    assert_eq!(output.len(), shape.output_len(), "output of a convolution");
    assert!(
        terms.start <= terms.end && terms.end <= shape.chain(),
        "terms {terms:?} of a chain of {}",
        shape.chain()
    );
    if output.is_empty() {
        return exec.check();
    }
    let (isa, weights) = (Isa::detect(), ConvWeights::RowMajor(weights));
    let head = |_| Epilogue::NONE;
    // SAFETY: the instruction set is available and the sizes were checked above.
    unsafe { unfolded(isa, exec, shape, input, weights, terms, head, output) }
}

/// Convolves by products with the unfolded input. `head` gives the epilogue of each pair of image and group, whose residual
/// is that of the whole output. Packed weights have all terms.
///
/// # Safety
/// `isa` is available, and all operands have the sizes of `shape`.
unsafe fn unfolded<'a>(
    isa: Isa,
    exec: Exec<'_>,
    s: &ConvShape,
    input: &[f32],
    weights: ConvWeights<'_>,
    terms: Range<usize>,
    head: impl Fn(usize) -> Epilogue<'a> + Sync,
    output: &mut [f32],
) -> Result<(), Cancelled> {
    let (m, n, chain) = (s.group_out(), s.out_plane(), s.chain());
    let map = Im2col::new(s, terms.start);
    let out = Output(output.as_mut_ptr());
    let product = |item: usize| {
        let (image, group) = (item / s.groups, item % s.groups);
        let patches =
            input[(image * s.in_channels + group * s.group_in()) * s.in_plane()..].as_ptr();
        let at = item * m * n;
        let head = head(item);
        Product {
            isa,
            n,
            k: terms.len(),
            a: match weights {
                ConvWeights::RowMajor(w) => ASource::Strided {
                    data: w[group * m * chain..].as_ptr().wrapping_add(terms.start),
                    row: chain,
                    col: 1,
                },
                ConvWeights::Packed(w) => ASource::Packed(w.from(group * m * chain)),
            },
            b: if s.is_pointwise() {
                BSource::RowMajor {
                    data: patches.wrapping_add(terms.start * n),
                    stride: n,
                }
            } else {
                BSource::Patches {
                    data: patches,
                    map: &map,
                }
            },
            c: out.item(at),
            post: Post::new(&head, if head.residual.is_some() { at } else { 0 }),
        }
    };
    // SAFETY: the caller's contract; item i writes the i-th `m * n` values of the output, borrowed mutably for the whole
    // call.
    unsafe { driver::run(exec, s.batch * s.groups, (m, n, terms.len()), product) }
}
