//! Cutting axes: `Slice`, `Split`, `Pad`, `Tile`, `Expand`, `Concat`.

use crate::Dim;
use crate::ops::attrs::{PadMode, axis, bad, normalize_axes, slice_range};
use crate::ops::cost::output_traffic;
use crate::ops::def::*;
use crate::ops::host;
use crate::ops::kind::{Op, family};
use crate::ops::shapes::*;

/// Length of the slice `start..end` by `step` of an axis of length `dim`, where all may be symbolic; `None` where it is
/// unknown.
///
/// A symbolic dimension is taken to be at least one, and a constant start to lie inside it.
fn slice_dim(dim: &Dim, start: &Dim, end: &Dim, step: &Dim) -> Option<Dim> {
    let step = step.as_const()?;
    if let (Some(d), Some(s), Some(e)) = (dim.as_const(), start.as_const(), end.as_const()) {
        return Some(Dim::Const(slice_range(d, s, e, step).1));
    }
    let zero = Dim::Const(0);
    if step < 0 {
        let whole = start.is(-1) && end.as_const().is_some_and(|e| e < i64::from(i32::MIN) + 2);
        return (whole && step == -1).then(|| dim.clone());
    }
    let clamp = |v: &Dim| match host::less(v, dim) {
        Some(true) => v.clone(),
        _ if v == dim => v.clone(),
        _ if v.as_const().is_some_and(|v| (0..=1).contains(&v)) => v.clone(),
        _ if host::less(dim, v) == Some(true) => dim.clone(),
        _ => v.smaller(dim),
    };
    let from_end = |v: &Dim| {
        v.as_const()
            .filter(|v| *v < 0)
            .map(|v| dim + &Dim::Const(v))
    };
    // Where the beginning is counted from the end of the axis, and the end from its beginning, which comes first depends on
    // the axis.
    let ends_from_start = end.as_const().is_some_and(|e| e >= 0);
    let end = match from_end(end) {
        Some(end) => end,
        None => clamp(end),
    };
    if ends_from_start && end != *dim && from_end(start).is_some() {
        return None;
    }
    let length = match (from_end(start), start.as_const()) {
        // The last k elements are at most as many as the axis has.
        (Some(_), Some(s)) if end == *dim => clamp(&Dim::Const(s.checked_neg()?)),
        (Some(start), _) => &end - &start,
        (None, _) => &end - start,
    };
    if length.as_const().is_some_and(|l| l < 0) {
        return Some(zero);
    }
    Some(length.ceil_div(&Dim::Const(step)))
}

fn slice(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    if (1..=4).any(|k| i.has_open_length(k)) {
        return one(i.dtype(0)?, i.unknown(Some(x.len()))?);
    }
    let n = i.vector_len(1, "starts")?;
    check_len(i.vector_len(2, "ends")?, n, "ends")?;
    for (k, name) in [(3, "axes"), (4, "steps")] {
        if i.opt(k).is_some() {
            check_len(i.vector_len(k, name)?, n, name)?;
        }
    }
    let axes = match (i.opt(3).is_some(), i.ints(3)) {
        (false, _) => normalize_axes(&(0..n as i64).collect::<Vec<_>>(), x.len())?,
        (true, Some(axes)) => normalize_axes(&axes, x.len())?,
        (true, None) => return one(i.dtype(0)?, i.unknown(Some(x.len()))?),
    };
    let one_step = Dim::Const(1);
    let mut out = x.to_vec();
    for (k, axis) in axes.iter().enumerate() {
        let at = |operand: usize| i.dims(operand).and_then(|d| d.get(k));
        let step = if i.opt(4).is_some() {
            at(4)
        } else {
            Some(&one_step)
        };
        if step.is_some_and(|s| s.is(0)) {
            return Err(OpError::shape("a slice has step zero"));
        }
        let dim = match (at(1), at(2), step) {
            (Some(start), Some(end), Some(step)) => slice_dim(&x[*axis], start, end, step),
            _ => None,
        };
        out[*axis] = dim.unwrap_or_else(|| i.fresh(0, *axis));
    }
    let mut out = InferredOutput::of(i.dtype(0)?, out);
    out.value = sliced(i, &axes, &out.ty.shape);
    Ok(vec![out])
}

/// The elements of a slice with known bounds.
fn sliced(i: &Infer<'_>, axes: &[usize], shape: &[Dim]) -> Option<HostValue> {
    let v = i.opt(0)?.value?;
    let (starts, ends, steps) = (i.ints(1)?, i.ints(2)?, i.opt(4).map(|_| i.ints(4)));
    let steps = steps.unwrap_or_else(|| Some(vec![1; axes.len()]))?;
    let mut from = vec![(0i64, 1i64); v.shape.len()];
    for (k, axis) in axes.iter().enumerate() {
        let dim = i64::try_from(*v.shape.get(*axis)?).ok()?;
        *from.get_mut(*axis)? = (
            slice_range(dim, *starts.get(k)?, *ends.get(k)?, *steps.get(k)?).0,
            *steps.get(k)?,
        );
    }
    v.reindex(&host::fixed(shape)?, |at| {
        at.iter()
            .zip(&from)
            .zip(&v.shape)
            .try_fold(0usize, |flat, ((p, (start, step)), d)| {
                let p = i64::try_from(*p)
                    .ok()?
                    .checked_mul(*step)?
                    .checked_add(*start)?;
                Some(flat * d + usize::try_from(p).ok().filter(|p| p < d)?)
            })
    })
}

fn split(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    let axis = axis(i.attrs, 0, x.len())?;
    let n = i.outputs;
    let parts = i.attrs.int("num_outputs", n as i64);
    let mut sizes = Vec::new();
    if i.opt(1).is_some() {
        check_len(i.vector_len(1, "split")?, n, "split")?;
        match i.dims(1) {
            Some(d) => sizes.extend_from_slice(d),
            None => sizes.extend((0..n).map(|o| i.fresh(o, axis))),
        }
        let total = sizes.iter().fold(Dim::Const(0), |a, b| &a + b);
        if i.dims(1).is_some() && !can_equal(&total, &x[axis]) {
            return Err(OpError::shape(format!(
                "parts {sizes:?} do not add up to {}",
                x[axis]
            )));
        }
    } else {
        if parts != n as i64 {
            return Err(bad(
                "num_outputs",
                format!("is {parts}, but {n} outputs are declared"),
            ));
        }
        let chunk = x[axis].ceil_div(&Dim::from(n));
        let chunk = x[axis].exact_div(&Dim::from(n)).unwrap_or(chunk);
        let last = &x[axis] - &(&chunk * &Dim::from(n.saturating_sub(1)));
        if last.as_const().is_some_and(|n| n < 0) {
            return Err(OpError::shape(format!(
                "{} elements of axis {axis} are no {n} parts of {chunk}, of which the last may be shorter",
                x[axis]
            )));
        }
        sizes.resize(n.saturating_sub(1), chunk);
        sizes.push(last);
    }
    let dtype = i.dtype(0)?;
    // Only vectors are followed, since a part of a vector is a range of its elements.
    let mut rest = i
        .opt(0)
        .and_then(|o| o.value)
        .filter(|v| v.shape.len() == 1)
        .map(|v| v.elements.as_slice());
    let part = |size: &Dim| {
        let mut shape = x.to_vec();
        shape[axis] = size.clone();
        let len = size.as_const().and_then(|n| usize::try_from(n).ok());
        let cut = rest
            .zip(len)
            .and_then(|(r, n)| Some((r.get(..n)?, r.get(n..)?)));
        rest = cut.map(|(_, rest)| rest);
        InferredOutput {
            value: cut.map(|(v, _)| HostValue::vector(v.to_vec())),
            ..InferredOutput::of(dtype, shape)
        }
    };
    Ok(sizes.iter().map(part).collect())
}

fn concat(i: &Infer<'_>) -> Rule {
    let first = i.shape(0)?;
    let at = axis(i.attrs, 0, first.len())?;
    let mut out = first.to_vec();
    for k in 1..i.inputs.len() {
        let next = i.shape(k)?;
        if next.len() != first.len() {
            return Err(OpError::shape(format!(
                "{first:?} and {next:?} differ in rank"
            )));
        }
        for (a, (d, e)) in out.iter_mut().zip(next).enumerate() {
            *d = if a == at {
                &*d + e
            } else {
                unify(d, e, "dimensions beside the axis")?
            };
        }
    }
    let mut out = InferredOutput::of(i.dtype(0)?, out);
    // Along the outermost axis, elements simply follow each other.
    if let Some(shape) = host::fixed(&out.ty.shape).filter(|_| at == 0) {
        let parts = i
            .inputs
            .iter()
            .map(|o| Some(o.as_ref()?.value?.elements.as_slice()));
        let elements = parts.collect::<Option<Vec<_>>>().map(|p| p.concat());
        out.value = elements.map(|elements| HostValue { shape, elements });
    }
    Ok(vec![out])
}

fn pad(i: &Infer<'_>) -> Rule {
    PadMode::new(i.attrs)?;
    i.check_scalar(2, "constant_value")?;
    let x = i.shape(0)?;
    let axes = match (i.opt(3).is_some(), i.ints(3)) {
        _ if i.has_open_length(1) => None,
        (false, _) => Some((0..x.len()).collect()),
        (true, Some(axes)) => Some(normalize_axes(&axes, x.len())?),
        (true, None) => None,
    };
    let Some(axes) = axes else {
        return one(i.dtype(0)?, i.unknown(Some(x.len()))?);
    };
    check_len(i.vector_len(1, "pads")?, axes.len() * 2, "pads")?;
    let mut out = x.to_vec();
    for (k, axis) in axes.iter().enumerate() {
        out[*axis] = match i.dims(1) {
            Some(p) => &(&x[*axis] + &p[k]) + &p[axes.len() + k],
            None => i.fresh(0, *axis),
        };
    }
    one(i.dtype(0)?, out)
}

fn tile(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    if !i.has_open_length(1) {
        check_len(i.vector_len(1, "repeats")?, x.len(), "repeats")?;
    }
    let Some(repeats) = i.dims(1) else {
        return one(i.dtype(0)?, i.unknown(Some(x.len()))?);
    };
    if repeats.iter().any(|r| r.as_const().is_some_and(|r| r < 0)) {
        return Err(OpError::shape(format!(
            "repeats {repeats:?} must not be negative"
        )));
    }
    let mut out = InferredOutput::of(
        i.dtype(0)?,
        x.iter().zip(repeats).map(|(d, r)| d * r).collect(),
    );
    if let (Some(v), Some(shape)) = (i.opt(0).and_then(|o| o.value), host::fixed(&out.ty.shape)) {
        out.value = v.reindex(&shape, |at| {
            let flat = |f: usize, (p, d): (&usize, &usize)| Some(f * d + p.checked_rem(*d)?);
            at.iter().zip(&v.shape).try_fold(0, flat)
        });
    }
    Ok(vec![out])
}

fn expand(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    let rank = i.vector_len(1, "shape")?;
    check_rank(rank)?;
    let Some(to) = i.dims(1) else {
        let dims = (0..rank.max(x.len())).map(|k| i.fresh(0, k)).collect();
        return one(i.dtype(0)?, dims);
    };
    let mut out = InferredOutput::of(i.dtype(0)?, broadcast(x, to)?);
    if let (Some(v), Some(shape)) = (i.opt(0).and_then(|o| o.value), host::fixed(&out.ty.shape)) {
        out.value = v.reindex(&shape, |at| v.broadcast_index(at));
    }
    Ok(vec![out])
}

const DATA: OperandDef = operand("data", MOVED);

family! {
    /// Ops that take tensors apart or put them together.
    SliceOp in Slice { Slice, Split, Concat, Pad, Tile, Expand }
}

/// Definitions of this family.
pub(super) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Slice(SliceOp::Slice),
        "Every step-th element from start to end along the given axes.",
        &[
            DATA,
            operand("starts", INDEX).class(1).host(),
            operand("ends", INDEX).class(1).host(),
            operand("axes", INDEX).class(1).host().optional(),
            operand("steps", INDEX).class(1).host().optional(),
        ],
        slice,
    )
    .cost(output_traffic),
    OpDef::of(
        Op::Slice(SliceOp::Split),
        "The operand cut along `axis` into parts of the given sizes, or into equal parts.",
        &[DATA, operand("split", LONG).host().optional()],
        split,
    )
    .attrs(&[
        attr("axis", AttrKind::Int),
        attr("num_outputs", AttrKind::Int),
    ])
    .outputs(1, usize::MAX)
    .cost(output_traffic),
    OpDef::of(
        Op::Slice(SliceOp::Concat),
        "The operands one after the other along `axis`.",
        &[DATA.class(1).variadic()],
        concat,
    )
    .attrs(&[
        required("axis", AttrKind::Int),
        attr("grows", AttrKind::Int),
    ]),
    OpDef::of(
        Op::Slice(SliceOp::Pad),
        "The operand with elements added, or removed, before and after the given axes.",
        &[
            operand("data", STORED).class(1),
            operand("pads", LONG).host(),
            operand("constant_value", STORED).class(1).optional(),
            operand("axes", INDEX).host().optional(),
        ],
        pad,
    )
    .attrs(&[attr("mode", AttrKind::Str)]),
    OpDef::of(
        Op::Slice(SliceOp::Tile),
        "The operand repeated along every axis.",
        &[DATA, operand("repeats", LONG).host()],
        tile,
    ),
    OpDef::of(
        Op::Slice(SliceOp::Expand),
        "The operand broadcast with the given shape.",
        &[DATA, operand("shape", LONG).host()],
        expand,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbolic_slices() {
        let (s, c) = (Dim::sym("s"), |n: i64| Dim::Const(n));
        for (dim, start, end, step, want) in [
            (s.clone(), c(0), c(1), 1, Some(c(1))),
            (s.clone(), c(1), c(i64::MAX), 1, Some(&s - &c(1))),
            (s.clone(), c(-1), c(i64::MAX), 1, Some(c(1))),
            (s.clone(), c(0), c(-1), 1, Some(&s - &c(1))),
            (s.clone(), c(0), c(i64::MAX), 2, Some(s.ceil_div(&c(2)))),
            (s.clone(), c(0), s.clone(), 1, Some(s.clone())),
            (s.clone(), c(0), c(5), 1, Some(c(5).smaller(&s))),
            (s.clone(), c(-1), c(i64::MIN), -1, Some(s.clone())),
            (s.clone(), c(-1), c(0), -1, None),
            (c(512), c(0), s.clone(), 1, Some(s.smaller(&c(512)))),
            (&s + &c(3), s.clone(), &s + &c(3), 1, Some(c(3))),
            (c(10), c(2), c(100), 3, Some(c(3))),
        ] {
            let got = slice_dim(&dim, &start, &end, &c(step));
            assert_eq!(got, want, "{dim} [{start}:{end}:{step}]");
        }
    }
}
