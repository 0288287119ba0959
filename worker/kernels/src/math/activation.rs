//! Activations. Each rounds as the ONNX operators of its function body do.

use super::Real;

/// max(x, 0); NaN stays.
#[inline(always)]
pub fn relu<W: Real>(x: W) -> W {
    if x < W::ZERO { W::ZERO } else { x }
}

/// 1 / (1 + e^-x), without overflow on either side.
#[inline(always)]
pub fn sigmoid<W: Real>(x: W) -> W {
    let e = (-x.abs()).exp_below_zero();
    let numerator = if x < W::ZERO { e } else { W::ONE };
    numerator / (W::ONE + e)
}

/// x * sigmoid(x), also called Swish.
#[inline(always)]
pub fn silu<W: Real>(x: W) -> W {
    x * sigmoid(x)
}

/// 0.5 x (1 + erf(x / sqrt 2)).
#[inline(always)]
pub fn gelu<W: Real>(x: W) -> W {
    W::HALF * x * (W::ONE + (x / W::from_f64(std::f64::consts::SQRT_2)).erf())
}

/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
#[inline(always)]
pub fn gelu_tanh<W: Real>(x: W) -> W {
    let inner = x + W::from_f64(0.044_715) * (x * x * x);
    W::HALF * x * (W::ONE + (W::from_f64(0.797_884_560_802_865_4) * inner).tanh())
}

/// ln(1 + e^x), without overflow.
#[inline(always)]
pub fn softplus<W: Real>(x: W) -> W {
    let positive = if x > W::ZERO { x } else { W::ZERO };
    let y = positive + (-x.abs()).exp_below_zero().log1p_unit();
    if x.is_nan() { x } else { y }
}

/// x / (1 + |x|).
#[inline(always)]
pub fn softsign<W: Real>(x: W) -> W {
    x / (W::ONE + x.abs())
}

/// x tanh(ln(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2).
#[inline(always)]
pub fn mish<W: Real>(x: W) -> W {
    // Beyond 20 the quotient is one; the bound keeps n finite.
    let bound = W::from_f64(20.0);
    let e = (if x > bound { bound } else { x }).exp();
    let two = W::from_f64(2.0);
    let n = e * (e + two);
    x * (n / (n + two))
}

/// max(0, min(1, alpha x + beta)).
#[inline(always)]
pub fn hard_sigmoid<W: Real>(x: W, alpha: W, beta: W) -> W {
    let y = alpha * x + beta;
    let y = if y > W::ONE { W::ONE } else { y };
    if y < W::ZERO { W::ZERO } else { y }
}

/// x * hard_sigmoid(x, 1/6, 1/2).
#[inline(always)]
pub fn hard_swish<W: Real>(x: W) -> W {
    x * hard_sigmoid(x, W::from_f64(1.0 / 6.0), W::HALF)
}

/// x where x >= 0, alpha x below.
#[inline(always)]
pub fn leaky_relu<W: Real>(x: W, alpha: W) -> W {
    if x < W::ZERO { alpha * x } else { x }
}

/// x where x > alpha, else 0, also where x is NaN.
#[inline(always)]
pub fn thresholded_relu<W: Real>(x: W, alpha: W) -> W {
    if x > alpha { x } else { W::ZERO }
}

/// x where x >= 0, alpha (e^x - 1) below.
#[inline(always)]
pub fn elu<W: Real>(x: W, alpha: W) -> W {
    if x < W::ZERO { alpha * x.expm1() } else { x }
}

/// gamma x where x > 0, gamma (alpha e^x - alpha) below.
#[inline(always)]
pub fn selu<W: Real>(x: W, alpha: W, gamma: W) -> W {
    gamma * (if x <= W::ZERO { alpha * x.expm1() } else { x })
}

/// max(0, x) + min(0, alpha (e^(x / alpha) - 1)).
#[inline(always)]
pub fn celu<W: Real>(x: W, alpha: W) -> W {
    let low = alpha * (x / alpha).expm1();
    let low = if low > W::ZERO { W::ZERO } else { low };
    (if x < W::ZERO { W::ZERO } else { x }) + low
}

#[cfg(test)]
mod tests {
    use super::super::testing::check_ulps;
    use super::*;

    fn moderate(x: f32) -> bool {
        x.is_nan() || x.abs() < 80.0
    }

    #[test]
    fn smooth_activations_are_accurate() {
        check_ulps(
            "sigmoid",
            sigmoid,
            |x| 1.0 / (1.0 + libm::exp(-x)),
            2.5,
            |_| true,
        );
        check_ulps("silu", silu, |x| x / (1.0 + libm::exp(-x)), 3.5, moderate);
        check_ulps(
            "softplus",
            softplus,
            |x| x.max(0.0) + libm::log1p(libm::exp(-x.abs())),
            2.5,
            |x| !x.is_nan(),
        );
        check_ulps(
            "mish",
            mish,
            |x| x * libm::tanh(libm::log1p(libm::exp(x))),
            4.0,
            moderate,
        );
        check_ulps(
            "elu",
            |x| elu(x, 1.0),
            |x| if x < 0.0 { libm::expm1(x) } else { x },
            2.0,
            |_| true,
        );
    }

    /// The unfused operators have the same cancellation in 1 + erf: the error is small relative to the largest output.
    #[test]
    fn gelus_are_close() {
        for i in -8000..8000 {
            let x = i as f32 * 1e-3;
            let wide = f64::from(x);
            let exact = 0.5 * wide * (1.0 + libm::erf(wide / std::f64::consts::SQRT_2));
            assert!(
                (f64::from(gelu(x)) - exact).abs() < 4e-7 * wide.abs().max(1.0),
                "gelu({x})"
            );
            let inner =
                (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide * wide * wide);
            let exact = 0.5 * wide * (1.0 + libm::tanh(inner));
            assert!(
                (f64::from(gelu_tanh(x)) - exact).abs() < 4e-7 * wide.abs().max(1.0),
                "gelu_tanh({x})"
            );
        }
    }

    #[test]
    fn extremes() {
        assert_eq!(sigmoid(f32::INFINITY), 1.0);
        assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
        assert_eq!(gelu(f32::INFINITY), f32::INFINITY);
        assert_eq!(softplus(f32::INFINITY), f32::INFINITY);
        assert_eq!(softplus(f32::NEG_INFINITY), 0.0);
        assert_eq!(mish(f32::INFINITY), f32::INFINITY);
        assert_eq!(hard_swish(-4.0), 0.0);
        assert_eq!(hard_swish(4.0), 4.0);
        assert_eq!(celu(-1e30, 2.0), -2.0);
        for f in [
            sigmoid, silu, gelu, gelu_tanh, softplus, softsign, mish, hard_swish, relu,
        ] {
            assert!(f(f32::NAN).is_nan());
        }
        for f in [elu, leaky_relu, celu] {
            assert!(f(f32::NAN, 1.0).is_nan());
        }
        assert_eq!(thresholded_relu(f32::NAN, 1.0), 0.0);
    }
}
