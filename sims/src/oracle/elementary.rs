//! Elementary functions of one number.
//!
//! Their reductions and coefficients are a part of the numerics profile, because they decide bits; the tests compare every
//! function with the mathematical one as well.

// Coefficients keep the digits that they were fitted with.
#![allow(clippy::excessive_precision)]

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, SQRT_2};

/// ln 2 in two parts, of which the first has twelve trailing zero bits.
const LN_2: [f32; 2] = [0.693_115_234_375, 3.194_618_5e-5];

/// 1.5 times the power of two from which on a number has no fraction: what is added to it becomes a whole number.
const WHOLE: f32 = 12_582_912.0;
const WHOLE_WIDE: f64 = 6_755_399_441_055_744.0;

/// A polynomial in `x` by Horner's rule with fused multiply-adds; the coefficient of the highest power comes first.
fn polynomial(x: f32, coefficients: &[f32]) -> f32 {
    let rest = coefficients[1..].iter();
    rest.fold(coefficients[0], |sum, c| sum.mul_add(x, *c))
}

/// As [`polynomial`], in double precision.
fn wide_polynomial(x: f64, coefficients: &[f64]) -> f64 {
    let rest = coefficients[1..].iter();
    rest.fold(coefficients[0], |sum, c| sum.mul_add(x, *c))
}

/// `x` within bounds; NaN stays.
fn bounded(x: f32, least: f32, most: f32) -> f32 {
    if x < least {
        least
    } else if x > most {
        most
    } else {
        x
    }
}

/// 2^n, for an `n` that is the exponent of a normal number.
fn power_of_two(n: i32) -> f32 {
    assert!((-126..=127).contains(&n), "2^{n} is no normal number");
    f32::from_bits(((n + 127) as u32) << 23)
}

/// The `n` and `e^r - 1` for which e^x = 2^n e^r.
fn reduced(x: f32) -> (i32, f32) {
    let n = x.mul_add(std::f32::consts::LOG2_E, WHOLE) - WHOLE;
    let r = LN_2.iter().fold(x, |r, part| n.mul_add(-part, r));
    const TAIL: [f32; 5] = [
        0.001_392_625_1,
        0.008_363_233,
        0.041_666_556,
        0.166_665_77,
        0.5,
    ];
    (n as i32, (r * r).mul_add(polynomial(r, &TAIL), r))
}

/// e^x.
pub(super) fn exp(x: f32) -> f32 {
    let (n, q) = reduced(bounded(x, -105., 89.5));
    // The power is applied in two factors, because its exponent may be that of no normal number.
    let half = n.div_euclid(2);
    (q + 1.) * power_of_two(half) * power_of_two(n - half)
}

/// (e^2x - 1) / (e^2x + 1).
pub(super) fn tanh(x: f32) -> f32 {
    let (n, q) = reduced(bounded(2. * x.abs(), 0., 20.));
    let power = power_of_two(n);
    let e = power.mul_add(q, power - 1.);
    (e / (e + 2.)).copysign(x)
}

/// The error function: a polynomial near zero, and one minus a power of e of a polynomial elsewhere.
pub(super) fn erf(x: f32) -> f32 {
    let t = bounded(x.abs(), 0., 4.);
    let square = t * t;
    let y = if t > 0.927_734_4 {
        let high = polynomial(t, &[-1.728_534_7e-5, 3.831_972_e-4]);
        let low = polynomial(t, &[-3.883_964_4e-3, 2.425_462_2e-2]);
        let both = high.mul_add(square, low);
        let rest = [-1.067_778_77e-1, -6.348_468_7e-1, -1.287_175_1e-1, -t];
        1. - exp(rest.iter().fold(both, |sum, c| sum.mul_add(t, *c)))
    } else {
        const NEAR: [f32; 6] = [
            -5.967_617e-4,
            4.991_194_e-3,
            -2.676_813_5e-2,
            1.128_199_25e-1,
            -3.761_253_4e-1,
            1.283_791_7e-1,
        ];
        polynomial(square, &NEAR).mul_add(t, t)
    };
    y.copysign(x)
}

/// ln(1 + f) + n ln 2 for an `f` between sqrt(1/2) - 1 and sqrt(2) - 1.
fn ln_of(f: f32, n: f32) -> f32 {
    const SERIES: [f32; 9] = [
        0.069_716_114,
        -0.114_797_34,
        0.116_854_2,
        -0.124_256_874,
        0.142_490_58,
        -0.166_678_02,
        0.200_007_16,
        -0.249_999_97,
        0.333_333_3,
    ];
    let square = f * f;
    let rest = n.mul_add(LN_2[1], square * f * polynomial(f, &SERIES));
    n.mul_add(LN_2[0], f + square.mul_add(-0.5, rest))
}

/// Splits a normal number into `f` and `n`, so that it is (1 + f) 2^n; 1 + f lies between the roots of 1/2 and of 2.
fn parted(x: f32) -> (f32, f32) {
    let bits = x.to_bits() as i32;
    let root_of_half = std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32;
    let n = (bits - root_of_half).div_euclid(1 << 23);
    (f32::from_bits((bits - (n << 23)) as u32) - 1., n as f32)
}

/// Natural logarithm.
pub(super) fn ln(x: f32) -> f32 {
    match x {
        _ if x.is_nan() || x < 0. => f32::NAN,
        0. => f32::NEG_INFINITY,
        f32::INFINITY => x,
        _ if x < f32::MIN_POSITIVE => {
            let (f, n) = parted(x * 8_388_608.);
            ln_of(f, n - 23.)
        }
        _ => {
            let (f, n) = parted(x);
            ln_of(f, n)
        }
    }
}

/// Sine, in double precision and rounded once. Beyond 2^30 the reduction has to be exact.
pub(super) fn sin(x: f32) -> f32 {
    if x == 0. {
        return x;
    }
    let wide = f64::from(x);
    if x.abs() > 1_073_741_824. {
        return libm::sin(wide) as f32;
    }
    let n = wide.mul_add(FRAC_2_PI, WHOLE_WIDE) - WHOLE_WIDE;
    // pi / 2 in two parts.
    let r = n.mul_add(-FRAC_PI_2, wide);
    let r = n.mul_add(-6.123_233_995_736_766e-17, r);
    let square = r * r;
    let quadrant = (n as i64).rem_euclid(4);
    let y = if quadrant % 2 == 0 {
        const SINE: [f64; 5] = [
            -2.480_514_540_674_643e-8,
            2.755_598_562_520_086e-6,
            -1.984_126_689_943_739_9e-4,
            8.333_333_331_061_16e-3,
            -0.166_666_666_666_638_58,
        ];
        (r * square).mul_add(wide_polynomial(square, &SINE), r)
    } else {
        const COSINE: [f64; 4] = [
            -2.730_044_861_934_888_5e-7,
            2.480_059_643_562_199_7e-5,
            -1.388_888_766_471_362e-3,
            4.166_666_666_430_240_6e-2,
        ];
        let rest = square.mul_add(-0.5, 1.);
        (square * square).mul_add(wide_polynomial(square, &COSINE), rest)
    };
    (if quadrant >= 2 { -y } else { y }) as f32
}

/// 1 / (1 + e^-x), by powers of e that do not overflow.
pub(super) fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    (if x < 0. { e } else { 1. }) / (1. + e)
}

/// ln(1 + e^x).
pub(super) fn softplus(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    let z = exp(-x.abs());
    let sum = 1. + z;
    // What the sum lost when it was rounded changes the logarithm by its share in the sum.
    let lost = z - (sum - 1.);
    let (f, n) = parted(sum);
    (if x > 0. { x } else { 0. }) + (ln_of(f, n) + lost / sum)
}

/// x / 2 * (1 + erf(x / sqrt 2)).
pub(super) fn gelu(x: f32) -> f32 {
    0.5 * x * (1. + erf(x / SQRT_2 as f32))
}

/// x times x / 6 + 1/2 within 0 and 1.
pub(super) fn hard_swish(x: f32) -> f32 {
    let sixth = (1. / 6.) as f32;
    x * bounded(sixth * x + 0.5, 0., 1.)
}
