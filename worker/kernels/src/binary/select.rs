//! `Where`: a boolean selects one of two elements.

use crate::Exec;
use crate::compiled::compiled_bits;
use crate::element::{Bits, Element};
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::shape::{Operand, Walk, count};
use crate::split::{GRAIN, tiles};
use std::ops::Range;

/// The operands of `Where` along a run.
#[derive(Clone, Copy)]
struct Choices<'a, T> {
    yes: &'a [T],
    no: &'a [T],
}

#[inline(always)]
fn run<T: Element>(steps: [isize; 3], condition: &[u8], choices: Choices<T>, out: &mut [T]) {
    let n = out.len();
    let Choices { yes, no } = choices;
    match steps {
        [0, yes_step, no_step] => {
            let (chosen, step) = if condition[0] != 0 {
                (yes, yes_step)
            } else {
                (no, no_step)
            };
            if step == 0 {
                out.fill(chosen[0])
            } else {
                out.copy_from_slice(&chosen[..n])
            }
        }
        [_, 1, 1] => {
            let (condition, yes, no) = (&condition[..n], &yes[..n], &no[..n]);
            for i in 0..n {
                out[i] = if condition[i] != 0 { yes[i] } else { no[i] };
            }
        }
        [_, 1, _] => {
            let (condition, yes, no) = (&condition[..n], &yes[..n], no[0]);
            for i in 0..n {
                out[i] = if condition[i] != 0 { yes[i] } else { no };
            }
        }
        [_, _, 1] => {
            let (condition, yes, no) = (&condition[..n], yes[0], &no[..n]);
            for i in 0..n {
                out[i] = if condition[i] != 0 { yes } else { no[i] };
            }
        }
        _ => {
            let (condition, yes, no) = (&condition[..n], yes[0], no[0]);
            for i in 0..n {
                out[i] = if condition[i] != 0 { yes } else { no };
            }
        }
    }
}

multiversion! {
    fn tile<T: Element>(
        walk: &Walk<3>, range: Range<usize>, condition: &[u8], yes: &[T], no: &[T], out: &mut [T],
    ) {
        let mut runs = walk.runs(range);
        while let Some(r) = runs.next_run() {
            let choices = Choices { yes: &yes[r.offset[1]..], no: &no[r.offset[2]..] };
            run(walk.inner(), &condition[r.offset[0]..], choices, &mut out[r.start..r.start + r.len]);
        }
    }
}
fn select_any<T: Element>(
    exec: &Exec,
    condition: Operand<u8>,
    yes: Operand<T>,
    no: Operand<T>,
    out: &mut [T],
    out_shape: &[usize],
) -> Result {
    assert_eq!(out.len(), count(out_shape), "result of shape {out_shape:?}");
    let walk = Walk::broadcast(out_shape, [condition.shape, yes.shape, no.shape])?;
    Ok(tiles(exec, out, 1, GRAIN, |range, part| {
        tile(&walk, range, condition.data, yes.data, no.data, part)
    })?)
}

compiled_bits! {
    /// `Where` of elements of one size.
    trait SelectKernels {
        fn select(exec: &Exec, condition: Operand<u8>, yes: Operand<Self>, no: Operand<Self>, out: &mut [Self], out_shape: &[usize]) = select_any;
    }
}

/// `out = condition ? yes : no`, where all operands broadcast to `out_shape`. The caller views elements of other dtypes
/// as the unsigned integer of their size.
pub fn select<T: Bits>(
    exec: &Exec,
    condition: Operand<u8>,
    yes: Operand<T>,
    no: Operand<T>,
    out: &mut [T],
    out_shape: &[usize],
) -> Result {
    T::select(exec, condition, yes, no, out, out_shape)
}
