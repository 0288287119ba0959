//! Values follow from ONNX's definition by hand.

use std::sync::atomic::AtomicBool;

use super::*;

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

fn check(x: &[f32], scaling: Scaling, want: &[f32]) {
    let cancel = AtomicBool::new(false);
    let mut y = vec![0.; want.len()];
    let axis = Axis::of(&[x.len()], 0);
    resize(
        &Exec::single(&cancel),
        x,
        axis,
        &Taps::new(&scaling),
        &mut y,
    )
    .unwrap();
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
    let taps = Taps::new(&scaling);
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
    let check = |neighbour: Neighbour, want: &[i64]| {
        let nearest = Weights::Nearest(neighbour);
        let taps = Taps::new(&scaling(4, 8, Position::HalfPixel, nearest));
        assert_eq!(taps.nearest(), want, "{neighbour:?}");
    };
    check(Neighbour::RoundPreferFloor, &[0, 0, 1, 1, 2, 2, 3, 3]);
    check(Neighbour::Floor, &[0, 0, 0, 1, 1, 2, 2, 3]);
    check(Neighbour::Ceil, &[0, 1, 1, 2, 2, 3, 3, 3]);
    let ties = |neighbour| {
        let nearest = Weights::Nearest(neighbour);
        Taps::new(&scaling(4, 2, Position::HalfPixel, nearest)).nearest()
    };
    assert_eq!(ties(Neighbour::RoundPreferFloor), [0, 2]);
    assert_eq!(ties(Neighbour::RoundPreferCeil), [1, 3]);
}

#[test]
fn positions_outside_a_crop_are_marked() {
    let taps = Taps::new(&scaling(4, 3, Position::Crop(-0.5, 1.), NEAREST));
    assert_eq!([0, 1, 2].map(|i| taps.outside(i)), [true, false, false]);
    let far = Taps::new(&scaling(4, 2, Position::Crop(1e30, -1e30), NEAREST));
    assert!(far.nearest().iter().all(|i| (0..4).contains(i)));
}
