//! Shapes and strides: how several operands are walked along one output.

use crate::error::{KernelError, Result};
use std::ops::Range;

/// Most axes a kernel handles.
pub const MAX_RANK: usize = 16;

/// Elements of a shape.
pub fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// An input with its shape, row-major and dense.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// Their dimensions.
    pub shape: &'a [usize],
}

impl<'a, T> Operand<'a, T> {
    /// Pairs `data` with `shape`, which must agree.
    pub fn new(data: &'a [T], shape: &'a [usize]) -> Self {
        assert_eq!(data.len(), count(shape), "operand of shape {shape:?}");
        Operand { data, shape }
    }
}

/// A shape as seen from one of its axes: the dimensions before, at and after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    /// Product of the dimensions before.
    pub outer: usize,
    /// The dimension itself.
    pub len: usize,
    /// Product of the dimensions after.
    pub inner: usize,
}

impl Axis {
    /// `axis` must be less than the rank.
    pub fn of(shape: &[usize], axis: usize) -> Self {
        Axis {
            outer: count(&shape[..axis]),
            len: shape[axis],
            inner: count(&shape[axis + 1..]),
        }
    }

    /// All elements.
    pub fn count(&self) -> usize {
        self.outer * self.len * self.inner
    }
}

/// Row-major strides of `shape` into the front of an array.
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

/// The walk of a row-major output with `N` inputs at given strides; adjacent axes are merged where all inputs allow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk<const N: usize> {
    rank: usize,
    dims: [usize; MAX_RANK],
    strides: [[isize; N]; MAX_RANK],
    base: [isize; N],
}

impl<const N: usize> Walk<N> {
    /// `strides[i][axis]` is the step of input `i` along `axis`, `base[i]` its first offset.
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
            // A single element; a step of one keeps to the dense loops.
            walk.strides[0] = [1; N];
        }
        Ok(walk)
    }

    /// Inputs broadcast to `out` as numpy does.
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

    /// Steps of the inputs along a run.
    #[inline(always)]
    pub fn inner(&self) -> [isize; N] {
        self.strides[self.rank - 1]
    }

    /// Length of a full run.
    #[inline(always)]
    pub fn run(&self) -> usize {
        self.dims[self.rank - 1]
    }

    /// Length of the axis around a run, and the step of the first input along it.
    pub fn second(&self) -> Option<(usize, isize)> {
        let axis = self.rank.checked_sub(2)?;
        Some((self.dims[axis], self.strides[axis][0]))
    }

    /// The runs that cover the outputs `range`.
    #[inline(always)]
    pub fn runs(&self, range: Range<usize>) -> Runs<'_, N> {
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
        Runs {
            walk: self,
            index,
            offset,
            done: 0,
            total: range.len(),
        }
    }
}

/// A stretch of consecutive outputs whose inputs advance by the inner steps.
pub(crate) struct Run<const N: usize> {
    /// First element within the range.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// Offsets of the inputs.
    pub offset: [usize; N],
}

/// See [`Walk::runs`].
pub(crate) struct Runs<'a, const N: usize> {
    walk: &'a Walk<N>,
    index: [usize; MAX_RANK],
    offset: [isize; N],
    done: usize,
    total: usize,
}

impl<const N: usize> Runs<'_, N> {
    /// Not an `Iterator`: it must be inlined into multiversioned loops.
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
