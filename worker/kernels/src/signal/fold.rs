//! `Col2Im`: an image as the sum of overlapping blocks.
//!
//! Each element of the image gathers what the blocks have for it, in the order of the elements of a block.

use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::{Number, canonical_nan};
use crate::error::Result;
use crate::shape::{MAX_RANK, check_rank, count};
use crate::split::{PIECE, Pace, tiles, units_per_tile};

/// Elements of a row that are summed together.
const COLUMNS: usize = 64;

/// How blocks lie in an image; every list has one entry per axis of the image, and none is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fold<'a> {
    pub image: &'a [usize],
    pub block: &'a [usize],
    pub strides: &'a [usize],
    pub dilations: &'a [usize],
    /// The padding before and after.
    pub pads: &'a [(usize, usize)],
    /// The positions of a block along each axis.
    pub positions: &'a [usize],
}

/// Elements of a block along one axis that lie at a place of the image, in ascending order.
#[derive(Clone, Copy, Default)]
struct Hits {
    /// The first element, and the position of its block.
    element: usize,
    position: usize,
    /// How many there are.
    count: usize,
    /// How far the next element is, and how much lower the position of its block.
    elements: usize,
    positions: usize,
}

fn greatest_common_divisor(mut a: usize, mut b: usize) -> usize {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Fold<'_> {
    /// The elements `k` of a block, at positions `p`, for which `p * stride + k * dilation` is the place of `at` in the
    /// padded image.
    fn hits(&self, axis: usize, at: usize) -> Hits {
        let (stride, dilation) = (self.strides[axis], self.dilations[axis]);
        let place = at + self.pads[axis].0;
        let common = greatest_common_divisor(stride, dilation);
        let (elements, positions) = (stride / common, dilation / common);
        let highest = (place / stride).min(self.positions[axis] - 1);
        let low = (place - highest * stride).div_ceil(dilation);
        let end = (place / dilation + 1).min(self.block[axis]);
        // The first element is one of as many as it is far to the next one, and so is its position. Fewer are tried.
        let element = if elements <= positions {
            let mut tried = low..end.min(low + elements);
            tried.find(|k| (place - k * dilation).is_multiple_of(stride))
        } else {
            let mut tried = ((highest + 1).saturating_sub(positions)..=highest).rev();
            let position = tried.find(|p| (place - p * stride).is_multiple_of(dilation));
            position.map(|p| (place - p * stride) / dilation)
        };
        let Some(element) = element.filter(|element| *element < end) else {
            return Hits::default();
        };
        Hits {
            element,
            position: (place - element * dilation) / stride,
            count: (end - element).div_ceil(elements),
            elements,
            positions,
        }
    }
}

fn col2im_any<T: Number>(exec: &Exec, x: &[T], fold: &Fold<'_>, y: &mut [T]) -> Result {
    check_rank(fold.image)?;
    let last = fold.image.len() - 1;
    let (width, block_width) = (fold.image[last], fold.block[last]);
    let (size, columns) = (count(fold.block), count(fold.positions));
    let rows = count(&fold.image[..last]);
    assert!(
        x.len() / size / columns * rows * width == y.len()
            && x.len().is_multiple_of(size * columns),
        "{fold:?}"
    );
    let grain = units_per_tile(width * size);
    tiles(exec, y, width, grain, |range, part| {
        let mut pace = Pace::new(exec, PIECE);
        for (row, y) in range.zip(part.chunks_mut(width)) {
            let (plane, mut rest) = (row / rows, row % rows);
            let x = &x[plane * size * columns..(plane + 1) * size * columns];
            let mut hits = [Hits::default(); MAX_RANK];
            for axis in (0..last).rev() {
                hits[axis] = fold.hits(axis, rest % fold.image[axis]);
                rest /= fold.image[axis];
            }
            let hits = &hits[..last];
            let lines: usize = hits.iter().map(|h| h.count).product();
            for (chunk, y) in y.chunks_mut(COLUMNS).enumerate() {
                let mut sums = [T::Wide::ZERO; COLUMNS];
                for line in 0..lines {
                    let (outer, line) = line_of(fold, hits, line);
                    let first = (outer * block_width * columns) + line * fold.positions[last];
                    let sums = &mut sums[..y.len()];
                    let steps = add_line(fold, &x[first..], columns, chunk * COLUMNS, sums);
                    if pace.count(1 + steps).is_err() {
                        return;
                    }
                }
                if pace.count(COLUMNS).is_err() {
                    return;
                }
                for (y, sum) in y.iter_mut().zip(sums) {
                    *y = T::narrow(canonical_nan(sum));
                }
            }
        }
    })?;
    Ok(exec.check()?)
}

/// Returns, for hit number `index` of those along all axes but the last, the row-major index of the element of the block,
/// and that of the block's position.
fn line_of(fold: &Fold<'_>, hits: &[Hits], mut index: usize) -> (usize, usize) {
    let (mut element, mut position) = (0, 0);
    let (mut block, mut positions) = (1, 1);
    for (axis, hits) in hits.iter().enumerate().rev() {
        let i = index % hits.count;
        index /= hits.count;
        element += (hits.element + i * hits.elements) * block;
        position += (hits.position - i * hits.positions) * positions;
        block *= fold.block[axis];
        positions *= fold.positions[axis];
    }
    (element, position)
}

/// Adds what the elements of one line of a block have for the elements of the image from `first` on, and returns how many
/// steps that took. `x` begins at the first position of the line, and the lines of the next element of the block are
/// `columns` further on.
fn add_line<T: Number>(
    fold: &Fold<'_>,
    x: &[T],
    columns: usize,
    first: usize,
    sums: &mut [T::Wide],
) -> usize {
    let last = fold.image.len() - 1;
    let (stride, dilation) = (fold.strides[last], fold.dilations[last]);
    let (block, positions) = (fold.block[last], fold.positions[last]);
    // Element k of the block at position p lies at p * stride + k * dilation in the padded image, where the sums begin here.
    let from = first + fold.pads[last].0;
    let to = from + sums.len();
    // The numbers i for which i * step + base is between `from` and `to`.
    let between = |step: usize, base: usize, most: usize| {
        let start = from.saturating_sub(base).div_ceil(step);
        start..to.saturating_sub(base).div_ceil(step).min(most)
    };
    // The elements that any position brings here, and the positions that bring any element here.
    let reach = |step: usize, base: usize, most: usize| {
        let start = from.saturating_sub(base).div_ceil(step);
        start..to.div_ceil(step).min(most)
    };
    let ks = reach(dilation, (positions - 1) * stride, block);
    let ps = reach(stride, (block - 1) * dilation, positions);
    let mut steps = ks.len().min(ps.len());
    // Either order of loops adds to each sum the elements of the block in ascending order.
    if ks.len() <= ps.len() {
        for k in ks {
            let range = between(stride, k * dilation, positions);
            steps += range.len();
            for p in range {
                let sum = &mut sums[p * stride + k * dilation - from];
                *sum = T::Wide::add(*sum, x[k * columns + p].widen());
            }
        }
    } else {
        for p in ps.rev() {
            let range = between(dilation, p * stride, block);
            steps += range.len();
            for k in range {
                let sum = &mut sums[p * stride + k * dilation - from];
                *sum = T::Wide::add(*sum, x[k * columns + p].widen());
            }
        }
    }
    steps
}

compiled_numbers! {
    /// Sums of overlapping blocks of a type.
    trait FoldKernels {
        fn col2im(exec: &Exec, x: &[Self], fold: &Fold<'_>, y: &mut [Self]) = col2im_any;
    }
}

/// Sums the columns of `x`, `[planes, block, positions]`, into images `[planes, image]`. `f16` and `bf16` accumulate in
/// `f32`.
pub fn col2im<T: Number>(exec: &Exec, x: &[T], fold: &Fold<'_>, y: &mut [T]) -> Result {
    T::col2im(exec, x, fold, y)
}
