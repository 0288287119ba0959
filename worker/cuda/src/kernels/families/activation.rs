//! The functions that follow a product or a convolution. A source has all of them, and a launch says which one it is, so that a
//! family needs no source for each.

use convoke_functions::FloatUnary;
use convoke_graph::ops::attrs::Activation;

use super::elementwise::expression;

/// One of each function, in the order of their numbers, which begin at 1. Parameters are arguments of a launch.
const FUNCTIONS: [Activation; 10] = [
    Activation::Relu,
    Activation::Clip { min: 0., max: 0. },
    Activation::Sigmoid,
    Activation::HardSwish,
    Activation::HardSigmoid {
        alpha: 0.,
        beta: 0.,
    },
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Tanh,
    Activation::LeakyRelu { alpha: 0. },
];

/// The function that a launch applies, and its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActivationCall {
    /// 0 for none.
    pub number: i64,
    pub parameters: [f64; 2],
}

/// No function.
pub const NONE: ActivationCall = ActivationCall {
    number: 0,
    parameters: [0.; 2],
};

/// A function as an expression of `x`, with the parameters `p` and `q`.
fn text_of(function: Activation) -> Option<(&'static str, [f64; 2])> {
    use Activation as A;
    let unary = match function {
        A::Clip { min, max } => return Some(("clamp(x, p, q)", [min.into(), max.into()])),
        A::Relu => FloatUnary::Relu,
        A::Sigmoid => FloatUnary::Sigmoid,
        A::HardSwish | A::GatedHardSigmoid => FloatUnary::HardSwish,
        A::HardSigmoid { alpha, beta } => FloatUnary::HardSigmoid {
            alpha: alpha.into(),
            beta: beta.into(),
        },
        A::Silu | A::GatedSigmoid => FloatUnary::Swish { alpha: 1.0 },
        A::Gelu => FloatUnary::Gelu,
        A::GeluTanh => FloatUnary::GeluTanh,
        A::Tanh => FloatUnary::Tanh,
        A::LeakyRelu { alpha } => FloatUnary::LeakyRelu {
            alpha: alpha.into(),
        },
    };
    expression(unary)
}

/// The choice of a function; `None` for one that the device lacks.
pub fn chosen(function: Option<Activation>) -> Option<ActivationCall> {
    // The device rounds what a family computes once.
    let Some(function) = function.map(Activation::rounded_once) else {
        return Some(NONE);
    };
    let same =
        |other: &Activation| std::mem::discriminant(other) == std::mem::discriminant(&function);
    let number = FUNCTIONS.iter().position(same)? as i64 + 1;
    let (_, parameters) = text_of(function)?;
    Some(ActivationCall { number, parameters })
}

/// The definition of `activated(number, x, p, q)`.
pub fn text() -> String {
    let mut text = String::from(
        "DEVICE f32 activated(i64 number, f32 x, f32 p, f32 q) {\n  switch (number) {\n",
    );
    for (i, function) in FUNCTIONS.iter().enumerate() {
        if let Some((expression, _)) = text_of(*function) {
            text.push_str(&format!("    case {}: return {expression};\n", i + 1));
        }
    }
    text.push_str("    default: return x;\n  }\n}\n");
    text
}
