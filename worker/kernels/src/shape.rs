//! Shapes and strides, and the walk of several inputs along one output.

use crate::error::{KernelError, Result};
use std::ops::Range;

/// The largest rank of a tensor that kernels accept.
pub const MAX_RANK: usize = 16;

/// Number of elements of a tensor of this shape.
pub fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// A dense, row-major input with its shape.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// The dimensions of the input.
    pub shape: &'a [usize],
}

impl<'a, T> Operand<'a, T> {
    /// Pairs `data` with `shape`. Panics where their element counts differ.
    pub fn new(data: &'a [T], shape: &'a [usize]) -> Self {
        assert_eq!(data.len(), count(shape), "operand of shape {shape:?}");
        Operand { data, shape }
    }
}

/// A shape as seen from one of its axes: the dimensions before, at and after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    /// Product of the dimensions before the axis.
    pub outer: usize,
    /// The length of the axis.
    pub len: usize,
    /// Product of the dimensions after the axis.
    pub inner: usize,
}

impl Axis {
    /// The view of `shape` from `axis`, which must be less than the rank.
    pub fn of(shape: &[usize], axis: usize) -> Self {
        Axis {
            outer: count(&shape[..axis]),
            len: shape[axis],
            inner: count(&shape[axis + 1..]),
        }
    }

    /// Number of elements of the whole shape.
    pub fn count(&self) -> usize {
        self.outer * self.len * self.inner
    }
}

/// The row-major strides of `shape`, in the first elements of an array.
pub(crate) fn strides(shape: &[usize]) -> [isize; MAX_RANK] {
    let mut strides = [0; MAX_RANK];
    let mut stride = 1;
    for axis in (0..shape.len()).rev() {
        strides[axis] = stride as isize;
        stride *= shape[axis];
    }
    strides
}

/// Fails where `shape` has more than [`MAX_RANK`] axes.
pub(crate) fn check_rank(shape: &[usize]) -> Result {
    if shape.len() > MAX_RANK {
        return Err(KernelError::RankTooLarge {
            rank: shape.len(),
            max: MAX_RANK,
        });
    }
    Ok(())
}

/// The walk of a row-major output with `N` inputs at given strides. Adjacent axes are merged where the strides of all
/// inputs allow it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk<const N: usize> {
    rank: usize,
    dims: [usize; MAX_RANK],
    strides: [[isize; N]; MAX_RANK],
    base: [isize; N],
}

impl<const N: usize> Walk<N> {
    /// Creates a walk: `strides[i][axis]` is the stride of input `i` along `axis`, `base[i]` the offset of its first
    /// element.
    pub fn new(shape: &[usize], strides: [&[isize]; N], base: [isize; N]) -> Result<Self> {
        check_rank(shape)?;
        let mut walk = Walk {
            rank: 0,
            dims: [1; MAX_RANK],
            strides: [[0; N]; MAX_RANK],
            base,
        };
        for (axis, &dim) in shape.iter().enumerate() {
            if dim == 1 {
                continue;
            }
            let step: [isize; N] = std::array::from_fn(|i| strides[i][axis]);
            if walk.rank > 0 {
                let last = walk.rank - 1;
                if (0..N).all(|i| walk.strides[last][i] == step[i] * dim as isize) {
                    walk.dims[last] *= dim;
                    walk.strides[last] = step;
                    continue;
                }
            }
            walk.dims[walk.rank] = dim;
            walk.strides[walk.rank] = step;
            walk.rank += 1;
        }
        if walk.rank == 0 {
            walk.rank = 1;
            // There is a single element: a stride of one selects the dense loops.
            walk.strides[0] = [1; N];
        }
        Ok(walk)
    }

    /// Creates a walk of the output `out` whose inputs are broadcast by numpy's rules.
    pub fn broadcast(out: &[usize], inputs: [&[usize]; N]) -> Result<Self> {
        check_rank(out)?;
        let mut steps = [[0isize; MAX_RANK]; N];
        for (step, shape) in steps.iter_mut().zip(inputs) {
            assert!(shape.len() <= out.len(), "{shape:?} broadcast to {out:?}");
            let offset = out.len() - shape.len();
            let dense = strides(shape);
            for (axis, &dim) in shape.iter().enumerate() {
                assert!(
                    dim == out[offset + axis] || dim == 1,
                    "{shape:?} broadcast to {out:?}"
                );
                step[offset + axis] = if dim == 1 { 0 } else { dense[axis] };
            }
        }
        Self::new(out, std::array::from_fn(|i| &steps[i][..]), [0; N])
    }

    /// The strides of the inputs within a run.
    #[inline(always)]
    pub fn inner(&self) -> [isize; N] {
        self.strides[self.rank - 1]
    }

    /// Length of a full run.
    #[inline(always)]
    pub fn run(&self) -> usize {
        self.dims[self.rank - 1]
    }

    /// The length of the axis that encloses the runs, and the first input's stride along it; `None` where there is one
    /// run.
    pub fn second(&self) -> Option<(usize, isize)> {
        let axis = self.rank.checked_sub(2)?;
        Some((self.dims[axis], self.strides[axis][0]))
    }

    /// Cuts the outputs `range` into runs.
    #[inline(always)]
    pub fn runs(&self, range: Range<usize>) -> RunIterator<'_, N> {
        let mut index = [0; MAX_RANK];
        let mut offset = self.base;
        let mut rest = range.start;
        for axis in (0..self.rank).rev() {
            index[axis] = rest % self.dims[axis].max(1);
            rest /= self.dims[axis].max(1);
            for i in 0..N {
                offset[i] += index[axis] as isize * self.strides[axis][i];
            }
        }
        RunIterator {
            walk: self,
            index,
            offset,
            done: 0,
            total: range.len(),
        }
    }
}

/// Consecutive outputs whose inputs advance by the strides of [`Walk::inner`].
pub(crate) struct Run<const N: usize> {
    /// Position of the first output in the range that the runs cover.
    pub start: usize,
    /// Number of outputs.
    pub len: usize,
    /// Offset of the first element of each input.
    pub offset: [usize; N],
}

/// The runs that [`Walk::runs`] cuts a range into.
pub(crate) struct RunIterator<'a, const N: usize> {
    walk: &'a Walk<N>,
    index: [usize; MAX_RANK],
    offset: [isize; N],
    done: usize,
    total: usize,
}

impl<const N: usize> RunIterator<'_, N> {
    /// The next run. This is not an `Iterator`, because it must be inlined into multiversioned loops.
    #[inline(always)]
    pub fn next_run(&mut self) -> Option<Run<N>> {
        if self.done == self.total {
            return None;
        }
        let walk = self.walk;
        let mut axis = walk.rank - 1;
        let len = (walk.dims[axis] - self.index[axis]).min(self.total - self.done);
        let mut run = Run {
            start: self.done,
            len,
            offset: [0; N],
        };
        for i in 0..N {
            run.offset[i] = self.offset[i] as usize;
            self.offset[i] += len as isize * walk.strides[axis][i];
        }
        self.done += len;
        self.index[axis] += len;
        while self.index[axis] == walk.dims[axis] && axis > 0 {
            self.index[axis] = 0;
            for i in 0..N {
                self.offset[i] +=
                    walk.strides[axis - 1][i] - walk.dims[axis] as isize * walk.strides[axis][i];
            }
            axis -= 1;
            self.index[axis] += 1;
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets<const N: usize>(walk: &Walk<N>, range: Range<usize>) -> Vec<[usize; N]> {
        let mut all = Vec::new();
        let mut runs = walk.runs(range);
        while let Some(run) = runs.next_run() {
            assert_eq!(run.start, all.len());
            for i in 0..run.len {
                all.push(std::array::from_fn(|n| {
                    (run.offset[n] as isize + i as isize * walk.inner()[n]) as usize
                }));
            }
        }
        all
    }

    #[test]
    fn broadcast_walks_match_index_arithmetic() {
        for (out, a, b) in [
            (&[2, 3, 4][..], &[2, 3, 4][..], &[4][..]),
            (&[2, 3, 4], &[2, 1, 4], &[3, 1]),
            (&[5], &[1], &[5]),
            (&[], &[], &[]),
            (&[2, 3, 4, 5], &[3, 1, 1], &[2, 3, 4, 5]),
            (&[2, 1, 3, 1], &[1, 3, 1], &[2, 1, 1, 1]),
        ] {
            let walk = Walk::broadcast(out, [a, b]).unwrap();
            let n = count(out);
            let want: Vec<[usize; 2]> = (0..n)
                .map(|flat| {
                    [a, b].map(|shape| {
                        let (mut rest, mut offset, mut stride) = (flat, 0, 1);
                        for (axis, &dim) in out.iter().enumerate().rev() {
                            let index = rest % dim;
                            rest /= dim;
                            if let Some(own) = (axis + shape.len()).checked_sub(out.len()) {
                                offset += if shape[own] == 1 { 0 } else { index * stride };
                                stride *= shape[own];
                            }
                        }
                        offset
                    })
                })
                .collect();
            assert_eq!(offsets(&walk, 0..n), want, "{out:?} {a:?} {b:?}");
            for cut in 0..=n {
                let mut parts = offsets(&walk, 0..cut);
                parts.extend(offsets(&walk, cut..n));
                assert_eq!(parts, want);
            }
        }
    }

    #[test]
    fn dense_operands_merge_to_one_run() {
        let walk = Walk::broadcast(&[4, 5, 6], [&[4, 5, 6], &[]]).unwrap();
        assert_eq!((walk.run(), walk.inner()), (120, [1, 0]));
        let walk = Walk::broadcast(&[2, 8, 7, 7], [&[2, 8, 7, 7], &[8, 1, 1]]).unwrap();
        assert_eq!((walk.run(), walk.inner()), (49, [1, 0]));
    }

    #[test]
    fn too_many_axes_is_an_error() {
        assert_eq!(
            Walk::broadcast(&[1; 17], [&[1; 17]]).unwrap_err(),
            KernelError::RankTooLarge {
                rank: 17,
                max: MAX_RANK
            }
        );
    }
}
