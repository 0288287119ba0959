//! Transforms against the sums that define them, and folds against sums over all positions.

use super::{Dft, Fold, col2im, dft};
use crate::Exec;
use crate::shape::Axis;
use crate::testing::{check_stops, each_exec, exec, random};

fn transform(
    exec: &Exec,
    x: &[f64],
    axis: Axis,
    length: usize,
    (complex, inverse, one_sided): (bool, bool, bool),
) -> Vec<f64> {
    let plan = Dft::new(length, axis, complex, inverse, one_sided).unwrap();
    let kept = if one_sided && !inverse {
        length / 2 + 1
    } else {
        length
    };
    let parts = if one_sided && inverse { 1 } else { 2 };
    let mut y = vec![9.0; axis.outer * kept * axis.inner * parts];
    let mut scratch = vec![7.0; plan.scratch_len().unwrap()];
    dft(exec, x, &plan, &mut scratch, &mut y).unwrap();
    y
}

/// The transform by its definition, of lines of complex numbers.
fn defined(x: &[f64], axis: Axis, length: usize, inverse: bool) -> Vec<f64> {
    let mut y = vec![0.0; axis.outer * length * axis.inner * 2];
    let sign = if inverse { 1.0 } else { -1.0 };
    for outer in 0..axis.outer {
        for inner in 0..axis.inner {
            for k in 0..length {
                let (mut re, mut im) = (0.0, 0.0);
                for j in 0..axis.len.min(length) {
                    let at = 2 * ((outer * axis.len + j) * axis.inner + inner);
                    let turn = (j * k % length) as f64 / length as f64;
                    let (sin, cos) = libm::sincos(sign * std::f64::consts::TAU * turn);
                    re += x[at] * cos - x[at + 1] * sin;
                    im += x[at] * sin + x[at + 1] * cos;
                }
                let at = 2 * ((outer * length + k) * axis.inner + inner);
                let by = if inverse { length as f64 } else { 1.0 };
                (y[at], y[at + 1]) = (re / by, im / by);
            }
        }
    }
    y
}

fn close(got: &[f64], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1.0, |m: f64, w| m.max(w.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= 1e-13 * scale, "{what}: {g} and {w} at {i}");
    }
}

#[test]
fn transforms_of_every_length_follow_the_definition() {
    for len in (1..70).chain([100, 121, 127, 169, 210, 256, 289, 400]) {
        let axis = Axis {
            outer: 3,
            len,
            inner: 2,
        };
        let x: Vec<f64> = random(axis.count() * 2, 1.0, len as u64);
        for inverse in [false, true] {
            for length in [len, len + 3, len.div_ceil(2)] {
                let got = transform(&exec(), &x, axis, length, (true, inverse, false));
                close(
                    &got,
                    &defined(&x, axis, length, inverse),
                    &format!("{len} to {length}"),
                );
            }
        }
    }
}

#[test]
fn half_a_spectrum_is_that_of_a_real_signal() {
    for n in [1, 2, 5, 8, 17, 30] {
        let axis = Axis {
            outer: 2,
            len: n,
            inner: 3,
        };
        let x: Vec<f64> = random(axis.count(), 1.0, n as u64);
        let complex: Vec<f64> = x.iter().flat_map(|x| [*x, 0.0]).collect();
        let whole = transform(&exec(), &complex, axis, n, (true, false, false));
        let half = transform(&exec(), &x, axis, n, (false, false, true));
        let kept = n / 2 + 1;
        for outer in 0..2 {
            let (w, h) = (&whole[outer * n * 6..], &half[outer * kept * 6..]);
            assert_eq!(&w[..kept * 6], &h[..kept * 6], "{n}");
        }
        let spectrum = Axis {
            outer: 2,
            len: kept,
            inner: 3,
        };
        let back = transform(&exec(), &half, spectrum, n, (true, true, true));
        close(&back, &x, "back");
    }
}

#[test]
fn threads_do_not_change_bits() {
    let axis = Axis {
        outer: 37,
        len: 46,
        inner: 1,
    };
    let x: Vec<f64> = random(axis.count() * 2, 1.0, 5);
    let want = transform(&exec(), &x, axis, 46, (true, false, false));
    each_exec(|exec| {
        assert_eq!(transform(exec, &x, axis, 46, (true, false, false)), want);
    });
}

#[test]
fn one_long_line_stops_when_it_is_cancelled() {
    let axis = Axis {
        outer: 1,
        len: 1 << 21,
        inner: 1,
    };
    let x = vec![1f32; axis.len];
    let plan = Dft::new(axis.len, axis, false, false, false).unwrap();
    let scratch = std::cell::RefCell::new(vec![0.0; plan.scratch_len().unwrap()]);
    let y = std::cell::RefCell::new(vec![0f32; 2 * axis.len]);
    check_stops(|exec| {
        dft(
            exec,
            &x,
            &plan,
            &mut scratch.borrow_mut(),
            &mut y.borrow_mut(),
        )
    });
}

#[test]
fn nan_has_one_form() {
    let wrong = f32::from_bits(0xffc0_1234);
    let axis = Axis {
        outer: 1,
        len: 4,
        inner: 1,
    };
    let plan = Dft::new(4, axis, false, false, false).unwrap();
    let mut scratch = vec![0.0; plan.scratch_len().unwrap()];
    let mut y = [0f32; 8];
    dft(&exec(), &[wrong; 4], &plan, &mut scratch, &mut y).unwrap();
    let one = |y: &[f32]| y.iter().all(|y| y.to_bits() == f32::NAN.to_bits());
    assert!(one(&y), "{y:?}");
    let fold = Fold {
        image: &[3],
        block: &[2],
        strides: &[1],
        dilations: &[1],
        pads: &[(0, 0)],
        positions: &[2],
    };
    let mut y = [0f32; 3];
    col2im(&exec(), &[wrong; 4], &fold, &mut y).unwrap();
    assert!(one(&y), "{y:?}");
}

/// A block that is as large as the image takes time in proportion to what it has.
#[test]
fn large_blocks_are_summed_in_linear_time() {
    for (block, positions) in [
        ([1, 1 << 21], [1, 1]),
        ([1, 1 << 20], [1, 2]),
        ([1 << 11, 1 << 9], [2, 1]),
        ([1 << 20, 1], [2, 1]),
    ] {
        let strides = [block[0] / 2 + 1, 1 << 19];
        let at = |a: usize| (positions[a] - 1) * strides[a] + block[a];
        let image = [at(0), at(1)];
        let fold = Fold {
            image: &image,
            block: &block,
            strides: &strides,
            dilations: &[1, 1],
            pads: &[(0, 0); 2],
            positions: &positions,
        };
        let x = vec![1u8; block[0] * block[1] * positions[0] * positions[1]];
        let mut y = vec![0; image[0] * image[1]];
        col2im(&exec(), &x, &fold, &mut y).unwrap();
        let sum: usize = y.iter().map(|y| usize::from(*y)).sum();
        assert_eq!(sum, x.len());
    }
}

/// The fold by its definition: every element of every position of the block is added to its place.
fn summed(x: &[f64], planes: usize, fold: &Fold<'_>) -> Vec<f64> {
    let [rows, columns] = [fold.image[0], fold.image[1]];
    let size = fold.block[0] * fold.block[1];
    let all = fold.positions[0] * fold.positions[1];
    let mut y = vec![0.0; planes * rows * columns];
    for plane in 0..planes {
        for k in 0..size {
            for p in 0..all {
                let at = |axis: usize, k: usize, p: usize| {
                    (p * fold.strides[axis] + k * fold.dilations[axis])
                        .checked_sub(fold.pads[axis].0)
                        .filter(|at| *at < fold.image[axis])
                };
                let row = at(0, k / fold.block[1], p / fold.positions[1]);
                let column = at(1, k % fold.block[1], p % fold.positions[1]);
                if let (Some(row), Some(column)) = (row, column) {
                    y[(plane * rows + row) * columns + column] += x[(plane * size + k) * all + p];
                }
            }
        }
    }
    y
}

#[test]
fn blocks_are_summed_where_they_lie() {
    for (image, block, strides, dilations, pads) in [
        ([5, 5], [1, 5], [1, 1], [1, 1], [(0, 0), (0, 0)]),
        ([5, 140], [2, 3], [1, 2], [2, 1], [(1, 0), (2, 1)]),
        ([6, 7], [3, 2], [3, 1], [1, 3], [(0, 2), (5, 5)]),
        ([1, 1], [1, 1], [9, 9], [1, 1], [(4, 0), (0, 4)]),
        ([9, 300], [4, 90], [6, 70], [2, 3], [(3, 1), (7, 20)]),
        ([50, 200], [40, 3], [4, 1], [1, 80], [(0, 6), (0, 0)]),
        ([60, 3], [7, 2], [4, 1], [6, 1], [(2, 0), (0, 0)]),
        ([60, 3], [7, 2], [6, 1], [4, 1], [(2, 9), (0, 0)]),
    ] {
        let positions: Vec<usize> = (0..2)
            .map(|a| {
                (image[a] + pads[a].0 + pads[a].1 - dilations[a] * (block[a] - 1) - 1) / strides[a]
                    + 1
            })
            .collect();
        let fold = Fold {
            image: &image,
            block: &block,
            strides: &strides,
            dilations: &dilations,
            pads: &pads,
            positions: &positions,
        };
        let planes = 6;
        let len = planes * block[0] * block[1] * positions[0] * positions[1];
        let x: Vec<f64> = (0..len).map(|i| (i * 7 % 64) as f64).collect();
        let want = summed(&x, planes, &fold);
        each_exec(|exec| {
            let mut y = vec![9.0; want.len()];
            col2im(exec, &x, &fold, &mut y).unwrap();
            assert_eq!(y, want, "{fold:?}");
        });
    }
}
