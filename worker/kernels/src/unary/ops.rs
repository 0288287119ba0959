//! The floating-point unary functions, as types for which the loops are compiled.

use convoke_functions::FloatUnary;

use crate::math::{self, Real};
use crate::multiversion::multiversion;

/// One function of one element.
trait UnaryFn<W>: Copy {
    fn eval(self, x: W) -> W;
}

macro_rules! plain {
    ($($name:ident($x:ident) $body:expr;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name;
        impl<W: Real> UnaryFn<W> for $name {
            #[inline(always)]
            fn eval(self, $x: W) -> W {
                $body
            }
        }
    )*};
}

macro_rules! with_attributes {
    ($($name:ident {$($p:ident),*} ($x:ident) $body:expr;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name<W> {
            $($p: W),*
        }
        impl<W: Real> UnaryFn<W> for $name<W> {
            #[inline(always)]
            fn eval(self, $x: W) -> W {
                let $name { $($p),* } = self;
                $body
            }
        }
    )*};
}

plain! {
    Abs(x) x.abs();
    Neg(x) -x;
    Reciprocal(x) W::ONE / x;
    Sqrt(x) x.sqrt();
    Floor(x) x.floor();
    Ceil(x) x.ceil();
    Round(x) x.round();
    Exp(x) x.exp();
    Log(x) x.ln();
    Sin(x) x.sin();
    SinFast(x) x.sin_fast();
    Cos(x) x.cos();
    CosFast(x) x.cos_fast();
    Tan(x) x.tan();
    TanFast(x) x.tan_fast();
    Sinh(x) x.sinh();
    Cosh(x) x.cosh();
    Tanh(x) x.tanh();
    Asin(x) x.asin();
    Acos(x) x.acos();
    Atan(x) x.atan();
    Asinh(x) x.asinh();
    Acosh(x) x.acosh();
    Atanh(x) x.atanh();
    Erf(x) x.erf();
    Sigmoid(x) math::sigmoid(x);
    Silu(x) math::silu(x);
    Relu(x) math::relu(x);
    HardSwish(x) math::hard_swish(x);
    Gelu(x) math::gelu(x);
    GeluTanh(x) math::gelu_tanh(x);
    Softplus(x) math::softplus(x);
    Softsign(x) math::softsign(x);
    Mish(x) math::mish(x);
    Sign(x) {
        let y = if x > W::ZERO { W::ONE } else { x };
        if x < W::ZERO { -W::ONE } else { y }
    };
}

with_attributes! {
    Swish { alpha } (x) x * math::sigmoid(alpha * x);
    LeakyRelu { alpha } (x) math::leaky_relu(x, alpha);
    ThresholdedRelu { alpha } (x) math::thresholded_relu(x, alpha);
    Elu { alpha } (x) math::elu(x, alpha);
    Selu { alpha, gamma } (x) math::selu(x, alpha, gamma);
    Celu { alpha } (x) math::celu(x, alpha);
    HardSigmoid { alpha, beta } (x) math::hard_sigmoid(x, alpha, beta);
}

multiversion! {
    fn vectorized<W: Real, O: UnaryFn<W>>(op: O, y: &mut [W]) {
        for i in 0..y.len() {
            y[i] = op.eval(y[i]);
        }
    }
}

/// Applies a function that does not vectorize, with one copy of the code instead of three.
fn one_by_one<W: Real, O: UnaryFn<W>>(op: O, y: &mut [W]) {
    for v in y {
        *v = op.eval(*v);
    }
}

/// Applies the branch-free function, except to blocks that contain an argument outside its range.
fn trigonometric<W: Real, F: UnaryFn<W>, S: UnaryFn<W>>(fast: F, slow: S, y: &mut [W]) {
    for block in y.chunks_mut(256) {
        if block.iter().fold(false, |any, x| any | x.beyond_fast()) {
            one_by_one(slow, block);
        } else {
            vectorized(fast, block);
        }
    }
}

/// Replaces every element of `y` by its function value.
pub(super) fn apply<W: Real>(op: FloatUnary, y: &mut [W]) {
    let w = W::from_f64;
    match op {
        FloatUnary::Abs => vectorized(Abs, y),
        FloatUnary::Neg => vectorized(Neg, y),
        FloatUnary::Sign => vectorized(Sign, y),
        FloatUnary::Reciprocal => vectorized(Reciprocal, y),
        FloatUnary::Sqrt => vectorized(Sqrt, y),
        FloatUnary::Floor => vectorized(Floor, y),
        FloatUnary::Ceil => vectorized(Ceil, y),
        FloatUnary::Round => vectorized(Round, y),
        FloatUnary::Exp => vectorized(Exp, y),
        FloatUnary::Log => vectorized(Log, y),
        FloatUnary::Sin => trigonometric(SinFast, Sin, y),
        FloatUnary::Cos => trigonometric(CosFast, Cos, y),
        FloatUnary::Tan => trigonometric(TanFast, Tan, y),
        FloatUnary::Sinh => one_by_one(Sinh, y),
        FloatUnary::Cosh => one_by_one(Cosh, y),
        FloatUnary::Tanh => vectorized(Tanh, y),
        FloatUnary::Asin => one_by_one(Asin, y),
        FloatUnary::Acos => one_by_one(Acos, y),
        FloatUnary::Atan => one_by_one(Atan, y),
        FloatUnary::Asinh => one_by_one(Asinh, y),
        FloatUnary::Acosh => one_by_one(Acosh, y),
        FloatUnary::Atanh => one_by_one(Atanh, y),
        FloatUnary::Erf => vectorized(Erf, y),
        FloatUnary::Sigmoid => vectorized(Sigmoid, y),
        FloatUnary::Swish { alpha: 1.0 } => vectorized(Silu, y),
        FloatUnary::Swish { alpha } => vectorized(Swish { alpha: w(alpha) }, y),
        FloatUnary::Relu => vectorized(Relu, y),
        FloatUnary::LeakyRelu { alpha } => vectorized(LeakyRelu { alpha: w(alpha) }, y),
        FloatUnary::ThresholdedRelu { alpha } => vectorized(ThresholdedRelu { alpha: w(alpha) }, y),
        FloatUnary::Elu { alpha } => vectorized(Elu { alpha: w(alpha) }, y),
        FloatUnary::Selu { alpha, gamma } => vectorized(
            Selu {
                alpha: w(alpha),
                gamma: w(gamma),
            },
            y,
        ),
        FloatUnary::Celu { alpha } => vectorized(Celu { alpha: w(alpha) }, y),
        FloatUnary::HardSigmoid { alpha, beta } => vectorized(
            HardSigmoid {
                alpha: w(alpha),
                beta: w(beta),
            },
            y,
        ),
        FloatUnary::HardSwish => vectorized(HardSwish, y),
        FloatUnary::Gelu => vectorized(Gelu, y),
        FloatUnary::GeluTanh => vectorized(GeluTanh, y),
        FloatUnary::Softplus => vectorized(Softplus, y),
        FloatUnary::Softsign => vectorized(Softsign, y),
        FloatUnary::Mish => vectorized(Mish, y),
    }
}
