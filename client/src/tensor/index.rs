//! Indexing and slicing in the manner of numpy.
//!
//! Indices are lowered to at most one `Slice`, one `Squeeze`, one `Gather` (or `Compress`) and one `Unsqueeze`.

use std::ops;
use std::panic::Location;

use convoke_common::error::{Code, Error, Result, Site};
use convoke_graph::DType;

use super::Tensor;

/// The elements to take of an axis. Negative positions count from the end.
///
/// Integers, ranges and tensors convert to an index: `3`, `1..4`, `..-1`, `2..`, and `..` for the whole axis. `1..-1`
/// converts as well, but lints take it for a mistake: [`Index::between`] is the same.
#[derive(Debug, Clone)]
pub enum Index<'a> {
    /// One element; the axis is removed. A position out of range is an error.
    At(i64),
    /// The elements from `start` to before `end` by `step`, clamped to the axis. A negative step goes backwards.
    Range {
        /// The first position; by default the first of the axis, or with a negative step the last.
        start: Option<i64>,
        /// The position to end before; by default the whole rest of the axis is taken.
        end: Option<i64>,
        /// The step, which is not zero.
        step: i64,
    },
    /// A new axis of length 1.
    NewAxis,
    /// As many whole axes as the other indices leave. There may be one ellipsis at most.
    Ellipsis,
    /// The elements at the positions in a tensor of integers, whose axes replace the axis; or, with bools of rank 1,
    /// the elements where they are true.
    Take(&'a Tensor),
}

impl<'a> Index<'a> {
    /// The range from `start` to before `end`, either of which may count from the end of the axis.
    pub fn between(start: i64, end: i64) -> Index<'a> {
        range(Some(start), Some(end))
    }

    /// The range with another step: `Index::from(..).step(-1)` reverses an axis. Other indices stay as they are.
    pub fn step(self, by: i64) -> Index<'a> {
        match self {
            Index::Range { start, end, .. } => Index::Range {
                start,
                end,
                step: by,
            },
            other => other,
        }
    }
}

fn range<'a>(start: Option<i64>, end: Option<i64>) -> Index<'a> {
    Index::Range {
        start,
        end,
        step: 1,
    }
}

/// The end of a range that includes `last`; `None` where `last` is -1, the last position of the axis.
fn behind(last: i64) -> Option<i64> {
    last.checked_add(1).filter(|end| *end != 0)
}

impl From<i64> for Index<'_> {
    fn from(at: i64) -> Self {
        Index::At(at)
    }
}

impl<'a> From<&'a Tensor> for Index<'a> {
    fn from(indices: &'a Tensor) -> Index<'a> {
        Index::Take(indices)
    }
}

macro_rules! ranges {
    ($($t:ty, |$r:pat_param| $start:expr, $end:expr;)*) => {$(
        impl From<$t> for Index<'_> {
            fn from($r: $t) -> Self {
                range($start, $end)
            }
        }
    )*};
}
ranges! {
    ops::RangeFull, |_| None, None;
    ops::Range<i64>, |r| Some(r.start), Some(r.end);
    ops::RangeFrom<i64>, |r| Some(r.start), None;
    ops::RangeTo<i64>, |r| None, Some(r.end);
    ops::RangeInclusive<i64>, |r| Some(*r.start()), behind(*r.end());
    ops::RangeToInclusive<i64>, |r| None, behind(r.end);
}

/// One index, or a tuple or list of them.
pub trait Indices<'a> {
    /// Returns the indices, for the axes from the first on.
    fn indices(self) -> Vec<Index<'a>>;
}

impl<'a, T: Into<Index<'a>>> Indices<'a> for T {
    fn indices(self) -> Vec<Index<'a>> {
        vec![self.into()]
    }
}

impl<'a> Indices<'a> for &[Index<'a>] {
    fn indices(self) -> Vec<Index<'a>> {
        self.to_vec()
    }
}

macro_rules! tuples {
    ($(($($t:ident $v:ident),+))*) => {$(
        impl<'a, $($t: Into<Index<'a>>),+> Indices<'a> for ($($t,)+) {
            fn indices(self) -> Vec<Index<'a>> {
                let ($($v,)+) = self;
                vec![$($v.into()),+]
            }
        }
    )*};
}
tuples! {
    (A a)
    (A a, B b)
    (A a, B b, C c)
    (A a, B b, C c, D d)
    (A a, B b, C c, D d, E e)
    (A a, B b, C c, D d, E e, F f)
}

/// Indices as operands of the ops that take the elements, which follow each other in the order of the fields.
#[derive(Debug, Default, PartialEq)]
struct LoweredIndex {
    starts: Vec<i64>,
    ends: Vec<i64>,
    axes: Vec<i64>,
    steps: Vec<i64>,
    /// Axes of the operand that are removed.
    squeeze: Vec<i64>,
    /// The axis that a tensor indexes, counted after the removal, and the position of the tensor among the indices.
    take: Option<(i64, usize)>,
    /// Axes of the result that are new.
    unsqueeze: Vec<i64>,
}

/// Lowers indices of a tensor of `rank` axes, whose lengths may be known.
fn lower(
    indices: &[Index<'_>],
    rank: usize,
    dims: Option<&[usize]>,
) -> Result<LoweredIndex, String> {
    let new = |i: &&Index<'_>| matches!(i, Index::NewAxis | Index::Ellipsis);
    let named = indices.len() - indices.iter().filter(new).count();
    let rest = rank.checked_sub(named);
    let rest = rest.ok_or_else(|| format!("{named} indices for a tensor of rank {rank}"))?;
    let mut out = LoweredIndex::default();
    let (mut axis, mut kept, mut result) = (0usize, 0usize, 0usize);
    let mut ellipsis = false;
    for (which, index) in indices.iter().enumerate() {
        match index {
            Index::NewAxis => {
                out.unsqueeze.push(result as i64);
                result += 1;
                continue;
            }
            Index::Ellipsis => {
                if std::mem::replace(&mut ellipsis, true) {
                    return Err("more than one ellipsis".into());
                }
                axis += rest;
                kept += rest;
                result += rest;
                continue;
            }
            Index::At(at) => {
                if let Some(length) = dims.and_then(|d| d.get(axis)) {
                    let length = *length as i64;
                    if *at < -length || *at >= length {
                        return Err(format!(
                            "index {at} is out of range for axis {axis} of length {length}"
                        ));
                    }
                }
                out.slice(axis, *at, behind(*at), 1);
                out.squeeze.push(axis as i64);
            }
            Index::Range { step: 0, .. } => return Err("a slice has step zero".into()),
            Index::Range { start, end, step } => {
                if (*start, *end, *step) != (None, None, 1) {
                    out.slice(
                        axis,
                        start.unwrap_or(if *step < 0 { -1 } else { 0 }),
                        *end,
                        *step,
                    );
                }
                kept += 1;
                result += 1;
            }
            Index::Take(tensor) => {
                if out.take.replace((kept as i64, which)).is_some() {
                    return Err("more than one index is a tensor".into());
                }
                kept += 1;
                result += tensor.rank();
            }
        }
        axis += 1;
    }
    Ok(out)
}

impl LoweredIndex {
    fn slice(&mut self, axis: usize, start: i64, end: Option<i64>, step: i64) {
        let all = if step < 0 { i64::MIN } else { i64::MAX };
        self.starts.push(start);
        self.ends.push(end.unwrap_or(all));
        self.axes.push(axis as i64);
        self.steps.push(step);
    }
}

impl Tensor {
    /// Takes a part of the tensor, by an index for each of the first axes: `x.i(0)`, `x.i((.., 1..3))`,
    /// `x.i((Index::Ellipsis, Index::NewAxis, 2))`. See [`Index`].
    ///
    /// This is numpy's `x[..]`, except that at most one index is a tensor, and that every index is for its own axis,
    /// even where one is a tensor.
    #[track_caller]
    pub fn i<'a>(&self, indices: impl Indices<'a>) -> Result<Tensor> {
        let at = Location::caller();
        let indices = indices.indices();
        let refuse = |why: String| {
            Error::new(Code::InvalidInput, why).at(Site {
                op: Some("Index".into()),
                operands: vec![self.ty().to_string()],
                origin: Some(format!("{}:{}", at.file(), at.line())),
                ..Site::default()
            })
        };
        let lowered = lower(&indices, self.rank(), self.shape()).map_err(refuse)?;
        let mut out = self.clone();
        if !lowered.axes.is_empty() {
            out = out.slice(lowered.starts, lowered.ends, lowered.axes, lowered.steps)?;
        }
        if !lowered.squeeze.is_empty() {
            out = out.squeeze(lowered.squeeze)?;
        }
        if let Some((axis, which)) = lowered.take
            && let Some(Index::Take(indices)) = indices.get(which)
        {
            out = match (indices.dtype(), indices.rank()) {
                (DType::Bool, 1) => {
                    let axis_len = usize::try_from(axis).ok();
                    let there = axis_len.and_then(|a| out.shape()?.get(a).copied());
                    let given = indices.shape().and_then(|s| s.first().copied());
                    if let (Some(there), Some(given)) = (there, given)
                        && there != given
                    {
                        let why = format!("an index of {given} bools, of an axis of {there}");
                        return Err(refuse(why));
                    }
                    out.compress(*indices, axis)?
                }
                (DType::Bool, rank) => {
                    let why = format!("an index of bools has rank 1, not {rank}");
                    return Err(refuse(why));
                }
                // `Gather` takes no indices of these dtypes.
                (DType::I8 | DType::I16 | DType::U8 | DType::U16 | DType::U32 | DType::U64, _) => {
                    out.gather(&indices.cast(DType::I64)?, axis)?
                }
                _ => out.gather(indices, axis)?,
            };
        }
        if !lowered.unsqueeze.is_empty() {
            out = out.unsqueeze(lowered.unsqueeze)?;
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<'a>(indices: impl Indices<'a>, dims: &[usize], want: LoweredIndex) {
        let got = lower(&indices.indices(), dims.len(), Some(dims));
        assert_eq!(got, Ok(want));
    }

    fn slices(of: &[(i64, i64, i64, i64)]) -> LoweredIndex {
        let mut out = LoweredIndex::default();
        for (axis, start, end, step) in of {
            out.axes.push(*axis);
            out.starts.push(*start);
            out.ends.push(*end);
            out.steps.push(*step);
        }
        out
    }

    const MAX: i64 = i64::MAX;

    #[test]
    fn ranges_are_slices() {
        check(.., &[4], slices(&[]));
        check(1..3, &[4], slices(&[(0, 1, 3, 1)]));
        check((.., -2..), &[4, 5], slices(&[(1, -2, MAX, 1)]));
        check(..=-1, &[4], slices(&[]));
        check(Index::between(1, -1), &[4], slices(&[(0, 1, -1, 1)]));
        check(..=-2, &[4], slices(&[(0, 0, -1, 1)]));
        check((.., 0..=2), &[4, 5], slices(&[(1, 0, 3, 1)]));
        check(
            Index::from(..).step(-1),
            &[4],
            slices(&[(0, -1, i64::MIN, -1)]),
        );
        check(Index::from(1..).step(2), &[4], slices(&[(0, 1, MAX, 2)]));
        check((Index::Ellipsis, ..1), &[4, 5, 6], slices(&[(2, 0, 1, 1)]));
    }

    #[test]
    fn an_integer_takes_its_axis_away() {
        let with = |of, squeeze: &[i64]| LoweredIndex {
            squeeze: squeeze.into(),
            ..slices(of)
        };
        check(2, &[4], with(&[(0, 2, 3, 1)], &[0]));
        check((.., -1), &[4, 5], with(&[(1, -1, MAX, 1)], &[1]));
        let all = [(0, 1, 2, 1), (2, 2, 5, 1)];
        check((1, .., 2..5), &[2, 3, 6], with(&all, &[0]));
    }

    #[test]
    fn new_axes_are_counted_in_the_result() {
        let with = |of, squeeze: &[i64], unsqueeze: &[i64]| LoweredIndex {
            squeeze: squeeze.into(),
            unsqueeze: unsqueeze.into(),
            ..slices(of)
        };
        check((.., Index::NewAxis), &[4], with(&[], &[], &[1]));
        let (new, rest) = (Index::NewAxis, Index::Ellipsis);
        check(
            (0, new.clone(), rest, new),
            &[4, 5, 6],
            with(&[(0, 0, 1, 1)], &[0], &[0, 3]),
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |indices: &[Index<'_>], why: &str| {
            assert_eq!(lower(indices, 2, Some(&[2, 3])), Err(why.to_owned()));
        };
        refused(
            &[2.into()],
            "index 2 is out of range for axis 0 of length 2",
        );
        refused(
            &[(..).into(), (-4).into()],
            "index -4 is out of range for axis 1 of length 3",
        );
        refused(
            &[0.into(), 0.into(), 0.into()],
            "3 indices for a tensor of rank 2",
        );
        refused(
            &[Index::Ellipsis, Index::Ellipsis],
            "more than one ellipsis",
        );
        refused(&[Index::from(..).step(0)], "a slice has step zero");
    }
}
