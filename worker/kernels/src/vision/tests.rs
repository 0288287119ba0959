//! Sampling, regions, boxes and deformed filters on small operands, and on places that no sensible model has.

use super::*;
use crate::Exec;
use crate::KernelError;
use crate::testing::{bits, check_stops, each_exec, exec, random};

fn grid(sampling: Sampling, padding: GridPadding, align_corners: bool) -> GridSample<'static> {
    GridSample {
        batch: 1,
        channels: 1,
        spatial: &[4],
        places: 0,
        sampling,
        padding,
        align_corners,
    }
}

fn sampled(s: GridSample<'_>, x: &[f64], places: &[f64]) -> Vec<f64> {
    let mut y = vec![-1.0; places.len() / s.spatial.len()];
    let s = GridSample {
        places: y.len(),
        ..s
    };
    grid_sample(&exec(), &s, x, places, &mut y).unwrap();
    y
}

#[test]
fn places_between_and_beyond_elements() {
    use GridPadding::*;
    use Sampling::*;
    let x = [10.0, 20.0, 30.0, 40.0];
    // With aligned corners, these are the places 0, 1.5, 3, -1.5 and 4.5.
    let places = [-1.0, 0.0, 1.0, -2.0, 2.0];
    for (sampling, padding, want) in [
        (Linear, Zeros, [10.0, 25.0, 40.0, 0.0, 0.0]),
        (Linear, Border, [10.0, 25.0, 40.0, 10.0, 40.0]),
        (Linear, Reflection, [10.0, 25.0, 40.0, 25.0, 25.0]),
        (Nearest, Zeros, [10.0, 30.0, 40.0, 0.0, 0.0]),
        (Nearest, Border, [10.0, 30.0, 40.0, 10.0, 40.0]),
        (Cubic, Border, [10.0, 25.0, 40.0, 10.0, 40.0]),
    ] {
        let got = sampled(grid(sampling, padding, true), &x, &places);
        assert_eq!(got, want, "{sampling:?} {padding:?}");
    }
    // With edges at -1 and 1, these are the places -0.5, 1.5 and 3.5.
    let got = sampled(grid(Linear, Zeros, false), &x, &[-1.0, 0.0, 1.0]);
    assert_eq!(got, [5.0, 25.0, 20.0]);
}

#[test]
fn a_grid_names_the_last_axis_first() {
    let s = GridSample {
        spatial: &[2, 1, 3],
        ..grid(Sampling::Linear, GridPadding::Zeros, true)
    };
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let places = [-1.0, 0.0, 1.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0];
    // The middle axis has one element, at whose place its own coordinate has no effect.
    assert_eq!(sampled(s, &x, &places), [4.0, 3.0, 3.5]);
}

#[test]
fn any_place_is_sampled() {
    let hostile = [
        f64::NAN,
        f64::INFINITY,
        -f64::INFINITY,
        1e300,
        -1e300,
        1e18,
        2.5e9,
    ];
    for sampling in [Sampling::Nearest, Sampling::Linear, Sampling::Cubic] {
        for padding in [
            GridPadding::Zeros,
            GridPadding::Border,
            GridPadding::Reflection,
        ] {
            for align in [false, true] {
                for spatial in [&[4][..], &[1], &[0]] {
                    let s = GridSample {
                        spatial,
                        ..grid(sampling, padding, align)
                    };
                    let x = vec![7.0; spatial[0]];
                    let got = sampled(s, &x, &hostile);
                    assert!(
                        got.iter().all(|v| (-8.0..=8.0).contains(v)),
                        "{s:?}: {got:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn places_are_sampled_as_each_is_alone() {
    for sampling in [Sampling::Nearest, Sampling::Linear, Sampling::Cubic] {
        for spatial in [&[7][..], &[5, 6], &[3, 4, 5]] {
            let s = GridSample {
                channels: 3,
                spatial,
                ..grid(sampling, GridPadding::Zeros, false)
            };
            let (axes, plane) = (spatial.len(), spatial.iter().product::<usize>());
            let x = random::<f64>(3 * plane, 1.0, 1);
            let places = random::<f64>(1300 * axes, 1.4, 2);
            let one = |channel: usize, place: &[f64]| {
                let alone = GridSample { channels: 1, ..s };
                sampled(alone, &x[channel * plane..(channel + 1) * plane], place)[0]
            };
            let want: Vec<f64> = (0..3)
                .flat_map(|channel| places.chunks(axes).map(move |place| (channel, place)))
                .map(|(channel, place)| one(channel, place))
                .collect();
            let mut y = vec![0.0; want.len()];
            let s = GridSample { places: 1300, ..s };
            grid_sample(&exec(), &s, &x, &places, &mut y).unwrap();
            assert_eq!(bits(&y), bits(&want), "{sampling:?} in {spatial:?}");
        }
    }
}

#[test]
fn sampling_is_the_same_on_all_threads() {
    let s = GridSample {
        batch: 2,
        channels: 37,
        spatial: &[9, 11],
        places: 900,
        ..grid(Sampling::Cubic, GridPadding::Reflection, false)
    };
    let (x, places) = (
        random::<f32>(2 * 37 * 99, 1.0, 1),
        random::<f32>(2 * 900 * 2, 1.6, 2),
    );
    let run = |exec: &Exec| {
        let mut y = vec![0.0; 2 * 37 * 900];
        grid_sample(exec, &s, &x, &places, &mut y).map(|()| y)
    };
    let want = run(&exec()).unwrap();
    each_exec(|exec| assert_eq!(bits(&run(exec).unwrap()), bits(&want)));
}

fn region(map: [usize; 2], pooled: [usize; 2]) -> RoiAlign<'static> {
    RoiAlign {
        batch: 1,
        channels: 1,
        map,
        pooled,
        mode: RoiMode::Average,
        sampling: 1,
        scale: 1.0,
        half_pixel: false,
        images: &[0],
    }
}

fn aligned(s: &RoiAlign<'_>, x: &[f64], rois: &[f64]) -> Vec<f64> {
    let mut y = vec![-1.0; s.images.len() * s.channels * s.pooled[0] * s.pooled[1]];
    roi_align(&exec(), s, x, rois, &mut y).unwrap();
    y
}

#[test]
fn regions_are_sampled_in_their_bins() {
    let x: Vec<f64> = (0..16).map(f64::from).collect();
    let s = region([4, 4], [2, 2]);
    // Bins of one pixel from (1, 1) on, each sampled at its middle: 1.5 rows and 1.5 columns from the first element.
    assert_eq!(
        aligned(&s, &x, &[1.0, 1.0, 3.0, 3.0]),
        [7.5, 8.5, 11.5, 12.5]
    );
    // A sample that lies more than a pixel outside is zero.
    assert_eq!(aligned(&s, &x, &[-9.0, -9.0, -5.0, -5.0]), [0.0; 4]);
    let halves = RoiAlign {
        half_pixel: true,
        sampling: 0,
        ..s
    };
    assert_eq!(
        aligned(&halves, &x, &[1.0, 1.0, 3.0, 3.0]),
        [5.0, 6.0, 9.0, 10.0]
    );
}

#[test]
fn any_region_is_pooled() {
    let x = [3.0; 16];
    for v in [
        f64::NAN,
        f64::INFINITY,
        -f64::INFINITY,
        1e300,
        1e30,
        -1e30,
        1e12,
        0.0,
    ] {
        for (sampling, half_pixel) in [(0, false), (0, true), (2, false), (2, true)] {
            for mode in [RoiMode::Average, RoiMode::Max] {
                let s = RoiAlign {
                    sampling,
                    half_pixel,
                    mode,
                    ..region([4, 4], [3, 2])
                };
                let ends = [
                    [0.0, 0.0, v, v],
                    [v, v, 0.0, 0.0],
                    [v, 1.0, 2.0, 2.0],
                    [v; 4],
                ];
                for roi in ends {
                    let y = aligned(&s, &x, &roi);
                    assert!(
                        y.iter().all(|y| (0.0..=3.0 + 1e-9).contains(y)),
                        "{s:?} {roi:?} {y:?}"
                    );
                    let mut y = vec![-1.0; 6];
                    max_roi_pool(&exec(), &s, &x, &roi, &mut y).unwrap();
                    assert!(y.iter().all(|y| *y == 0.0 || *y == 3.0), "{roi:?} {y:?}");
                }
            }
        }
    }
}

#[test]
fn a_region_of_no_image_is_refused() {
    let s = RoiAlign {
        images: &[1],
        ..region([1, 1], [1, 1])
    };
    let e = roi_align::<f32>(&exec(), &s, &[1.0], &[0.0; 4], &mut [0.0]);
    assert!(matches!(
        e,
        Err(KernelError::IndexOutOfRange { index: 1, .. })
    ));
}

#[test]
fn regions_of_any_size_stop() {
    // Many channels of one bin, one row as long as the map, and rows without elements.
    for (channels, map, pooled, region_of) in [
        (1 << 11, [20, 20], [1, 1], [0.0, 0.0, 20.0, 20.0]),
        (1, [1, 1 << 21], [1, 1], [0.0, 0.0, 1e9, 1e9]),
        (1, [1 << 20, 1], [1, 4], [5.0, 0.0, 9.0, 1e9]),
    ] {
        let s = RoiAlign {
            channels,
            sampling: 20,
            ..region(map, pooled)
        };
        let x = vec![1f32; channels * map[0] * map[1]];
        let mut y = vec![0.0; channels * pooled[0] * pooled[1]];
        let y = std::cell::RefCell::new(&mut y);
        check_stops(|exec| match channels {
            1 => max_roi_pool(exec, &s, &x, &region_of, &mut y.borrow_mut()),
            _ => roi_align(exec, &s, &x, &region_of, &mut y.borrow_mut()),
        });
    }
}

#[test]
fn maxima_of_rounded_bins() {
    let x: Vec<f64> = (0..16).map(f64::from).collect();
    let mut y = [0.0; 4];
    max_roi_pool(
        &exec(),
        &region([4, 4], [2, 2]),
        &x,
        &[0.4, 0.6, 2.4, 2.5],
        &mut y,
    )
    .unwrap();
    // Rows 1 to 3 and columns 0 to 2, in bins that share the middle ones.
    assert_eq!(y, [9.0, 10.0, 13.0, 14.0]);
}

fn chosen(s: Suppression, boxes: &[f32], scores: &[f32]) -> Vec<[i64; 3]> {
    let mut scratch = [(); 2].map(|()| vec![0; s.boxes]);
    let [order, spare] = &mut scratch;
    let (mut out, mut columns) = (vec![-1; 3 * s.bound()], vec![0.0; s.scratch()]);
    let scratch = (&mut order[..], &mut spare[..]);
    let n = suppress(&exec(), &s, boxes, scores, scratch, &mut columns, &mut out).unwrap();
    out.chunks(3).take(n).map(|c| [c[0], c[1], c[2]]).collect()
}

#[test]
fn boxes_suppress_those_that_they_cover() {
    let s = Suppression {
        batch: 1,
        classes: 1,
        boxes: 4,
        centred: false,
        most: 10,
        overlap: 0.5,
        score: None,
    };
    // The second box covers four fifths of the first; the last one's corners are the other way round.
    let boxes = [
        [0.0, 0.0, 1.0, 1.0],
        [0.0, 0.0, 1.0, 0.8],
        [0.0, 5.0, 1.0, 6.0],
        [1.0, 1.0, 0.0, 0.0],
    ];
    let boxes = boxes.concat();
    let check = |s, scores: &[f32], want: &[i64]| {
        let got = chosen(s, &boxes, scores);
        let got: Vec<i64> = got.iter().map(|c| c[2]).collect();
        assert_eq!(got, want, "{scores:?}");
    };
    check(s, &[0.9, 0.8, 0.7, 0.6], &[0, 2]);
    check(s, &[0.1, 0.8, 0.7, 0.6], &[1, 2]);
    // Of equal scores the first counts; NaN is below all.
    check(s, &[0.5, 0.5, 0.5, 0.5], &[0, 2]);
    check(s, &[f32::NAN, 0.5, 0.5, -f32::INFINITY], &[1, 2]);
    check(Suppression { most: 1, ..s }, &[0.1, 0.2, 0.3, 0.0], &[2]);
    check(Suppression { most: 0, ..s }, &[0.1, 0.2, 0.3, 0.0], &[]);
    let bounded = Suppression {
        score: Some(0.65),
        ..s
    };
    check(bounded, &[0.9, f32::NAN, 0.65, 0.7], &[0]);
    check(
        Suppression { overlap: 1.0, ..s },
        &[0.9, 0.8, 0.7, 0.6],
        &[0, 1, 2, 3],
    );
}

#[test]
fn many_boxes_are_chosen_as_one_by_one() {
    let n = 700;
    let s = Suppression {
        batch: 2,
        classes: 2,
        boxes: n,
        centred: true,
        most: 90,
        overlap: 0.3,
        score: Some(-0.8),
    };
    let boxes: Vec<f32> = random::<f32>(2 * n * 4, 1.0, 1)
        .iter()
        .map(|x| x * 0.5 + 0.5)
        .collect();
    // Few scores, so that many are equal, among them both zeros and NaN.
    let score = |x: f32| {
        if x > 0.95 {
            f32::NAN
        } else {
            (x * 5.0).round() / 5.0
        }
    };
    let scores: Vec<f32> = random::<f32>(4 * n, 1.0, 2)
        .into_iter()
        .map(score)
        .collect();
    let mut want = Vec::new();
    for (class, scores) in scores.chunks(n).enumerate() {
        let boxes = &boxes[class / 2 * 4 * n..][..4 * n];
        let key = |b: usize| {
            if scores[b].is_nan() {
                f32::NEG_INFINITY
            } else {
                scores[b]
            }
        };
        let mut order: Vec<usize> = (0..n).filter(|b| scores[*b] > -0.8).collect();
        order.sort_by(|a, b| key(*b).partial_cmp(&key(*a)).unwrap());
        let side = |b: usize, d: usize| {
            let (middle, half) = (boxes[4 * b + d], boxes[4 * b + 2 + d] / 2.0);
            (middle - half, middle + half)
        };
        let area = |b: usize| {
            let ((l, r), (t, u)) = (side(b, 0), side(b, 1));
            (r - l) * (u - t)
        };
        let mut kept: Vec<usize> = Vec::new();
        for b in order {
            let covers = |k: &usize| {
                let shared =
                    |d: usize| side(b, d).1.min(side(*k, d).1) - side(b, d).0.max(side(*k, d).0);
                let (wide, high) = (shared(0), shared(1));
                let union = area(b) + area(*k) - wide * high;
                wide > 0.0 && high > 0.0 && wide * high / union > 0.3
            };
            if kept.len() < 90 && !kept.iter().any(covers) {
                kept.push(b);
            }
        }
        want.extend(
            kept.iter()
                .map(|b| [class as i64 / 2, class as i64 % 2, *b as i64]),
        );
    }
    assert!(want.len() > 100, "{} boxes", want.len());
    assert_eq!(chosen(s, &boxes, &scores), want);
}

#[test]
fn boxes_without_an_area_suppress_nothing() {
    let s = Suppression {
        batch: 2,
        classes: 1,
        boxes: 3,
        centred: true,
        most: 3,
        overlap: 0.0,
        score: None,
    };
    let [nan, inf] = [f32::NAN, f32::INFINITY];
    let boxes = [[nan; 4], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, inf, inf]];
    let got = chosen(
        s,
        &[boxes.concat(), boxes.concat()].concat(),
        &[3.0, 2.0, 1.0, 1.0, 2.0, 3.0],
    );
    assert_eq!(got.len(), 6);
    assert_eq!(got[..2], [[0, 0, 0], [0, 0, 1]]);
    assert_eq!(got[5], [1, 0, 0]);
}

#[test]
fn any_number_of_images_without_boxes_takes_no_time() {
    let s = Suppression {
        batch: 1 << 50,
        classes: 0,
        boxes: 0,
        centred: false,
        most: 1,
        overlap: 0.5,
        score: None,
    };
    assert_eq!(chosen(s, &[], &[]), [[0i64; 3]; 0]);
}

#[test]
fn suppression_stops() {
    let n = 3000;
    let s = Suppression {
        batch: 1,
        classes: 1,
        boxes: n,
        centred: true,
        most: n,
        overlap: 0.9,
        score: None,
    };
    let (boxes, scores) = (random::<f32>(4 * n, 1.0, 1), random::<f32>(n, 1.0, 2));
    check_stops(|exec| {
        let mut scratch = [vec![0; n], vec![0; n], vec![0; 3 * n]];
        let [order, spare, out] = &mut scratch;
        let mut columns = vec![0.0; s.scratch()];
        let order = (&mut order[..], &mut spare[..]);
        suppress(exec, &s, &boxes, &scores, order, &mut columns, out).map(|_| ())
    });
}

#[test]
fn filters_without_offsets_are_those_of_a_convolution() {
    let s = Deform {
        batch: 2,
        channels: 4,
        filters: 6,
        groups: 2,
        offset_groups: 2,
        axes: 2,
        map: [1, 5, 6],
        kernel: [1, 3, 2],
        output: [1, 3, 7],
        strides: [1, 2, 1],
        dilations: [1, 1, 2],
        pads: [0, 1, 2],
    };
    let x = random::<f64>(2 * 4 * 30, 1.0, 1);
    let w = random::<f64>(6 * 2 * 6, 1.0, 2);
    let bias = random::<f64>(6, 1.0, 3);
    let run = |offset: &[f64], mask: &[f64]| {
        let (a, b) = s.scratch();
        let (mut columns, mut products) = (vec![0.0; a], vec![0.0; b]);
        let mut y = vec![0.0; 2 * 6 * 21];
        let operands = DeformOperands {
            w: &w,
            offset,
            bias: Some(&bias),
            mask: Some(mask),
        };
        deform_conv(
            &exec(),
            &s,
            &x,
            &operands,
            (&mut columns, &mut products),
            &mut y,
        )
        .unwrap();
        y
    };
    let (none, all) = (vec![0.0; 2 * 2 * 6 * 2 * 21], vec![1.0; 2 * 2 * 6 * 21]);
    let y = run(&none, &all);
    for (at, y) in y.iter().enumerate() {
        let (n, f, i, j) = (at / 126, at / 21 % 6, at / 7 % 3, at % 7);
        let mut want = bias[f];
        for c in 0..2 {
            for (a, b) in (0..3).flat_map(|a| (0..2).map(move |b| (a, b))) {
                let (row, col) = (2 * i as i64 + a - 1, j as i64 + 2 * b - 2);
                if (0..5).contains(&row) && (0..6).contains(&col) {
                    let channel = n * 4 + f / 3 * 2 + c;
                    let at = channel * 30 + row as usize * 6 + col as usize;
                    want += x[at] * w[(f * 2 + c) * 6 + (a * 2 + b) as usize];
                }
            }
        }
        assert!((y - want).abs() < 1e-12, "{y} for {want} at {at}");
    }
    // Whatever is masked, or read from nowhere, leaves the bias.
    let only_bias: Vec<f64> = (0..y.len()).map(|at| bias[at / 21 % 6]).collect();
    assert_eq!(run(&none, &vec![0.0; all.len()]), only_bias);
    for nowhere in [f64::NAN, f64::INFINITY, 1e300, -1e300] {
        assert_eq!(run(&vec![nowhere; none.len()], &all), only_bias);
    }
}

#[test]
fn filters_of_one_axis_and_of_three_read_between_elements() {
    let run = |axes, map, kernel, output, x: &[f64], offset: &[f64]| {
        let s = Deform {
            batch: 1,
            channels: 1,
            filters: 1,
            groups: 1,
            offset_groups: 1,
            axes,
            map,
            kernel,
            output,
            strides: [1; 3],
            dilations: [1; 3],
            pads: [0; 3],
        };
        let (a, b) = s.scratch();
        let (mut columns, mut products) = (vec![0.0; a], vec![0.0; b]);
        let taps: usize = kernel.iter().product();
        let operands = DeformOperands {
            w: &vec![1.0; taps],
            offset,
            bias: None,
            mask: None,
        };
        let mut y = vec![0.0; output.iter().product()];
        let scratch = (&mut columns[..], &mut products[..]);
        deform_conv(&exec(), &s, x, &operands, scratch, &mut y).unwrap();
        y
    };
    // Two elements of a filter at three places; the second one of the last place lies outside.
    let x = [1.0, 2.0, 4.0, 8.0];
    let offset = [0.0, 0.5, -0.25, 0.0, 0.5, 9.0];
    let y = run(1, [1, 1, 4], [1, 1, 2], [1, 1, 3], &x, &offset);
    assert_eq!(y, [1.0 + 2.0, 3.0 + 6.0, 3.5]);
    // In the middle of a cube lies the mean of its corners.
    let x: Vec<f64> = (0..8).map(|i| f64::from(i * i)).collect();
    let middle = run(3, [2; 3], [1; 3], [1; 3], &x, &[0.5; 3]);
    assert_eq!(middle, [140.0 / 8.0]);
    let on_an_edge = run(3, [2; 3], [1; 3], [1; 3], &x, &[1.0, 0.25, 1.0]);
    assert_eq!(on_an_edge, [0.75 * 25.0 + 0.25 * 49.0]);
    assert_eq!(run(3, [2; 3], [1; 3], [1; 3], &x, &[2.0, 0.0, 0.0]), [0.0]);
}

#[test]
fn grids_of_many_axes_mix_all_corners() {
    let s = GridSample {
        channels: 2,
        spatial: &[2; 7],
        places: 2,
        ..grid(Sampling::Linear, GridPadding::Zeros, true)
    };
    let x: Vec<f64> = (0..256).map(f64::from).collect();
    let places: Vec<f64> = [[0.0; 7], [1.0; 7]].concat();
    let mut y = vec![0.0; 4];
    grid_sample(&exec(), &s, &x, &places, &mut y).unwrap();
    assert_eq!(y, [63.5, 127.0, 191.5, 255.0]);
}

#[test]
fn elements_of_any_type_are_taken_at_the_nearest_place() {
    let take = |padding, x: &[u64], places: &[f32]| {
        let s = GridSample {
            channels: 2,
            spatial: &[2, 2],
            places: places.len() / 2,
            ..grid(Sampling::Nearest, padding, true)
        };
        let mut nearest = vec![0; s.places];
        grid_places(&exec(), &s, places, &mut nearest).unwrap();
        let mut y = vec![9; 2 * s.places];
        take_places(&exec(), &s, x, &nearest, &mut y).unwrap();
        y
    };
    let x = [1 << 60, 2, 3, 4, 5, 6, 7, u64::MAX];
    let places = [-1.0, -1.0, 1.0, -1.0, 0.9, 0.9, 9.0, 0.0];
    let y = take(GridPadding::Zeros, &x, &places);
    assert_eq!(y, [1 << 60, 2, 4, 0, 5, 6, u64::MAX, 0]);
    let y = take(GridPadding::Border, &x, &places[6..]);
    assert_eq!(y, [2, 6]);
}
