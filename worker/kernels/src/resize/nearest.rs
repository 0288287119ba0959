//! Copies of the nearest elements, along several axes at once.

use crate::Exec;
use crate::compiled::compiled_bits;
use crate::element::Bits;
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::shape::{Axis, MAX_RANK, check_rank, count};
use crate::split::{Finished, PIECE, Pace, pieces, tiles, units_per_tile};

/// Lines whose starts are computed before the first of them is written.
const TOGETHER: usize = 16;

fn nearest_any<T: Bits>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    changes: &[(usize, Vec<usize>)],
    y: &mut [T],
) -> Result {
    check_rank(shape)?;
    let Some(((last, columns), before)) = changes.split_last() else {
        assert_eq!(x.len(), y.len(), "operand of {shape:?}");
        copy(&mut Pace::new(exec, PIECE), x, y)?;
        return Ok(exec.check()?);
    };
    assert_eq!(x.len(), count(shape), "operand of {shape:?}");
    let mut tables: [Option<&[usize]>; MAX_RANK] = [None; MAX_RANK];
    for (axis, table) in before {
        assert!(axis < last, "axes ascend");
        tables[*axis] = Some(table);
    }
    let lengths = |axis: usize| tables[axis].map_or(shape[axis], <[usize]>::len);
    let lines: usize = (0..*last).map(lengths).product();
    let Axis { len, inner, .. } = Axis::of(shape, *last);
    let line = columns.len() * inner;
    assert_eq!(y.len(), lines * line, "result of {shape:?}");
    // A factor is of use where an element is repeated less often than work is counted.
    let factor = factor(exec, columns, len).filter(|factor| inner == 1 && *factor <= PIECE);
    tiles(exec, y, line, units_per_tile(line), |range, part| {
        let pace = &mut Pace::new(exec, PIECE);
        let mut walk = Lines::new(&shape[..*last], &tables, range.start);
        if let Some(factor) = factor.filter(|_| line <= PIECE) {
            let mut starts = [0; TOGETHER];
            for part in part.chunks_mut(TOGETHER * line) {
                let starts = &mut starts[..part.len() / line];
                if pace.count(part.len()).is_err() {
                    return;
                }
                for start in starts.iter_mut() {
                    *start = walk.next_line() * len;
                }
                repeat_lines(x, starts, len, factor, part);
            }
            return;
        }
        let mut before = None;
        for i in 0..range.len() {
            let from = walk.next_line() * len * inner;
            let (done, y) = part[..(i + 1) * line].split_at_mut(i * line);
            let made = if before == Some(from) {
                copy(pace, &done[(i - 1) * line..], y)
            } else {
                make_line(pace, &x[from..from + len * inner], columns, factor, y)
            };
            if made.is_err() {
                return;
            }
            before = Some(from);
        }
    })?;
    Ok(exec.check()?)
}

/// The numbers among the lines of the operand of consecutive lines of the result. Those that differ in the axis before the
/// lines alone follow each other without a division.
struct Lines<'a> {
    shape: &'a [usize],
    tables: &'a [Option<&'a [usize]>; MAX_RANK],
    /// The next line of the result.
    number: usize,
    /// The places of the axis before the lines in the operand, where they are others than in the result.
    table: Option<&'a [usize]>,
    /// The next place along that axis, and its length in the result.
    place: usize,
    len: usize,
    /// The line of the operand at the first place.
    base: usize,
}

impl<'a> Lines<'a> {
    fn new(
        shape: &'a [usize],
        tables: &'a [Option<&'a [usize]>; MAX_RANK],
        number: usize,
    ) -> Lines<'a> {
        let table = shape.len().checked_sub(1).and_then(|axis| tables[axis]);
        let len = table.map_or(shape.last().copied().unwrap_or(1), <[usize]>::len);
        let place = number % len.max(1);
        Lines {
            shape,
            tables,
            number,
            table,
            place,
            len,
            base: Lines::base(shape, tables, number / len.max(1)),
        }
    }

    fn base(shape: &[usize], tables: &[Option<&[usize]>; MAX_RANK], number: usize) -> usize {
        match shape {
            [] => 0,
            [before @ .., len] => line_of(before, tables, number) * len,
        }
    }

    #[inline(always)]
    fn next_line(&mut self) -> usize {
        if self.place == self.len {
            self.place = 0;
            self.base = Lines::base(self.shape, self.tables, self.number / self.len);
        }
        let line = self.base + self.table.map_or(self.place, |table| table[self.place]);
        self.number += 1;
        self.place += 1;
        line
    }
}

/// Makes a line of the elements of `x` that `columns` lists, or of each `factor` times where that is the same.
fn make_line<T: Bits>(
    pace: &mut Pace,
    x: &[T],
    columns: &[usize],
    factor: Option<usize>,
    y: &mut [T],
) -> Finished {
    let inner = y.len() / columns.len();
    match factor {
        Some(factor) => {
            let some = (PIECE / factor).max(1);
            for (x, y) in x.chunks(some).zip(y.chunks_mut(some * factor)) {
                pace.count(y.len())?;
                repeat(x, factor, y);
            }
        }
        None if inner == 1 => {
            for (columns, y) in columns.chunks(PIECE).zip(y.chunks_mut(PIECE)) {
                pace.count(y.len())?;
                pick(x, columns, y);
            }
        }
        None if inner <= PIECE => {
            let most = PIECE / inner;
            for (columns, y) in columns.chunks(most).zip(y.chunks_mut(most * inner)) {
                pace.count(y.len())?;
                for (y, at) in y.chunks_exact_mut(inner).zip(columns) {
                    y.copy_from_slice(&x[at * inner..(at + 1) * inner]);
                }
            }
        }
        None => {
            for (y, at) in y.chunks_exact_mut(inner).zip(columns) {
                copy(pace, &x[at * inner..(at + 1) * inner], y)?;
            }
        }
    }
    Ok(())
}

/// Copies a run of any length.
#[inline(always)]
fn copy<T: Bits>(pace: &mut Pace, x: &[T], y: &mut [T]) -> Finished {
    for (x, y) in x.chunks(PIECE).zip(y.chunks_mut(PIECE)) {
        pace.count(y.len())?;
        y.copy_from_slice(x);
    }
    Ok(())
}

/// How often each of `len` elements follows itself in a table; `None` where that differs, or the order is another. May be
/// anything once the step is cancelled.
fn factor(exec: &Exec, table: &[usize], len: usize) -> Option<usize> {
    let factor = table
        .len()
        .checked_div(len)
        .filter(|f| *f > 0 && f * len == table.len())?;
    let mut all = pieces(exec, table.len(), PIECE).flatten();
    all.all(|i| table[i] == i / factor).then_some(factor)
}

/// The number among the lines of the operand of line `number` of the result.
fn line_of(shape: &[usize], tables: &[Option<&[usize]>; MAX_RANK], mut number: usize) -> usize {
    let (mut line, mut stride) = (0, 1);
    for (len, table) in shape.iter().zip(tables).rev() {
        let at = match table {
            Some(table) => {
                let i = number % table.len();
                number /= table.len();
                table[i]
            }
            None => {
                let i = number % len;
                number /= len;
                i
            }
        };
        line += at * stride;
        stride *= len;
    }
    line
}

multiversion! {
    /// Writes each element `factor` times.
    fn repeat<T: Bits>(x: &[T], factor: usize, y: &mut [T]) {
        repeat_each(x, factor, y)
    }
}

multiversion! {
    /// Writes each element of some lines of `len` elements `factor` times, one line after the other.
    fn repeat_lines<T: Bits>(x: &[T], starts: &[usize], len: usize, factor: usize, y: &mut [T]) {
        for (start, y) in starts.iter().zip(y.chunks_exact_mut(len * factor)) {
            repeat_each(&x[*start..*start + len], factor, y);
        }
    }
}

#[inline(always)]
fn repeat_each<T: Bits>(x: &[T], factor: usize, y: &mut [T]) {
    match factor {
        2 => repeat_by::<T, 2>(x, y),
        3 => repeat_by::<T, 3>(x, y),
        4 => repeat_by::<T, 4>(x, y),
        _ => {
            for i in 0..x.len() {
                y[i * factor..(i + 1) * factor].fill(x[i]);
            }
        }
    }
}

#[inline(always)]
fn repeat_by<T: Bits, const N: usize>(x: &[T], y: &mut [T]) {
    let y = &mut y.as_chunks_mut::<N>().0[..x.len()];
    for i in 0..x.len() {
        y[i] = [x[i]; N];
    }
}

fn pick<T: Bits>(x: &[T], table: &[usize], y: &mut [T]) {
    for (y, at) in y.iter_mut().zip(table) {
        *y = x[*at];
    }
}

compiled_bits! {
    /// Copies of the nearest elements, of one size.
    trait NearestKernels {
        fn nearest(
            exec: &Exec, x: &[Self], shape: &[usize], changes: &[(usize, Vec<usize>)], y: &mut [Self],
        ) = nearest_any;
    }
}

/// Makes `y` of the elements of `x`, whose indices along some axes are listed by ascending axis.
pub fn nearest<T: NearestKernels>(
    exec: &Exec,
    x: &[T],
    shape: &[usize],
    changes: &[(usize, Vec<usize>)],
    y: &mut [T],
) -> Result {
    T::nearest(exec, x, shape, changes, y)
}
