//! Sequences whose length only the run decides.
//!
//! ```text
//! [a: f32[2, 3], b: f32[4]]   packed   data:   f32[10]     the elements of a and b
//!                                      shapes: i64[2, 3]   [[2, 2, 3], [1, 4, 1]]: rank, dimensions, ones
//! ```
//!
//! Both are ordinary values, and ops on such a sequence are expanded into ops on them. So they lie on any device, cross between
//! workers, and are carried by loops and chosen by branches as tensors are.
//!
//! Invariants
//! 1. `data` has as many elements as the tensors together. One of the ops of the expansion refuses a wrong position or
//!    wrong shapes when it runs.
//! 2. `shapes` has a column for the rank, and for as many dimensions as the greatest rank, at least one.

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::{DType, Tensor};

use super::super::normalize::{Expansion, ImportFailure, Made, axis_of, without_axes};
use crate::error::TENSORS_DIFFER;

/// The least and the greatest rank of the tensors of a sequence; `None` where it never has any.
pub(in super::super) type RankRange = Option<(usize, usize)>;

/// The ranks that either has.
pub(super) fn either(a: RankRange, b: RankRange) -> RankRange {
    match (a, b) {
        (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
        (known, None) | (None, known) => known,
    }
}

/// A sequence whose length only the run decides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in super::super) struct Packed {
    /// The elements of all tensors, one tensor after the other.
    pub data: ValueId,
    /// i64: for each tensor its rank and its dimensions, with ones behind them.
    pub shapes: ValueId,
    pub ranks: RankRange,
}

/// The columns of `shapes`.
pub(super) fn width(ranks: RankRange) -> usize {
    1 + ranks.map_or(1, |(_, most)| most.max(1))
}

impl Packed {
    /// The rank that all its tensors have.
    pub(super) fn rank(&self) -> Result<usize, ImportFailure> {
        match self.ranks {
            Some((least, most)) if least == most => Ok(most),
            Some(_) => Err(ImportFailure::Unsupported(TENSORS_DIFFER.into())),
            None => Err(ImportFailure::Unsupported(
                "nothing is put into its sequence".into(),
            )),
        }
    }

    /// The axis of a node on tensors of `rank`.
    fn axis(e: &Expansion<'_>, axis: i64, rank: usize) -> Result<usize, ImportFailure> {
        let from_front = if axis < 0 { axis + rank as i64 } else { axis };
        let found = usize::try_from(from_front).ok().filter(|axis| *axis < rank);
        let wrong = || e.c.error(format!("there is no axis {axis} in rank {rank}"));
        Ok(found.ok_or_else(wrong)?)
    }
}

impl Expansion<'_> {
    /// Elements or rows `from..to`, which are lists of one number.
    fn range(&mut self, x: ValueId, from: ValueId, to: ValueId) -> Made {
        self.plain("Slice", &[x, from, to])
    }

    fn before(&mut self, x: ValueId, to: ValueId) -> Made {
        let from = self.ints("first", &[0])?;
        self.range(x, from, to)
    }

    fn behind(&mut self, x: ValueId, from: ValueId) -> Made {
        let to = self.ints("last", &[i64::MAX])?;
        self.range(x, from, to)
    }

    /// A reduction of axis `axis`, which is removed.
    fn reduced(&mut self, op: &str, x: ValueId, axis: i64) -> Made {
        let axes = self.ints("axes", &[axis])?;
        self.op(op, without_axes(), &[x, axes])
    }

    /// The sums of the elements before each element, or up to and with it where that is included.
    fn sums(&mut self, x: ValueId, included: bool) -> Made {
        let axis = self.int("axis", 0)?;
        let attrs = Attrs::default().with("exclusive", Attr::Int(i64::from(!included)));
        self.op("CumSum", attrs, &[x, axis])
    }

    pub(super) fn with_zero(&mut self, x: ValueId, shape: ValueId) -> Made {
        let attrs = Attrs::default().with("allowzero", Attr::Int(1));
        self.op("Reshape", attrs, &[x, shape])
    }

    fn flat(&mut self, x: ValueId) -> Made {
        self.reshaped(x, &[-1])
    }

    /// A list of `count` equal numbers, where `count` is a list of one number.
    fn repeated(&mut self, v: i64, count: ValueId) -> Made {
        let one = self.ints("filling", &[v])?;
        self.plain("Expand", &[one, count])
    }

    /// `more` behind `x`. In a loop nobody else holds `x`, and it keeps room for the elements that the next iterations
    /// append.
    fn appended(&mut self, x: ValueId, more: ValueId) -> Made {
        let attrs = match self.ty(x)?.dtype.is_packed() {
            // Elements that share bytes are spread for the op, so there would be nothing to grow.
            true => axis_of(0),
            false => axis_of(0).with("grows", Attr::Int(1)),
        };
        self.op("Concat", attrs, &[x, more])
    }

    /// The row of `shapes` that is `x`'s.
    fn row(&mut self, x: ValueId, width: usize) -> Made {
        let rank = self.shape(x)?.len();
        let mut parts = vec![self.ints("rank", &[rank as i64])?];
        if rank > 0 {
            parts.push(self.plain("Shape", &[x])?);
        }
        if rank + 1 < width {
            parts.push(self.ints("ones", &vec![1; width - rank - 1])?);
        }
        let row = self.joined(0, &parts)?;
        self.unsqueezed(row, &[0])
    }

    /// Tensors in packed form.
    pub(super) fn packed(
        &mut self,
        all: &[ValueId],
        dtype: DType,
        ranks: RankRange,
    ) -> Result<Packed, ImportFailure> {
        let width = width(ranks);
        if all.is_empty() {
            let wrong = |e: convoke_graph::tensor::TensorError| self.c.error(e.to_string());
            let data = Tensor::zeros(dtype, &[0]).map_err(wrong)?;
            let shapes = Tensor::zeros(DType::I64, &[0, width]).map_err(wrong)?;
            let name = |what| format!("{}/{what}", self.c.name);
            let (elements, table) = (name("elements"), name("shapes"));
            return Ok(Packed {
                data: self.b.literal(&elements, data),
                shapes: self.b.literal(&table, shapes),
                ranks,
            });
        }
        let (mut data, mut rows) = (vec![], vec![]);
        for x in all {
            data.push(self.flat(*x)?);
            rows.push(self.row(*x, width)?);
        }
        Ok(Packed {
            data: self.joined(0, &data)?,
            shapes: self.joined(0, &rows)?,
            ranks,
        })
    }

    /// The same sequence with a table that has room for these ranks.
    pub(super) fn widened(&mut self, p: Packed, ranks: RankRange) -> Result<Packed, ImportFailure> {
        let ranks = either(p.ranks, ranks);
        let more = width(ranks) - width(p.ranks);
        let mut shapes = p.shapes;
        if more > 0 {
            let count = self.length(shapes, 0)?;
            let columns = self.ints("columns", &[more as i64])?;
            let size = self.joined(0, &[count, columns])?;
            let ones = self.repeated(1, size)?;
            shapes = self.joined(1, &[shapes, ones])?;
        }
        Ok(Packed { shapes, ranks, ..p })
    }

    /// The same sequence with this dtype where it never has any tensors, so that nothing else decides its dtype.
    pub(super) fn of_dtype(
        &mut self,
        p: Packed,
        dtype: Option<DType>,
    ) -> Result<Packed, ImportFailure> {
        match dtype {
            Some(dtype) if p.ranks.is_none() && self.b.ty(p.data).is_some() => {
                let data = self.cast(p.data, dtype)?;
                Ok(Packed { data, ..p })
            }
            _ => Ok(p),
        }
    }

    /// The number of elements of each tensor.
    fn sizes(&mut self, p: Packed) -> Made {
        let dims = self.slice(p.shapes, 1, 1, i64::MAX, 1)?;
        self.reduced("ReduceProd", dims, 1)
    }

    /// The dimensions of each tensor, all of which have this rank.
    fn dims(&mut self, p: Packed, rank: usize) -> Made {
        self.slice(p.shapes, 1, 1, 1 + rank as i64, 1)
    }

    /// A position as a list of one number of i64.
    fn position(&mut self, at: ValueId) -> Made {
        let at = self.cast(at, DType::I64)?;
        self.reshaped(at, &[1])
    }

    /// `p` with `x` at a position, else at its end.
    pub(super) fn inserted(
        &mut self,
        p: Packed,
        x: ValueId,
        at: Option<ValueId>,
    ) -> Result<Packed, ImportFailure> {
        let ty = self.ty(x)?;
        let rank = ty.shape.len();
        let p = self.of_dtype(p, Some(ty.dtype))?;
        let p = self.widened(p, Some((rank, rank)))?;
        let (flat, row) = (self.flat(x)?, self.row(x, width(p.ranks))?);
        let Some(at) = at else {
            let data = self.appended(p.data, flat)?;
            let shapes = self.appended(p.shapes, row)?;
            return Ok(Packed { data, shapes, ..p });
        };
        let at = self.position(at)?;
        let length = self.length(p.shapes, 0)?;
        let (zero, one) = (self.ints("zero", &[0])?, self.ints("one", &[1])?);
        let is_negative = self.plain("Less", &[at, zero])?;
        let from_end = self.plain("Add", &[at, length])?;
        let at = self.plain("Where", &[is_negative, from_end, at])?;
        // A position that is still negative becomes a place behind the end, which Gather refuses.
        let is_outside = self.plain("Less", &[at, zero])?;
        let outside = self.plain("Add", &[length, one])?;
        let at = self.plain("Where", &[is_outside, outside, at])?;
        let sizes = self.sizes(p)?;
        let ends = self.sums(sizes, true)?;
        let places = self.joined(0, &[zero, ends])?;
        let place = self.plain("Gather", &[places, at])?;
        let (before, behind) = (self.before(p.data, place)?, self.behind(p.data, place)?);
        let data = self.joined(0, &[before, flat, behind])?;
        let (before, behind) = (self.before(p.shapes, at)?, self.behind(p.shapes, at)?);
        let shapes = self.joined(0, &[before, row, behind])?;
        Ok(Packed { data, shapes, ..p })
    }

    /// `p` without the tensor at a position, else without the last one.
    pub(super) fn erased(
        &mut self,
        p: Packed,
        at: Option<ValueId>,
    ) -> Result<Packed, ImportFailure> {
        let at = match at {
            Some(at) => self.position(at)?,
            None => self.ints("last", &[-1])?,
        };
        let length = self.length(p.shapes, 0)?;
        let length = self.scalar(length)?;
        let numbers = self.counted(length)?;
        let at = self.plain("Gather", &[numbers, at])?;
        let one = self.ints("one", &[1])?;
        let next = self.plain("Add", &[at, one])?;
        let (start, end) = self.extent(p, at)?;
        let (before, behind) = (self.before(p.data, start)?, self.behind(p.data, end)?);
        let data = self.joined(0, &[before, behind])?;
        let (before, behind) = (self.before(p.shapes, at)?, self.behind(p.shapes, next)?);
        let shapes = self.joined(0, &[before, behind])?;
        Ok(Packed { data, shapes, ..p })
    }

    /// The places at which the elements of the tensor at a position start and end.
    fn extent(&mut self, p: Packed, at: ValueId) -> Result<(ValueId, ValueId), ImportFailure> {
        let sizes = self.sizes(p)?;
        let starts = self.sums(sizes, false)?;
        let start = self.plain("Gather", &[starts, at])?;
        let size = self.plain("Gather", &[sizes, at])?;
        Ok((start, self.plain("Add", &[start, size])?))
    }

    /// The tensor at a position. All of them have one rank.
    pub(super) fn at(&mut self, p: Packed, at: ValueId) -> Made {
        let rank = p.rank()?;
        let at = self.position(at)?;
        let (start, end) = self.extent(p, at)?;
        let x = self.range(p.data, start, end)?;
        if rank == 0 {
            return self.reshaped(x, &[]);
        }
        let dims = self.dims(p, rank)?;
        let shape = self.plain("Gather", &[dims, at])?;
        let shape = self.reshaped(shape, &[rank as i64])?;
        self.with_zero(x, shape)
    }

    /// How many tensors there are, as a list of one number.
    pub(super) fn count(&mut self, p: Packed) -> Made {
        self.length(p.shapes, 0)
    }

    /// How many tensors each of some sequences has, at least one, as a list of one number. Sequences that differ in length are
    /// refused when they run.
    pub(super) fn common_count(&mut self, all: &[Packed]) -> Made {
        let mut counts = Vec::with_capacity(all.len());
        for p in all {
            counts.push(self.count(*p)?);
        }
        match counts.as_slice() {
            [] => Err(self.c.error("takes no sequence").into()),
            [only] => Ok(*only),
            [first, others @ ..] => {
                let alike = self.equal_all(*first, others)?;
                self.given(*first, alike)
            }
        }
    }

    /// The tensors joined along an axis that all have, or along a new one.
    pub(super) fn concatenated(&mut self, p: Packed, axis: i64, new: bool) -> Made {
        let rank = p.rank()?;
        let dims = self.dims(p, rank)?;
        if new {
            return self.stacked(p, dims, rank, axis);
        }
        let axis = Packed::axis(self, axis, rank)?;
        // If dimensions differ that must not, the greatest ones make more elements than there are.
        let most = self.reduced("ReduceMax", dims, 0)?;
        let most = self.of_some(dims, most)?;
        let along = self.slice(dims, 1, axis as i64, axis as i64 + 1, 1)?;
        let along = self.flat(along)?;
        let total = self.reduced("ReduceSum", along, 0)?;
        let total = self.reshaped(total, &[1])?;
        let outer = self.slice(most, 0, 0, axis as i64, 1)?;
        let inner = self.slice(most, 0, axis as i64 + 1, i64::MAX, 1)?;
        let shape = self.joined(0, &[outer, total, inner])?;
        if axis == 0 {
            return self.with_zero(p.data, shape);
        }
        let rows = self.product(outer)?;
        let each = self.product(inner)?;
        let widths = self.plain("Mul", &[along, each])?;
        let width = self.total(widths)?;
        let size = self.joined(0, &[rows, width])?;
        let checked = self.with_zero(p.data, size)?;
        let data = self.flat(checked)?;
        // The length that was checked, so that no table is made for another one.
        let width = self.length(checked, 1)?;
        let places = self.places(rows, widths, width)?;
        let y = self.plain("Gather", &[data, places])?;
        self.with_zero(y, shape)
    }

    /// `most`, where there is a tensor: an empty sequence has no first one, which is asked for, so that it is refused as such.
    fn of_some(&mut self, dims: ValueId, most: ValueId) -> Made {
        let first = self.ints("first", &[0])?;
        let first = self.plain("Gather", &[dims, first])?;
        let first = self.flat(first)?;
        self.plain("Max", &[most, first])
    }

    /// The product of a list, as a list of one number.
    fn product(&mut self, x: ValueId) -> Made {
        let axes = self.ints("axes", &[0])?;
        self.plain("ReduceProd", &[x, axes])
    }

    fn stacked(&mut self, p: Packed, dims: ValueId, rank: usize, axis: i64) -> Made {
        let axis = Packed::axis(self, axis, rank + 1)?;
        let count = self.count(p)?;
        let shape = match rank {
            0 => count,
            _ => {
                let most = self.reduced("ReduceMax", dims, 0)?;
                let most = self.of_some(dims, most)?;
                self.joined(0, &[count, most])?
            }
        };
        let y = self.with_zero(p.data, shape)?;
        let mut perm: Vec<usize> = (1..=rank).collect();
        perm.insert(axis, 0);
        self.transposed(y, &perm)
    }

    /// The sum of a list, as a list of one number.
    fn total(&mut self, x: ValueId) -> Made {
        let axes = self.ints("axes", &[0])?;
        self.plain("ReduceSum", &[x, axes])
    }

    /// The place of each element of matrices side by side, `[rows, widths[0]]`, `[rows, widths[1]]` and so on, among their elements
    /// when they are packed: `[rows, width]`. `width` is the sum of the widths; it and `rows` are lists of one number.
    fn places(&mut self, rows: ValueId, widths: ValueId, width: ValueId) -> Made {
        let starts = self.sums(widths, false)?;
        let one = self.ints("one", &[1])?;
        // The number of matrices that start at or before a column, less one, is the number of the matrix that has it.
        let more = self.plain("Add", &[width, one])?;
        let none = self.repeated(0, more)?;
        let count = self.length(widths, 0)?;
        let marks = self.repeated(1, count)?;
        let add = axis_of(0).with("reduction", Attr::Str("add".into()));
        let marks = self.op("ScatterElements", add, &[none, starts, marks])?;
        let marks = self.sums(marks, true)?;
        let marks = self.before(marks, width)?;
        let matrix = self.plain("Sub", &[marks, one])?;
        let own_width = self.plain("Gather", &[widths, matrix])?;
        let own_start = self.plain("Gather", &[starts, matrix])?;
        // In row r of a matrix of width w that starts at s, column c is element rows·s + r·w + (c - s).
        let others = self.plain("Sub", &[rows, one])?;
        let skipped = self.plain("Mul", &[others, own_start])?;
        let last = self.scalar(width)?;
        let column = self.counted(last)?;
        let first = self.plain("Add", &[skipped, column])?;
        let last = self.scalar(rows)?;
        let row = self.counted(last)?;
        let row = self.unsqueezed(row, &[1])?;
        let within = self.plain("Mul", &[row, own_width])?;
        self.plain("Add", &[within, first])
    }

    /// `x` cut along an axis into tensors of these `lengths`, whose axis is removed where `kept` does not hold.
    pub(super) fn cut(
        &mut self,
        x: ValueId,
        axis: usize,
        lengths: ValueId,
        kept: bool,
    ) -> Result<Packed, ImportFailure> {
        let rank = self.shape(x)?.len();
        let lengths = self.cast(lengths, DType::I64)?;
        // Lengths that are negative have another sum without their signs, and both sums have to be the length of the axis.
        let length = self.length(x, axis as i64)?;
        let signless = self.plain("Abs", &[lengths])?;
        let signless = self.total(signless)?;
        let total = self.total(lengths)?;
        let fits = self.equal_all(length, &[signless, total])?;
        let checked = self.given(x, fits)?;
        let size = self.plain("Shape", &[x])?;
        let outer = self.slice(size, 0, 0, axis as i64, 1)?;
        let inner = self.slice(size, 0, axis as i64 + 1, i64::MAX, 1)?;
        let elements = self.flat(checked)?;
        let data = match axis {
            0 => elements,
            _ => {
                let (rows, each) = (self.product(outer)?, self.product(inner)?);
                let widths = self.plain("Mul", &[lengths, each])?;
                // The length that was checked, so that no table is made for another one.
                let length = self.length(checked, axis as i64)?;
                let width = self.plain("Mul", &[length, each])?;
                let places = self.places(rows, widths, width)?;
                let places = self.flat(places)?;
                self.op("ScatterElements", axis_of(0), &[elements, places, elements])?
            }
        };
        let count = self.length(lengths, 0)?;
        let rank = if kept { rank } else { rank - 1 };
        let ranks = Some((rank, rank));
        let numbers = self.repeated(rank as i64, count)?;
        let mut table = vec![self.unsqueezed(numbers, &[1])?];
        let rest = |e: &mut Self, dims: ValueId, n: usize| -> Made {
            let n = e.ints("columns", &[n as i64])?;
            let size = e.joined(0, &[count, n])?;
            e.plain("Expand", &[dims, size])
        };
        if axis > 0 {
            table.push(rest(self, outer, axis)?);
        }
        if kept {
            table.push(self.unsqueezed(lengths, &[1])?);
        }
        let behind = self.shape(x)?.len() - axis - 1;
        if behind > 0 {
            table.push(rest(self, inner, behind)?);
        }
        if rank == 0 {
            let ones = self.repeated(1, count)?;
            table.push(self.unsqueezed(ones, &[1])?);
        }
        let shapes = self.joined(1, &table)?;
        Ok(Packed {
            data,
            shapes,
            ranks,
        })
    }

    /// Lengths of equal parts of an axis of `x`, of which the last one may be shorter; `each` is a scalar.
    pub(super) fn parts(&mut self, x: ValueId, axis: usize, each: ValueId) -> Made {
        let length = self.length(x, axis as i64)?;
        let last = self.scalar(length)?;
        let each = self.cast(each, DType::I64)?;
        let each = self.reshaped(each, &[])?;
        let first = self.int("first", 0)?;
        let starts = self.plain("Range", &[first, last, each])?;
        let left = self.plain("Sub", &[length, starts])?;
        self.plain("Min", &[left, each])
    }

    /// Whether all of `others`, at least one, equal `x`.
    fn equal_all(&mut self, x: ValueId, others: &[ValueId]) -> Made {
        let mut all = None;
        for other in others {
            let is_equal = self.plain("Equal", &[x, *other])?;
            all = Some(match all {
                None => is_equal,
                Some(all) => self.plain("And", &[all, is_equal])?,
            });
        }
        Ok(all.ok_or_else(|| self.c.error("compares nothing"))?)
    }

    /// `x`, which is refused when it runs unless `has` holds, a scalar or a list of one bool.
    pub(super) fn given(&mut self, x: ValueId, has: ValueId) -> Made {
        let lacks = self.plain("Not", &[has])?;
        let lacks = self.cast(lacks, DType::I64)?;
        let zero = self.ints("zero", &[0])?;
        let zero = self.plain("Gather", &[zero, lacks])?;
        let shape = self.plain("Shape", &[x])?;
        let shape = self.plain("Add", &[shape, zero])?;
        self.with_zero(x, shape)
    }
}
