//! Functions of single elements, and of pairs that broadcast.

use convoke_graph::{DType, Element, Tensor};

use super::slices::{of, tensor};

/// `x`, or the one NaN that sums, products and reductions give.
pub(super) fn the_nan(x: f32) -> f32 {
    if x.is_nan() { f32::NAN } else { x }
}

/// The larger of both; the first NaN if there is one.
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || a > b { a } else { b }
}

/// The smaller of both; the first NaN if there is one.
pub(super) fn smaller(a: f32, b: f32) -> f32 {
    if a.is_nan() || a < b { a } else { b }
}

/// -1 or 1; zeros and NaN stay as they are.
pub(super) fn sign(x: f32) -> f32 {
    if x > 0. {
        1.
    } else if x < 0. {
        -1.
    } else {
        x
    }
}

/// Applies a function to each element.
pub(super) fn each(x: &Tensor, f: impl Fn(f32) -> f32) -> Tensor {
    let y: Vec<f32> = of::<f32>(x).iter().map(|x| f(*x)).collect();
    tensor(x.shape(), &y)
}

/// The shape that two shapes broadcast to.
fn common(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let at = |shape: &[usize], i: usize| {
        let missing = rank - shape.len();
        if i < missing { 1 } else { shape[i - missing] }
    };
    let dim = |i| match (at(a, i), at(b, i)) {
        (1, n) | (n, 1) => n,
        (n, m) if n == m => n,
        (n, m) => panic!("{n} and {m} do not broadcast"),
    };
    (0..rank).map(dim).collect()
}

/// For each element of a result of shape `to`, in order, which element of an operand it is computed from.
fn sources(from: &[usize], to: &[usize]) -> Vec<usize> {
    let missing = to.len() - from.len();
    let mut all = vec![0];
    for (i, n) in to.iter().enumerate() {
        let own = if i < missing { 1 } else { from[i - missing] };
        let step = |at: usize| (0..*n).map(move |k| if own == 1 { at } else { at * own + k });
        all = all.into_iter().flat_map(step).collect();
    }
    all
}

/// Applies a function to pairs of elements.
pub(super) fn broadcast<T: Element, R: Element>(
    a: &Tensor,
    b: &Tensor,
    f: impl Fn(T, T) -> R,
) -> Tensor {
    let (x, y) = (of::<T>(a), of::<T>(b));
    if a.shape() == b.shape() {
        let all: Vec<R> = x.iter().zip(y).map(|(x, y)| f(*x, *y)).collect();
        return tensor(a.shape(), &all);
    }
    let shape = common(a.shape(), b.shape());
    let pairs = sources(a.shape(), &shape)
        .into_iter()
        .zip(sources(b.shape(), &shape));
    let all: Vec<R> = pairs.map(|(i, j)| f(x[i], y[j])).collect();
    tensor(&shape, &all)
}

/// Whether elements are greater than those of another tensor.
pub(super) fn greater(a: &Tensor, b: &Tensor) -> Tensor {
    let (x, y) = (of::<f32>(a), of::<f32>(b));
    let shape = common(a.shape(), b.shape());
    let pairs = sources(a.shape(), &shape)
        .into_iter()
        .zip(sources(b.shape(), &shape));
    let all: Vec<bool> = pairs.map(|(i, j)| x[i] > y[j]).collect();
    Tensor::from_bools(&shape, &all).unwrap_or_else(|e| panic!("{shape:?}: {e}"))
}

/// Elements of one tensor where a condition holds, and of another elsewhere.
pub(super) fn choose(condition: &Tensor, yes: &Tensor, no: &Tensor) -> Tensor {
    assert_eq!(condition.dtype(), DType::Bool, "a condition");
    let shape = common(condition.shape(), &common(yes.shape(), no.shape()));
    let [holds, of_yes, of_no] = [condition, yes, no].map(|t| sources(t.shape(), &shape));
    let (yes, no) = (of::<f32>(yes), of::<f32>(no));
    let chosen = |i: usize| match condition.bytes()[holds[i]] {
        0 => no[of_no[i]],
        _ => yes[of_yes[i]],
    };
    let all: Vec<f32> = (0..holds.len()).map(chosen).collect();
    tensor(&shape, &all)
}

/// Converts elements: floats are truncated and saturate, and integers are rounded to the nearest float.
pub(super) fn cast(x: &Tensor, to: Option<DType>) -> Tensor {
    match (x.dtype(), to) {
        (DType::F32, Some(DType::I32)) => {
            let y: Vec<i32> = of::<f32>(x).iter().map(|x| *x as i32).collect();
            tensor(x.shape(), &y)
        }
        (DType::I32, Some(DType::F32)) => {
            let y: Vec<f32> = of::<i32>(x).iter().map(|x| *x as f32).collect();
            tensor(x.shape(), &y)
        }
        (DType::I64, Some(DType::F32)) => {
            let y: Vec<f32> = of::<i64>(x).iter().map(|x| *x as f32).collect();
            tensor(x.shape(), &y)
        }
        (from, to) => panic!("the oracle does not cast {from} to {to:?}"),
    }
}
