//! Sine, cosine and tangent: reduction by pi/2 and polynomials, in `f64`.
//!
//! The `_fast` forms are branch-free and hold for |x| <= [`TRIG_FAST_LIMIT`]; the plain forms add a branch
//! to an exact (slow) reduction beyond. Both give equal bits where the fast form holds.

/// Largest magnitude that the fast forms accept.
pub const TRIG_FAST_LIMIT: f32 = 1_073_741_824.0;

const PIO2_HI: f64 = std::f64::consts::FRAC_PI_2;
/// pi/2 - `PIO2_HI`.
const PIO2_LO: f64 = 6.123_233_995_736_766e-17;
/// 1.5 * 2^52: adding it leaves the nearest integer in the low mantissa bits.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// The quadrant (in the low two bits), and sine and cosine of the remainder in [-pi/4, pi/4].
#[inline(always)]
fn parts(x: f32) -> (u64, f64, f64) {
    let x = f64::from(x);
    let shifted = x.mul_add(std::f64::consts::FRAC_2_PI, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-PIO2_HI, x);
    let r = n.mul_add(-PIO2_LO, r);
    let s = r * r;
    let p = -2.480_514_540_674_643e-8_f64;
    let p = p.mul_add(s, 2.755_598_562_520_086e-6);
    let p = p.mul_add(s, -1.984_126_689_943_739_9e-4);
    let p = p.mul_add(s, 8.333_333_331_061_16e-3);
    let p = p.mul_add(s, -0.166_666_666_666_638_58);
    let sin = (r * s).mul_add(p, r);
    let q = -2.730_044_861_934_888_5e-7_f64;
    let q = q.mul_add(s, 2.480_059_643_562_199_7e-5);
    let q = q.mul_add(s, -1.388_888_766_471_362e-3);
    let q = q.mul_add(s, 4.166_666_666_430_240_6e-2);
    let cos = (s * s).mul_add(q, s.mul_add(-0.5, 1.0));
    (shifted.to_bits(), sin, cos)
}

#[inline(always)]
fn negate_if(x: f64, odd: u64) -> f64 {
    f64::from_bits(x.to_bits() ^ (odd << 63))
}

/// Sine for |x| <= [`TRIG_FAST_LIMIT`], or NaN.
#[inline(always)]
pub fn sin_fast(x: f32) -> f32 {
    let (n, sin, cos) = parts(x);
    let y = if n & 1 == 0 { sin } else { cos };
    let y = negate_if(y, (n >> 1) & 1) as f32;
    // Keeps the sign of zero.
    if x == 0.0 { x } else { y }
}

/// Cosine for |x| <= [`TRIG_FAST_LIMIT`], or NaN.
#[inline(always)]
pub fn cos_fast(x: f32) -> f32 {
    let (n, sin, cos) = parts(x);
    let y = if n & 1 == 0 { cos } else { sin };
    negate_if(y, ((n >> 1) ^ n) & 1) as f32
}

/// Tangent for |x| <= [`TRIG_FAST_LIMIT`], or NaN.
#[inline(always)]
pub fn tan_fast(x: f32) -> f32 {
    let (n, sin, cos) = parts(x);
    let odd = n & 1 == 1;
    let y = if odd { -cos / sin } else { sin / cos };
    if x == 0.0 { x } else { y as f32 }
}

/// Sine; NaN at infinities.
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    if x.abs() > TRIG_FAST_LIMIT {
        libm::sin(f64::from(x)) as f32
    } else {
        sin_fast(x)
    }
}

/// Cosine; NaN at infinities.
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    if x.abs() > TRIG_FAST_LIMIT {
        libm::cos(f64::from(x)) as f32
    } else {
        cos_fast(x)
    }
}

/// Tangent; NaN at infinities.
#[inline(always)]
pub fn tan(x: f32) -> f32 {
    if x.abs() > TRIG_FAST_LIMIT {
        libm::tan(f64::from(x)) as f32
    } else {
        tan_fast(x)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::check_ulps;
    use super::*;

    #[test]
    fn accurate_everywhere() {
        check_ulps("sin", sin, libm::sin, 0.51, |_| true);
        check_ulps("cos", cos, libm::cos, 0.51, |_| true);
        check_ulps("tan", tan, libm::tan, 0.51, |_| true);
    }

    #[test]
    fn special_values() {
        assert!(
            sin(f32::INFINITY).is_nan()
                && cos(f32::NEG_INFINITY).is_nan()
                && tan(f32::NAN).is_nan()
        );
        assert_eq!(sin(-0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(cos(0.0), 1.0);
    }
}
