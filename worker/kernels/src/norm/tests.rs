use super::*;
use crate::element::{bf16, f16};
use crate::shape::Axis;
use crate::testing::{bits, check_stops, each_exec, exec, random};

fn stats(x: &[f64]) -> (f64, f64) {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    (
        mean,
        x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / x.len() as f64,
    )
}

fn wide<T: Float>(x: &[T]) -> Vec<f64> {
    x.iter().map(|x| x.to_f64()).collect()
}

fn assert_close<T: Float>(got: &[T], want: &[f64], tolerance: f64, what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            (got.to_f64() - want).abs() <= tolerance * want.abs().max(1.0),
            "{what} at {i}: {got:?} {want}"
        );
    }
}

/// Runs a kernel at all thread counts; the results must have equal bits, and be within `tolerance` of `want`.
fn check<T: Float>(want: &[f64], tolerance: f64, what: &str, run: impl Fn(&crate::Exec, &mut [T])) {
    let mut first = vec![T::ZERO; want.len()];
    run(&exec(), &mut first);
    assert_close(&first, want, tolerance, what);
    each_exec(|exec| {
        let mut y = vec![T::ONE; want.len() + 3];
        run(exec, &mut y[3..]);
        assert_eq!(bits(&y[3..]), bits(&first), "{what}");
    });
}

fn check_all<T: Float>(tolerance: f64) {
    for (rows, n) in [(1, 1), (7, 65), (300, 384), (3, 1000)] {
        let x: Vec<T> = random(rows * n + 1, 2.0, 1);
        let x = &x[1..];
        let (scale, bias): (Vec<T>, Vec<T>) = (random(n, 1.5, 2), random(n, 1.0, 3));
        let want = |center: bool, bias: Option<&[T]>| -> Vec<f64> {
            wide(x)
                .chunks(n)
                .flat_map(|row| {
                    let (mean, variance) = if center {
                        stats(row)
                    } else {
                        (0.0, row.iter().map(|x| x * x).sum::<f64>() / n as f64)
                    };
                    let scaled = |(i, x): (usize, &f64)| {
                        (x - mean) / (variance + 1e-3).sqrt() * scale[i].to_f64()
                            + bias.map_or(0.0, |b| b[i].to_f64())
                    };
                    row.iter().enumerate().map(scaled).collect::<Vec<f64>>()
                })
                .collect()
        };
        check::<T>(&want(true, Some(&bias)), tolerance, "layer", |exec, y| {
            layer_norm(exec, x, &scale, Some(&bias), 1e-3, y).unwrap()
        });
        check::<T>(
            &want(true, None),
            tolerance,
            "layer without bias",
            |exec, y| layer_norm(exec, x, &scale, None, 1e-3, y).unwrap(),
        );
        check::<T>(&want(false, None), tolerance, "rms", |exec, y| {
            rms_norm(exec, x, &scale, 1e-3, y).unwrap()
        });
        let (mut mean, mut inverse) = (
            vec![<T::Wide as Real>::ZERO; rows],
            vec![<T::Wide as Real>::ZERO; rows],
        );
        layer_norm_stats(&exec(), x, n, 1e-3, &mut mean, &mut inverse).unwrap();
        let (m, v) = stats(&wide(x)[..n]);
        assert!((Real::to_f64(mean[0]) - m).abs() < 1e-5);
        assert!((Real::to_f64(inverse[0]) * (v + 1e-3).sqrt() - 1.0).abs() < 1e-5);
    }
    for (n, c, inner) in [(2, 6, 49), (1, 6, 1), (3, 12, 700)] {
        let axis = Axis {
            outer: n,
            len: c,
            inner,
        };
        let x: Vec<T> = random(axis.count(), 2.0, 4);
        let xs = wide(&x);
        let (scale, bias, mean): (Vec<T>, Vec<T>, Vec<T>) =
            (random(c, 1.5, 5), random(c, 1.0, 6), random(c, 1.0, 7));
        let variance: Vec<T> = random::<T>(c, 1.0, 8).into_iter().map(T::abs).collect();
        let at = |v: &[T], i: usize| v[i / inner % c].to_f64();
        let want: Vec<f64> = (0..xs.len())
            .map(|i| {
                (xs[i] - at(&mean, i)) / (at(&variance, i) + 1e-2).sqrt() * at(&scale, i)
                    + at(&bias, i)
            })
            .collect();
        check::<T>(&want, tolerance * 4.0, "batch", |exec, y| {
            let x = Some(&x[..]);
            batch_norm(exec, x, axis, &scale, &bias, &mean, &variance, 1e-2, y).unwrap()
        });
        check::<T>(&want, tolerance * 4.0, "batch in place", |exec, y| {
            y.copy_from_slice(&x);
            batch_norm(exec, None, axis, &scale, &bias, &mean, &variance, 1e-2, y).unwrap()
        });
        for groups in [1, 2, c] {
            let unit = c / groups * inner;
            let want: Vec<f64> = (0..xs.len())
                .map(|i| {
                    let (mean, variance) = stats(&xs[i / unit * unit..(i / unit + 1) * unit]);
                    (xs[i] - mean) / (variance + 1e-3).sqrt() * at(&scale, i) + at(&bias, i)
                })
                .collect();
            check::<T>(&want, tolerance * 4.0, "group", |exec, y| {
                group_norm(exec, &x, axis, groups, &scale, &bias, 1e-3, y).unwrap()
            });
            if groups == c {
                check::<T>(&want, tolerance * 4.0, "instance", |exec, y| {
                    instance_norm(exec, &x, axis, &scale, &bias, 1e-3, y).unwrap()
                });
            }
        }
        let want: Vec<f64> = (0..xs.len())
            .map(|i| {
                let (batch, own, s) = (i / (c * inner), i / inner % c, i % inner);
                let sum: f64 = (own.saturating_sub(2)..=(own + 2).min(c - 1))
                    .map(|k| xs[(batch * c + k) * inner + s].powi(2))
                    .sum();
                xs[i] / (1.5 + 0.25 / 5.0 * sum).powf(0.75)
            })
            .collect();
        check::<T>(&want, tolerance, "lrn", |exec, y| {
            lrn(exec, &x, axis, 5, 0.25, 0.75, 1.5, y).unwrap()
        });
        for norm in [LpNorm::L1, LpNorm::L2] {
            let want: Vec<f64> = (0..xs.len())
                .map(|i| {
                    let column =
                        (0..c).map(|k| xs[i / (c * inner) * c * inner + k * inner + i % inner]);
                    xs[i]
                        / match norm {
                            LpNorm::L1 => column.map(f64::abs).sum::<f64>(),
                            LpNorm::L2 => column.map(|x| x * x).sum::<f64>().sqrt(),
                        }
                })
                .collect();
            check::<T>(&want, tolerance, "lp", |exec, y| {
                lp_norm(exec, norm, &x, axis, y).unwrap()
            });
        }
        let want: Vec<f64> = (0..xs.len())
            .map(|i| {
                let channel = i / inner % c;
                let group: Vec<f64> = (0..xs.len())
                    .filter(|j| j / inner % c == channel)
                    .map(|j| xs[j])
                    .collect();
                let (mean, variance) = stats(&group);
                if group.len() == 1 {
                    0.0
                } else {
                    (xs[i] - mean) / (variance.sqrt() + 1e-9)
                }
            })
            .collect();
        if n * inner > 1 {
            check::<T>(&want, tolerance * 8.0, "mvn", |exec, y| {
                let mut scratch = vec![T::ZERO; c];
                mean_variance_norm(exec, &x, &[n, c, inner], &[0, 2], &mut scratch, y).unwrap()
            });
        }
    }
}

#[test]
fn f32_matches_wide_arithmetic() {
    check_all::<f32>(3e-6);
}

#[test]
fn f64_matches() {
    check_all::<f64>(1e-12);
}

#[test]
fn halves_match_wide_arithmetic() {
    check_all::<f16>(2e-3);
    check_all::<bf16>(1.6e-2);
}

#[test]
fn lp_norm_of_zeros_is_zero() {
    let mut y = [9.0f32; 2];
    lp_norm(&exec(), LpNorm::L2, &[0.0, 0.0], Axis::of(&[2], 0), &mut y).unwrap();
    assert_eq!(y, [0.0; 2]);
}

#[test]
fn one_huge_row_stops_when_it_is_cancelled() {
    let n = 1 << 23;
    let x: Vec<f32> = vec![0.5; n];
    let y = std::cell::RefCell::new(vec![0.0; n]);
    check_stops(|exec| layer_norm(exec, &x, &x, Some(&x), 1e-5, &mut y.borrow_mut()));
    check_stops(|exec| rms_norm(exec, &x, &x, 1e-5, &mut y.borrow_mut()));
    let (one, channels) = (&[0.5], Axis::of(&[1, 1, n], 1));
    check_stops(|exec| instance_norm(exec, &x, channels, one, one, 1e-5, &mut y.borrow_mut()));
    let axis = Axis::of(&[n], 0);
    check_stops(|exec| lp_norm(exec, LpNorm::L2, &x, axis, &mut y.borrow_mut()));
}

#[test]
fn a_response_among_many_channels_stops_when_it_is_cancelled() {
    let channels = Axis::of(&[1, 4096, 1], 1);
    let x: Vec<f64> = random(4096, 2.0, 1);
    let mut y = vec![0.0; 4096];
    // All channels are in each window, whose chain begins with the first.
    let run = |size: usize, y: &mut [f64]| lrn(&exec(), &x, channels, size, 1e-4, 0.75, 1.0, y);
    run(3 * 4096, &mut y).unwrap();
    let sum = x.iter().fold(0.0f64, |sum, x| x.mul_add(*x, sum));
    let base = (1e-4f64 / (3.0 * 4096.0)).mul_add(sum, 1.0);
    for (x, y) in x.iter().zip(&y) {
        assert!((x / base.powf(0.75) - y).abs() < 1e-12);
    }
    let y = std::cell::RefCell::new(y);
    for size in [4096, usize::MAX] {
        check_stops(|exec| {
            lrn(
                exec,
                &x,
                channels,
                size,
                1e-4,
                0.75,
                1.0,
                &mut y.borrow_mut(),
            )
        });
    }
}

#[test]
fn every_nan_is_the_same() {
    for n in [2, 5, 16, 40, 100] {
        let mut x: Vec<f32> = random(2 * n, 2.0, 7);
        (x[0], x[n - 1]) = (-f32::NAN, f32::NAN);
        (x[n], x[2 * n - 1]) = (f32::INFINITY, f32::NAN);
        let (scale, bias): (Vec<f32>, Vec<f32>) = (random(n, 1.5, 2), random(n, 1.0, 3));
        let (rows, e) = (Axis::of(&[2, n], 1), exec());
        let same = |what: &str, run: &dyn Fn(&mut [f32])| {
            let mut y = vec![0.0; 2 * n];
            run(&mut y);
            let nans = y.iter().filter(|y| y.is_nan());
            let all: Vec<u32> = nans.map(|y| y.to_bits()).collect();
            assert!(!all.is_empty(), "{what}");
            assert!(
                all.iter().all(|y| *y == f32::NAN.to_bits()),
                "{what}: {all:x?}"
            );
        };
        same("layer", &|y| {
            layer_norm(&e, &x, &scale, Some(&bias), 1e-5, y).unwrap()
        });
        same("layer without a bias", &|y| {
            layer_norm(&e, &x, &scale, None, 1e-5, y).unwrap()
        });
        same("root mean square", &|y| {
            rms_norm(&e, &x, &scale, 1e-5, y).unwrap()
        });
        same("norm", &|y| lp_norm(&e, LpNorm::L2, &x, rows, y).unwrap());
        let halves = Axis::of(&[1, 2, n], 1);
        same("response", &|y| {
            lrn(&e, &x, halves, 2, 1e-4, 0.75, 1.0, y).unwrap()
        });
    }
}
