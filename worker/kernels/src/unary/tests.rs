use super::*;
use crate::element::{bf16, f16};
use crate::testing::{bits, each_exec, exec, uniform};

fn all_float_ops() -> Vec<(FloatUnary, fn(f64) -> f64)> {
    use FloatUnary::*;
    let erf_gelu = |x: f64| 0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2));
    let tanh_gelu = |x: f64| {
        0.5 * x
            * (1.0 + libm::tanh((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)))
    };
    vec![
        (Abs, f64::abs),
        (Neg, |x| -x),
        (Sign, |x| {
            if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                x
            }
        }),
        (Reciprocal, |x| 1.0 / x),
        (Sqrt, f64::sqrt),
        (Floor, f64::floor),
        (Ceil, f64::ceil),
        (Round, f64::round_ties_even),
        (Exp, libm::exp),
        (Log, libm::log),
        (Sin, libm::sin),
        (Cos, libm::cos),
        (Tan, libm::tan),
        (Sinh, libm::sinh),
        (Cosh, libm::cosh),
        (Tanh, libm::tanh),
        (Asin, libm::asin),
        (Acos, libm::acos),
        (Atan, libm::atan),
        (Asinh, libm::asinh),
        (Acosh, libm::acosh),
        (Atanh, libm::atanh),
        (Erf, libm::erf),
        (Sigmoid, |x| 1.0 / (1.0 + libm::exp(-x))),
        (Swish { alpha: 1.0 }, |x| x / (1.0 + libm::exp(-x))),
        (Swish { alpha: 0.5 }, |x| x / (1.0 + libm::exp(-0.5 * x))),
        (Relu, |x| if x < 0.0 { 0.0 } else { x }),
        (LeakyRelu { alpha: 0.25 }, |x| {
            if x < 0.0 { 0.25 * x } else { x }
        }),
        (ThresholdedRelu { alpha: 0.5 }, |x| {
            if x > 0.5 { x } else { 0.0 }
        }),
        (Elu { alpha: 1.5 }, |x| {
            if x < 0.0 { 1.5 * libm::expm1(x) } else { x }
        }),
        (
            Selu {
                alpha: 1.5,
                gamma: 1.25,
            },
            |x| 1.25 * if x <= 0.0 { 1.5 * libm::expm1(x) } else { x },
        ),
        (Celu { alpha: 2.0 }, |x| {
            if x < 0.0 {
                2.0 * libm::expm1(x / 2.0)
            } else {
                x
            }
        }),
        (
            HardSigmoid {
                alpha: 0.25,
                beta: 0.5,
            },
            |x| {
                let y = 0.25 * x + 0.5;
                y.clamp(0.0, 1.0)
            },
        ),
        (HardSwish, |x| {
            let y = x / 6.0 + 0.5;
            x * y.clamp(0.0, 1.0)
        }),
        (Gelu, erf_gelu),
        (GeluTanh, tanh_gelu),
        (Softplus, |x| {
            if x > 0.0 {
                x + libm::log1p(libm::exp(-x))
            } else {
                libm::log1p(libm::exp(x))
            }
        }),
        (Softsign, |x| x / (1.0 + x.abs())),
        (Mish, |x| x * libm::tanh(libm::log1p(libm::exp(x)))),
    ]
}

/// Compares with `f64` arithmetic, for odd lengths and misaligned slices, at all thread counts, in place and out of
/// place.
fn check_float<T: Float>(tolerance: f64) {
    let awkward = [
        0.0,
        -0.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
    ];
    let mut data: Vec<f64> = uniform(40_003, 7).into_iter().map(|x| x * 6.0).collect();
    data[17..27].copy_from_slice(&awkward);
    let x: Vec<T> = data.into_iter().map(T::from_f64).collect();
    for (op, want) in all_float_ops() {
        let mut first = vec![T::ZERO; x.len()];
        float(&exec(), op, &x, &mut first).unwrap();
        for (&x, &y) in x.iter().zip(&first) {
            let (exact, y) = (T::from_f64(want(x.to_f64())).to_f64(), y.to_f64());
            assert_eq!(
                exact.is_nan(),
                y.is_nan(),
                "{op:?}({x:?}) = {y}, want {exact}"
            );
            let close = (y - exact).abs() <= tolerance * exact.abs().max(1.0);
            assert!(
                close || y == exact || y.is_nan(),
                "{op:?}({x:?}) = {y}, want {exact}"
            );
        }
        let first = bits(&first);
        each_exec(|exec| {
            for skip in [0, 1, 3] {
                let mut buffer = vec![T::ZERO; x.len() - skip + 5];
                float(exec, op, &x[skip..], &mut buffer[5..]).unwrap();
                assert_eq!(bits(&buffer[5..]), first[skip..], "{op:?}");
                let mut same = x[skip..].to_vec();
                float_inplace(exec, op, &mut same).unwrap();
                assert_eq!(bits(&same), first[skip..], "{op:?} in place");
            }
        });
    }
}

#[test]
fn floats_match_wide_arithmetic() {
    check_float::<f32>(6e-7);
    check_float::<f64>(1e-14);
    check_float::<f16>(1e-3);
    check_float::<bf16>(8e-3);
}

#[test]
fn large_arguments_of_trigonometric_functions() {
    let x = [1e10f32, -3e20, 1.0, f32::MAX, f32::INFINITY];
    let mut y = [0.0; 5];
    float(&exec(), FloatUnary::Sin, &x, &mut y).unwrap();
    for i in 0..4 {
        assert_eq!(y[i], libm::sin(f64::from(x[i])) as f32);
    }
    assert!(y[4].is_nan());
}

fn check_integers<T: Integer>() {
    let x = [
        T::LOWEST,
        T::HIGHEST,
        T::ZERO,
        T::ONE,
        T::neg(T::ONE),
        T::from_f64(7.0),
        T::from_f64(-7.0),
    ];
    type Expected<T> = fn(T) -> T;
    let cases: [(IntegerUnary, Expected<T>); 5] = [
        (
            IntegerUnary::Abs,
            |x| if x < T::ZERO { T::neg(x) } else { x },
        ),
        (IntegerUnary::Neg, |x| T::sub(T::ZERO, x)),
        (IntegerUnary::Sign, T::sign),
        (
            IntegerUnary::Relu,
            |x| if x < T::ZERO { T::ZERO } else { x },
        ),
        (IntegerUnary::BitwiseNot, |x| T::sub(T::neg(x), T::ONE)),
    ];
    for (op, want) in cases {
        let mut y = x;
        integer(&exec(), op, &x, &mut y).unwrap();
        assert_eq!(y, x.map(want), "{op:?}");
        let mut y = x;
        integer_inplace(&exec(), op, &mut y).unwrap();
        assert_eq!(y, x.map(want), "{op:?}");
    }
    let mut y = x;
    let (low, high) = (T::ONE, T::from_f64(5.0));
    clip(&exec(), low, high, &x, &mut y).unwrap();
    assert_eq!(
        y,
        x.map(|x| if x < low {
            low
        } else if x > high {
            high
        } else {
            x
        })
    );
}

#[test]
fn integers_wrap() {
    check_integers::<i8>();
    check_integers::<i16>();
    check_integers::<i32>();
    check_integers::<i64>();
    check_integers::<u8>();
    check_integers::<u16>();
    check_integers::<u32>();
    check_integers::<u64>();
}

#[test]
fn clip_keeps_nan_and_lets_max_win() {
    let mut y = [f32::NAN, -1.0, 0.5, 9.0];
    clip_inplace(&exec(), 0.0, 1.0, &mut y).unwrap();
    assert!(y[0].is_nan());
    assert_eq!(y[1..], [0.0, 0.5, 1.0]);
    clip_inplace(&exec(), 5.0, 2.0, &mut y[1..]).unwrap();
    assert_eq!(y[1..], [2.0, 2.0, 2.0]);
}

#[test]
fn clip_of_every_half_keeps_its_bits_or_is_a_bound() {
    let x: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    for (low, high) in [
        (-0.0, 6.0),
        (0.0, -0.0),
        (-1e-7, 65504.0),
        (f32::NAN, 1.0),
        (3.0, f32::NAN),
        (2.0, 1.0),
    ] {
        let (low, high) = (f16::from_f32(low), f16::from_f32(high));
        let mut y = vec![f16::ZERO; x.len()];
        clip(&exec(), low, high, &x, &mut y).unwrap();
        for (x, y) in x.iter().zip(&y) {
            let want = if *x < low { low } else { *x };
            let want = if want > high { high } else { want };
            assert_eq!(y.to_bits(), want.to_bits(), "{x:?} in {low:?} to {high:?}");
        }
    }
}

#[test]
fn tests_and_not() {
    let x: Vec<f16> = [0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY]
        .map(f16::from_f64)
        .into();
    let mut y = [9u8; 4];
    test(&exec(), Test::IsNan, &x, &mut y).unwrap();
    assert_eq!(y, [0, 1, 0, 0]);
    test(
        &exec(),
        Test::IsInf {
            positive: true,
            negative: false,
        },
        &x,
        &mut y,
    )
    .unwrap();
    assert_eq!(y, [0, 0, 1, 0]);
    test(
        &exec(),
        Test::IsInf {
            positive: true,
            negative: true,
        },
        &x,
        &mut y,
    )
    .unwrap();
    assert_eq!(y, [0, 0, 1, 1]);
    let mut z = [9u8; 4];
    not(&exec(), &y, &mut z).unwrap();
    assert_eq!(z, [1, 1, 0, 0]);
    not_inplace(&exec(), &mut z).unwrap();
    assert_eq!(z, y);
}
