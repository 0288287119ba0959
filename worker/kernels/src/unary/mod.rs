//! Functions of one element.
//!
//! The `*_inplace` forms replace their argument. Functions of floats are computed from one slice into the other; the others
//! copy block by block, and compute in place while a block is in the cache.

mod ops;

pub use convoke_functions::FloatUnary;

use crate::Exec;
use crate::compiled::{compiled_floats, compiled_integers, compiled_numbers};
use crate::element::{Element, Float, Integer, Number};
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::split::{GRAIN, tiles};

/// Number of elements of a block, which stays in the first-level cache while it is computed.
const BLOCK: usize = 1024;

/// Replaces every element of a run by its function value. Chains of other ops, which call it from their loops, are quicker without
/// its code in them.
#[inline(never)]
pub(crate) fn float_block<T: Float>(op: FloatUnary, y: &mut [T]) {
    if let Some(wide) = T::as_wide_mut(y) {
        return ops::replace(op, wide);
    }
    let mut wide = [T::Wide::ZERO; BLOCK];
    for block in y.chunks_mut(BLOCK) {
        let wide = &mut wide[..block.len()];
        T::widen_run(block, wide);
        ops::replace(op, wide);
        T::narrow_run(wide, block);
    }
}

/// `y[i] = op(x[i])` for a run; both slices have the same length.
fn float_apart<T: Float>(op: FloatUnary, x: &[T], y: &mut [T]) {
    if let (Some(x), Some(y)) = (T::as_wide(x), T::as_wide_mut(y)) {
        return ops::apart(op, x, y);
    }
    let mut wide = [T::Wide::ZERO; BLOCK];
    for (x, y) in x.chunks(BLOCK).zip(y.chunks_mut(BLOCK)) {
        let wide = &mut wide[..x.len()];
        T::widen_run(x, wide);
        ops::replace(op, wide);
        T::narrow_run(wide, y);
    }
}

/// Copies `x` to `y` and runs `in_place` on every block of it.
fn copied<T: Element>(
    exec: &Exec,
    x: &[T],
    y: &mut [T],
    in_place: impl Fn(&mut [T]) + Sync,
) -> Result {
    assert_eq!(x.len(), y.len(), "unary operand and result");
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        for (x, y) in x[range].chunks(BLOCK).zip(part.chunks_mut(BLOCK)) {
            y.copy_from_slice(x);
            in_place(y);
        }
    })?)
}

fn replaced<T: Element>(exec: &Exec, y: &mut [T], in_place: impl Fn(&mut [T]) + Sync) -> Result {
    Ok(tiles(exec, y, 1, GRAIN, |_, part| in_place(part))?)
}

fn float_any<T: Float>(exec: &Exec, op: FloatUnary, x: &[T], y: &mut [T]) -> Result {
    assert_eq!(x.len(), y.len(), "unary operand and result");
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        for (x, y) in x[range].chunks(BLOCK).zip(part.chunks_mut(BLOCK)) {
            float_apart(op, x, y);
        }
    })?)
}

fn float_inplace_any<T: Float>(exec: &Exec, op: FloatUnary, y: &mut [T]) -> Result {
    replaced(exec, y, |y| float_block(op, y))
}

fn test_any<T: Float>(exec: &Exec, test: Test, x: &[T], y: &mut [u8]) -> Result {
    assert_eq!(x.len(), y.len(), "test operand and result");
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        test_block(test, &x[range], part)
    })?)
}

compiled_floats! {
    /// The unary kernels of a floating-point type.
    trait FloatUnaryKernels {
        fn unary(exec: &Exec, op: FloatUnary, x: &[Self], y: &mut [Self]) = float_any;
        fn unary_inplace(exec: &Exec, op: FloatUnary, y: &mut [Self]) = float_inplace_any;
        fn test(exec: &Exec, test: Test, x: &[Self], y: &mut [u8]) = test_any;
    }
}

/// `y[i] = op(x[i])`; both slices have the same length.
pub fn float<T: Float>(exec: &Exec, op: FloatUnary, x: &[T], y: &mut [T]) -> Result {
    T::unary(exec, op, x, y)
}

/// `y[i] = op(y[i])`.
pub fn float_inplace<T: Float>(exec: &Exec, op: FloatUnary, y: &mut [T]) -> Result {
    T::unary_inplace(exec, op, y)
}

/// A unary function of an integer element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum IntegerUnary {
    Abs,
    Neg,
    Sign,
    Relu,
    BitwiseNot,
}

trait IntegerFn<T>: Copy {
    fn eval(self, x: T) -> T;
}

macro_rules! integer_functions {
    ($($name:ident => $f:expr),*) => {$(
        #[derive(Clone, Copy)]
        struct $name;
        impl<T: Integer> IntegerFn<T> for $name {
            #[inline(always)]
            fn eval(self, x: T) -> T {
                $f(x)
            }
        }
    )*};
}
integer_functions!(Abs => T::abs, Neg => T::neg, Sign => T::sign, BitwiseNot => T::not);

#[derive(Clone, Copy)]
struct Clip<T> {
    min: T,
    max: T,
}

impl<T: Number> IntegerFn<T> for Clip<T> {
    #[inline(always)]
    fn eval(self, x: T) -> T {
        // A NaN fails both comparisons and stays; where the bounds cross, `max` wins.
        // Numbers of 16 bits are compared as wide ones, which are vectors.
        let (wide, min, max) = (x.widen(), self.min.widen(), self.max.widen());
        let (y, wide) = if wide < min {
            (self.min, min)
        } else {
            (x, wide)
        };
        if wide > max { self.max } else { y }
    }
}

fn each<T: Element, O: IntegerFn<T>>(op: O, y: &mut [T]) {
    for v in y {
        *v = op.eval(*v);
    }
}

multiversion! {
    fn clip_block<T: Number>(clip: Clip<T>, y: &mut [T]) {
        for i in 0..y.len() {
            y[i] = clip.eval(y[i]);
        }
    }
}

fn integer_block<T: Integer>(op: IntegerUnary, y: &mut [T]) {
    match op {
        IntegerUnary::Abs => each(Abs, y),
        IntegerUnary::Neg => each(Neg, y),
        IntegerUnary::Sign => each(Sign, y),
        IntegerUnary::Relu => each(
            Clip {
                min: T::ZERO,
                max: T::HIGHEST,
            },
            y,
        ),
        IntegerUnary::BitwiseNot => each(BitwiseNot, y),
    }
}

fn integer_any<T: Integer>(exec: &Exec, op: IntegerUnary, x: &[T], y: &mut [T]) -> Result {
    copied(exec, x, y, |y| integer_block(op, y))
}

fn integer_inplace_any<T: Integer>(exec: &Exec, op: IntegerUnary, y: &mut [T]) -> Result {
    replaced(exec, y, |y| integer_block(op, y))
}

compiled_integers! {
    /// The unary kernels of an integer type.
    trait IntegerUnaryKernels {
        fn unary(exec: &Exec, op: IntegerUnary, x: &[Self], y: &mut [Self]) = integer_any;
        fn unary_inplace(exec: &Exec, op: IntegerUnary, y: &mut [Self]) = integer_inplace_any;
    }
}

/// `y[i] = op(x[i])`; both slices have the same length. `Neg` and `Abs` wrap.
pub fn integer<T: Integer>(exec: &Exec, op: IntegerUnary, x: &[T], y: &mut [T]) -> Result {
    T::unary(exec, op, x, y)
}

/// `y[i] = op(y[i])`.
pub fn integer_inplace<T: Integer>(exec: &Exec, op: IntegerUnary, y: &mut [T]) -> Result {
    T::unary_inplace(exec, op, y)
}

fn clip_any<T: Number>(exec: &Exec, min: T, max: T, x: &[T], y: &mut [T]) -> Result {
    copied(exec, x, y, |y| clip_block(Clip { min, max }, y))
}

fn clip_inplace_any<T: Number>(exec: &Exec, min: T, max: T, y: &mut [T]) -> Result {
    replaced(exec, y, |y| clip_block(Clip { min, max }, y))
}

compiled_numbers! {
    /// The clipping kernels of a type.
    trait ClipKernels {
        fn clip(exec: &Exec, min: Self, max: Self, x: &[Self], y: &mut [Self]) = clip_any;
        fn clip_inplace(exec: &Exec, min: Self, max: Self, y: &mut [Self]) = clip_inplace_any;
    }
}

/// `y[i] = min(max(x[i], min), max)`: `max` wins where the bounds cross, and NaN stays. The caller passes
/// [`Number::LOWEST`] or [`Number::HIGHEST`] for an absent bound.
pub fn clip<T: Number>(exec: &Exec, min: T, max: T, x: &[T], y: &mut [T]) -> Result {
    T::clip(exec, min, max, x, y)
}

/// Computes [`clip`] in place.
pub fn clip_inplace<T: Number>(exec: &Exec, min: T, max: T, y: &mut [T]) -> Result {
    T::clip_inplace(exec, min, max, y)
}

/// A predicate on a floating-point element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// Whether the element is NaN.
    IsNan,
    /// Whether the element is an infinity of one of the chosen signs.
    IsInf {
        /// Whether +inf counts.
        positive: bool,
        /// Whether -inf counts.
        negative: bool,
    },
}

multiversion! {
    fn test_block<T: Float>(test: Test, x: &[T], y: &mut [u8]) {
        let n = x.len().min(y.len());
        let (x, y) = (&x[..n], &mut y[..n]);
        match test {
            Test::IsNan => for i in 0..n {
                y[i] = u8::from(x[i].is_nan());
            },
            Test::IsInf { positive, negative } => for i in 0..n {
                y[i] = u8::from((positive & (x[i] == T::HIGHEST)) | (negative & (x[i] == T::LOWEST)));
            },
        }
    }
}

/// `y[i] = test(x[i])` as 0 or 1; both slices have the same length.
pub fn test<T: Float>(exec: &Exec, test: Test, x: &[T], y: &mut [u8]) -> Result {
    T::test(exec, test, x, y)
}

#[derive(Clone, Copy)]
struct LogicalNot;

impl IntegerFn<u8> for LogicalNot {
    #[inline(always)]
    fn eval(self, x: u8) -> u8 {
        u8::from(x == 0)
    }
}

/// Computes the logical complement of booleans; both slices have the same length.
pub fn not(exec: &Exec, x: &[u8], y: &mut [u8]) -> Result {
    copied(exec, x, y, |y| each(LogicalNot, y))
}

/// Computes [`not`] in place.
pub fn not_inplace(exec: &Exec, y: &mut [u8]) -> Result {
    replaced(exec, y, |y| each(LogicalNot, y))
}

#[cfg(test)]
mod tests;
