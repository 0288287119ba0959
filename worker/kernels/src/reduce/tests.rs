use super::*;
use crate::element::{Float, Integer, Number, bf16, f16};
use crate::shape::{Axis, count};
use crate::testing::{bits, check_stops, each_exec, exec, random};

const CASES: [(&[usize], &[usize]); 15] = [
    (&[5, 300], &[1]),
    (&[5, 300], &[0]),
    (&[3, 37, 70], &[1]),
    (&[3, 37, 70], &[0, 2]),
    (&[2, 3, 5, 7], &[1, 3]),
    (&[2, 3, 5, 7], &[0, 2]),
    (&[2, 3, 5, 7], &[2, 3]),
    (&[2, 3, 5, 7], &[0, 1, 2, 3]),
    (&[4, 1, 33, 1], &[1, 2]),
    (&[4, 5], &[]),
    (&[], &[]),
    (&[3, 0, 2], &[1]),
    (&[0, 4], &[1]),
    (&[40, 17, 129], &[0]),
    (&[1, 70_001], &[1]),
];

/// The elements of every output, in row-major order of the reduced axes.
fn groups<T: Copy>(x: &[T], shape: &[usize], axes: &[usize]) -> Vec<Vec<T>> {
    let kept: Vec<usize> = (0..shape.len()).filter(|a| !axes.contains(a)).collect();
    let outputs: usize = kept.iter().map(|&a| shape[a]).product();
    let mut groups = vec![Vec::new(); outputs];
    for (flat, &x) in x.iter().enumerate() {
        let (mut rest, mut index) = (flat, vec![0; shape.len()]);
        for axis in (0..shape.len()).rev() {
            index[axis] = rest % shape[axis];
            rest /= shape[axis];
        }
        groups[kept.iter().fold(0, |at, &a| at * shape[a] + index[a])].push(x);
    }
    groups
}

fn expected(op: Reduce, x: &[f64]) -> f64 {
    let n = x.len() as f64;
    let sum = |f: fn(f64) -> f64| x.iter().map(|&x| f(x)).sum::<f64>();
    match op {
        Reduce::Sum => sum(|x| x),
        Reduce::Mean => sum(|x| x) / n,
        Reduce::Max => x.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        Reduce::Min => x.iter().copied().fold(f64::INFINITY, f64::min),
        Reduce::Prod => x.iter().product(),
        Reduce::L1 => sum(f64::abs),
        Reduce::L2 => sum(|x| x * x).sqrt(),
        Reduce::LogSum => sum(|x| x).ln(),
        Reduce::LogSumExp => sum(f64::exp).ln(),
        Reduce::SumSquare => sum(|x| x * x),
    }
}

const OPS: [Reduce; 10] = [
    Reduce::Sum,
    Reduce::Mean,
    Reduce::Max,
    Reduce::Min,
    Reduce::Prod,
    Reduce::L1,
    Reduce::L2,
    Reduce::LogSum,
    Reduce::LogSumExp,
    Reduce::SumSquare,
];

fn check_float<T: Float>(tolerance: f64) {
    for (shape, axes) in CASES {
        // The data is positive, so that every logarithm exists.
        let mut x: Vec<T> = random(count(shape) + 1, 0.5, 3);
        x.iter_mut()
            .for_each(|x| *x = T::from_f64(x.to_f64() + 1.0));
        let groups = groups(&x[1..], shape, axes);
        for op in OPS {
            let want: Vec<f64> = groups
                .iter()
                .map(|g| expected(op, &g.iter().map(|x| x.to_f64()).collect::<Vec<_>>()))
                .collect();
            let mut first = vec![T::ONE; want.len()];
            reduce_float(&exec(), op, &x[1..], shape, axes, &mut first).unwrap();
            for (got, want) in first.iter().zip(&want) {
                let (got, want) = (got.to_f64(), T::from_f64(*want).to_f64());
                let close = (got - want).abs() <= tolerance * want.abs().max(1.0);
                assert!(
                    close || got == want || (got.is_nan() && want.is_nan()),
                    "{op:?} {shape:?} {axes:?}: {got} {want}"
                );
            }
            each_exec(|exec| {
                let mut y = vec![T::ONE; want.len() + 3];
                reduce_float(exec, op, &x[1..], shape, axes, &mut y[3..]).unwrap();
                assert_eq!(bits(&y[3..]), bits(&first), "{op:?} {shape:?} {axes:?}");
            });
        }
    }
}

#[test]
fn floats_match_wide_arithmetic() {
    check_float::<f32>(1e-5);
    check_float::<f64>(1e-11);
    check_float::<f16>(2e-3);
    check_float::<bf16>(1.6e-2);
}

fn check_integer<T: Integer>() {
    for (shape, axes) in CASES {
        let x: Vec<T> = random(count(shape), 90.0, 3);
        let groups = groups(&x, shape, axes);
        type Expected<T> = fn(&[T]) -> T;
        let cases: [(Reduce, Expected<T>); 5] = [
            (Reduce::Sum, |g| {
                g.iter().fold(T::ZERO, |a, &x| T::add(a, x))
            }),
            (Reduce::Prod, |g| {
                g.iter().fold(T::ONE, |a, &x| T::mul(a, x))
            }),
            (Reduce::Max, |g| {
                g.iter().fold(T::LOWEST, |a, &x| T::max(a, x))
            }),
            (Reduce::Min, |g| {
                g.iter().fold(T::HIGHEST, |a, &x| T::min(a, x))
            }),
            (Reduce::SumSquare, |g| {
                g.iter().fold(T::ZERO, |a, &x| T::add(a, T::mul(x, x)))
            }),
        ];
        for (op, want) in cases {
            each_exec(|exec| {
                let mut y = vec![T::ONE; groups.len()];
                reduce_integer(exec, op, &x, shape, axes, &mut y).unwrap();
                assert_eq!(
                    y,
                    groups.iter().map(|g| want(g)).collect::<Vec<T>>(),
                    "{op:?} {shape:?} {axes:?}"
                );
            });
        }
    }
}

#[test]
fn integers_wrap() {
    check_integer::<i8>();
    check_integer::<i32>();
    check_integer::<i64>();
    check_integer::<u8>();
    check_integer::<u64>();
    let mut y = [0i32];
    for (op, want) in [
        (Reduce::Mean, 2),
        (Reduce::L2, 5),
        (Reduce::LogSum, 1),
        (Reduce::LogSumExp, 4),
        (Reduce::L1, 7),
    ] {
        reduce_integer(&exec(), op, &[3, 0, 4], &[3], &[0], &mut y).unwrap();
        assert_eq!(y, [want], "{op:?}");
    }
}

/// Rows and columns add in the same order, as the module promises.
#[test]
fn layout_does_not_change_bits() {
    let (n, m) = (1003, 70);
    let rows: Vec<f32> = random(n * m, 1.0, 9);
    let columns: Vec<f32> = (0..n * m).map(|i| rows[(i % m) * n + i / m]).collect();
    for op in OPS {
        let (mut a, mut b) = (vec![0.0; m], vec![0.0; m]);
        reduce_float(&exec(), op, &rows, &[m, n], &[1], &mut a).unwrap();
        reduce_float(&exec(), op, &columns, &[n, m], &[0], &mut b).unwrap();
        assert_eq!(bits(&a), bits(&b), "{op:?}");
        // A kept axis in the middle of the reduced ones.
        let split: Vec<f32> = (0..n * m)
            .map(|i| rows[(i / 17 % m) * n + i / (17 * m) * 17 + i % 17])
            .collect();
        reduce_float(&exec(), op, &split, &[59, m, 17], &[0, 2], &mut b).unwrap();
        assert_eq!(bits(&a), bits(&b), "{op:?}");
    }
}

#[test]
fn special_values() {
    let mut y = [0f32];
    let inf = f32::INFINITY;
    for (x, op, want) in [
        ([1.0, f32::NAN, 3.0], Reduce::Max, f32::NAN),
        ([1.0, f32::NAN, 3.0], Reduce::Min, f32::NAN),
        ([1000.0, 1000.0, -inf], Reduce::LogSumExp, 1_000.693_1),
        ([-inf; 3], Reduce::LogSumExp, -inf),
        ([inf, 0.0, 1.0], Reduce::LogSumExp, inf),
        ([inf, -inf, 1.0], Reduce::Sum, f32::NAN),
    ] {
        reduce_float(&exec(), op, &x, &[3], &[0], &mut y).unwrap();
        assert!(
            y[0] == want || (y[0] - want).abs() < 1e-3 || (y[0].is_nan() && want.is_nan()),
            "{op:?} {x:?} = {}",
            y[0]
        );
    }
}

#[test]
fn positions_of_extremes() {
    let x = [3.0f32, 1.0, 3.0, 1.0, 2.0, 0.5, f32::NAN, 7.0];
    for (extreme, last, want) in [
        (Extreme::Max, false, [0, 2]),
        (Extreme::Max, true, [2, 2]),
        (Extreme::Min, false, [1, 2]),
        (Extreme::Min, true, [3, 2]),
    ] {
        let mut y = [9; 2];
        arg_extreme(&exec(), extreme, &x, Axis::of(&[2, 4], 1), last, &mut y).unwrap();
        assert_eq!(y, want, "{extreme:?} {last}");
    }
    let x: Vec<i32> = random(30 * 41 * 50, 20.0, 1);
    let axis = Axis::of(&[30, 41, 50], 1);
    each_exec(|exec| {
        let mut y = vec![9; 30 * 50];
        arg_extreme(exec, Extreme::Max, &x, axis, false, &mut y).unwrap();
        for (flat, &y) in y.iter().enumerate() {
            let column: Vec<i32> = (0..41)
                .map(|k| x[flat / 50 * 41 * 50 + k * 50 + flat % 50])
                .collect();
            let max = *column.iter().max().unwrap();
            assert_eq!(y as usize, column.iter().position(|&x| x == max).unwrap());
        }
    });
}

/// Compares extremes of rows, with equal elements and some NaN, with a search one by one.
fn check_rows<T: Number>(rows: usize, len: usize) {
    let mut x: Vec<T> = random(rows * len, 30.0, 6);
    for x in &mut x {
        *x = T::from_f64(x.to_f64().round());
    }
    if !T::INTEGER {
        (x[len / 2], x[len - 1]) = (T::from_f64(f64::NAN), T::from_f64(f64::NAN));
    }
    let axis = Axis::of(&[rows, len], 1);
    for (extreme, last) in [Extreme::Max, Extreme::Min]
        .into_iter()
        .flat_map(|e| [(e, false), (e, true)])
    {
        let mut y = vec![-1; rows];
        arg_extreme(&exec(), extreme, &x, axis, last, &mut y).unwrap();
        let (mut values, mut indices) = (vec![T::ZERO; rows * 9], vec![-1; rows * 9]);
        let k = len.min(9);
        let best = (&mut values[..rows * k], &mut indices[..rows * k]);
        top_k(&exec(), extreme, &x, axis, k, best.0, best.1).unwrap();
        for (r, row) in x.chunks(len).enumerate() {
            // NaN is more extreme than any number for the one, and the largest for the other.
            let signed = |x: T| {
                if extreme == Extreme::Max {
                    x.to_f64()
                } else {
                    -x.to_f64()
                }
            };
            let key = |k: &usize| match row[*k].is_nan() {
                true => f64::INFINITY,
                false => signed(row[*k]),
            };
            let most = (0..len).map(|k| key(&k)).fold(f64::NEG_INFINITY, f64::max);
            let mut all = (0..len).filter(|k| key(k) == most);
            let want = if last { all.next_back() } else { all.next() };
            assert_eq!(
                Some(y[r] as usize),
                want,
                "{extreme:?} {last} row {r} of {len}"
            );
            let nan_last = |k: &usize| match row[*k].is_nan() && extreme == Extreme::Min {
                true => f64::NEG_INFINITY,
                false => key(k),
            };
            let mut order: Vec<usize> = (0..len).collect();
            order.sort_by(|a, b| nan_last(b).total_cmp(&nan_last(a)).then(a.cmp(b)));
            let got = &indices[r * k..(r + 1) * k];
            assert!(
                got.iter().zip(&order).all(|(i, want)| *i as usize == *want),
                "{got:?} {len}"
            );
        }
    }
}

#[test]
fn extremes_of_rows_of_any_length() {
    for len in [1, 2, 63, 64, 65, 300, 1024, 2049] {
        check_rows::<f32>(3, len);
        check_rows::<f64>(3, len);
        check_rows::<f16>(3, len);
        check_rows::<bf16>(3, len);
        check_rows::<i8>(3, len);
        check_rows::<i64>(3, len);
    }
}

#[test]
fn sums_of_many_columns_are_those_of_each() {
    let shape = [2, 7, 2500];
    let x: Vec<f16> = random(count(&shape), 3.0, 8);
    for covered in [false, true].map(|exclusive| Covered {
        exclusive,
        reverse: exclusive,
    }) {
        let mut y = vec![f16::ZERO; x.len()];
        cumulate(
            &exec(),
            Running::Sum,
            &x,
            Axis::of(&shape, 1),
            covered,
            &mut y,
        )
        .unwrap();
        for (o, i) in (0..2).flat_map(|o| (0..2500).map(move |i| (o, i))) {
            let at = |k: usize| (o * 7 + k) * 2500 + i;
            let column: Vec<f16> = (0..7).map(|k| x[at(k)]).collect();
            let mut want = [f16::ZERO; 7];
            let axis = Axis::of(&[7], 0);
            cumulate(&exec(), Running::Sum, &column, axis, covered, &mut want).unwrap();
            assert!((0..7).all(|k| y[at(k)] == want[k]), "column {i}");
        }
    }
}

#[test]
fn cumulative_sums() {
    let x = [1i32, 2, 3, 4, 5, 6];
    for (exclusive, reverse, want) in [
        (false, false, [1, 3, 6, 4, 9, 15]),
        (true, false, [0, 1, 3, 0, 4, 9]),
        (false, true, [6, 5, 3, 15, 11, 6]),
        (true, true, [5, 3, 0, 11, 6, 0]),
    ] {
        let mut y = [9; 6];
        let covered = Covered { exclusive, reverse };
        let axis = Axis::of(&[2, 3], 1);
        cumulate(&exec(), Running::Sum, &x, axis, covered, &mut y).unwrap();
        assert_eq!(y, want);
    }
    for (exclusive, reverse, want) in [
        (false, false, [1, 2, 6, 4, 20, 120]),
        (true, false, [1, 1, 2, 1, 4, 20]),
        (false, true, [6, 6, 3, 120, 30, 6]),
        (true, true, [6, 3, 1, 30, 6, 1]),
    ] {
        let mut y = [9; 6];
        let covered = Covered { exclusive, reverse };
        let axis = Axis::of(&[2, 3], 1);
        cumulate(&exec(), Running::Product, &x, axis, covered, &mut y).unwrap();
        assert_eq!(y, want);
    }
    let forward = Covered {
        exclusive: false,
        reverse: false,
    };
    let wrong = f32::from_bits(0xffc0_1234);
    for running in [Running::Sum, Running::Product] {
        let mut y = [0f32; 3];
        let axis = Axis::of(&[3], 0);
        cumulate(&exec(), running, &[1.0, wrong, 1.0], axis, forward, &mut y).unwrap();
        let nan = f32::NAN.to_bits();
        assert_eq!(y.map(f32::to_bits), [1f32.to_bits(), nan, nan]);
    }
    let x: Vec<f16> = random(300 * 150, 2.0, 4);
    each_exec(|exec| {
        let mut y = vec![f16::ZERO; x.len()];
        let axis = Axis::of(&[3, 100, 150], 1);
        cumulate(exec, Running::Sum, &x, axis, forward, &mut y).unwrap();
        let column: f32 = (0..100)
            .map(|k| x[150 * 100 + k * 150 + 149].to_f32())
            .sum();
        assert_eq!(y[150 * 100 + 99 * 150 + 149], f16::from_f32_const(column));
    });
}

#[test]
fn top_elements() {
    let shape = [7, 90, 11];
    let x: Vec<i16> = random(count(&shape), 40.0, 4);
    let axis = Axis::of(&shape, 1);
    for (extreme, k) in [
        (Extreme::Max, 5),
        (Extreme::Min, 90),
        (Extreme::Max, 1),
        (Extreme::Min, 0),
    ] {
        each_exec(|exec| {
            let (mut values, mut indices) = (vec![0; 7 * k * 11], vec![0; 7 * k * 11]);
            top_k(exec, extreme, &x, axis, k, &mut values, &mut indices).unwrap();
            for (o, i) in (0..7).flat_map(|o| (0..11).map(move |i| (o, i))) {
                let mut column: Vec<(i16, i64)> = (0..90)
                    .map(|j| (x[(o * 90 + j) * 11 + i], j as i64))
                    .collect();
                column.sort_by_key(|&(x, j)| (if extreme == Extreme::Max { -x } else { x }, j));
                for j in 0..k {
                    let at = (o * k + j) * 11 + i;
                    assert_eq!((values[at], indices[at]), column[j]);
                }
            }
        });
    }
    let (mut values, mut indices) = ([0.0f32; 3], [0; 3]);
    top_k(
        &exec(),
        Extreme::Max,
        &[1.0, f32::NAN, 5.0, 5.0],
        Axis::of(&[4], 0),
        3,
        &mut values,
        &mut indices,
    )
    .unwrap();
    assert_eq!(indices, [1, 2, 3]);
}

#[test]
fn one_huge_output_stops_when_it_is_cancelled() {
    let n = 1 << 24;
    let x: Vec<f32> = vec![0.5; n];
    check_stops(|exec| reduce_float(exec, Reduce::LogSumExp, &x, &[n], &[0], &mut [0.0]));
    // The same by columns, in one block of columns.
    let (rows, columns) = (n / 8, 8);
    check_stops(|exec| {
        let y = &mut [0.0; 8];
        reduce_float(exec, Reduce::LogSumExp, &x, &[rows, columns], &[0], y)
    });
}

#[test]
fn one_huge_row_stops_when_it_is_cancelled() {
    let n = 1 << 23;
    let x: Vec<f32> = (0..n).map(|i| (i % 1000) as f32).collect();
    let axis = Axis::of(&[n], 0);
    check_stops(|exec| arg_extreme(exec, Extreme::Max, &x, axis, false, &mut [0]));
    let y = std::cell::RefCell::new(vec![0.0; n]);
    let covered = Covered {
        exclusive: false,
        reverse: true,
    };
    check_stops(|exec| cumulate(exec, Running::Sum, &x, axis, covered, &mut y.borrow_mut()));
    let (values, indices) = (&mut [0.0; 64], &mut [0; 64]);
    let best = std::cell::RefCell::new((values, indices));
    check_stops(|exec| {
        let (values, indices) = &mut *best.borrow_mut();
        top_k(exec, Extreme::Max, &x, axis, 64, *values, *indices)
    });
}

#[test]
fn many_small_heaps_of_one_tile_stop_when_they_are_cancelled() {
    let (len, k, columns) = (500, 400, 100);
    let x: Vec<f32> = random(len * columns, 2.0, 3);
    let axis = Axis::of(&[len, columns], 0);
    let best = std::cell::RefCell::new((vec![0f32; k * columns], vec![0i64; k * columns]));
    check_stops(|exec| {
        let (values, indices) = &mut *best.borrow_mut();
        top_k(exec, Extreme::Min, &x, axis, k, values, indices)
    });
    let (mut values, mut indices) = (vec![0f32; k * columns], vec![0i64; k * columns]);
    top_k(
        &exec(),
        Extreme::Min,
        &x,
        axis,
        k,
        &mut values,
        &mut indices,
    )
    .unwrap();
    for i in 0..columns {
        let mut column: Vec<(f32, i64)> =
            (0..len).map(|j| (x[j * columns + i], j as i64)).collect();
        column.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let got = (0..k).map(|j| (values[j * columns + i], indices[j * columns + i]));
        assert!(got.eq(column[..k].iter().copied()), "column {i}");
    }
}

fn check_abreast<T: Float>() {
    for n in [1, 15, 16, 49, 255, 256, 257, 1030, 3000] {
        let rows = 7;
        let x: Vec<T> = random(rows * n, 2.0, 9);
        for op in OPS {
            let mut together = vec![T::ZERO; rows];
            reduce_float(&exec(), op, &x, &[rows, n], &[1], &mut together).unwrap();
            for (x, y) in x.chunks_exact(n).zip(together) {
                let mut alone = [T::ZERO];
                reduce_float(&exec(), op, x, &[1, n], &[1], &mut alone).unwrap();
                assert_eq!(bits(&[y]), bits(&alone), "{op:?} of {n} elements");
            }
        }
    }
}

#[test]
fn rows_side_by_side_have_the_bits_of_a_row_alone() {
    check_abreast::<f32>();
    check_abreast::<f64>();
    check_abreast::<f16>();
    check_abreast::<bf16>();
}
