//! Products, sums, norms and extremes: what combines many elements into one.
//!
//! A product is the chain of multiply-adds over ascending positions. Other sums have sixteen lanes, which take elements in
//! turn and are then added in pairs that lie eight, four, two and one apart.

use convoke_graph::Tensor;

use super::element::{larger, the_nan};
use super::elementary::{exp, ln};
use super::slices::{of, tensor};

const LANES: usize = 16;

/// Combines elements in lanes, which begin with `none`: `take` adds an element to a lane, and `join` two lanes.
fn in_lanes(
    x: &[f32],
    none: f32,
    take: impl Fn(f32, f32) -> f32,
    join: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut lanes = [none; LANES];
    for (i, x) in x.iter().enumerate() {
        lanes[i % LANES] = take(lanes[i % LANES], *x);
    }
    for apart in [8, 4, 2, 1] {
        for lane in 0..apart {
            lanes[lane] = join(lanes[lane], lanes[lane + apart]);
        }
    }
    lanes[0]
}

fn sum(x: &[f32]) -> f32 {
    in_lanes(x, 0., |a, x| a + x, |a, b| a + b)
}

/// The rows of a tensor: its elements along the last axis.
fn rows(x: &Tensor) -> impl Iterator<Item = &[f32]> {
    let length = x.shape().last().copied().unwrap_or(1);
    of::<f32>(x).chunks(length.max(1))
}

/// The product of two matrices.
pub(super) fn product(a: &Tensor, b: &Tensor) -> Tensor {
    let (&[m, k], &[l, n]) = (a.shape(), b.shape()) else {
        panic!("the oracle multiplies matrices only");
    };
    assert_eq!(k, l, "inner sizes of a product");
    let (a, b) = (of::<f32>(a), of::<f32>(b));
    let element = |row: usize, column: usize| {
        let chain = |sum: f32, i: usize| a[row * k + i].mul_add(b[i * n + column], sum);
        the_nan((0..k).fold(0., chain))
    };
    let all: Vec<f32> = (0..m)
        .flat_map(|row| (0..n).map(move |column| (row, column)))
        .map(|(row, column)| element(row, column))
        .collect();
    tensor(&[m, n], &all)
}

/// A reduction over the last axis, or over all axes where none are given.
pub(super) fn reduce(op: &str, x: &Tensor, axes: Option<&[i64]>, keeps: bool) -> Tensor {
    let rank = x.shape().len();
    let fold = |x: &[f32]| {
        the_nan(match op {
            "ReduceSum" => sum(x),
            "ReduceMean" => sum(x) / x.len() as f32,
            "ReduceMax" => in_lanes(x, f32::NEG_INFINITY, larger, larger),
            _ => panic!("the oracle does not know the reduction {op}"),
        })
    };
    let (mut shape, all): (Vec<usize>, Vec<f32>) = match axes {
        None => (vec![1; rank], vec![fold(of(x))]),
        Some([axis]) => {
            assert_eq!(*axis + 1, rank as i64, "the axis of {op}");
            let mut shape = x.shape().to_vec();
            shape[rank - 1] = 1;
            (shape, rows(x).map(fold).collect())
        }
        Some(axes) => panic!("the oracle does not reduce the axes {axes:?}"),
    };
    if !keeps {
        let kept = match axes {
            None => 0,
            Some(_) => rank - 1,
        };
        shape.truncate(kept);
    }
    tensor(&shape, &all)
}

/// Powers of e of each row's distances from its largest element, divided by their sum; or the logarithms of these.
pub(super) fn softmax(x: &Tensor, log: bool) -> Tensor {
    let mut all = Vec::new();
    for row in rows(x) {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, larger);
        let away: Vec<f32> = row.iter().map(|x| x - most).collect();
        let powers: Vec<f32> = away.iter().map(|x| exp(*x)).collect();
        let total = sum(&powers);
        let (ln, scale) = (ln(total), 1. / total);
        match log {
            true => all.extend(away.iter().map(|x| the_nan(x - ln))),
            false => all.extend(powers.iter().map(|x| the_nan(x * scale))),
        }
    }
    tensor(x.shape(), &all)
}

/// What is added to a variance.
const EPSILON: f32 = 1e-5;

/// Each row with mean 0 and variance 1, times `scale`, plus `bias`.
pub(super) fn layer_norm(x: &Tensor, scale: &[f32], bias: &[f32]) -> Tensor {
    let mut all = Vec::new();
    for row in rows(x) {
        assert!(row.len() == scale.len() && row.len() == bias.len());
        let n = row.len() as f32;
        let mean = sum(row) / n;
        let square = |sum: f32, x: f32| (x - mean).mul_add(x - mean, sum);
        let squares = in_lanes(row, 0., square, |a, b| a + b);
        let inverse = 1. / (squares / n + EPSILON).sqrt();
        let of = |(x, (scale, bias)): (&f32, (&f32, &f32))| {
            the_nan(((x - mean) * inverse).mul_add(*scale, *bias))
        };
        all.extend(row.iter().zip(scale.iter().zip(bias)).map(of));
    }
    tensor(x.shape(), &all)
}

/// The `k` largest elements of each row, and where they are: NaN counts as the largest, and of equal ones the first comes
/// first.
pub(super) fn top_k(x: &Tensor, k: i64) -> Vec<Tensor> {
    let k = usize::try_from(k).unwrap_or_else(|_| panic!("the top {k}"));
    let (mut values, mut places) = (Vec::new(), Vec::new());
    for row in rows(x) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        let rank = |i: &usize| (row[*i].is_nan(), row[*i]);
        order.sort_by(|i, j| {
            let ((nan, a), (other_nan, b)) = (rank(i), rank(j));
            let by_value = b.partial_cmp(&a).unwrap_or(std::cmp::Ordering::Equal);
            other_nan.cmp(&nan).then(by_value)
        });
        values.extend(order[..k].iter().map(|i| row[*i]));
        places.extend(order[..k].iter().map(|i| *i as i64));
    }
    let mut shape = x.shape().to_vec();
    shape.pop();
    shape.push(k);
    vec![tensor(&shape, &values), tensor(&shape, &places)]
}

/// Where the largest element of each row is: the first NaN, or the first of the largest.
pub(super) fn arg_max(x: &Tensor) -> Tensor {
    let first = |row: &[f32]| {
        let nan = row.iter().position(|x| x.is_nan());
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let at = nan.or_else(|| row.iter().position(|x| *x == most));
        at.unwrap_or_default() as i64
    };
    let all: Vec<i64> = rows(x).map(first).collect();
    let mut shape = x.shape().to_vec();
    shape.pop();
    shape.push(1);
    tensor(&shape, &all)
}

/// The sums of each row's elements up to each of them.
pub(super) fn running_sum(x: &Tensor, axis: i64) -> Tensor {
    assert_eq!(axis + 1, x.shape().len() as i64, "the axis of CumSum");
    let mut all = Vec::new();
    for row in rows(x) {
        let mut total = 0.;
        all.extend(row.iter().map(|x| {
            total += x;
            the_nan(total)
        }));
    }
    tensor(x.shape(), &all)
}
