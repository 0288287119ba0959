//! `exp`, `expm1` and `tanh`: Cody-Waite reduction by ln 2, then a minimax polynomial of degree six.

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// High part of ln 2 with twelve trailing zero bits, so that `n * LN2_HI` is exact for |n| < 4096.
const LN2_HI: f32 = 0.693_115_234_375;
/// ln 2 - `LN2_HI`.
const LN2_LO: f32 = 3.194_618_5e-5;
/// 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;

/// (e^r - 1 - r) / r^2 for |r| <= ln(2)/2, with an error of 6.6e-8.
#[inline(always)]
fn tail(r: f32) -> f32 {
    let p = 0.001_392_625_1_f32;
    let p = p.mul_add(r, 0.008_363_233);
    let p = p.mul_add(r, 0.041_666_556);
    let p = p.mul_add(r, 0.166_665_77);
    p.mul_add(r, 0.5)
}

/// Splits `x` into `n ln 2 + r`; returns `(n, r)`. Needs |x| < 2^12.
#[inline(always)]
fn reduce(x: f32) -> (i32, f32) {
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_HI, x);
    let r = n.mul_add(-LN2_LO, r);
    (
        (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32),
        r,
    )
}

/// 2^n for -127 < n < 128.
#[inline(always)]
fn exp2i(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Clamps `x` to `lo..=hi`. A NaN stays NaN, unlike in the vectorized form of `f32::clamp`.
#[inline(always)]
pub(super) fn clamp(x: f32, lo: f32, hi: f32) -> f32 {
    let x = if x < lo { lo } else { x };
    if x > hi { hi } else { x }
}

/// e^x, subnormal results included.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Beyond these bounds the scaling below overflows to infinity or rounds to zero by itself.
    let (n, r) = reduce(clamp(x, -105.0, 89.5));
    let p = (r * r).mul_add(tail(r), r) + 1.0;
    // n reaches 129 and -152, which exceeds the exponents of one factor, so the power is applied in two factors.
    let half = n >> 1;
    p * exp2i(half) * exp2i(n.wrapping_sub(half))
}

/// e^x for x <= 0 or NaN, with the bits of [`exp`].
#[inline(always)]
pub fn exp_below_zero(x: f32) -> f32 {
    let (n, r) = reduce(if x < -105.0 { -105.0 } else { x });
    let p = (r * r).mul_add(tail(r), r) + 1.0;
    // The first product is exact, so the second one alone rounds, as in `exp`.
    p * exp2i(n.wrapping_add(100)) * f32::from_bits((127 - 100) << 23)
}

/// e^x for -87 < x <= 0 or NaN, with the bits of [`exp`].
#[inline(always)]
pub fn exp_near_zero(x: f32) -> f32 {
    let (n, r) = reduce(x);
    let p = (r * r).mul_add(tail(r), r) + 1.0;
    p * exp2i(n)
}

/// e^x - 1 without cancellation near zero.
#[inline(always)]
pub fn expm1(x: f32) -> f32 {
    let clamped = clamp(x, -30.0, 89.5);
    let (n, r) = reduce(clamped);
    let q = (r * r).mul_add(tail(r), r);
    let half = n >> 1;
    let (s, t) = (exp2i(half), exp2i(n.wrapping_sub(half)));
    // s * t may overflow where the result does not, so multiply by t last; 1/t is exact.
    let y = (s.mul_add(q, s - exp2i(half.wrapping_sub(n)))) * t;
    // The sum above loses the sign of zero.
    if x == 0.0 { x } else { y }
}

/// Hyperbolic tangent: (e^2|x| - 1) / (e^2|x| + 1).
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let t = x.abs() * 2.0;
    // tanh(10) rounds to one.
    let (n, r) = reduce(clamp(t, 0.0, 20.0));
    let q = (r * r).mul_add(tail(r), r);
    let s = exp2i(n);
    let e = s.mul_add(q, s - 1.0);
    (e / (e + 2.0)).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SPECIAL, check_ulps};
    use super::*;

    #[test]
    fn accurate_everywhere() {
        check_ulps("exp", exp, libm::exp, 1.5, |_| true);
        check_ulps("expm1", expm1, libm::expm1, 2.0, |_| true);
        check_ulps("tanh", tanh, libm::tanh, 2.5, |_| true);
    }

    #[test]
    fn narrower_ranges_have_the_same_bits() {
        for bits in (0x8000_0000..=u32::MAX).step_by(509).chain([0]) {
            let x = f32::from_bits(bits);
            let want = exp(x).to_bits();
            assert_eq!(exp_below_zero(x).to_bits(), want, "{x:e}");
            if x > -87.0 {
                assert_eq!(exp_near_zero(x).to_bits(), want, "{x:e}");
            }
        }
        for x in [-104.0f32, -103.9, -87.4, -87.3, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(exp_below_zero(x).to_bits(), exp(x).to_bits(), "{x:e}");
        }
        assert_eq!(exp_near_zero(f32::NAN).to_bits(), exp(f32::NAN).to_bits());
    }

    #[test]
    fn special_values() {
        for x in SPECIAL {
            let wide = f64::from(x);
            for (name, got, want) in [
                ("exp", exp(x), libm::exp(wide) as f32),
                ("expm1", expm1(x), libm::expm1(wide) as f32),
                ("tanh", tanh(x), libm::tanh(wide) as f32),
            ] {
                assert_eq!(got.is_nan(), want.is_nan(), "{name}({x})");
                assert!(
                    got.is_nan() || (got - want).abs() <= want.abs() * 3e-7 || got == want,
                    "{name}({x}) = {got}"
                );
                assert!(
                    got.is_nan() || got.is_sign_negative() == want.is_sign_negative(),
                    "{name}({x}) = {got}"
                );
            }
        }
    }
}
