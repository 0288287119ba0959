//! Error function: an odd polynomial near zero, 1 - exp(polynomial) beyond.

use super::exp::{clamp, exp_near_zero};

/// Error function.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let t = clamp(x.abs(), 0.0, 4.0);
    let s = t * t;
    // ln(1 - erf(t)) + t on [0.9277, 4] as a polynomial in t, in two interleaved chains.
    let r = (-1.728_534_7e-5_f32).mul_add(t, 3.831_972_e-4);
    let u = (-3.883_964_4e-3_f32).mul_add(t, 2.425_462_2e-2);
    let r = r.mul_add(s, u);
    let r = r.mul_add(t, -1.067_778_77e-1);
    let r = r.mul_add(t, -6.348_468_7e-1);
    let r = r.mul_add(t, -1.287_175_1e-1);
    let r = r.mul_add(t, -t);
    // At 4 the polynomial is -18.
    let far = 1.0 - exp_near_zero(r);
    let p = -5.967_617e-4_f32;
    let p = p.mul_add(s, 4.991_194_e-3);
    let p = p.mul_add(s, -2.676_813_5e-2);
    let p = p.mul_add(s, 1.128_199_25e-1);
    let p = p.mul_add(s, -3.761_253_4e-1);
    let p = p.mul_add(s, 1.283_791_7e-1);
    let near = p.mul_add(t, t);
    let y = if t > 0.927_734_4 { far } else { near };
    y.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::super::testing::check_ulps;
    use super::*;

    #[test]
    fn accurate_everywhere() {
        check_ulps("erf", erf, libm::erf, 2.0, |_| true);
    }

    #[test]
    fn special_values() {
        assert_eq!(erf(f32::INFINITY), 1.0);
        assert_eq!(erf(f32::NEG_INFINITY), -1.0);
        assert_eq!(erf(-0.0).to_bits(), (-0.0f32).to_bits());
        assert!(erf(f32::NAN).is_nan());
    }
}
