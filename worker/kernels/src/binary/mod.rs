//! Functions of two elements with numpy broadcasting, and the ternary `Where`.
//!
//! Callers compute variadic operators as a chain: the first two operands into the result, then each further operand in
//! place.

mod arith;
mod bitwise;
pub(crate) mod block;
mod compare;
mod pow;
mod select;

pub use arith::{Arith, ArithKernels, arith, arith_inplace};
pub use bitwise::{Bitwise, BitwiseKernels, Logic, bitwise, logic};
pub use compare::{Compare, CompareKernels, compare};
pub use pow::{PowKernels, pow_mixed};
pub use select::{SelectKernels, select};

use block::RunArith;

use crate::Exec;
use crate::element::{Element, Number};
use crate::error::{KernelError, Result};
use crate::multiversion::multiversion;
use crate::shape::{Operand, Walk, count};
use crate::split::{GRAIN, tiles};
use std::ops::Range;

/// One function of two elements; `O` is the type of its result.
trait BinaryFn<T, O>: Copy + Send + Sync {
    /// Whether the function's loops are also compiled for wider instruction sets, at the price of two more copies.
    const WIDE: bool;
    fn eval(self, a: T, b: T) -> O;
}

/// Computes a run of outputs; each input advances by 0 or 1, as `steps` says.
#[inline(always)]
fn run<T: Element, O: Element, F: BinaryFn<T, O>>(
    f: F,
    steps: [isize; 2],
    a: &[T],
    b: &[T],
    y: &mut [O],
) {
    let n = y.len();
    match steps {
        [1, 1] => {
            let (a, b) = (&a[..n], &b[..n]);
            for i in 0..n {
                y[i] = f.eval(a[i], b[i]);
            }
        }
        [1, _] => {
            let (a, b) = (&a[..n], b[0]);
            for i in 0..n {
                y[i] = f.eval(a[i], b);
            }
        }
        [_, 1] => {
            let (a, b) = (a[0], &b[..n]);
            for i in 0..n {
                y[i] = f.eval(a, b[i]);
            }
        }
        _ => y.fill(f.eval(a[0], b[0])),
    }
}

/// Computes like [`run`], with `y` as its first operand.
#[inline(always)]
fn run_inplace<T: Element, F: BinaryFn<T, T>>(f: F, step: isize, b: &[T], y: &mut [T]) {
    let n = y.len();
    if step == 0 {
        let b = b[0];
        for i in 0..n {
            y[i] = f.eval(y[i], b);
        }
    } else {
        let b = &b[..n];
        for i in 0..n {
            y[i] = f.eval(y[i], b[i]);
        }
    }
}

#[inline(always)]
fn tile_body<T: Element, O: Element, F: BinaryFn<T, O>>(
    f: F,
    walk: &Walk<2>,
    range: Range<usize>,
    a: &[T],
    b: &[T],
    y: &mut [O],
) {
    let mut runs = walk.runs(range);
    while let Some(r) = runs.next_run() {
        run(
            f,
            walk.inner(),
            &a[r.offset[0]..],
            &b[r.offset[1]..],
            &mut y[r.start..r.start + r.len],
        );
    }
}

multiversion! {
    fn tile_wide<T: Element, O: Element, F: BinaryFn<T, O>>(
        f: F, walk: &Walk<2>, range: Range<usize>, a: &[T], b: &[T], y: &mut [O],
    ) {
        tile_body(f, walk, range, a, b, y)
    }
}

#[inline(always)]
fn tile_inplace_body<T: Element, F: BinaryFn<T, T>>(
    f: F,
    walk: &Walk<1>,
    range: Range<usize>,
    b: &[T],
    y: &mut [T],
) {
    let step = walk.inner()[0];
    let mut runs = walk.runs(range);
    while let Some(r) = runs.next_run() {
        let y = &mut y[r.start..r.start + r.len];
        run_inplace(f, step, &b[r.offset[0]..], y);
    }
}

multiversion! {
    fn tile_inplace_wide<T: Element, F: BinaryFn<T, T>>(
        f: F, walk: &Walk<1>, range: Range<usize>, b: &[T], y: &mut [T],
    ) {
        tile_inplace_body(f, walk, range, b, y)
    }
}

fn map<T: Element, O: Element, F: BinaryFn<T, O>>(
    exec: &Exec,
    f: F,
    a: Operand<T>,
    b: Operand<T>,
    y: &mut [O],
    y_shape: &[usize],
) -> Result {
    assert_eq!(y.len(), count(y_shape), "result of shape {y_shape:?}");
    if let ([a], [b], [y]) = (a.data, b.data, &mut *y) {
        exec.check()?;
        *y = f.eval(*a, *b);
        return Ok(());
    }
    let walk = Walk::broadcast(y_shape, [a.shape, b.shape])?;
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        if F::WIDE {
            tile_wide(f, &walk, range, a.data, b.data, part)
        } else {
            tile_body(f, &walk, range, a.data, b.data, part)
        }
    })?)
}

fn map_inplace<T: Element, F: BinaryFn<T, T>>(
    exec: &Exec,
    f: F,
    y: &mut [T],
    y_shape: &[usize],
    b: Operand<T>,
) -> Result {
    assert_eq!(y.len(), count(y_shape), "result of shape {y_shape:?}");
    if let ([b], [y]) = (b.data, &mut *y) {
        exec.check()?;
        *y = f.eval(*y, *b);
        return Ok(());
    }
    let walk = Walk::broadcast(y_shape, [b.shape])?;
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        if F::WIDE {
            tile_inplace_wide(f, &walk, range, b.data, part)
        } else {
            tile_inplace_body(f, &walk, range, b.data, part)
        }
    })?)
}

/// The shortest run that is worth a call of one of [`RunArith::arith_runs`].
const RUN: usize = 16;

/// Computes as [`map`] does, by [`RunArith::arith_runs`]; `None` where that is not faster.
fn map_runs<T: RunArith>(
    exec: &Exec,
    op: Arith,
    a: Operand<T>,
    b: Operand<T>,
    y: &mut [T],
    y_shape: &[usize],
) -> Option<Result> {
    assert_eq!(y.len(), count(y_shape), "result of shape {y_shape:?}");
    let arith = T::arith_runs(op)?;
    let walk = Walk::broadcast(y_shape, [a.shape, b.shape]).ok()?;
    if walk.run() < RUN {
        return None;
    }
    let done = tiles(exec, y, 1, GRAIN, |range, part| {
        let mut runs = walk.runs(range);
        while let Some(r) = runs.next_run() {
            let (a, b) = (&a.data[r.offset[0]..], &b.data[r.offset[1]..]);
            let y = &mut part[r.start..r.start + r.len];
            (arith.apart)(op, walk.inner(), a, b, y);
        }
    });
    Some(done.map_err(Into::into))
}

/// Computes as [`map_inplace`] does, by [`RunArith::arith_runs`]; `None` where that is not faster.
fn map_runs_inplace<T: RunArith>(
    exec: &Exec,
    op: Arith,
    y: &mut [T],
    y_shape: &[usize],
    b: Operand<T>,
) -> Option<Result> {
    assert_eq!(y.len(), count(y_shape), "result of shape {y_shape:?}");
    let arith = T::arith_runs(op)?;
    let walk = Walk::broadcast(y_shape, [b.shape]).ok()?;
    if walk.run() < RUN {
        return None;
    }
    let done = tiles(exec, y, 1, GRAIN, |range, part| {
        let mut runs = walk.runs(range);
        while let Some(r) = runs.next_run() {
            let y = &mut part[r.start..r.start + r.len];
            (arith.inplace)(op, walk.inner()[0], &b.data[r.offset[0]..], y);
        }
    });
    Some(done.map_err(Into::into))
}

/// Fails where an integer divisor contains a zero, unless there is nothing to divide.
fn check_divisor<T: Number>(outputs: usize, divisor: &[T]) -> Result {
    if T::INTEGER
        && outputs > 0
        && let Some(element) = divisor.iter().position(|&b| b == T::ZERO)
    {
        return Err(KernelError::DivisionByZero { element });
    }
    Ok(())
}

/// Defines unit structs that are [`BinaryFn`]s.
macro_rules! binary_functions {
    ($bound:path => $out:ty, wide $wide:expr; $($name:ident($a:ident, $b:ident) $body:expr;)*) => {$(
        #[derive(Clone, Copy)]
        pub(super) struct $name;
        impl<T: $bound> BinaryFn<T, $out> for $name {
            const WIDE: bool = $wide;
            #[inline(always)]
            fn eval(self, $a: T, $b: T) -> $out {
                $body
            }
        }
    )*};
}
use binary_functions;

#[cfg(test)]
mod tests;
