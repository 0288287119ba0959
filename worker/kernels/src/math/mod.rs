//! Elementary functions on `f32`, the same bits on every machine and at every vector width.
//!
//! Invariants
//! 1. Each function is `#[inline(always)]`, branch-free (save where stated) and made of IEEE add, multiply,
//!    divide, square root, fused multiply-add, rounding and bit operations only; never the platform's
//!    math library. A loop around it vectorizes inside a function compiled with wider target features.
//! 2. An activation that has an ONNX function body rounds exactly as its unfused operators here do.
//! 3. NaN gives NaN (the payload is unspecified), infinities and signed zeros follow IEEE 754 / C99.
//! 4. Errors stay below 3 ulp unless a function states another bound.

// Coefficients keep the digits that they were fitted with.
#![allow(clippy::excessive_precision)]

mod activation;
mod erf;
mod exp;
mod log;
mod pow;
mod rare;
mod real;
mod trig;

pub use activation::{
    celu, elu, gelu, gelu_tanh, hard_sigmoid, hard_swish, leaky_relu, mish, relu, selu, sigmoid,
    silu, softplus, softsign, thresholded_relu,
};
pub use erf::erf;
pub use exp::{exp, exp_below_zero, expm1, tanh};
pub use log::{ln, log1p_unit};
pub use pow::pow;
pub use rare::{acos, acosh, asin, asinh, atan, atanh, cosh, sinh};
pub use real::Real;
pub use trig::{TRIG_FAST_LIMIT, cos, cos_fast, sin, sin_fast, tan, tan_fast};

#[cfg(test)]
pub(crate) mod testing {
    /// The distance of `got` from `exact`, in units in the last place of `exact` rounded to `f32`.
    pub fn ulps(got: f32, exact: f64) -> f64 {
        let want = exact as f32;
        if got.is_nan() || exact.is_nan() {
            return if got.is_nan() && exact.is_nan() {
                0.0
            } else {
                f64::INFINITY
            };
        }
        if got == want {
            return 0.0;
        }
        if got.is_infinite() || want.is_infinite() {
            return if (f64::from(got) - exact).abs() < 1e32 {
                1.0
            } else {
                f64::INFINITY
            };
        }
        let magnitude = want.abs().max(f32::MIN_POSITIVE);
        let ulp = f64::from(f32::from_bits(magnitude.to_bits() + 1)) - f64::from(magnitude);
        (f64::from(got) - exact).abs() / ulp
    }

    /// Sweeps all bit patterns with a stride, and checks the worst error among the arguments that `keep` selects.
    pub fn check_ulps(
        name: &str,
        f: fn(f32) -> f32,
        exact: fn(f64) -> f64,
        limit: f64,
        keep: fn(f32) -> bool,
    ) {
        let mut worst = (0.0, 0.0f32);
        for bits in (0..u32::MAX).step_by(4003) {
            let x = f32::from_bits(bits);
            if !keep(x) {
                continue;
            }
            let error = ulps(f(x), exact(f64::from(x)));
            if error > worst.0 {
                worst = (error, x);
            }
        }
        println!("{name}: worst {:.3} ulp at {:e}", worst.0, worst.1);
        assert!(worst.0 <= limit, "{name}: {} ulp at {:e}", worst.0, worst.1);
    }

    /// The arguments that every function must handle: zeros, infinities, NaN, subnormals and extremes.
    pub const SPECIAL: [f32; 14] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MIN_POSITIVE,
        -f32::MIN_POSITIVE,
        1e-45,
        -1e-45,
        f32::MAX,
        f32::MIN,
        0.5,
    ];
}
