//! `Concat` and `Split`.

use crate::Exec;
use crate::compiled::compiled_bits;
use crate::element::Bits;
use crate::error::Result;
use crate::split::{GRAIN, tiles, units_per_tile};

fn concat_any<T: Bits>(exec: &Exec, outer: usize, inputs: &[&[T]], y: &mut [T]) -> Result {
    let total: usize = inputs.iter().map(|x| x.len()).sum();
    assert!(
        total == y.len()
            && inputs
                .iter()
                .all(|x| outer > 0 && x.len().is_multiple_of(outer) || x.is_empty())
    );
    if outer == 1 {
        let mut rest = y;
        for x in inputs {
            let (part, behind) = rest.split_at_mut(x.len());
            tiles(exec, part, 1, GRAIN, |range, part| {
                part.copy_from_slice(&x[range])
            })?;
            rest = behind;
        }
        return Ok(());
    }
    let unit = total / outer.max(1);
    Ok(tiles(
        exec,
        y,
        unit,
        units_per_tile(unit),
        |range, part| {
            let mut at = 0;
            for row in range {
                for x in inputs {
                    let width = x.len() / outer;
                    part[at..at + width].copy_from_slice(&x[row * width..(row + 1) * width]);
                    at += width;
                }
            }
        },
    )?)
}

fn split_any<T: Bits>(exec: &Exec, outer: usize, x: &[T], outputs: &mut [&mut [T]]) -> Result {
    let total: usize = outputs.iter().map(|y| y.len()).sum();
    assert_eq!(total, x.len(), "split into {total} elements");
    let unit = x.len() / outer.max(1);
    let mut first = 0;
    for y in outputs {
        let width = y.len() / outer.max(1);
        if outer == 1 {
            let x = &x[first..first + width];
            tiles(exec, y, 1, GRAIN, |range, part| {
                part.copy_from_slice(&x[range])
            })?;
        } else {
            tiles(exec, y, width, units_per_tile(width), |range, part| {
                for (row, y) in range.zip(part.chunks_mut(width)) {
                    y.copy_from_slice(&x[row * unit + first..row * unit + first + width]);
                }
            })?;
        }
        first += width;
    }
    Ok(())
}

compiled_bits! {
    /// Joining and splitting elements of one size.
    trait ConcatKernels {
        fn concat(exec: &Exec, outer: usize, inputs: &[&[Self]], y: &mut [Self]) = concat_any;
        fn split(exec: &Exec, outer: usize, x: &[Self], outputs: &mut [&mut [Self]]) = split_any;
    }
}

/// Joins the inputs along an axis; `outer` is the product of the dimensions before that axis.
pub fn concat<T: Bits>(exec: &Exec, outer: usize, inputs: &[&[T]], y: &mut [T]) -> Result {
    T::concat(exec, outer, inputs, y)
}

/// Splits `x` along an axis, the inverse of [`concat()`]. The lengths of the outputs give their sizes along the axis.
pub fn split<T: Bits>(exec: &Exec, outer: usize, x: &[T], outputs: &mut [&mut [T]]) -> Result {
    T::split(exec, outer, x, outputs)
}
