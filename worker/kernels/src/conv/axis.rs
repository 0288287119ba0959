//! Where the taps of a filter lie along one dimension of a copy of the input that has a plane for each remainder of their
//! places by the stride.

use super::ConvShape;

/// The places of taps in one dimension.
pub(crate) struct Axis {
    /// The remainders of taps' places by the stride that occur, in ascending order.
    pub remainders: Vec<usize>,
    /// The index of each tap's remainder, and the whole strides from the first tap to it.
    pub places: Vec<(usize, usize)>,
    /// The most whole strides between the first tap and another one: a plane is as much longer than the output.
    pub reach: usize,
}

impl Axis {
    /// The places of the taps in dimension `d` of a convolution.
    pub fn new(shape: &ConvShape, d: usize) -> Axis {
        let (stride, dilation) = (shape.stride[d], shape.dilation[d]);
        let place = |tap: usize| (tap * dilation % stride, tap * dilation / stride);
        let taps: Vec<_> = (0..shape.kernel[d]).map(place).collect();
        let mut remainders: Vec<usize> = taps.iter().map(|(remainder, _)| *remainder).collect();
        remainders.sort_unstable();
        remainders.dedup();
        let index = |remainder: usize| remainders.partition_point(|r| *r < remainder);
        let places: Vec<_> = taps
            .iter()
            .map(|(r, strides)| (index(*r), *strides))
            .collect();
        let reach = places.iter().map(|(_, strides)| *strides).max();
        Axis {
            places,
            reach: reach.unwrap_or(0),
            remainders,
        }
    }
}
