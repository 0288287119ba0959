//! Arithmetic of floats on short blocks, for fused chains.

use super::arith::{constant_exponent, dispatch_block};
use super::{BinaryFn, run, run_inplace};
use crate::binary::Arith;
use crate::element::Float;
use crate::multiversion::multiversion;

multiversion! {
    fn apart_wide<T: Float, F: BinaryFn<T, T>>(f: F, steps: [isize; 2], a: &[T], b: &[T], y: &mut [T]) {
        run(f, steps, a, b, y)
    }
}

multiversion! {
    fn inplace_wide<T: Float, F: BinaryFn<T, T>>(f: F, step: isize, b: &[T], y: &mut [T]) {
        run_inplace(f, step, b, y)
    }
}

multiversion! {
    fn twice_wide<T: Float, F: BinaryFn<T, T>>(f: F, y: &mut [T]) {
        for i in 0..y.len() {
            y[i] = f.eval(y[i], y[i]);
        }
    }
}

/// `y[i] = op(a[i], b[i])`; an operand of step 0 counts as its first element throughout.
pub(crate) fn apart<T: Float>(op: Arith, steps: [isize; 2], a: &[T], b: &[T], y: &mut [T]) {
    let constant = constant_exponent(op, &b[..if steps[1] == 0 { 1 } else { 0 }]);
    dispatch_block!(op, constant, apart_wide(steps, a, b, y))
}

/// `y[i] = op(y[i], b[i])`; with a step of 0, `b` counts as its first element throughout.
pub(crate) fn inplace<T: Float>(op: Arith, step: isize, b: &[T], y: &mut [T]) {
    let constant = constant_exponent(op, &b[..if step == 0 { 1 } else { 0 }]);
    dispatch_block!(op, constant, inplace_wide(step, b, y))
}

/// `y[i] = op(y[i], y[i])`.
pub(crate) fn twice<T: Float>(op: Arith, y: &mut [T]) {
    dispatch_block!(op, None, twice_wide(y))
}
