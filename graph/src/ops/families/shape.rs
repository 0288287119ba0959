//! Ops on shapes: they read a tensor's shape, change it without moving elements, or make a tensor of a given shape.

use crate::Dim;
use crate::ops::attrs::{bad, fill_value, flag, normalize_axes, split_axis};
use crate::ops::cost::{free, per_element};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::host;
use crate::ops::kind::{Op, ShapeOp};
use crate::ops::shapes::*;

/// The rule of an output of `shape`, with the dtype and the elements of operand 0.
fn relabelled(i: &Infer<'_>, shape: Vec<Dim>) -> Rule {
    let value = i
        .opt(0)
        .and_then(|o| o.value)
        .and_then(|v| v.reshaped(&shape));
    Ok(vec![InferredOutput {
        value,
        ..InferredOutput::of(i.dtype(0)?, shape)
    }])
}

fn shape(i: &Infer<'_>) -> Rule {
    let dims = i.shape(0)?;
    let rank = dims.len() as i64;
    let at = |name: &str, default: i64| {
        let v = i.attrs.int(name, default);
        (if v < 0 { v.saturating_add(rank) } else { v }).clamp(0, rank) as usize
    };
    let (start, end) = (at("start", 0), at("end", rank));
    let elements = dims.get(start..end).unwrap_or(&[]).to_vec();
    let ty = InferredOutput::of(I64, vec![elements.len().into()]);
    Ok(vec![InferredOutput {
        value: Some(HostValue::vector(elements)),
        ..ty
    }])
}

fn size(i: &Infer<'_>) -> Rule {
    let value = product(i.shape(0)?).map(HostValue::scalar);
    Ok(vec![InferredOutput {
        value,
        ..InferredOutput::of(I64, vec![])
    }])
}

/// The dimensions that `Reshape` gives a tensor of shape `from`; `fresh` makes a symbol for one that is too long an
/// expression.
fn reshape_to(
    from: &[Dim],
    to: &[Dim],
    allow_zero: bool,
    fresh: impl Fn(usize) -> Dim,
) -> Result<Vec<Dim>, OpError> {
    let mut out = Vec::with_capacity(to.len());
    let mut open = None;
    for (k, d) in to.iter().enumerate() {
        match d {
            Dim::Const(0) if !allow_zero => match from.get(k) {
                Some(d) => out.push(d.clone()),
                None => {
                    return Err(OpError::shape(format!(
                        "cannot copy dimension {k} of {from:?}"
                    )));
                }
            },
            Dim::Const(-1) if open.is_some() => {
                return Err(OpError::shape(format!(
                    "{to:?} leaves more than one dimension open"
                )));
            }
            Dim::Const(-1) => {
                open = Some(k);
                out.push(Dim::Const(1));
            }
            d => out.push(d.clone()),
        }
    }
    // Equal dimensions on both sides cancel, which leaves less to divide.
    let mut left: Vec<Dim> = from.to_vec();
    let mut right: Vec<Dim> = Vec::new();
    for d in &out {
        match left.iter().position(|l| l == d && !l.is(0)) {
            Some(at) => drop(left.swap_remove(at)),
            None => right.push(d.clone()),
        }
    }
    let (Some(total), Some(rest)) = (product(&left), product(&right)) else {
        if let Some(at) = open {
            out[at] = fresh(at);
        }
        return Ok(out);
    };
    let mismatch = || {
        Err(OpError::shape(format!(
            "{from:?} cannot be reshaped to {to:?}"
        )))
    };
    match (open, total.as_const(), rest.as_const()) {
        (Some(_), Some(_), Some(0)) => return mismatch(),
        (Some(_), Some(t), Some(r)) if t % r != 0 => return mismatch(),
        (Some(at), _, _) => out[at] = total.floor_div(&rest),
        (None, _, _) if !can_equal(&total, &rest) => return mismatch(),
        (None, _, _) => {}
    }
    Ok(out)
}

fn reshape(i: &Infer<'_>) -> Rule {
    let from = i.shape(0)?;
    let rank = i.vector_len(1, "shape")?;
    check_rank(rank)?;
    match i.dims(1) {
        Some(to) => {
            let allow_zero = flag(i.attrs, "allowzero", false);
            relabelled(i, reshape_to(from, to, allow_zero, |k| i.fresh(0, k))?)
        }
        None => one(i.dtype(0)?, i.unknown(Some(rank))?),
    }
}

fn flatten(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    let axis = split_axis(i.attrs, 1, x.len())?;
    let sides = [&x[..axis], &x[axis..]].into_iter().enumerate();
    let sides = sides.map(|(k, dims)| product(dims).unwrap_or_else(|| i.fresh(0, k)));
    relabelled(i, sides.collect())
}

fn squeeze(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    let out = if i.opt(1).is_some() {
        let n = i.vector_len(1, "axes")?;
        let Some(axes) = i.ints(1) else {
            return one(i.dtype(0)?, i.unknown(x.len().checked_sub(n))?);
        };
        let axes = normalize_axes(&axes, x.len())?;
        if let Some(a) = axes.iter().find(|a| known_other(&x[**a], 1)) {
            return Err(OpError::shape(format!(
                "axis {a} of {x:?} is not of length 1"
            )));
        }
        let kept = x.iter().enumerate().filter(|(k, _)| !axes.contains(k));
        kept.map(|(_, d)| d.clone()).collect()
    } else {
        let kept = i.attrs.ints("kept").unwrap_or_default();
        let kept = normalize_axes(kept, x.len())?;
        if let Some(a) = kept.iter().find(|a| x[**a].is(1)) {
            return Err(OpError::shape(format!(
                "axis {a} of {x:?} has the length 1, and would go, while the rank of the result was decided for longer ones: \
                 where the size is that of an input, load the model with inputs of this size"
            )));
        }
        // An axis that has one element or none, such as the last of a sequence, has to have one.
        x.iter().filter(|d| !d.is_one_or_none()).cloned().collect()
    };
    relabelled(i, out)
}

fn unsqueeze(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    let rank = x.len().saturating_add(i.vector_len(1, "axes")?);
    check_rank(rank)?;
    let Some(axes) = i.ints(1) else {
        return one(i.dtype(0)?, i.unknown(Some(rank))?);
    };
    let axes = normalize_axes(&axes, rank)?;
    let mut rest = x.iter();
    let out = (0..rank).map(|k| {
        if axes.contains(&k) {
            Some(Dim::Const(1))
        } else {
            rest.next().cloned()
        }
    });
    relabelled(i, out.collect::<Option<_>>().unwrap_or_default())
}

fn constant_of_shape(i: &Infer<'_>) -> Rule {
    let (dtype, bytes) = fill_value(i.attrs)?;
    let rank = i.vector_len(0, "input")?;
    check_rank(rank)?;
    let Some(dims) = i.dims(0) else {
        return one(dtype, i.unknown(Some(rank))?);
    };
    let mut out = InferredOutput::of(dtype, dims.to_vec());
    let element = crate::Tensor::from_bytes(dtype, &[], &bytes)
        .ok()
        .and_then(|t| host::from_tensor(&t, 1));
    if let (Some(v), Some(shape)) = (element, host::fixed(dims)) {
        out.value = v.reindex(&shape, |_| Some(0));
    }
    Ok(vec![out])
}

/// The number of elements of a `Range` of floats; `None` where its operands are not at hand.
fn float_count(i: &Infer<'_>) -> Result<Option<i64>, OpError> {
    let read = |k: usize| {
        let t = i.tensor(k)?;
        match t.dtype() {
            F32 => t.as_slice::<f32>().ok()?.first().map(|v| f64::from(*v)),
            F64 => t.as_slice::<f64>().ok()?.first().copied(),
            F16 => t.as_slice::<half::f16>().ok()?.first().map(|v| v.to_f64()),
            BF16 => t.as_slice::<half::bf16>().ok()?.first().map(|v| v.to_f64()),
            _ => None,
        }
    };
    let (Some(start), Some(limit), Some(delta)) = (read(0), read(1), read(2)) else {
        return Ok(None);
    };
    let span = match i.dtype(0)? {
        F32 => f64::from(limit as f32 - start as f32),
        _ => limit - start,
    };
    let count = (span / delta).ceil().max(0.);
    match delta != 0. && count.is_finite() && count < i64::MAX as f64 {
        true => Ok(Some(count as i64)),
        false => Err(OpError::shape(format!(
            "no range from {start} to {limit} by {delta}"
        ))),
    }
}

fn range(i: &Infer<'_>) -> Rule {
    for (k, name) in [(0, "start"), (1, "limit"), (2, "delta")] {
        i.check_scalar(k, name)?;
    }
    let dtype = i.dtype(0)?;
    if dtype.is_float() {
        let count = float_count(i)?.map_or_else(|| i.fresh(0, 0), Dim::Const);
        return one(dtype, vec![count]);
    }
    let (Some(start), Some(limit), Some(delta)) = (i.scalar(0), i.scalar(1), i.scalar(2)) else {
        return one(dtype, vec![i.fresh(0, 0)]);
    };
    if delta.is(0) {
        return Err(OpError::shape("'delta' is zero"));
    }
    let count = match (start.as_const(), limit.as_const(), delta.as_const()) {
        (Some(s), Some(l), Some(d)) => {
            let (span, d) = (i128::from(l) - i128::from(s), i128::from(d));
            let count = if (span > 0) != (d > 0) {
                0
            } else {
                span.abs().saturating_sub(1) / d.abs() + 1
            };
            let count = if span == 0 { 0 } else { count };
            Dim::Const(i64::try_from(count).unwrap_or(i64::MAX))
        }
        (_, _, Some(d)) if d > 0 => not_negative(limit - start).ceil_div(delta),
        (_, _, Some(d)) if d > i64::MIN => not_negative(start - limit).ceil_div(&Dim::Const(-d)),
        _ => i.fresh(0, 0),
    };
    let mut out = InferredOutput::of(dtype, vec![count.clone()]);
    if let Some(n) = count.as_const().filter(|n| *n <= host::LIMIT as i64) {
        let at = |k: i64| host::add(start, &host::mul(&Dim::Const(k), delta, dtype)?, dtype);
        out.value = (0..n).map(at).collect::<Option<_>>().map(HostValue::vector);
    }
    Ok(vec![out])
}

fn eye_like(i: &Infer<'_>) -> Rule {
    let shape = i.ranked(0, "input", 2)?.to_vec();
    match i.attrs.dtype("dtype").unwrap_or(i.dtype(0)?) {
        narrow if narrow.is_narrow() || narrow == Str => {
            Err(bad("dtype", format!("cannot be {narrow}")))
        }
        dtype => one(dtype, shape),
    }
}

fn constant(i: &Infer<'_>) -> Rule {
    let t = i
        .attrs
        .tensor("value")
        .ok_or_else(|| bad("value", "is required"))?;
    let dims = t.shape().iter().map(|d| Dim::from(*d)).collect();
    let value = host::from_tensor(t, host::LIMIT);
    Ok(vec![InferredOutput {
        value,
        ..InferredOutput::of(t.dtype(), dims)
    }])
}

const DATA: OperandDef = operand("data", STORED);

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Shape(ShapeOp::Constant),
        "The tensor of attribute `value`.",
        &[],
        constant,
    )
    .attrs(&[required("value", AttrKind::Tensor)]),
    OpDef::of(
        Op::Shape(ShapeOp::Shape),
        "Dimensions `start..end` of the operand, as i64.",
        &[DATA],
        shape,
    )
    .attrs(&[attr("start", AttrKind::Int), attr("end", AttrKind::Int)])
    .cost(free),
    OpDef::of(
        Op::Shape(ShapeOp::Size),
        "Number of elements of the operand, an i64 scalar.",
        &[DATA],
        size,
    )
    .cost(free),
    OpDef::of(
        Op::Shape(ShapeOp::Reshape),
        "The operand under the given shape; 0 copies a dimension, -1 follows from the rest.",
        &[DATA, operand("shape", LONG).host()],
        reshape,
    )
    .attrs(&[attr("allowzero", AttrKind::Int)])
    .cost(free)
    .in_place(),
    OpDef::of(
        Op::Shape(ShapeOp::Flatten),
        "The operand as a matrix, split before `axis`.",
        &[DATA],
        flatten,
    )
    .attrs(&[attr("axis", AttrKind::Int)])
    .cost(free)
    .in_place(),
    OpDef::of(
        Op::Shape(ShapeOp::Squeeze),
        "The operand without the given axes of length 1, or without all such axes.",
        &[DATA, operand("axes", LONG).host().optional()],
        squeeze,
    )
    // The axes that must be longer than 1, since the rank of the result was decided for that.
    .attrs(&[attr("kept", AttrKind::Ints)])
    .cost(free)
    .in_place(),
    OpDef::of(
        Op::Shape(ShapeOp::Unsqueeze),
        "The operand with axes of length 1 inserted.",
        &[DATA, operand("axes", LONG).host()],
        unsqueeze,
    )
    .cost(free)
    .in_place(),
    OpDef::of(
        Op::Shape(ShapeOp::ConstantOfShape),
        "A tensor of the given shape that repeats attribute `value`, f32 zero by default.",
        &[operand("input", LONG).host()],
        constant_of_shape,
    )
    .attrs(&[attr("value", AttrKind::Tensor)]),
    OpDef::of(
        Op::Shape(ShapeOp::Range),
        "start, start + delta, .. before limit.",
        &[
            operand("start", NUMBERS).class(1).host(),
            operand("limit", NUMBERS).class(1).host(),
            operand("delta", NUMBERS).class(1).host(),
        ],
        range,
    )
    .cost(per_element::<1>),
    OpDef::of(
        Op::Shape(ShapeOp::EyeLike),
        "A matrix of the operand's shape with ones on diagonal `k`.",
        &[operand("data", ANY)],
        eye_like,
    )
    .attrs(&[attr("dtype", AttrKind::DType), attr("k", AttrKind::Int)])
    .cost(per_element::<0>),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(from: &[Dim], to: &[Dim], want: &[Dim]) {
        assert_eq!(
            reshape_to(from, to, false, |_| Dim::sym("new")).unwrap(),
            want,
            "{from:?} to {to:?}"
        );
    }

    #[test]
    fn reshape_solves_symbolically() {
        let (b, s, c) = (Dim::sym("b"), Dim::sym("s"), |n: i64| Dim::Const(n));
        let s1 = &s + &c(1);
        check(
            &[b.clone(), s.clone(), c(768)],
            &[c(0), c(0), c(12), c(-1)],
            &[b.clone(), s.clone(), c(12), c(64)],
        );
        check(
            &[b.clone(), s.clone(), c(12), c(64)],
            &[c(-1), c(768)],
            &[&b * &s, c(768)],
        );
        check(
            &[&b * &s, c(768)],
            &[b.clone(), c(-1), c(768)],
            &[b.clone(), s.clone(), c(768)],
        );
        check(
            &[b.clone(), s1.clone(), c(8)],
            &[b.clone(), s1.clone(), c(2), c(-1)],
            &[b.clone(), s1, c(2), c(4)],
        );
        check(&[c(2), c(6)], &[c(3), c(-1)], &[c(3), c(4)]);
        check(&[], &[c(-1)], &[c(1)]);
        check(&[c(0), c(3)], &[c(0), c(3)], &[c(0), c(3)]);
        for (from, to) in [
            (&[c(2), c(3)][..], &[c(4), c(-1)][..]),
            (&[c(2), c(3)], &[c(-1), c(-1)]),
            (&[c(2)], &[c(2), c(0)]),
            (&[c(2)], &[c(3)]),
            (&[c(0), c(3)], &[c(0), c(-1)]),
        ] {
            assert!(
                reshape_to(from, to, false, |_| Dim::sym("new")).is_err(),
                "{from:?} to {to:?}"
            );
        }
        // A product of too many terms is a symbol.
        let sums: Vec<Dim> = (0..16)
            .map(|k| &Dim::sym(&format!("a{k}")) + &Dim::sym(&format!("b{k}")))
            .collect();
        check(&sums, &[c(-1)], &[Dim::sym("new")]);
        check(&sums, &[c(5)], &[c(5)]);
        assert!(reshape_to(&[c(0), c(3)], &[c(3), c(0)], true, |_| Dim::sym("new")).is_ok());
    }
}
