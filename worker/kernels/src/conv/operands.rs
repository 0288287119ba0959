//! The weights of a convolution, and what follows its sums.

use super::ConvShape;
use crate::gemm::{Activation, Elements, PackSource, Packed, Strided, pack_a_into, packed_a_len};

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
    pub(super) fn from(self, at: usize) -> Self {
        match self {
            ConvWeights::RowMajor(w) => ConvWeights::RowMajor(&w[at..]),
            ConvWeights::Packed(w) => ConvWeights::Packed(w.from(at)),
        }
    }

    pub(super) fn len(&self) -> usize {
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

/// Panics unless the operands and the output have the sizes of the shape.
pub(super) fn check_lengths(
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
