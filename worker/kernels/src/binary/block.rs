//! Arithmetic of floats on short blocks, for fused chains.

use super::arith::{constant_exponent, dispatch_block};
use super::{BinaryFn, run, run_inplace};
use crate::binary::Arith;
use crate::element::{Float, Number, bf16, f16};
use crate::multiversion::multiversion;

multiversion! {
    fn apart_wide<T: Number, F: BinaryFn<T, T>>(f: F, steps: [isize; 2], a: &[T], b: &[T], y: &mut [T]) {
        run(f, steps, a, b, y)
    }
}

multiversion! {
    fn inplace_wide<T: Number, F: BinaryFn<T, T>>(f: F, step: isize, b: &[T], y: &mut [T]) {
        run_inplace(f, step, b, y)
    }
}

multiversion! {
    fn twice_wide<T: Number, F: BinaryFn<T, T>>(f: F, y: &mut [T]) {
        for i in 0..y.len() {
            y[i] = f.eval(y[i], y[i]);
        }
    }
}

/// Up to this many elements, choosing an instruction set takes longer than computing.
const SHORT: usize = 8;

/// Functions that compute a run of arithmetic. An operand of step 0 counts as its first element throughout.
pub(super) struct ArithRuns<T> {
    /// `y[i] = op(a[i], b[i])`, of an op, the steps of both operands, the operands and the result.
    pub apart: fn(Arith, [isize; 2], &[T], &[T], &mut [T]),
    /// `y[i] = op(y[i], b[i])`, of an op, the step of `b`, `b` and the result.
    pub inplace: fn(Arith, isize, &[T], &mut [T]),
}

/// A number whose arithmetic may be computed in runs.
pub(super) trait RunArith: Number {
    /// Functions that compute runs of arithmetic with the bits of the function of each element, faster than element by
    /// element; `None` where there are none.
    #[inline(always)]
    fn arith_runs(_: Arith) -> Option<ArithRuns<Self>> {
        None
    }
}

macro_rules! element_by_element {
    ($($t:ty),*) => { $(impl RunArith for $t {})* };
}
element_by_element!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! in_runs {
    ($($t:ty),*) => {$(
        impl RunArith for $t {
            fn arith_runs(op: Arith) -> Option<ArithRuns<$t>> {
                let runs = ArithRuns {
                    apart,
                    inplace,
                };
                (!matches!(op, Arith::Mod | Arith::Fmod)).then_some(runs)
            }
        }
    )*};
}
in_runs!(f16, bf16);

/// Elements that are widened at a time.
const BLOCK: usize = 512;

/// Calls `replace` for blocks of `y` in the type that operators compute in, with the first element of each, and rounds what it
/// leaves. `fill` writes the elements that a block has at first. These are the bits of each function on numbers of 16 bits, which
/// are converted by the processor's instructions. False where the type is `T` itself.
fn in_wide<T: Float>(
    y: &mut [T],
    fill: impl Fn(&[T], usize, &mut [T::Wide]),
    mut replace: impl FnMut(usize, &mut [T::Wide]),
) -> bool {
    if T::as_wide(y).is_some() {
        return false;
    }
    let mut room = [T::Wide::ZERO; BLOCK];
    for (i, y) in y.chunks_mut(BLOCK).enumerate() {
        let wide = &mut room[..y.len()];
        fill(y, i * BLOCK, wide);
        replace(i * BLOCK, wide);
        T::narrow_run(wide, y);
    }
    true
}

/// Calls `f` with those elements of `b` that belong to `wide`, which begins with element `start`, and their step.
fn with_second<T: Float>(
    (b, step): (&[T], isize),
    start: usize,
    wide: &mut [T::Wide],
    f: impl FnOnce(&[T::Wide], &mut [T::Wide]),
) {
    let mut room = [T::Wide::ZERO; BLOCK];
    let (from, len) = if step == 0 {
        (0, 1)
    } else {
        (start, wide.len())
    };
    T::widen_run(&b[from..][..len], &mut room[..len]);
    f(&room[..len], wide);
}

/// `y[i] = op(a[i], b[i])`; an operand of step 0 counts as its first element throughout.
pub(crate) fn apart<T: Float>(op: Arith, steps: [isize; 2], a: &[T], b: &[T], y: &mut [T]) {
    let constant = constant_exponent(op, &b[..if steps[1] == 0 { 1 } else { 0 }]);
    let [first, step] = steps;
    let fill = |_: &[T], start: usize, wide: &mut [T::Wide]| match first {
        0 => wide.fill(a[0].widen()),
        _ => T::widen_run(&a[start..][..wide.len()], wide),
    };
    let replace = |start: usize, wide: &mut [T::Wide]| {
        with_second((b, step), start, wide, |b, y| {
            dispatch_block!(op, constant, inplace_wide(step, b, y))
        });
    };
    if !in_wide(y, fill, replace) {
        dispatch_block!(op, constant, apart_wide(steps, a, b, y))
    }
}

/// `y[i] = op(y[i], b[i])`; with a step of 0, `b` counts as its first element throughout.
pub(crate) fn inplace<T: Float>(op: Arith, step: isize, b: &[T], y: &mut [T]) {
    let constant = constant_exponent(op, &b[..if step == 0 { 1 } else { 0 }]);
    if y.len() <= SHORT && T::as_wide(y).is_some() {
        return dispatch_block!(op, constant, run_inplace(step, b, y));
    }
    let replace = |start: usize, wide: &mut [T::Wide]| {
        with_second((b, step), start, wide, |b, y| {
            dispatch_block!(op, constant, inplace_wide(step, b, y))
        });
    };
    if !in_wide(y, |y, _, wide| T::widen_run(y, wide), replace) {
        dispatch_block!(op, constant, inplace_wide(step, b, y))
    }
}

/// `y[i] = op(y[i], y[i])`.
pub(crate) fn twice<T: Float>(op: Arith, y: &mut [T]) {
    dispatch_block!(op, None, twice_wide(y))
}
