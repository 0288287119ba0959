//! The functions of one float that elementwise ops compute: their names, parameters, costs and formulas.
//!
//! A row of [`float_functions`] is one op. From the rows, this crate makes the type [`FloatUnary`], by which kernels choose
//! what they compute, and `convoke-graph` makes the ops' definitions. A device whose kernels do not know a function of
//! the table does not compile, because it matches on [`FloatUnary`].
//!
//! The modules [`narrow`] and [`packed`] have the formats of floats of eight bits and less, and the places of elements of
//! less than a byte, for the same crates.
//!
//! The crate depends on nothing, so that kernels need not be compiled anew when a definition of the graph changes.

pub mod narrow;
pub mod packed;

/// Calls the macro `$then` with a row for each op that computes a function of one float and nothing else:
/// operations per element, the op's name, its parameters with their defaults, and its documentation.
///
/// A parameter is an attribute of the op, of type float.
#[macro_export]
macro_rules! float_functions {
    ($then:ident) => {
        $then! {
            1 Reciprocal "1 / x of X, any shape.";
            1 Floor "Rounds x towards minus infinity, any shape.";
            1 Ceil "Rounds x towards plus infinity, any shape.";
            1 Round "Rounds x to the nearest, ties to even, any shape.";
            2 Sqrt "Square root of X, any shape.";
            10 Exp "e to the power x, any shape.";
            10 Log "Natural logarithm of X, any shape.";
            10 Sin "Sine of X, any shape.";
            10 Cos "Cosine of X, any shape.";
            10 Tan "Tangent of X, any shape.";
            10 Asin "Arcsine of X, any shape.";
            10 Acos "Arccosine of X, any shape.";
            10 Atan "Arctangent of X, any shape.";
            10 Sinh "Hyperbolic sine of X, any shape.";
            10 Cosh "Hyperbolic cosine of X, any shape.";
            10 Tanh "Hyperbolic tangent of X, any shape.";
            10 Asinh "Inverse hyperbolic sine of X, any shape.";
            10 Acosh "Inverse hyperbolic cosine of X, any shape.";
            10 Atanh "Inverse hyperbolic tangent of X, any shape.";
            10 Sigmoid "1 / (1 + e^-x) of X, any shape.";
            10 Softplus "ln(1 + e^x) of X, any shape.";
            2 Softsign "x / (1 + |x|) of X, any shape.";
            10 Mish "x * tanh(softplus(x)) of X, any shape.";
            4 HardSwish "x * clamp(x / 6 + 0.5, 0, 1) of X, any shape.";
            10 LeakyRelu { alpha = 0.01 } "x, or alpha * x below zero, any shape.";
            10 Elu { alpha = 1. } "x, or alpha * (e^x - 1) below zero, any shape.";
            10 Celu { alpha = 1. } "max(0, x) + min(0, alpha * (e^(x/alpha) - 1)), any shape.";
            10 Selu { alpha = 1.673_263_2, gamma = 1.050_701 }
                "gamma * x, or gamma * alpha * (e^x - 1) below zero, any shape.";
            10 HardSigmoid { alpha = 0.2, beta = 0.5 } "clamp(alpha * x + beta, 0, 1), any shape.";
            10 ThresholdedRelu { alpha = 1. } "x above alpha, else 0, any shape.";
            10 Swish { alpha = 1. } "x * sigmoid(alpha * x), any shape.";
        }
    };
}

macro_rules! declare {
    ($($cost:literal $name:ident $({ $($parameter:ident = $default:literal),* })? $doc:literal;)*) => {
        /// A function of one float. Its parameters are given as `f64`, and kernels round them to the type in which they
        /// compute.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[allow(missing_docs)]
        pub enum FloatUnary {
            $(#[doc = $doc] $name $({ $($parameter: f64),* })?,)*
            /// The magnitude of x; the op takes integers too.
            Abs,
            /// -x; the op takes integers too.
            Neg,
            /// -1, 0 or 1 by the sign of x; the op takes integers too.
            Sign,
            /// max(x, 0); the op takes integers too.
            Relu,
            /// The error function; the op takes integers too.
            Erf,
            /// x times the normal distribution's cumulative function, by the error function.
            Gelu,
            /// The approximation of Gelu by tanh.
            GeluTanh,
        }
    };
}
float_functions!(declare);
