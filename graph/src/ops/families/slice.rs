//! Cutting axes: `Slice`, `Split`, `Pad`, `Tile`, `Expand`, `Concat`.

use crate::Dim;
use crate::ops::attrs::{PadMode, axis, bad, normalize_axes, slice_range};
use crate::ops::cost::output_traffic;
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::host;
use crate::ops::kind::{Op, SliceOp};
use crate::ops::shapes::*;

/// The greatest weight of a length that the expression for what is left of it may repeat.
const LIGHT: usize = 10;

/// Length of the slice `start..end` by `step` of an axis of length `dim`, where all may be symbolic; `None` where it is
/// unknown.
///
/// The length is right for every length of the axis, zero included. A symbolic bound that may be of either sign is assumed not to be
/// negative, and a symbolic start to lie inside the axis. A length that depends on such an assumption is unknown.
fn slice_dim(dim: &Dim, start: &Dim, end: &Dim, step: &Dim) -> Option<Dim> {
    let step = step.as_const()?;
    if let (Some(d), Some(s), Some(e)) = (dim.as_const(), start.as_const(), end.as_const()) {
        return Some(Dim::Const(slice_range(d, s, e, step).1));
    }
    if step < 0 {
        let whole = start.is(-1) && end.as_const().is_some_and(|e| e < i64::from(i32::MIN) + 2);
        return (whole && step == -1).then(|| dim.clone());
    }
    let length = slice_span(dim, start, end)?;
    if length.as_const().is_some_and(|l| l < 0) {
        return Some(Dim::Const(0));
    }
    // A step beyond any axis takes one element. It is not added to a length, which could overflow.
    if step >= i64::from(i32::MAX) {
        return Some(first(&length, &Dim::Const(1)));
    }
    Some(length.ceil_div(&Dim::Const(step)))
}

/// How many elements lie between `start` and `end`, of which at least one bound or the length of the axis is symbolic.
fn slice_span(dim: &Dim, start: &Dim, end: &Dim) -> Option<Dim> {
    // How far a bound lies before the end of the axis; `None` where that is unknown.
    let from_end = |bound: &Dim| match bound.at_most() {
        Some(most) if most < 0 => Some(Some(bound * &Dim::Const(-1))),
        // Zero would be the beginning.
        Some(0) if bound.as_const().is_none() => None,
        _ => Some(None),
    };
    let (from, to) = (from_end(start)?, from_end(end)?);
    let position = match &to {
        Some(n) => without(dim, n),
        None => first(dim, end),
    };
    match (from, to) {
        // Both count from the end: the last elements, without the very last ones.
        (Some(n), Some(m)) => Some(without(&first(dim, &n), &m)),
        (Some(n), None) if position == *dim => Some(first(dim, &n)),
        // Which bound comes first depends on the axis.
        (Some(_), None) if end.as_const().is_some() => None,
        (Some(n), None) => Some(not_negative(&position - &without(dim, &n))),
        (None, _) if start.as_const().is_some() => Some(without(&position, start)),
        (None, _) => {
            let length = &position - start;
            let proven = length.as_const().is_none() || start.at_least() >= Some(0);
            // The last element of an axis without elements begins at -1, which counts from the end.
            let last = position == *dim && length.is(1);
            match proven {
                true => Some(not_negative(length)),
                false => last.then(|| first(dim, &Dim::Const(1))),
            }
        }
    }
}

/// The length of the first `n` elements of an axis of length `dim`.
fn first(dim: &Dim, n: &Dim) -> Dim {
    match (host::less(dim, n), host::less(n, dim)) {
        // No length is negative, though the bounds of its expression may be.
        _ if n.is(0) => n.clone(),
        (Some(false), _) => n.clone(),
        (Some(true), _) | (_, Some(false)) => dim.clone(),
        _ => n.smaller(dim),
    }
}

/// The length of an axis of length `dim` without its first, or last, `n` elements.
///
/// It is `dim - min(dim, n)`, so that it and the length of the `n` elements add up to `dim`. Where `dim` is a long expression,
/// `max(dim - n, 0)` is about half as long.
fn without(dim: &Dim, n: &Dim) -> Dim {
    if n.is(0) {
        return dim.clone();
    }
    let (whole, n) = match dim.as_shortened() {
        Some((whole, m)) => (whole, n + &Dim::Const(m)),
        None => (dim.clone(), n.clone()),
    };
    let cut = first(&whole, &n);
    if cut == n || cut == whole || whole.weight(LIGHT) <= LIGHT {
        return &whole - &cut;
    }
    not_negative(&whole - &n)
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
        // A split whose sizes are unknown may have very many of them.
        let total = i.dims(1).and_then(Dim::sum);
        if total.is_some_and(|total| !can_equal(&total, &x[axis])) {
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
            if a != at {
                *d = unify(d, e, "dimensions beside the axis")?;
            }
        }
    }
    // All at once, since there may be very many operands.
    let lengths = i.inputs.iter().flatten().filter_map(|o| o.ty.shape.get(at));
    out[at] = Dim::sum(lengths).unwrap_or_else(|| i.fresh(0, at));
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

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
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
        let (s, t, c) = (Dim::sym("s"), Dim::sym("t"), |n: i64| Dim::Const(n));
        for (dim, start, end, step, want) in [
            (s.clone(), c(0), c(1), 1, Some(s.smaller(&c(1)))),
            (&s + &c(1), c(0), c(1), 1, Some(c(1))),
            (&s + &c(3), c(-3), c(-1), 1, Some(c(2))),
            (&s + &c(2), c(1), c(i64::MAX), 1, Some(&s + &c(1))),
            (s.clone(), c(-1), c(i64::MAX), 1, Some(s.smaller(&c(1)))),
            (s.clone(), &s - &c(1), s.clone(), 1, Some(s.smaller(&c(1)))),
            (s.clone(), &s - &c(2), s.clone(), 1, None),
            (s.clone(), c(0), c(i64::MAX), 2, Some(s.ceil_div(&c(2)))),
            (s.clone(), c(0), s.clone(), 1, Some(s.clone())),
            (s.clone(), c(0), c(5), 1, Some(c(5).smaller(&s))),
            (s.clone(), c(-1), c(i64::MIN), -1, Some(s.clone())),
            (s.clone(), c(-1), c(0), -1, None),
            (c(512), c(0), s.clone(), 1, Some(s.smaller(&c(512)))),
            (&s + &c(3), s.clone(), &s + &c(3), 1, Some(c(3))),
            (c(10), c(2), c(100), 3, Some(c(3))),
            (
                s.clone(),
                &(&t + &c(1)) * &c(-1),
                c(i64::MAX),
                1,
                Some(s.smaller(&(&t + &c(1)))),
            ),
            // Where t is zero, these are the whole axis and nothing.
            (s.clone(), &t * &c(-1), c(i64::MAX), 1, None),
            (s.clone(), c(0), &t * &c(-1), 1, None),
        ] {
            let got = slice_dim(&dim, &start, &end, &c(step));
            assert_eq!(got, want, "{dim} [{start}:{end}:{step}]");
        }
    }

    /// The length of a convolution's output with a stride.
    fn strided(dim: &Dim) -> Dim {
        &(dim + &Dim::Const(3)).floor_div(&Dim::Const(2)) + &Dim::Const(1)
    }

    /// Models of speech cut elements off what many convolutions have made.
    #[test]
    fn lengths_of_slices_stay_short() {
        let (mut dim, cut) = (Dim::sym("s"), Dim::Const(1));
        for _ in 0..5 {
            dim = strided(&dim);
        }
        let whole = dim.weight(100);
        for _ in 0..5 {
            dim = without(&dim, &cut);
            assert!(dim.weight(100) <= whole + 5, "{dim}");
        }
        let larger = dim.larger(&strided(&Dim::sym("t")));
        assert_eq!(dim.larger(&larger), larger);
    }

    #[test]
    fn lengths_of_slices_are_right_for_every_length_of_the_axis() {
        let s = Dim::sym("s");
        let dims = [
            s.clone(),
            &s + &Dim::Const(2),
            without(&s, &Dim::Const(2)),
            first(&s, &Dim::Const(4)),
            strided(&strided(&s)),
            without(&strided(&strided(&s)), &Dim::Const(1)),
        ];
        let bounds = || (-6..=6).chain([i64::MIN, i64::MAX]);
        for (dim, start) in dims.iter().flat_map(|d| bounds().map(move |s| (d, s))) {
            for (end, step) in bounds().flat_map(|e| [1, 2, 3, -1, i64::MAX].map(|s| (e, s))) {
                let [from, to, by] = [start, end, step].map(Dim::Const);
                let Some(length) = slice_dim(dim, &from, &to, &by) else {
                    continue;
                };
                for n in 0..12 {
                    let at: crate::dim::Bindings = [("s".into(), n)].into();
                    let size = dim.eval(&at).expect("bound");
                    let want = slice_range(size, start, end, step).1;
                    assert_eq!(
                        length.eval(&at),
                        Some(want),
                        "{size} of {dim} [{start}:{end}:{step}]"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_cut_off_an_axis_adds_up() {
        let s = Dim::sym("s");
        let (front, back) = (first(&s, &Dim::Const(3)), without(&s, &Dim::Const(3)));
        assert_eq!(&back + &front, s);
        // The expression does not grow with the number of cuts, nor where nothing is cut off.
        assert_eq!(
            without(&(&s - &Dim::Const(3)), &Dim::Const(0)),
            &s - &Dim::Const(3)
        );
        assert_eq!(without(&back, &Dim::Const(1)), without(&s, &Dim::Const(4)));
        assert_eq!(first(&front, &Dim::Const(1)), first(&s, &Dim::Const(1)));
    }
}
