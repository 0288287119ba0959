//! Activation functions that a matrix product or convolution can end with.

use crate::math;

/// An activation, which gives the same bits as the separate op.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// The identity.
    None,
    /// The function [`math::relu`].
    Relu,
    /// `t = if x < min { min } else { x }`, then `if t > max { max } else { t }`; NaN stays.
    Clip {
        /// Lower bound.
        min: f32,
        /// Upper bound.
        max: f32,
    },
    /// The function [`math::leaky_relu`].
    LeakyRelu {
        /// Slope below zero.
        alpha: f32,
    },
    /// The function [`math::hard_sigmoid`].
    HardSigmoid {
        /// Slope.
        alpha: f32,
        /// Offset.
        beta: f32,
    },
    /// The function [`math::hard_swish`].
    HardSwish,
    /// The function [`math::sigmoid`].
    Sigmoid,
    /// The function [`math::silu`].
    Silu,
    /// The function [`math::tanh`].
    Tanh,
    /// The function [`math::gelu`], which uses the error function.
    Gelu,
    /// The function [`math::gelu_tanh`].
    GeluTanh,
}

impl Activation {
    /// Applies the activation to every value of `row`.
    #[inline(always)]
    pub(crate) fn apply(self, row: &mut [f32]) {
        match self {
            Activation::None => {}
            Activation::Relu => map(row, math::relu),
            Activation::Clip { min, max } => map(row, |x| {
                let t = if x < min { min } else { x };
                if t > max { max } else { t }
            }),
            Activation::LeakyRelu { alpha } => map(row, |x| math::leaky_relu(x, alpha)),
            Activation::HardSigmoid { alpha, beta } => {
                map(row, |x| math::hard_sigmoid(x, alpha, beta))
            }
            Activation::HardSwish => map(row, math::hard_swish),
            Activation::Sigmoid => map(row, math::sigmoid),
            Activation::Silu => map(row, math::silu),
            Activation::Tanh => map(row, math::tanh),
            Activation::Gelu => map(row, math::gelu),
            Activation::GeluTanh => map(row, math::gelu_tanh),
        }
    }

    /// The lower and upper bound of an activation that only clamps; `None` for every other activation.
    pub(crate) fn as_bounds(self) -> Option<(Option<f32>, Option<f32>)> {
        match self {
            Activation::None => Some((None, None)),
            Activation::Relu => Some((Some(0.0), None)),
            Activation::Clip { min, max } => Some((Some(min), Some(max))),
            _ => None,
        }
    }
}

#[inline(always)]
fn map(row: &mut [f32], f: impl Fn(f32) -> f32) {
    for x in row {
        *x = f(*x);
    }
}
