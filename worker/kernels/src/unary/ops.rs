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

multiversion! {
    fn vectorized_apart<W: Real, O: UnaryFn<W>>(op: O, x: &[W], y: &mut [W]) {
        let n = x.len().min(y.len());
        let (x, y) = (&x[..n], &mut y[..n]);
        for i in 0..n {
            y[i] = op.eval(x[i]);
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

/// Where a function reads and writes a run of elements.
trait Run<W: Real> {
    /// Applies a function whose loop the compiler makes vectors of.
    fn vectorized(self, op: impl UnaryFn<W>);
    /// The elements, in the place of the results.
    fn in_place<'y>(self) -> &'y mut [W]
    where
        Self: 'y;
}

/// Results that replace their operands.
struct InPlace<'y, W>(&'y mut [W]);

impl<W: Real> Run<W> for InPlace<'_, W> {
    fn vectorized(self, op: impl UnaryFn<W>) {
        vectorized(op, self.0);
    }

    fn in_place<'y>(self) -> &'y mut [W]
    where
        Self: 'y,
    {
        self.0
    }
}

/// Operands, and as many results elsewhere.
struct Apart<'y, W>(&'y [W], &'y mut [W]);

impl<W: Real> Run<W> for Apart<'_, W> {
    fn vectorized(self, op: impl UnaryFn<W>) {
        vectorized_apart(op, self.0, self.1);
    }

    fn in_place<'y>(self) -> &'y mut [W]
    where
        Self: 'y,
    {
        self.1.copy_from_slice(self.0);
        self.1
    }
}

/// Replaces every element of `y` by its function value.
pub(super) fn replace<W: Real>(op: FloatUnary, y: &mut [W]) {
    apply(op, InPlace(y));
}

/// Computes `y[i] = op(x[i])`; both slices have the same length.
pub(super) fn apart<W: Real>(op: FloatUnary, x: &[W], y: &mut [W]) {
    apply(op, Apart(x, y));
}

fn apply<'y, W: Real + 'y>(op: FloatUnary, run: impl Run<W> + 'y) {
    let w = W::from_f64;
    match op {
        FloatUnary::Abs => run.vectorized(Abs),
        FloatUnary::Neg => run.vectorized(Neg),
        FloatUnary::Sign => run.vectorized(Sign),
        FloatUnary::Reciprocal => run.vectorized(Reciprocal),
        FloatUnary::Sqrt => run.vectorized(Sqrt),
        FloatUnary::Floor => run.vectorized(Floor),
        FloatUnary::Ceil => run.vectorized(Ceil),
        FloatUnary::Round => run.vectorized(Round),
        FloatUnary::Exp => run.vectorized(Exp),
        FloatUnary::Log => run.vectorized(Log),
        FloatUnary::Sin => trigonometric(SinFast, Sin, run.in_place()),
        FloatUnary::Cos => trigonometric(CosFast, Cos, run.in_place()),
        FloatUnary::Tan => trigonometric(TanFast, Tan, run.in_place()),
        FloatUnary::Sinh => one_by_one(Sinh, run.in_place()),
        FloatUnary::Cosh => one_by_one(Cosh, run.in_place()),
        FloatUnary::Tanh => run.vectorized(Tanh),
        FloatUnary::Asin => one_by_one(Asin, run.in_place()),
        FloatUnary::Acos => one_by_one(Acos, run.in_place()),
        FloatUnary::Atan => one_by_one(Atan, run.in_place()),
        FloatUnary::Asinh => one_by_one(Asinh, run.in_place()),
        FloatUnary::Acosh => one_by_one(Acosh, run.in_place()),
        FloatUnary::Atanh => one_by_one(Atanh, run.in_place()),
        FloatUnary::Erf => run.vectorized(Erf),
        FloatUnary::Sigmoid => run.vectorized(Sigmoid),
        FloatUnary::Swish { alpha: 1.0 } => run.vectorized(Silu),
        FloatUnary::Swish { alpha } => run.vectorized(Swish { alpha: w(alpha) }),
        FloatUnary::Relu => run.vectorized(Relu),
        FloatUnary::LeakyRelu { alpha } => run.vectorized(LeakyRelu { alpha: w(alpha) }),
        FloatUnary::ThresholdedRelu { alpha } => {
            run.vectorized(ThresholdedRelu { alpha: w(alpha) })
        }
        FloatUnary::Elu { alpha } => run.vectorized(Elu { alpha: w(alpha) }),
        FloatUnary::Selu { alpha, gamma } => run.vectorized(Selu {
            alpha: w(alpha),
            gamma: w(gamma),
        }),
        FloatUnary::Celu { alpha } => run.vectorized(Celu { alpha: w(alpha) }),
        FloatUnary::HardSigmoid { alpha, beta } => run.vectorized(HardSigmoid {
            alpha: w(alpha),
            beta: w(beta),
        }),
        FloatUnary::HardSwish => run.vectorized(HardSwish),
        FloatUnary::Gelu => run.vectorized(Gelu),
        FloatUnary::GeluTanh => run.vectorized(GeluTanh),
        FloatUnary::Softplus => run.vectorized(Softplus),
        FloatUnary::Softsign => run.vectorized(Softsign),
        FloatUnary::Mish => run.vectorized(Mish),
    }
}
