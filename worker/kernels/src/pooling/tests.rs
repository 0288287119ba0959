use super::*;
use crate::element::Number;
use crate::element::{bf16, f16};
use crate::testing::{bits, check_stops, each_exec, exec, random};
use std::cell::RefCell;

struct Case {
    input: [usize; 3],
    kernel: [usize; 3],
    strides: [usize; 3],
    dilations: [usize; 3],
    pads: [usize; 6],
    ceil: bool,
    rank: usize,
}

fn cases() -> Vec<Case> {
    let case = |rank, input, kernel, strides, dilations, pads, ceil| Case {
        input,
        kernel,
        strides,
        dilations,
        pads,
        ceil,
        rank,
    };
    vec![
        case(
            2,
            [1, 13, 17],
            [1, 3, 3],
            [1, 1, 1],
            [1; 3],
            [0, 1, 1, 0, 1, 1],
            false,
        ),
        case(
            2,
            [1, 112, 111],
            [1, 3, 3],
            [1, 2, 2],
            [1; 3],
            [0, 1, 1, 0, 1, 1],
            false,
        ),
        case(2, [1, 9, 8], [1, 2, 3], [1, 3, 3], [1; 3], [0; 6], true),
        case(
            2,
            [1, 20, 150],
            [1, 3, 2],
            [1, 1, 2],
            [1, 2, 3],
            [0, 2, 1, 0, 0, 2],
            true,
        ),
        case(
            1,
            [1, 1, 33],
            [1, 1, 5],
            [1, 1, 4],
            [1; 3],
            [0, 0, 2, 0, 0, 1],
            true,
        ),
        case(
            3,
            [5, 6, 7],
            [2, 3, 2],
            [2, 1, 2],
            [1, 1, 2],
            [1, 1, 0, 0, 1, 1],
            false,
        ),
        case(2, [1, 7, 7], [1, 7, 7], [1, 1, 1], [1; 3], [0; 6], false),
        // Strides of three and more, windows with holes, chunks that end in the padding, windows that lie in it, and taps
        // that are too far apart for phases.
        case(1, [1, 1, 400], [1, 1, 4], [1, 1, 3], [1; 3], [0; 6], false),
        case(
            1,
            [1, 1, 300],
            [1, 1, 5],
            [1, 1, 4],
            [1, 1, 3],
            [0, 0, 7, 0, 0, 7],
            true,
        ),
        case(
            1,
            [1, 1, 130],
            [1, 1, 7],
            [1, 1, 2],
            [1, 1, 2],
            [0, 0, 5, 0, 0, 6],
            true,
        ),
        case(
            2,
            [1, 5, 130],
            [1, 2, 2],
            [1, 1, 1],
            [1, 1, 9],
            [0, 1, 9, 0, 1, 9],
            false,
        ),
        case(
            1,
            [1, 1, 3],
            [1, 1, 2],
            [1, 1, 1],
            [1; 3],
            [0, 0, 200, 0, 0, 200],
            false,
        ),
        case(
            1,
            [1, 1, 300],
            [1, 1, 3],
            [1, 1, 2],
            [1, 1, 70],
            [0, 0, 1, 0, 0, 1],
            false,
        ),
        case(
            2,
            [1, 12, 40],
            [1, 9, 9],
            [1, 1, 1],
            [1; 3],
            [0, 1, 1, 0, 1, 1],
            false,
        ),
        case(
            2,
            [1, 60, 9],
            [1, 2, 2],
            [1, 3, 1],
            [1, 40, 1],
            [0, 1, 1, 0, 1, 1],
            false,
        ),
        case(
            1,
            [1, 1, 90],
            [1, 1, 9],
            [1, 1, 7],
            [1; 3],
            [0, 0, 1, 0, 0, 1],
            false,
        ),
        // Windows that lie in the padding but for a few taps, also where the outputs are farther apart than
        // the input is wide.
        case(
            1,
            [1, 1, 3],
            [1, 1, 70],
            [1, 1, 5],
            [1; 3],
            [0, 0, 69, 0, 0, 69],
            false,
        ),
        case(
            2,
            [1, 4, 3],
            [1, 3, 40],
            [1, 1, 2],
            [1; 3],
            [0, 2, 39, 0, 2, 39],
            false,
        ),
        case(
            1,
            [1, 1, 9],
            [1, 1, 80],
            [1, 1, 3],
            [1, 1, 2],
            [0, 0, 158, 0, 0, 150],
            false,
        ),
    ]
}

/// Cases whose planes are divided among tiles, by lines and by taps.
fn large_cases() -> Vec<Case> {
    let case = |rank, input, kernel, strides, pads| Case {
        input,
        kernel,
        strides,
        dilations: [1; 3],
        pads,
        ceil: false,
        rank,
    };
    vec![
        case(3, [3, 150, 150], [2, 3, 3], [1, 2, 2], [0, 1, 1, 1, 1, 1]),
        case(
            2,
            [1, 40, 40],
            [1, 30, 30],
            [1, 1, 1],
            [0, 15, 15, 0, 15, 15],
        ),
        case(3, [2, 190, 190], [2, 9, 9], [2, 9, 9], [1, 0, 4, 1, 0, 4]),
    ]
}

impl Case {
    fn output(&self) -> [usize; 3] {
        std::array::from_fn(|d| {
            let reach = self.dilations[d] * (self.kernel[d] - 1) + 1;
            let room = self.input[d] + self.pads[d] + self.pads[d + 3] - reach;
            let mut out = if self.ceil {
                room.div_ceil(self.strides[d])
            } else {
                room / self.strides[d]
            } + 1;
            // The last window must start inside the input or its left padding.
            if (out - 1) * self.strides[d] >= self.input[d] + self.pads[d] {
                out -= 1;
            }
            out
        })
    }

    fn window(&self) -> Window {
        let skip = 3 - self.rank;
        let pads: Vec<usize> = self.pads[skip..3]
            .iter()
            .chain(&self.pads[3 + skip..])
            .copied()
            .collect();
        let output = self.output();
        Window::new(
            &self.input[skip..],
            &output[skip..],
            &self.kernel[skip..],
            &self.strides[skip..],
            &self.dilations[skip..],
            &pads,
        )
        .unwrap()
    }

    /// For every output of a plane: the flat positions of its taps inside the input, and the number of its taps inside
    /// the padded input.
    fn taps(&self) -> Vec<(Vec<usize>, usize)> {
        let output = self.output();
        let mut all = Vec::new();
        for o in 0..output.iter().product() {
            let index = [
                o / (output[1] * output[2]),
                o / output[2] % output[1],
                o % output[2],
            ];
            let (mut inside, mut padded) = (Vec::new(), 0);
            for k in 0..self.kernel.iter().product::<usize>() {
                let tap = [
                    k / (self.kernel[1] * self.kernel[2]),
                    k / self.kernel[2] % self.kernel[1],
                    k % self.kernel[2],
                ];
                let at: [isize; 3] = std::array::from_fn(|d| {
                    (index[d] * self.strides[d] + tap[d] * self.dilations[d]) as isize
                        - self.pads[d] as isize
                });
                padded += usize::from(
                    (0..3).all(|d| at[d] < (self.input[d] + self.pads[d + 3]) as isize),
                );
                if (0..3).all(|d| at[d] >= 0 && at[d] < self.input[d] as isize) {
                    let at = at.map(|a| a as usize);
                    inside.push((at[0] * self.input[1] + at[1]) * self.input[2] + at[2]);
                }
            }
            all.push((inside, padded));
        }
        all
    }
}

fn check<T: Float>(tolerance: f64) {
    for (number, case) in cases().into_iter().enumerate() {
        let (window, taps) = (case.window(), case.taps());
        let plane = case.input.iter().product::<usize>();
        let planes = 5;
        let x: Vec<T> = random(planes * plane + 1, 3.0, 1);
        let x = &x[1..];
        type Expected = fn(&[f64], usize) -> f64;
        type Run<T> = fn(&Exec, &Window, &[T], &mut [T]) -> Result;
        let pools: [(Run<T>, Expected); 6] = [
            (
                |e, w, x, y| max_pool(e, w, x, y),
                |t, _| t.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            ),
            (
                |e, w, x, y| average_pool(e, w, false, x, y),
                |t, _| t.iter().sum::<f64>() / t.len() as f64,
            ),
            (
                |e, w, x, y| average_pool(e, w, true, x, y),
                |t, n| t.iter().sum::<f64>() / n as f64,
            ),
            (
                |e, w, x, y| lp_pool(e, w, 1, x, y),
                |t, _| t.iter().map(|x| x.abs()).sum(),
            ),
            (
                |e, w, x, y| lp_pool(e, w, 2, x, y),
                |t, _| t.iter().map(|x| x * x).sum::<f64>().sqrt(),
            ),
            (
                |e, w, x, y| lp_pool(e, w, 3, x, y),
                |t, _| t.iter().map(|x| x.abs().powi(3)).sum::<f64>().cbrt(),
            ),
        ];
        for (kind, (run, want)) in pools.into_iter().enumerate() {
            let mut first = vec![T::ZERO; planes * taps.len()];
            run(&exec(), &window, x, &mut first).unwrap();
            for (i, got) in first.iter().enumerate() {
                let (inside, padded) = &taps[i % taps.len()];
                let values: Vec<f64> = inside
                    .iter()
                    .map(|&at| x[i / taps.len() * plane + at].to_f64())
                    .collect();
                let (got, want) = (got.to_f64(), want(&values, *padded));
                let close = (got - want).abs() <= tolerance * want.abs().max(1.0);
                assert!(
                    close || got == want || values.is_empty(),
                    "case {number} pool {kind} at {i}: {got} {want}"
                );
            }
            each_exec(|exec| {
                let mut y = vec![T::ZERO; first.len() + 3];
                run(exec, &window, x, &mut y[3..]).unwrap();
                assert_eq!(bits(&y[3..]), bits(&first), "case {number} pool {kind}");
            });
        }
    }
}

#[test]
fn matches_the_definition() {
    check::<f32>(1e-5);
    check::<f64>(1e-12);
    check::<f16>(3e-3);
    check::<bf16>(2e-2);
}

#[test]
fn positions() {
    for case in cases() {
        let (window, taps) = (case.window(), case.taps());
        let plane = case.input.iter().product::<usize>();
        let x: Vec<i8> = random(3 * plane, 20.0, 1);
        each_exec(|exec| {
            let (mut y, mut indices) = (vec![0; 3 * taps.len()], vec![0; 3 * taps.len()]);
            max_pool_with_indices(
                exec,
                &window,
                StorageOrder::RowMajor,
                &x,
                &mut y,
                &mut indices,
            )
            .unwrap();
            let mut plain = y.clone();
            max_pool(exec, &window, &x, &mut plain).unwrap();
            assert_eq!(y, plain);
            for (i, (&y, &at)) in y.iter().zip(&indices).enumerate() {
                let (inside, _) = &taps[i % taps.len()];
                let first = inside
                    .iter()
                    .map(|t| i / taps.len() * plane + t)
                    .find(|&t| x[t] == y);
                assert!(inside.is_empty() || first == Some(at as usize), "at {i}");
            }
            max_pool_with_indices(
                exec,
                &window,
                StorageOrder::ColumnMajor,
                &x,
                &mut y,
                &mut indices,
            )
            .unwrap();
            let [depth, height, width] = case.input;
            for (&y, &at) in y.iter().zip(&indices) {
                let (base, at) = (at as usize / plane * plane, at as usize % plane);
                let (d, h, w) = (at % depth, at / depth % height, at / depth / height);
                assert!(x[base + (d * height + h) * width + w] == y || y == i8::MIN);
            }
        });
    }
}

#[test]
fn global_pools() {
    let x: Vec<f32> = random(6 * 49, 3.0, 1);
    let mut y = [0.0; 6];
    global_average_pool(&exec(), &x, 49, &mut y).unwrap();
    assert!((y[5] - x[5 * 49..].iter().sum::<f32>() / 49.0).abs() < 1e-6);
    global_max_pool(&exec(), &x, 49, &mut y).unwrap();
    assert_eq!(y[0], x[..49].iter().copied().fold(f32::MIN, f32::max));
    assert!(Window::new(&[1; 4], &[1; 4], &[1; 4], &[1; 4], &[1; 4], &[0; 8]).is_err());
    let mut y = [0.0];
    let window = Window::new(&[3], &[1], &[3], &[1], &[1], &[0, 0]).unwrap();
    max_pool(&exec(), &window, &[1.0, f32::NAN, 2.0], &mut y).unwrap();
    assert!(y[0].is_nan());
}

/// Checks a pool whose chains are made by `push` from `first` on against windows of numbers among which are zeros of both
/// signs, and NaN at some of the positions that `nan` divides.
fn check_chains<T: Float>(
    cases: Vec<Case>,
    nan: usize,
    run: impl Fn(&Exec, &Window, &[T], &mut [T]) -> Result,
    (first, push): (T::Wide, impl Fn(T::Wide, T::Wide) -> T::Wide),
    finish: impl Fn(T::Wide, usize) -> T,
) {
    for (number, case) in cases.into_iter().enumerate() {
        let (window, taps) = (case.window(), case.taps());
        let plane = case.input.iter().product::<usize>();
        let mut x: Vec<T> = random(2 * plane, 3.0, 7);
        for (i, x) in x.iter_mut().enumerate() {
            match i % 11 {
                0..3 => *x = T::from_f64(-0.0),
                3..6 => *x = T::ZERO,
                6 if i % nan == 0 => *x = T::from_f64(f64::NAN),
                7 if i % 3 == 0 => *x = T::LOWEST,
                _ => {}
            }
        }
        let want: Vec<T> = (0..2 * taps.len())
            .map(|i| {
                let (inside, _) = &taps[i % taps.len()];
                let plane = &x[i / taps.len() * plane..];
                let chain = inside
                    .iter()
                    .fold(first, |acc, at| push(acc, plane[*at].widen()));
                finish(chain, inside.len())
            })
            .collect();
        each_exec(|exec| {
            let mut y = vec![T::ZERO; want.len()];
            run(exec, &window, &x, &mut y).unwrap();
            assert_eq!(bits(&y), bits(&want), "case {number}");
        });
    }
}

#[test]
fn each_output_is_one_chain_over_its_taps() {
    fn check<T: Float>(cases: fn() -> Vec<Case>, nans: [usize; 2]) {
        for nan in nans {
            let max = (T::LOWEST.widen(), <T::Wide as Number>::max);
            check_chains::<T>(cases(), nan, max_pool, max, |chain, _| T::narrow(chain));
            check_chains::<T>(
                cases(),
                nan,
                |e, w, x, y| average_pool(e, w, false, x, y),
                (<T::Wide as Number>::ZERO, <T::Wide as Number>::add),
                |sum, n| T::narrow(sum / <T::Wide as Number>::from_f64(n as f64)),
            );
        }
    }
    check::<f32>(cases, [usize::MAX, 5]);
    check::<f64>(cases, [usize::MAX, 5]);
    check::<f16>(cases, [usize::MAX, 5]);
    check::<bf16>(cases, [usize::MAX, 5]);
    // Few rows of the larger planes read a NaN.
    check::<f32>(large_cases, [usize::MAX, 10_007]);
}

#[test]
fn one_plane_with_large_windows_stops_when_it_is_cancelled() {
    // Nearly all taps of the windows lie in the padding.
    let size = 1 << 20;
    let pads = [0, size - 1, 0, size - 1];
    let window = Window::new(&[1, 1], &[1, size], &[1, size], &[1, 1], &[1, 1], &pads).unwrap();
    let y = RefCell::new(vec![0f32; size]);
    for include_pad in [false, true] {
        average_pool(&exec(), &window, include_pad, &[3.0], &mut y.borrow_mut()).unwrap();
        let padded = if include_pad { size as f32 } else { 1.0 };
        assert_eq!(y.borrow()[0], 3.0 / padded);
        assert_eq!(y.borrow()[size - 1], 3.0 / padded);
        check_stops(|exec| average_pool(exec, &window, include_pad, &[3.0], &mut y.borrow_mut()));
    }
    // Windows that are far apart, each of which meets the only element.
    let far = 1 << 22;
    let pads = [1 << 24, (1 << 24) - far];
    let (outputs, kernel) = (5, 1 << 24);
    let window = Window::new(&[1], &[outputs], &[kernel], &[far], &[1], &pads).unwrap();
    let mut y = [0f32; 5];
    max_pool(&exec(), &window, &[3.0], &mut y).unwrap();
    assert_eq!(y[1..], [3.0; 4]);
    let x: Vec<f32> = random(256 * 256, 1.0, 3);
    let large = |n: usize, kernel: usize| {
        let out = n - kernel + 1;
        Window::new(&[n; 2], &[out; 2], &[kernel; 2], &[1; 2], &[1; 2], &[0; 4]).unwrap()
    };
    let y = RefCell::new(vec![0f32; 129 * 129]);
    check_stops(|exec| max_pool(exec, &large(256, 128), &x, &mut y.borrow_mut()));
    // The same with positions.
    let (y, at) = (
        RefCell::new(vec![0f32; 65 * 65]),
        RefCell::new(vec![0i64; 65 * 65]),
    );
    check_stops(|exec| {
        let (w, order, x) = (large(128, 64), StorageOrder::RowMajor, &x[..128 * 128]);
        max_pool_with_indices(
            exec,
            &w,
            order,
            x,
            &mut y.borrow_mut(),
            &mut at.borrow_mut(),
        )
    });
    // One window over one large row.
    let n = 1 << 21;
    let x = vec![0.5f32; n];
    let window = Window::new(&[n], &[1], &[n], &[1], &[1], &[0, 0]).unwrap();
    for p in [1, 2, 3] {
        check_stops(|exec| lp_pool(exec, &window, p, &x, &mut [0.0]));
    }
    // One output by lines, over a depth of many planes.
    let (kernel, input) = ([n / 64, 1, 1], [n / 64, 8, 8]);
    let window = Window::new(&input, &[1, 8, 8], &kernel, &[1; 3], &[1; 3], &[0; 6]).unwrap();
    check_stops(|exec| average_pool(exec, &window, false, &x, &mut [0.0; 64]));
}

#[test]
fn a_sum_that_is_nan_has_the_bits_of_the_canonical_one() {
    type Run = fn(&Exec, &Window, &[f32], &mut [f32]) -> Result;
    let pools: [Run; 5] = [
        |e, w, x, y| average_pool(e, w, false, x, y),
        |e, w, x, y| average_pool(e, w, true, x, y),
        |e, w, x, y| lp_pool(e, w, 1, x, y),
        |e, w, x, y| lp_pool(e, w, 2, x, y),
        |e, w, x, y| lp_pool(e, w, 3, x, y),
    ];
    let mut nans = 0;
    for case in cases() {
        let (window, outputs) = (case.window(), case.taps().len());
        let mut x: Vec<f32> = random(case.input.iter().product(), 3.0, 1);
        for (i, x) in x.iter_mut().enumerate() {
            match i % 9 {
                0 => *x = f32::INFINITY,
                1 => *x = f32::NEG_INFINITY,
                4 => *x = f32::from_bits(0xffc0_0001 + i as u32),
                5 => *x = f32::from_bits(0x7fc0_0002 + i as u32),
                _ => {}
            }
        }
        for (p, pool) in pools.iter().enumerate() {
            let mut y = vec![0f32; outputs];
            pool(&exec(), &window, &x, &mut y).unwrap();
            for y in y.iter().filter(|y| y.is_nan()) {
                assert_eq!(y.to_bits(), f32::NAN.to_bits(), "{p} {window:?}");
                nans += 1;
            }
        }
    }
    assert!(nans > 1000, "{nans}");
}
