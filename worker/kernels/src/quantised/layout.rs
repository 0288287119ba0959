//! The scale and the zero point that belong to each element.

/// How the parameters of a tensor lie over its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One parameter serves all elements.
    Tensor,
    /// Each index of one axis has a parameter. The axis has `len` indices, and `inner` elements each.
    Axis { len: usize, inner: usize },
    /// Along one axis, every `size` elements share a parameter; the parameters have the shape of the tensor, except for
    /// that axis.
    Blocks {
        len: usize,
        inner: usize,
        size: usize,
    },
}

/// Consecutive elements whose parameters lie at one index, or at consecutive ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// The element after the last one.
    pub end: usize,
    /// The index of the first element's parameter.
    pub index: usize,
    /// Whether each element has the next parameter.
    pub advances: bool,
}

impl Layout {
    /// The run of parameters from element `at` on.
    pub(super) fn run(&self, at: usize) -> Run {
        match *self {
            Layout::Tensor => Run {
                end: usize::MAX,
                index: 0,
                advances: false,
            },
            Layout::Axis { len, inner: 1 } => Run {
                end: (at / len + 1) * len,
                index: at % len,
                advances: true,
            },
            Layout::Axis { len, inner } => Run {
                end: (at / inner + 1) * inner,
                index: at / inner % len,
                advances: false,
            },
            Layout::Blocks { len, inner, size } => {
                let size = size.clamp(1, len.max(1));
                let blocks = len.div_ceil(size);
                let (row, column) = (at / inner, at % inner);
                let (outer, along) = (row / len, row % len);
                let index = (outer * blocks + along / size) * inner + column;
                match inner {
                    1 => Run {
                        end: outer * len + ((along / size + 1) * size).min(len),
                        index,
                        advances: false,
                    },
                    _ => Run {
                        end: (row + 1) * inner,
                        index,
                        advances: true,
                    },
                }
            }
        }
    }
}

/// The elements of a tensor that are read: `run` of every `stride` elements, from `offset` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Take {
    pub run: usize,
    pub stride: usize,
    pub offset: usize,
}

impl Take {
    /// All elements.
    pub const ALL: Take = Take {
        run: usize::MAX,
        stride: 0,
        offset: 0,
    };

    /// The place of the element that is read as number `at`, and how many follow it directly.
    pub(super) fn source(&self, at: usize) -> (usize, usize) {
        let within = at % self.run;
        let place = at / self.run * self.stride + self.offset + within;
        (place, self.run - within)
    }
}
