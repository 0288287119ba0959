//! The geometry of a convolution, in three spatial dimensions: one- and two-dimensional ones have
//! leading dimensions of size 1.

/// Why the sizes of a convolution do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvShapeError {
    /// The number of spatial dimensions is not 1, 2 or 3, or the lists have different lengths.
    #[error(
        "a convolution has 1 to 3 spatial dimensions with equally many sizes, strides, dilations and pads; give {0:?}"
    )]
    Rank([usize; 6]),
    /// The number of channels is not a multiple of the number of groups.
    #[error("{in_channels} input and {out_channels} output channels cannot form {groups} groups")]
    Groups {
        /// Input channels.
        in_channels: usize,
        /// Output channels.
        out_channels: usize,
        /// Groups.
        groups: usize,
    },
    /// A stride, dilation or kernel size is 0, or a size is too large for addresses.
    #[error("kernel sizes, strides and dilations must be positive, and the tensors addressable")]
    Size,
    /// The dilated kernel is larger than the padded input.
    #[error("the dilated kernel ({kernel}) is larger than the padded input ({input})")]
    KernelTooLarge {
        /// Extent of the dilated kernel.
        kernel: usize,
        /// Extent of the padded input.
        input: usize,
    },
}

/// The checked sizes and attributes of a convolution. Its input is `[batch, in_channels, input…]`, its weights are
/// `[out_channels, in_channels / groups, kernel…]`, and its output is `[batch, out_channels, output…]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvShape {
    pub(crate) batch: usize,
    pub(crate) in_channels: usize,
    pub(crate) out_channels: usize,
    pub(crate) groups: usize,
    pub(crate) input: [usize; 3],
    pub(crate) kernel: [usize; 3],
    pub(crate) stride: [usize; 3],
    pub(crate) dilation: [usize; 3],
    pub(crate) pad: [usize; 3],
    pub(crate) output: [usize; 3],
}

/// The arguments of [`ConvShape::new`]. The spatial lists have one entry per dimension.
#[derive(Debug, Clone, Copy)]
pub struct ConvSizes<'a> {
    /// Batch size.
    pub batch: usize,
    /// Input channels.
    pub in_channels: usize,
    /// Output channels.
    pub out_channels: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Spatial sizes of the input.
    pub input: &'a [usize],
    /// Spatial sizes of the kernel.
    pub kernel: &'a [usize],
    /// Strides.
    pub strides: &'a [usize],
    /// Dilations.
    pub dilations: &'a [usize],
    /// Padding before each dimension.
    pub pads_begin: &'a [usize],
    /// Padding after each dimension.
    pub pads_end: &'a [usize],
}

impl ConvShape {
    /// Checks the sizes and derives those of the output.
    pub fn new(s: &ConvSizes<'_>) -> Result<Self, ConvShapeError> {
        let rank = s.input.len();
        let lists = [
            s.input,
            s.kernel,
            s.strides,
            s.dilations,
            s.pads_begin,
            s.pads_end,
        ];
        if !(1..=3).contains(&rank) || lists.iter().any(|l| l.len() != rank) {
            return Err(ConvShapeError::Rank(lists.map(<[usize]>::len)));
        }
        let (in_channels, out_channels, groups) = (s.in_channels, s.out_channels, s.groups);
        if groups == 0
            || !in_channels.is_multiple_of(groups)
            || !out_channels.is_multiple_of(groups)
        {
            return Err(ConvShapeError::Groups {
                in_channels,
                out_channels,
                groups,
            });
        }
        let lift = |list: &[usize], fill: usize| {
            let mut out = [fill; 3];
            out[3 - rank..].copy_from_slice(list);
            out
        };
        let mut shape = ConvShape {
            batch: s.batch,
            in_channels,
            out_channels,
            groups,
            input: lift(s.input, 1),
            kernel: lift(s.kernel, 1),
            stride: lift(s.strides, 1),
            dilation: lift(s.dilations, 1),
            pad: lift(s.pads_begin, 0),
            output: [0; 3],
        };
        let pad_end = lift(s.pads_end, 0);
        for (d, &pad_end) in pad_end.iter().enumerate() {
            let (kernel, stride, dilation) = (shape.kernel[d], shape.stride[d], shape.dilation[d]);
            if kernel == 0 || stride == 0 || dilation == 0 {
                return Err(ConvShapeError::Size);
            }
            let sum = |a: usize, b: usize| a.checked_add(b).ok_or(ConvShapeError::Size);
            let extent = sum(
                (kernel - 1)
                    .checked_mul(dilation)
                    .ok_or(ConvShapeError::Size)?,
                1,
            )?;
            let padded = sum(sum(shape.input[d], shape.pad[d])?, pad_end)?;
            if padded < extent {
                return Err(ConvShapeError::KernelTooLarge {
                    kernel: extent,
                    input: padded,
                });
            }
            shape.output[d] = (padded - extent) / stride + 1;
            // Offsets into one channel must fit i32 and isize.
            sum(padded, stride)?;
        }
        let volume = |head: [usize; 2], tail: [usize; 3]| {
            head.into_iter()
                .chain(tail)
                .try_fold(1usize, |a, b| a.checked_mul(b))
        };
        let limit = isize::MAX as usize / size_of::<f32>();
        let fits = [
            volume([shape.batch, in_channels], shape.input),
            volume([shape.batch, out_channels], shape.output),
            volume([out_channels, in_channels / groups], shape.kernel),
        ]
        .into_iter()
        .all(|v| v.is_some_and(|v| v <= limit));
        if fits {
            Ok(shape)
        } else {
            Err(ConvShapeError::Size)
        }
    }

    /// The three spatial sizes of the output; with fewer dimensions, the leading sizes are 1.
    pub fn output(&self) -> [usize; 3] {
        self.output
    }

    /// Number of values in the input.
    pub fn input_len(&self) -> usize {
        self.batch * self.in_channels * self.in_plane()
    }

    /// Number of values in the output.
    pub fn output_len(&self) -> usize {
        self.batch * self.out_channels * self.out_plane()
    }

    /// Number of values in the weights, packed or not.
    pub fn weights_len(&self) -> usize {
        self.out_channels * self.chain()
    }

    /// Number of products in the chain of one output.
    pub(crate) fn chain(&self) -> usize {
        self.group_in() * self.taps()
    }

    pub(crate) fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    pub(crate) fn group_in(&self) -> usize {
        self.in_channels / self.groups
    }

    pub(crate) fn group_out(&self) -> usize {
        self.out_channels / self.groups
    }

    pub(crate) fn in_plane(&self) -> usize {
        self.input.iter().product()
    }

    pub(crate) fn out_plane(&self) -> usize {
        self.output.iter().product()
    }

    /// Whether the depth has one position and one tap, so that two dimensions are left.
    pub(crate) fn is_flat(&self) -> bool {
        (self.input[0], self.output[0], self.kernel[0], self.pad[0]) == (1, 1, 1, 0)
    }

    /// Whether each group has one input channel, in one or two dimensions.
    pub(crate) fn is_depthwise(&self) -> bool {
        self.group_in() == 1 && self.is_flat()
    }

    /// Whether the patches are the input itself: a 1 × 1 kernel without stride or padding.
    pub(crate) fn is_pointwise(&self) -> bool {
        self.kernel == [1; 3]
            && self.stride == [1; 3]
            && self.input == self.output
            && self.pad == [0; 3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(input: &'static [usize], kernel: &'static [usize]) -> ConvSizes<'static> {
        ConvSizes {
            batch: 1,
            in_channels: 2,
            out_channels: 4,
            groups: 1,
            input,
            kernel,
            strides: &[2, 1],
            dilations: &[1, 2],
            pads_begin: &[0, 1],
            pads_end: &[1, 0],
        }
    }

    #[test]
    fn output_sizes_follow_the_formula() {
        let shape = ConvShape::new(&sizes(&[7, 9], &[3, 2])).unwrap();
        assert_eq!(shape.output(), [1, 3, 8]);
        assert_eq!(shape.weights_len(), 4 * 2 * 6);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let check = |s: ConvSizes<'_>| ConvShape::new(&s).unwrap_err();
        assert!(matches!(
            check(sizes(&[7], &[3, 2])),
            ConvShapeError::Rank(_)
        ));
        assert!(matches!(
            check(sizes(&[7, 9], &[3, 0])),
            ConvShapeError::Size
        ));
        assert_eq!(
            check(sizes(&[1, 9], &[3, 2])),
            ConvShapeError::KernelTooLarge {
                kernel: 3,
                input: 2
            }
        );
        let odd = ConvSizes {
            groups: 3,
            ..sizes(&[7, 9], &[3, 2])
        };
        assert!(matches!(check(odd), ConvShapeError::Groups { .. }));
        let huge = ConvSizes {
            batch: usize::MAX / 8,
            ..sizes(&[7, 9], &[3, 2])
        };
        assert_eq!(check(huge), ConvShapeError::Size);
    }
}
