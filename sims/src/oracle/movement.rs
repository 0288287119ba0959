//! Ops that only move elements.

use convoke_graph::Tensor;

use super::slices::{of, tensor};

/// A number of elements that exceeds every worker's memory. Only a sprung trap asks for as many.
const ABSURD: usize = 1 << 30;

fn size(n: i64) -> usize {
    usize::try_from(n).unwrap_or_else(|_| panic!("a size of {n}"))
}

/// A matrix with rows and columns exchanged.
pub(super) fn transpose(x: &Tensor) -> Tensor {
    let &[rows, columns] = x.shape() else {
        panic!("the oracle transposes matrices only");
    };
    let from = of::<f32>(x);
    let column = |c: usize| (0..rows).map(move |r| from[r * columns + c]);
    let all: Vec<f32> = (0..columns).flat_map(column).collect();
    tensor(&[columns, rows], &all)
}

/// The elements before an axis, along it, and behind it.
fn around(shape: &[usize], axis: usize) -> [usize; 3] {
    let (before, rest) = shape.split_at(axis);
    [before.iter().product(), rest[0], rest[1..].iter().product()]
}

/// Tensors side by side along an axis.
pub(super) fn concat(parts: &[Tensor], axis: usize) -> Tensor {
    let mut shape = parts[0].shape().to_vec();
    shape[axis] = parts.iter().map(|p| p.shape()[axis]).sum();
    let [outer, ..] = around(&shape, axis);
    let mut all = Vec::new();
    for i in 0..outer {
        for part in parts {
            let [_, along, behind] = around(part.shape(), axis);
            let length = along * behind;
            all.extend_from_slice(&of::<f32>(part)[i * length..(i + 1) * length]);
        }
    }
    tensor(&shape, &all)
}

/// A tensor cut along an axis into parts of these sizes.
pub(super) fn split(x: &Tensor, sizes: &[i64], axis: usize) -> Vec<Tensor> {
    let [outer, along, behind] = around(x.shape(), axis);
    let mut first = 0;
    let part = |given: &i64| {
        let own = size(*given);
        let row = |i: usize| {
            let from = (i * along + first) * behind;
            &of::<f32>(x)[from..from + own * behind]
        };
        let all: Vec<f32> = (0..outer).flat_map(row).copied().collect();
        let mut shape = x.shape().to_vec();
        shape[axis] = own;
        first += own;
        tensor(&shape, &all)
    };
    let parts: Vec<Tensor> = sizes.iter().map(part).collect();
    assert_eq!(first, along, "the sizes of the parts");
    parts
}

/// The scalar that a tensor of one number is.
pub(super) fn squeeze(x: &Tensor) -> Tensor {
    assert_eq!(x.elements(), 1, "the oracle squeezes scalars only");
    tensor(&[], of::<i64>(x))
}

/// A matrix whose rows and columns are repeated as a whole.
pub(super) fn tile(x: &Tensor, times: &[i64]) -> Tensor {
    let (&[rows, columns], &[down, along]) = (x.shape(), times) else {
        panic!("the oracle tiles matrices only");
    };
    let (down, along) = (size(down), size(along));
    let mut once = Vec::with_capacity(rows * columns * along);
    for row in of::<f32>(x).chunks(columns.max(1)) {
        (0..along).for_each(|_| once.extend_from_slice(row));
    }
    tensor(&[rows * down, columns * along], &once.repeat(down))
}

/// Rows of a tensor; negative numbers count from the last. `None` where there is no such row.
pub(super) fn gather(x: &Tensor, at: &Tensor) -> Option<Tensor> {
    let (length, row) = x.shape().split_first()?;
    let elements: usize = row.iter().product();
    let mut all = Vec::new();
    for i in of::<i64>(at) {
        let from_first = if *i < 0 {
            i.checked_add(*length as i64)?
        } else {
            *i
        };
        let i = usize::try_from(from_first).ok().filter(|i| i < length)?;
        all.extend_from_slice(&of::<f32>(x)[i * elements..(i + 1) * elements]);
    }
    let shape: Vec<usize> = at.shape().iter().chain(row).copied().collect();
    Some(tensor(&shape, &all))
}

/// A tensor of zeros. `None` where it would be absurdly large.
pub(super) fn zeros(shape: &[i64]) -> Option<Tensor> {
    let shape: Vec<usize> = shape.iter().map(|n| size(*n)).collect();
    let elements: usize = shape.iter().product();
    (elements <= ABSURD).then(|| tensor(&shape, &vec![0f32; elements]))
}
