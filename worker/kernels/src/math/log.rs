//! Natural logarithm: exponent split at sqrt(1/2), then a minimax polynomial of degree eleven.

/// ln 2 in two parts; `n * LN2_HI` is exact for every exponent `n`.
const LN2_HI: f32 = 0.693_115_234_375;
const LN2_LO: f32 = 3.194_618_5e-5;

/// ln(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1], plus n ln 2.
#[inline(always)]
fn ln_parts(f: f32, n: f32) -> f32 {
    let p = 0.069_716_114_f32;
    let p = p.mul_add(f, -0.114_797_34);
    let p = p.mul_add(f, 0.116_854_2);
    let p = p.mul_add(f, -0.124_256_874);
    let p = p.mul_add(f, 0.142_490_58);
    let p = p.mul_add(f, -0.166_678_02);
    let p = p.mul_add(f, 0.200_007_16);
    let p = p.mul_add(f, -0.249_999_97);
    let p = p.mul_add(f, 0.333_333_3);
    let square = f * f;
    let cube = square * f;
    let small = n.mul_add(LN2_LO, cube * p);
    let small = square.mul_add(-0.5, small);
    n.mul_add(LN2_HI, f + small)
}

/// Splits a positive finite `x` into mantissa in [sqrt(1/2), sqrt(2)) minus one, and exponent.
#[inline(always)]
fn split(x: f32) -> (f32, f32) {
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 8_388_608.0 } else { x };
    let bias = if subnormal { -23.0 } else { 0.0 };
    const SQRT_HALF: i32 = 0x3f35_04f3;
    let offset = (scaled.to_bits() as i32).wrapping_sub(SQRT_HALF);
    let n = offset >> 23;
    let mantissa = f32::from_bits(((offset & 0x007f_ffff) + SQRT_HALF) as u32);
    (mantissa - 1.0, n as f32 + bias)
}

/// Natural logarithm; -inf at zero, NaN for negative values.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let (f, n) = split(x);
    let y = ln_parts(f, n);
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if (x < 0.0) | x.is_nan() { f32::NAN } else { y }
}

/// ln(1 + z) for z in [0, 1].
#[inline(always)]
pub fn log1p_unit(z: f32) -> f32 {
    let u = 1.0 + z;
    // Rounding 1 + z to u lost z - (u - 1), which changes the logarithm by that difference divided by u.
    let lost = z - (u - 1.0);
    let (f, n) = split(u);
    ln_parts(f, n) + lost / u
}

#[cfg(test)]
mod tests {
    use super::super::testing::check_ulps;
    use super::*;

    #[test]
    fn accurate_everywhere() {
        check_ulps("ln", ln, libm::log, 1.5, |_| true);
        check_ulps("log1p", log1p_unit, libm::log1p, 2.0, |x| {
            (0.0..=1.0).contains(&x)
        });
    }

    #[test]
    fn special_values() {
        assert_eq!(ln(0.0), f32::NEG_INFINITY);
        assert_eq!(ln(-0.0), f32::NEG_INFINITY);
        assert_eq!(ln(1.0).to_bits(), 0.0f32.to_bits());
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
        assert!(ln(-1.0).is_nan() && ln(f32::NAN).is_nan() && ln(f32::NEG_INFINITY).is_nan());
    }
}
