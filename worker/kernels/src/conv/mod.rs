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
mod shape;
mod taps;
#[cfg(test)]
pub(crate) mod tests;
mod unfold;

pub(crate) use axis::Axis;
pub use ending::NarrowEnding;
pub use shape::{ConvShape, ConvShapeError, ConvSizes};
pub(crate) use unfold::Im2col;

use crate::element::Float;
use crate::gemm::driver;
use crate::gemm::panel::BSource;
use crate::gemm::product::{ASource, Product};
use crate::gemm::{
    Activation, Elements, Epilogue, Output, PackSource, Packed, Post, Strided, pack_a_into,
    packed_a_len,
};
use crate::isa::Isa;
use crate::{Cancelled, Exec};
use std::ops::Range;

/// Weights of a convolution.
#[derive(Debug, Clone, Copy)]
pub enum ConvWeights<'a> {
    /// Row-major weights, `[out_channels, in_channels / groups, kernel…]`.
    RowMajor(&'a [f32]),
    /// Weights that were packed by [`pack_conv_weights_into`].
    Packed(Elements<'a>),
}

/// The operations that follow the sums.
#[derive(Debug, Clone, Copy)]
pub struct ConvEpilogue<'a> {
    /// One value per output channel, which is added first.
    pub bias: Option<&'a [f32]>,
    /// A tensor of the output's shape, which is added next.
    pub residual: Option<&'a [f32]>,
    /// The activation, applied last.
    pub activation: Activation,
}

impl<'a> ConvWeights<'a> {
    /// Weights that were packed by [`pack_conv_weights_into`].
    pub fn packed<T: Packed>(weights: &'a [T]) -> Self {
        ConvWeights::Packed(T::elements(weights))
    }

    /// The weights from `at` on, where packed ones have a panel.
    fn from(self, at: usize) -> Self {
        match self {
            ConvWeights::RowMajor(w) => ConvWeights::RowMajor(&w[at..]),
            ConvWeights::Packed(w) => ConvWeights::Packed(w.from(at)),
        }
    }

    fn len(&self) -> usize {
        match self {
            ConvWeights::RowMajor(w) => w.len(),
            ConvWeights::Packed(w) => w.len(),
        }
    }
}

impl ConvEpilogue<'static> {
    /// The epilogue that leaves the sums unchanged.
    pub const NONE: Self = ConvEpilogue {
        bias: None,
        residual: None,
        activation: Activation::None,
    };
}

/// Packs row-major weights, `groups` matrices of `[out_channels / groups, chain]` (chain: input
/// channels of a group times kernel volume), into `dst` of the same length.
pub fn pack_conv_weights_into<D: Packed, T: PackSource<D>>(
    dst: &mut [D],
    weights: &[T],
    out_channels: usize,
    groups: usize,
) {
    assert!(
        groups > 0 && out_channels.is_multiple_of(groups),
        "groups of a convolution"
    );
    assert_eq!(
        dst.len(),
        weights.len(),
        "destination of packed convolution weights"
    );
    if weights.is_empty() {
        return;
    }
    let (rows, k) = (out_channels / groups, weights.len() / out_channels);
    let group = packed_a_len(rows, k);
    for (dst, src) in dst.chunks_exact_mut(group).zip(weights.chunks_exact(group)) {
        pack_a_into(dst, Strided::row_major(src, k), rows, k);
    }
}

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
    Blocks(narrow::Blocks),
}

impl NarrowConv {
    /// Plans a convolution without a residual; `None` where whole tensors must be converted.
    pub fn new(shape: &ConvShape) -> Option<NarrowConv> {
        let plan = depthwise::Narrow::new(shape)
            .map(NarrowPlan::Planes)
            .or_else(|| narrow::Blocks::new(shape).map(NarrowPlan::Blocks))?;
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

    fn run_on<T: Float<Wide = f32>>(
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

fn check_lengths(
    shape: &ConvShape,
    input: usize,
    weights: ConvWeights<'_>,
    epilogue: &ConvEpilogue<'_>,
    output: usize,
) {
    assert_eq!(input, shape.input_len(), "input of a convolution");
    assert_eq!(
        weights.len(),
        shape.weights_len(),
        "weights of a convolution"
    );
    assert_eq!(output, shape.output_len(), "output of a convolution");
    if let Some(bias) = epilogue.bias {
        assert_eq!(bias.len(), shape.out_channels, "bias of a convolution");
    }
    if let Some(residual) = epilogue.residual {
        assert_eq!(residual.len(), output, "residual of a convolution");
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
