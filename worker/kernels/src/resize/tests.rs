//! Values follow from ONNX's definition by hand.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::testing::{check_stops, exec};

const LINEAR: Weights = Weights::Linear { antialias: false };
const NEAREST: Weights = Weights::Nearest(Neighbour::RoundPreferFloor);

fn scaling(from: usize, to: usize, position: Position, weights: Weights) -> Scaling {
    Scaling {
        from,
        to,
        scale: to as f32 / from as f32,
        position,
        weights,
        exclude_outside: false,
    }
}

fn taps_of(scaling: &Scaling) -> Taps {
    Taps::new(&exec(), scaling).unwrap()
}

fn check(x: &[f32], scaling: Scaling, want: &[f32]) {
    let cancel = AtomicBool::new(false);
    let mut y = vec![0.; want.len()];
    let axis = Axis::of(&[x.len()], 0);
    resize(&Exec::single(&cancel), x, axis, &taps_of(&scaling), &mut y).unwrap();
    for (y, want) in y.iter().zip(want) {
        assert!(
            (y - want).abs() < 1e-5,
            "{y:?} is not {want:?}: {scaling:?}"
        );
    }
    // Rows of several elements are computed as columns of one.
    let wide: Vec<f32> = x.iter().flat_map(|v| [*v, -*v]).collect();
    let mut rows = vec![0.; 2 * want.len()];
    let axis = Axis::of(&[x.len(), 2], 0);
    let taps = taps_of(&scaling);
    resize(&Exec::single(&cancel), &wide, axis, &taps, &mut rows).unwrap();
    for (pair, y) in rows.chunks(2).zip(&y) {
        assert_eq!(pair, [*y, -*y]);
    }
}

#[test]
fn lines_are_stretched_and_shrunk() {
    let x = [1., 2., 3., 4.];
    check(
        &x[..2],
        scaling(2, 4, Position::HalfPixel, LINEAR),
        &[1., 1.25, 1.75, 2.],
    );
    check(
        &x[..2],
        scaling(2, 4, Position::AlignCorners, LINEAR),
        &[1., 4. / 3., 5. / 3., 2.],
    );
    check(&x, scaling(4, 2, Position::Asymmetric, LINEAR), &[1., 3.]);
    check(&x, scaling(4, 1, Position::PytorchHalfPixel, LINEAR), &[1.]);
    let cubic = Weights::Cubic {
        a: -0.75,
        antialias: false,
    };
    check(&x, scaling(4, 1, Position::PytorchHalfPixel, cubic), &[1.]);
    let floor = Weights::Nearest(Neighbour::Floor);
    check(&x, scaling(4, 2, Position::TfHalfPixel, floor), &[2., 4.]);
    let crop = Position::Crop(0., 0.5);
    check(&x, scaling(4, 2, crop, LINEAR), &[1., 2.5]);
}

#[test]
fn cubic_functions_pass_through_their_points() {
    let x = [1., 2., 3., 4.];
    let cubic = Weights::Cubic {
        a: -0.75,
        antialias: false,
    };
    check(&x, scaling(4, 4, Position::HalfPixel, cubic), &x);
    let mut excluding = scaling(4, 2, Position::HalfPixel, cubic);
    check(&x, excluding, &[1.40625, 3.59375]);
    excluding.exclude_outside = true;
    check(&x, excluding, &[1.371_428_6, 3.628_571_4]);
}

#[test]
fn weights_spread_where_an_axis_shrinks() {
    let linear = Weights::Linear { antialias: true };
    let x = [1., 2., 3., 4.];
    check(
        &x,
        scaling(4, 2, Position::HalfPixel, linear),
        &[1.625, 3.375],
    );
    let grown = scaling(2, 4, Position::HalfPixel, linear);
    check(&x[..2], grown, &[1., 1.25, 1.75, 2.]);
}

#[test]
fn the_nearest_element_is_found() {
    let check = |neighbour: Neighbour, want: &[usize]| {
        let nearest = Weights::Nearest(neighbour);
        let taps = taps_of(&scaling(4, 8, Position::HalfPixel, nearest));
        assert_eq!(taps.nearest(&exec()).unwrap(), want, "{neighbour:?}");
    };
    check(Neighbour::RoundPreferFloor, &[0, 0, 1, 1, 2, 2, 3, 3]);
    check(Neighbour::Floor, &[0, 0, 0, 1, 1, 2, 2, 3]);
    check(Neighbour::Ceil, &[0, 1, 1, 2, 2, 3, 3, 3]);
    let ties = |neighbour| {
        let nearest = Weights::Nearest(neighbour);
        let taps = taps_of(&scaling(4, 2, Position::HalfPixel, nearest));
        taps.nearest(&exec()).unwrap()
    };
    assert_eq!(ties(Neighbour::RoundPreferFloor), [0, 2]);
    assert_eq!(ties(Neighbour::RoundPreferCeil), [1, 3]);
}

#[test]
fn positions_outside_a_crop_are_marked() {
    let taps = taps_of(&scaling(4, 3, Position::Crop(-0.5, 1.), NEAREST));
    assert_eq!([0, 1, 2].map(|i| taps.outside(i)), [true, false, false]);
    let far = taps_of(&scaling(4, 2, Position::Crop(1e30, -1e30), NEAREST));
    assert!(far.nearest(&exec()).unwrap().iter().all(|i| *i < 4));
}

#[test]
fn nearest_elements_are_copied_along_all_axes() {
    let check = |shape: &[usize], changes: &[(usize, Vec<usize>)]| {
        let table = |axis: usize| -> Vec<usize> {
            let found = changes.iter().find(|(a, _)| *a == axis);
            found.map_or((0..shape[axis]).collect(), |(_, table)| table.clone())
        };
        // The result's elements by their index along each axis, the last one fastest.
        let mut want = vec![0];
        for (axis, len) in shape.iter().enumerate() {
            let at = table(axis);
            want = want
                .iter()
                .flat_map(|from| at.iter().map(move |at| from * len + at))
                .collect();
        }
        let x: Vec<u32> = (0..shape.iter().product::<usize>() as u32).collect();
        crate::testing::each_exec(|exec| {
            let mut y = vec![0; want.len()];
            nearest(exec, &x, shape, changes, &mut y).unwrap();
            assert!(
                y.iter().zip(&want).all(|(y, want)| *y as usize == *want),
                "{shape:?} by {changes:?}"
            );
        });
    };
    let twice = |len: usize, k: usize| -> Vec<usize> { (0..len * k).map(|i| i / k).collect() };
    for k in 1..6 {
        check(&[2, 3, 40, 37], &[(2, twice(40, k)), (3, twice(37, k))]);
    }
    check(&[2, 3, 4, 5], &[(1, vec![2, 2, 0, 1]), (3, vec![4, 0])]);
    check(&[2, 9, 8, 3], &[(1, twice(9, 2)), (2, vec![7, 0, 0, 3])]);
    check(&[5], &[(0, vec![4, 4, 1])]);
    check(&[2, 3], &[]);
    check(&[200, 90], &[(0, twice(200, 2)), (1, twice(90, 2))]);
    check(&[3, 4], &[(0, vec![]), (1, vec![0])]);
}

#[test]
fn lines_have_the_bits_of_columns() {
    let cubic = |antialias| Weights::Cubic {
        a: -0.75,
        antialias,
    };
    for (to, weights) in [
        (23, LINEAR),
        (7, LINEAR),
        (23, cubic(false)),
        (7, cubic(true)),
        (7, Weights::Linear { antialias: true }),
    ] {
        let taps = taps_of(&scaling(11, to, Position::HalfPixel, weights));
        let x: Vec<f32> = crate::testing::random(5 * 11, 3.0, 2);
        let columns: Vec<f32> = (0..11 * 5).map(|i| x[i % 5 * 11 + i / 5]).collect();
        crate::testing::each_exec(|exec| {
            let (mut lines, mut y) = (vec![0f32; 5 * to], vec![0f32; 5 * to]);
            resize(exec, &x, Axis::of(&[5, 11], 1), &taps, &mut lines).unwrap();
            resize(exec, &columns, Axis::of(&[11, 5], 0), &taps, &mut y).unwrap();
            for (i, line) in lines.iter().enumerate() {
                assert_eq!(
                    line.to_bits(),
                    y[i % to * 5 + i / to].to_bits(),
                    "{weights:?}"
                );
            }
        });
    }
}

#[test]
fn long_tables_and_lines_stop_when_they_are_cancelled() {
    let n = 1 << 21;
    let nearest_of = scaling(3, n, Position::HalfPixel, NEAREST);
    check_stops(|exec| Taps::new(exec, &nearest_of).map(|_| ()));
    let taps = taps_of(&nearest_of);
    check_stops(|exec| taps.nearest(exec).map(|_| ()));
    // One row of all elements.
    let linear = Weights::Linear { antialias: true };
    let mut shrunk = scaling(n, 1, Position::HalfPixel, linear);
    check_stops(|exec| Taps::new(exec, &shrunk).map(|_| ()));
    shrunk.exclude_outside = true;
    check_stops(|exec| Taps::new(exec, &shrunk).map(|_| ()));
    let shrunk = taps_of(&shrunk);
    assert_eq!(shrunk.width(), 2 * n);
    let x = vec![0.5f32; n];
    let line = Axis::of(&[n], 0);
    check_stops(|exec| resize(exec, &x, line, &shrunk, &mut [0.]));
    // Lines of few taps, and rows of many columns.
    let stretched = taps_of(&scaling(3, n, Position::HalfPixel, LINEAR));
    let y = std::cell::RefCell::new(vec![0f32; n]);
    let line = Axis::of(&[3], 0);
    check_stops(|exec| resize(exec, &x[..3], line, &stretched, &mut y.borrow_mut()));
    let rows = Axis::of(&[2, n / 2], 0);
    let mixed = taps_of(&scaling(2, 1, Position::HalfPixel, linear));
    check_stops(|exec| resize(exec, &x, rows, &mixed, &mut y.borrow_mut()[..n / 2]));
    // One line each of elements that are repeated, chosen, and copied with their neighbours.
    let table = |f: &dyn Fn(usize) -> usize, len: usize| -> Vec<(usize, Vec<usize>)> {
        vec![(0, (0..len).map(f).collect())]
    };
    let (x, y) = (vec![7u32; n], std::cell::RefCell::new(vec![0u32; n]));
    for (shape, changes) in [
        (&[n / 4][..], table(&|i| i / 4, n)),
        (&[1], table(&|_| 0, n)),
        (&[2], table(&|i| i % 2, n)),
        (&[2, n / 4], table(&|i| 1 - i % 2, 4)),
    ] {
        let x = &x[..shape.iter().product::<usize>()];
        check_stops(|exec| nearest(exec, x, shape, &changes, &mut y.borrow_mut()));
    }
}

#[test]
fn the_memory_of_tables_is_known_before_they_are_made() {
    let all = |antialias| Weights::Cubic {
        a: -0.75,
        antialias,
    };
    for weights in [NEAREST, LINEAR, all(false), all(true)] {
        for (from, to) in [(100, 7), (7, 100), (9, 9), (5, 1)] {
            let scaling = scaling(from, to, Position::HalfPixel, weights);
            let width = taps_of(&scaling).width();
            let want = to * (12 * width + 9) + 4 * width;
            assert_eq!(Taps::memory(&scaling), want, "{scaling:?}");
        }
    }
}

#[test]
fn a_result_that_is_nan_has_the_bits_of_the_canonical_one() {
    let cubic = |antialias| Weights::Cubic {
        a: -0.75,
        antialias,
    };
    let nan = |i: usize| match i % 3 {
        0 => f32::from_bits(0xffc0_0001 + i as u32),
        1 => f32::from_bits(0x7fc0_0002 + i as u32),
        _ => f32::NEG_INFINITY,
    };
    for weights in [LINEAR, cubic(false), cubic(true)] {
        for (from, to) in [(40, 7), (7, 40)] {
            let taps = taps_of(&scaling(from, to, Position::HalfPixel, weights));
            for inner in [1, 5] {
                let x: Vec<f32> = (0..from * inner).map(nan).collect();
                let mut y = vec![0.; to * inner];
                resize(&exec(), &x, Axis::of(&[from, inner], 0), &taps, &mut y).unwrap();
                let own = y.iter().filter(|y| y.is_nan());
                assert!(own.clone().count() > to / 2, "{y:?}");
                for y in own {
                    assert_eq!(y.to_bits(), f32::NAN.to_bits(), "{weights:?}");
                }
            }
        }
    }
}
