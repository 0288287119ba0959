//! The two types that kernels compute in: `f32` uses the functions of `math`, `f64` those of the pure-Rust `libm`.

use std::fmt::Debug;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A type that kernels compute in. Multiply-add is fused, and every function gives equal bits on every machine.
pub trait Real:
    Copy
    + Debug
    + Default
    + PartialEq
    + PartialOrd
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// 1/2.
    const HALF: Self;
    /// Positive infinity.
    const INFINITY: Self;
    /// Negative infinity.
    const NEG_INFINITY: Self;
    /// Not a number.
    const NAN: Self;

    /// Rounds from `f64`.
    fn from_f64(x: f64) -> Self;
    /// Converts to `f64`, exactly.
    fn to_f64(self) -> f64;
    /// Rounds from an element count.
    fn from_usize(n: usize) -> Self;
    /// self * a + b, rounded once.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// Rounds toward negative infinity.
    fn floor(self) -> Self;
    /// Rounds toward positive infinity.
    fn ceil(self) -> Self;
    /// Rounds to the nearest integer, ties to even.
    fn round(self) -> Self;
    /// The exact remainder of truncated division.
    fn fmod(self, b: Self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// e^x.
    fn exp(self) -> Self;
    /// e^x for x <= 0 or NaN, with the bits of [`Real::exp`].
    fn exp_below_zero(self) -> Self;
    /// e^x - 1.
    fn expm1(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// ln(1 + x) for x in [0, 1].
    fn log1p_unit(self) -> Self;
    /// self^y.
    fn pow(self, y: Self) -> Self;
    /// Error function.
    fn erf(self) -> Self;
    /// Sine.
    fn sin(self) -> Self;
    /// Cosine.
    fn cos(self) -> Self;
    /// Tangent.
    fn tan(self) -> Self;
    /// Sine without a branch, for arguments that are not [`Real::beyond_fast`].
    fn sin_fast(self) -> Self;
    /// Cosine without a branch, for arguments that are not [`Real::beyond_fast`].
    fn cos_fast(self) -> Self;
    /// Tangent without a branch, for arguments that are not [`Real::beyond_fast`].
    fn tan_fast(self) -> Self;
    /// Whether the branch-free trigonometric functions are wrong for this argument.
    fn beyond_fast(self) -> bool;
    /// Hyperbolic sine.
    fn sinh(self) -> Self;
    /// Hyperbolic cosine.
    fn cosh(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Arc sine.
    fn asin(self) -> Self;
    /// Arc cosine.
    fn acos(self) -> Self;
    /// Arc tangent.
    fn atan(self) -> Self;
    /// Inverse hyperbolic sine.
    fn asinh(self) -> Self;
    /// Inverse hyperbolic cosine.
    fn acosh(self) -> Self;
    /// Inverse hyperbolic tangent.
    fn atanh(self) -> Self;

    /// Whether the value is NaN.
    #[inline(always)]
    #[allow(clippy::eq_op)]
    fn is_nan(self) -> bool {
        self != self
    }
}

macro_rules! common {
    ($t:ty) => {
        const ZERO: Self = 0.0;
        const ONE: Self = 1.0;
        const HALF: Self = 0.5;
        const INFINITY: Self = <$t>::INFINITY;
        const NEG_INFINITY: Self = <$t>::NEG_INFINITY;
        const NAN: Self = <$t>::NAN;
        #[inline(always)]
        fn from_f64(x: f64) -> Self {
            x as $t
        }
        #[inline(always)]
        fn to_f64(self) -> f64 {
            self as f64
        }
        #[inline(always)]
        fn from_usize(n: usize) -> Self {
            n as $t
        }
        #[inline(always)]
        fn mul_add(self, a: Self, b: Self) -> Self {
            <$t>::mul_add(self, a, b)
        }
        #[inline(always)]
        fn sqrt(self) -> Self {
            <$t>::sqrt(self)
        }
        #[inline(always)]
        fn abs(self) -> Self {
            <$t>::abs(self)
        }
        #[inline(always)]
        fn floor(self) -> Self {
            <$t>::floor(self)
        }
        #[inline(always)]
        fn ceil(self) -> Self {
            <$t>::ceil(self)
        }
        #[inline(always)]
        fn round(self) -> Self {
            <$t>::round_ties_even(self)
        }
        #[inline(always)]
        fn copysign(self, sign: Self) -> Self {
            <$t>::copysign(self, sign)
        }
    };
}

macro_rules! delegate {
    ($t:ty, $($name:ident => $f:path),* $(,)?) => {$(
        #[inline(always)]
        fn $name(self) -> $t {
            $f(self)
        }
    )*};
}

impl Real for f32 {
    common!(f32);
    delegate!(f32,
        exp => super::exp, exp_below_zero => super::exp_below_zero, expm1 => super::expm1, ln => super::ln, log1p_unit => super::log1p_unit,
        erf => super::erf, sin => super::sin, cos => super::cos, tan => super::tan,
        sin_fast => super::sin_fast, cos_fast => super::cos_fast, tan_fast => super::tan_fast,
        sinh => super::sinh, cosh => super::cosh, tanh => super::tanh, asin => super::asin, acos => super::acos,
        atan => super::atan, asinh => super::asinh, acosh => super::acosh, atanh => super::atanh,
    );
    #[inline(always)]
    fn beyond_fast(self) -> bool {
        self.abs() > super::TRIG_FAST_LIMIT
    }
    #[inline(always)]
    fn fmod(self, b: f32) -> f32 {
        libm::fmodf(self, b)
    }
    #[inline(always)]
    fn pow(self, y: f32) -> f32 {
        super::pow(self, y)
    }
}

impl Real for f64 {
    common!(f64);
    delegate!(f64,
        exp => libm::exp, exp_below_zero => libm::exp, expm1 => libm::expm1, ln => libm::log, log1p_unit => libm::log1p,
        erf => libm::erf, sin => libm::sin, cos => libm::cos, tan => libm::tan,
        sin_fast => libm::sin, cos_fast => libm::cos, tan_fast => libm::tan,
        sinh => libm::sinh, cosh => libm::cosh, tanh => libm::tanh, asin => libm::asin, acos => libm::acos,
        atan => libm::atan, asinh => libm::asinh, acosh => libm::acosh, atanh => libm::atanh,
    );
    #[inline(always)]
    fn beyond_fast(self) -> bool {
        false
    }
    #[inline(always)]
    fn fmod(self, b: f64) -> f64 {
        libm::fmod(self, b)
    }
    #[inline(always)]
    fn pow(self, y: f64) -> f64 {
        // Exponents 2 and 3 are products as for f32, so that kernels may multiply where the exponent is constant.
        if y == 2.0 {
            self * self
        } else if y == 3.0 {
            self * self * self
        } else {
            libm::pow(self, y)
        }
    }
}
