//! Reading and writing at indices.

use crate::ops::attrs::{Reduction, axis, bad, circular, normalize_axis};
use crate::ops::cost::{output_traffic, per_element, per_input_element};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::host;
use crate::ops::kind::{IndexOp, Op};
use crate::ops::shapes::*;
use crate::{DType, Dim, Tensor};

/// `index` counted from the front of an axis of length `dim`; `None` where it lies outside.
fn wrapped(index: i64, dim: usize) -> Option<usize> {
    normalize_axis(index, dim).ok()
}

fn gather(i: &Infer<'_>) -> Rule {
    let (x, indices) = (i.shape(0)?, i.shape(1)?);
    let axis = axis(i.attrs, 0, x.len())?;
    let mut shape = x[..axis].to_vec();
    shape.extend_from_slice(indices);
    shape.extend_from_slice(&x[axis + 1..]);
    let mut out = InferredOutput::of(i.dtype(0)?, shape);
    out.value = gathered(i, axis, indices.len(), &out.ty.shape);
    Ok(vec![out])
}

/// The elements that `Gather` takes, where both they and the indices are known.
fn gathered(i: &Infer<'_>, axis: usize, rank: usize, shape: &[Dim]) -> Option<HostValue> {
    let v = i.opt(0)?.value?;
    let (indices, index_shape) = (i.ints(1)?, &i.opt(1)?.value?.shape);
    v.reindex(&host::fixed(shape)?, |at| {
        let which = at.get(axis..axis + rank)?;
        let which = which
            .iter()
            .zip(index_shape)
            .fold(0, |flat, (p, d)| flat * d + p);
        let taken = wrapped(*indices.get(which)?, *v.shape.get(axis)?)?;
        let source = at[..axis]
            .iter()
            .chain(std::iter::once(&taken))
            .chain(&at[axis + rank..]);
        Some(source.zip(&v.shape).fold(0, |flat, (p, d)| flat * d + p))
    })
}

/// Checks that two operands have the same rank, and returns it.
fn same_rank(a: &[Dim], b: &[Dim]) -> Result<usize, OpError> {
    match a.len() == b.len() && !a.is_empty() {
        true => Ok(a.len()),
        false => Err(OpError::shape(format!(
            "{a:?} and {b:?} must have the same rank of at least 1"
        ))),
    }
}

fn gather_elements(i: &Infer<'_>) -> Rule {
    let (x, indices) = (i.shape(0)?, i.shape(1)?);
    axis(i.attrs, 0, same_rank(x, indices)?)?;
    one(i.dtype(0)?, indices.to_vec())
}

/// Length of the index vectors of an `..ND` op.
fn vectors(indices: &[Dim]) -> Result<usize, OpError> {
    let n = indices
        .last()
        .ok_or_else(|| OpError::shape("'indices' must have rank 1 or more"))?;
    n.as_const()
        .and_then(|n| usize::try_from(n).ok())
        .ok_or(OpError::ValueNeeded { operand: "indices" })
}

fn gather_nd(i: &Infer<'_>) -> Rule {
    let (x, indices) = (i.shape(0)?, i.shape(1)?);
    let n = vectors(indices)?;
    let batch = i.attrs.int("batch_dims", 0);
    let batch = usize::try_from(batch)
        .ok()
        .filter(|b| *b < x.len().min(indices.len()));
    let batch = batch.ok_or_else(|| bad("batch_dims", "is out of range"))?;
    if n == 0 || n > x.len() - batch {
        return Err(OpError::shape(format!(
            "indices of {n} coordinates do not fit {x:?}"
        )));
    }
    for (a, b) in x[..batch].iter().zip(indices) {
        unify(a, b, "batch dimensions")?;
    }
    let mut shape = indices[..indices.len() - 1].to_vec();
    shape.extend_from_slice(&x[batch + n..]);
    one(i.dtype(0)?, shape)
}

fn scatter_elements(i: &Infer<'_>) -> Rule {
    let (x, indices, updates) = (i.shape(0)?, i.shape(1)?, i.shape(2)?);
    Reduction::new(i.attrs)?;
    axis(i.attrs, 0, same_rank(x, indices)?)?;
    same_rank(indices, updates)?;
    for (a, b) in indices.iter().zip(updates) {
        unify(a, b, "indices and updates")?;
    }
    one(i.dtype(0)?, x.to_vec())
}

fn scatter_nd(i: &Infer<'_>) -> Rule {
    let (x, indices, updates) = (i.shape(0)?, i.shape(1)?, i.shape(2)?);
    Reduction::new(i.attrs)?;
    let n = match vectors(indices) {
        // The ranks decide how many coordinates there are.
        Err(OpError::ValueNeeded { .. }) => {
            let rank = x.len() + indices.len() - 1;
            let n = rank.checked_sub(updates.len());
            n.ok_or_else(|| OpError::shape(format!("{updates:?} has too many axes for {x:?}")))?
        }
        n => n?,
    };
    if n > x.len() {
        return Err(OpError::shape(format!(
            "indices of {n} coordinates do not fit {x:?}"
        )));
    }
    let want: Vec<&Dim> = indices[..indices.len() - 1].iter().chain(&x[n..]).collect();
    if want.len() != updates.len() || want.iter().zip(updates).any(|(a, b)| !can_equal(a, b)) {
        return Err(OpError::shape(format!(
            "updates must be {want:?}, not {updates:?}"
        )));
    }
    one(i.dtype(0)?, x.to_vec())
}

fn tensor_scatter(i: &Infer<'_>) -> Rule {
    let (cache, update) = (i.shape(0)?, i.shape(1)?);
    circular(i.attrs)?;
    let along = axis(i.attrs, -2, same_rank(cache, update)?)?;
    if along == 0 {
        return Err(bad("axis", "must not be the axis of the batch"));
    }
    for (k, (whole, part)) in cache.iter().zip(update).enumerate() {
        let longer = matches!((whole.as_const(), part.as_const()), (Some(w), Some(p)) if p > w);
        if k == along && longer {
            let reason = format!("an update of {part} steps does not fit a cache of {whole}");
            return Err(OpError::shape(reason));
        }
        if k != along {
            unify(whole, part, "cache and update")?;
        }
    }
    if i.opt(2).is_some() {
        let indices = &i.ranked(2, "write_indices", 1)?[0];
        unify(indices, &cache[0], "write indices and batch")?;
    }
    one(i.dtype(0)?, cache.to_vec())
}

fn one_hot(i: &Infer<'_>) -> Rule {
    let indices = i.shape(0)?;
    i.check_scalar(1, "depth")?;
    if !can_equal(&i.ranked(2, "values", 1)?[0], &Dim::Const(2)) {
        return Err(OpError::shape("'values' must be the two values [off, on]"));
    }
    let axis = axis(i.attrs, -1, indices.len() + 1)?;
    let depth = match i.tensor(1).and_then(float_scalar) {
        Some(d) => Some(Dim::Const(d)),
        None => i.scalar(1).cloned(),
    };
    let mut shape = indices.to_vec();
    shape.insert(axis, depth.unwrap_or_else(|| i.fresh(0, axis)));
    one(i.dtype(2)?, shape)
}

/// The first element of a floating-point tensor, without its fraction.
fn float_scalar(t: &Tensor) -> Option<i64> {
    let v = match t.dtype() {
        F32 => f64::from(*t.as_slice::<f32>().ok()?.first()?),
        F64 => *t.as_slice::<f64>().ok()?.first()?,
        F16 => t.as_slice::<half::f16>().ok()?.first()?.to_f64(),
        BF16 => t.as_slice::<half::bf16>().ok()?.first()?.to_f64(),
        _ => return None,
    };
    Some(v as i64)
}

/// How many of the first `limit` elements are not zero.
fn count_nonzero(t: &Tensor, limit: usize) -> usize {
    let (size, float) = (t.dtype().width(), t.dtype().is_float());
    let nonzero = |e: &&[u8]| match e.split_last() {
        // The sign of a zero does not count; little-endian, it is the highest bit of the last byte.
        Some((last, rest)) => {
            let last = if float { last & 0x7f } else { *last };
            last != 0 || rest.iter().any(|b| *b != 0)
        }
        None => false,
    };
    t.bytes()
        .chunks_exact(size)
        .take(limit)
        .filter(nonzero)
        .count()
}

fn non_zero(i: &Infer<'_>) -> Rule {
    let count = i.tensor(0).map(|t| Dim::from(count_nonzero(t, usize::MAX)));
    let count = count.unwrap_or_else(|| i.fresh(0, 1));
    one(I64, vec![i.shape(0)?.len().into(), count])
}

fn compress(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    i.ranked(1, "condition", 1)?;
    let along = match i.attrs.get("axis") {
        None => None,
        Some(_) => Some(axis(i.attrs, 0, x.len())?),
    };
    let dim = along.map_or_else(|| product(x), |a| Some(x[a].clone()));
    let at = along.unwrap_or(0);
    // A condition longer than the axis selects nothing beyond it.
    let count = i.tensor(1).map(|t| {
        let limit = dim
            .as_ref()
            .and_then(Dim::as_const)
            .and_then(|d| usize::try_from(d).ok())
            .unwrap_or(usize::MAX);
        Dim::from(count_nonzero(t, limit))
    });
    let count = count.unwrap_or_else(|| i.fresh(0, at));
    let shape = match along {
        None => vec![count],
        Some(a) => x
            .iter()
            .enumerate()
            .map(|(k, d)| if k == a { &count } else { d }.clone())
            .collect(),
    };
    one(i.dtype(0)?, shape)
}

fn unique(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    let along = match i.attrs.get("axis") {
        None => None,
        Some(_) => Some(axis(i.attrs, 0, x.len())?),
    };
    let count = i.fresh(0, along.unwrap_or(0));
    let mut shape = match along {
        None => vec![count.clone()],
        Some(_) => x.to_vec(),
    };
    if let Some(a) = along {
        shape[a] = count.clone();
    }
    let all = along.map_or_else(|| product(x), |a| Some(x[a].clone()));
    let all = all.unwrap_or_else(|| i.fresh(2, 0));
    let longs = |d: Dim| InferredOutput::of(I64, vec![d]);
    Ok(vec![
        InferredOutput::of(i.dtype(0)?, shape),
        longs(count.clone()),
        longs(all),
        longs(count),
    ])
}

const DATA: OperandDef = operand("data", MOVED);
const INDICES: OperandDef = operand("indices", INDEX);
const INDICES_ND: OperandDef = operand("indices", LONG);
const AXIS: AttrDef = attr("axis", AttrKind::Int);
const REDUCTION: AttrDef = attr("reduction", AttrKind::Str);
const COUNTS: &[DType] = NUMBERS;

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(Op::Index(IndexOp::Gather), "Slices of the data along `axis` at the indices.", &[DATA, INDICES], gather)
        .attrs(&[AXIS])
        .cost(output_traffic),
    OpDef::of(
        Op::Index(IndexOp::GatherElements),
        "For every index, the element at its place with the coordinate along `axis` replaced.",
        &[DATA, INDICES],
        gather_elements,
    )
    .attrs(&[AXIS])
    .cost(output_traffic),
    OpDef::of(
        Op::Index(IndexOp::GatherND),
        "Slices of the data at coordinates, the last axis of the indices.",
        &[DATA, INDICES_ND],
        gather_nd,
    )
    .attrs(&[attr("batch_dims", AttrKind::Int)])
    .cost(output_traffic),
    OpDef::of(
        Op::Index(IndexOp::ScatterElements),
        "The data with elements replaced or combined at indices along `axis`.",
        &[DATA.class(1), INDICES, operand("updates", MOVED).class(1)],
        scatter_elements,
    )
    .attrs(&[AXIS, REDUCTION])
    .in_place(),
    OpDef::of(
        Op::Index(IndexOp::ScatterND),
        "The data with slices replaced or combined at coordinates.",
        &[DATA.class(1), INDICES_ND, operand("updates", MOVED).class(1)],
        scatter_nd,
    )
    .attrs(&[REDUCTION])
    .in_place(),
    OpDef::of(
        Op::Index(IndexOp::TensorScatter),
        "The cache with the update written along `axis`, for each element of the batch from its index on.",
        &[
            operand("past_cache", STORED).class(1),
            operand("update", STORED).class(1),
            operand("write_indices", LONG).optional(),
        ],
        tensor_scatter,
    )
    .attrs(&[AXIS, attr("mode", AttrKind::Str)])
    .in_place(),
    OpDef::of(
        Op::Index(IndexOp::OneHot),
        "values[1] where the coordinate along a new axis of length `depth` is the index, else values[0].",
        &[operand("indices", COUNTS), operand("depth", COUNTS).host(), operand("values", MOVED)],
        one_hot,
    )
    .attrs(&[AXIS])
    .cost(per_element::<1>),
    OpDef::of(
        Op::Index(IndexOp::NonZero),
        "Coordinates of the elements other than zero: i64 [rank, count].",
        &[operand("X", ANY).host()],
        non_zero,
    ),
    OpDef::of(
        Op::Index(IndexOp::Compress),
        "The slices along `axis`, or the elements, where the condition holds.",
        &[operand("input", MOVED), operand("condition", BOOL).host()],
        compress,
    )
    .attrs(&[AXIS])
    .cost(output_traffic),
    OpDef::of(
        Op::Index(IndexOp::Unique),
        "The different elements, or slices along `axis`; the first index of each, the place of each element among them, and how often each occurs.",
        &[operand("X", MOVED)],
        unique,
    )
    .attrs(&[AXIS, attr("sorted", AttrKind::Int)])
    .outputs(1, 4)
    .sized_by_data()
    .cost(per_input_element::<100>),
];
