//! Functions of one element of each operand, which are broadcast.

use convoke_common::error::Result;
use convoke_functions::FloatUnary;
use convoke_graph::DType;
use convoke_graph::ops::{BinaryOp, UnaryOp, float_function};
use convoke_worker::device::DeviceOp;

use crate::kernels::args::{Arguments, Grid, broadcast, dense, dims};
use crate::kernels::launch::{
    Call, LaunchSignature, Template, Work, blocks_for, count, dtype_of, misfit,
};
use crate::kernels::source::{in_f32, moved_as, source, type_name};

/// The family's text. `OPERANDS` operands of the types `X0` to `X2` make elements of type `Y` by `F`, an expression of the
/// widened elements `x`, `y` and `z` and of the parameters `p` and `q`.
const TEXT: &str = r"
KERNEL(0) {
  const f32 p = (f32)a.numbers[0], q = (f32)a.numbers[1];
  for (i64 i = first_element(); i < a.elements; i += element_step()) {
    i64 at[3];
    i64 out = places<3>(a, i, at);
    auto x = widen(((const X0*)a.inputs[0])[at[0]]);
    auto y = widen(((const X1*)a.inputs[OPERANDS > 1 ? 1 : 0])[at[OPERANDS > 1 ? 1 : 0]]);
    auto z = widen(((const X2*)a.inputs[OPERANDS > 2 ? 2 : 0])[at[OPERANDS > 2 ? 2 : 0]]);
    (void)y, (void)z, (void)p, (void)q;
    ((Y*)a.output)[out] = narrow(Y{}, F);
  }
}
";

/// An elementwise kernel.
struct Elementwise {
    operands: Vec<DType>,
    result: DType,
    function: String,
    parameters: [f64; 2],
}

impl Template for Elementwise {
    fn source(&self) -> Option<String> {
        let name = |i: usize| type_name(*self.operands.get(i).or(self.operands.first())?);
        let count = self.operands.len().to_string();
        let definitions = [
            ("OPERANDS", &*count),
            ("X0", name(0)?),
            ("X1", name(1)?),
            ("X2", name(2)?),
            ("Y", type_name(self.result)?),
            ("F", &*self.function),
        ];
        Some(source(&definitions, TEXT))
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
        let shape = planned.output(0)?;
        let elements = count(shape);
        if elements == 0 {
            return Ok(Work::none());
        }
        let mut operands = vec![];
        for i in 0..self.operands.len() {
            let (_, own) = planned.device(i)?;
            let strides = broadcast(own, shape);
            operands.push(
                strides.ok_or_else(|| misfit(format!("{own:?} is not broadcast to {shape:?}")))?,
            );
        }
        let mut arguments = Arguments::of(elements);
        arguments.set_grid(&Grid {
            dims: dims(shape),
            out: dense(shape),
            operands,
        });
        arguments.numbers[..2].copy_from_slice(&self.parameters);
        Ok(Work::one(Call::of(
            blocks_for(elements),
            arguments,
            self.operands.len(),
        )))
    }
}

fn kernel(
    operands: &[DType],
    result: DType,
    function: impl Into<String>,
    parameters: [f64; 2],
) -> Option<Box<dyn Template>> {
    Some(Box::new(Elementwise {
        operands: operands.to_vec(),
        result,
        function: function.into(),
        parameters,
    }))
}

/// A function of one f32 as an expression, with its parameters; `None` for those without a kernel here.
pub(super) fn expression(function: FloatUnary) -> Option<(&'static str, [f64; 2])> {
    use FloatUnary as U;
    let plain = |text| Some((text, [0.; 2]));
    match function {
        U::Abs => plain("of_bits(bits_of(x) & 0x7fffffffu)"),
        U::Neg => plain("of_bits(bits_of(x) ^ 0x80000000u)"),
        U::Sign => plain("(x < 0.0f ? -1.0f : x > 0.0f ? 1.0f : x)"),
        U::Relu => plain("(x < 0.0f ? 0.0f : x)"),
        U::Reciprocal => plain("1.0f / x"),
        U::Floor => plain("floorf(x)"),
        U::Ceil => plain("ceilf(x)"),
        U::Round => plain("rintf(x)"),
        U::Sqrt => plain("sqrtf(x)"),
        U::Exp => plain("fn_exp(x)"),
        U::Log => plain("fn_log(x)"),
        U::Tanh => plain("fn_tanh(x)"),
        U::Erf => plain("fn_erf(x)"),
        U::Sigmoid => plain("fn_sigmoid(x)"),
        U::Softplus => plain("fn_softplus(x)"),
        U::Softsign => plain("x / (1.0f + fabsf(x))"),
        U::Mish => plain("fn_mish(x)"),
        U::Gelu => plain("fn_gelu(x)"),
        U::GeluTanh => plain("fn_gelu_tanh(x)"),
        U::HardSwish => plain("x * fn_hard_sigmoid(x, (f32)(1.0 / 6.0), 0.5f)"),
        U::HardSigmoid { alpha, beta } => Some(("fn_hard_sigmoid(x, p, q)", [alpha, beta])),
        U::LeakyRelu { alpha } => Some(("(x < 0.0f ? p * x : x)", [alpha, 0.])),
        U::ThresholdedRelu { alpha } => Some(("(x > p ? x : 0.0f)", [alpha, 0.])),
        U::Elu { alpha } => Some(("(x < 0.0f ? p * fn_expm1(x) : x)", [alpha, 0.])),
        U::Selu { alpha, gamma } => Some(("q * (x <= 0.0f ? p * fn_expm1(x) : x)", [alpha, gamma])),
        U::Celu { alpha } => Some((
            "(x < 0.0f ? 0.0f : x) + (p * fn_expm1(x / p) > 0.0f ? 0.0f : p * fn_expm1(x / p))",
            [alpha, 0.],
        )),
        U::Swish { alpha: 1.0 } => plain("x * fn_sigmoid(x)"),
        U::Swish { alpha } => Some(("x * fn_sigmoid(p * x)", [alpha, 0.])),
        // Trigonometric and hyperbolic functions run on the host.
        U::Sin | U::Cos | U::Tan | U::Asin | U::Acos | U::Atan => None,
        U::Sinh | U::Cosh | U::Asinh | U::Acosh | U::Atanh => None,
    }
}

/// The kernel of a unary op.
pub(super) fn unary(unary: UnaryOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    let x = dtype_of(op, 0)?;
    match unary {
        UnaryOp::Cast => cast(x, op.attrs.dtype("to")?),
        UnaryOp::Not if x == DType::Bool => kernel(&[x], DType::Bool, "(u8)!x", [0.; 2]),
        UnaryOp::IsNaN if in_f32(x) => kernel(&[x], DType::Bool, "(u8)(x != x)", [0.; 2]),
        UnaryOp::Clip if in_f32(x) => clip(x, op),
        _ if in_f32(x) => {
            let function = float_function(unary, op.attrs).ok()??;
            let (text, parameters) = expression(function)?;
            kernel(&[x], x, text, parameters)
        }
        _ => None,
    }
}

/// `Clip` with bounds that are given both, or one, or neither.
fn clip(x: DType, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    match (dtype_of(op, 1), dtype_of(op, 2)) {
        (None, None) => kernel(&[x], x, "x", [0.; 2]),
        (Some(_), None) => kernel(&[x; 2], x, "(x < y ? y : x)", [0.; 2]),
        (Some(_), Some(_)) => kernel(&[x; 3], x, "clamp(x, y, z)", [0.; 2]),
        (None, Some(_)) => None,
    }
}

/// The kernel of a binary op, of a comparison, or of a choice.
pub(super) fn binary(binary: BinaryOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    use BinaryOp as B;
    let (x, y) = (dtype_of(op, 0)?, dtype_of(op, 1)?);
    let whole = matches!(x, DType::I32 | DType::I64);
    if binary == B::Where {
        let same = dtype_of(op, 2)? == y && type_name(y).is_some() && x == DType::Bool;
        let bits = moved_as(y)?;
        return same.then(|| choice(y, bits));
    }
    if op.operands.len() != 2 || x != y {
        return None;
    }
    let arithmetic = match binary {
        B::Add => "x + y",
        B::Sub => "x - y",
        B::Mul => "x * y",
        B::Min => "least(x, y)",
        B::Max => "greatest(x, y)",
        B::Div if in_f32(x) => "x / y",
        B::Pow if in_f32(x) => "fn_pow(x, y)",
        B::PRelu if in_f32(x) => "(x < 0.0f ? x * y : x)",
        _ => "",
    };
    if !arithmetic.is_empty() && (in_f32(x) || whole) {
        return kernel(&[x, y], x, wrapping(arithmetic, x), [0.; 2]);
    }
    let truth = match binary {
        B::Equal => "(u8)(x == y)",
        B::Less => "(u8)(x < y)",
        B::LessOrEqual => "(u8)(x <= y)",
        B::Greater => "(u8)(x > y)",
        B::GreaterOrEqual => "(u8)(x >= y)",
        B::And if x == DType::Bool => "(u8)(x & y)",
        B::Or if x == DType::Bool => "(u8)(x | y)",
        B::Xor if x == DType::Bool => "(u8)(x ^ y)",
        _ => return None,
    };
    let comparable = in_f32(x) || whole || x == DType::Bool;
    comparable.then(|| kernel(&[x, y], DType::Bool, truth, [0.; 2]))?
}

/// The expression over integers, which wrap: it is computed without a sign.
fn wrapping(text: &str, dtype: DType) -> String {
    match (dtype, text) {
        (DType::I32, "x + y" | "x - y" | "x * y") => {
            format!(
                "(i32)({})",
                text.replace('x', "(u32)x").replace('y', "(u32)y")
            )
        }
        (DType::I64, "x + y" | "x - y" | "x * y") => {
            format!(
                "(i64)({})",
                text.replace('x', "(u64)x").replace('y', "(u64)y")
            )
        }
        _ => text.to_owned(),
    }
}

/// A kernel that moves bits by a condition.
struct Choice(Elementwise, &'static str);

fn choice(result: DType, bits: &'static str) -> Box<dyn Template> {
    let function = "(x ? y : z)".to_owned();
    let kernel = Elementwise {
        operands: vec![DType::Bool, result, result],
        result,
        function,
        parameters: [0.; 2],
    };
    Box::new(Choice(kernel, bits))
}

impl Template for Choice {
    fn source(&self) -> Option<String> {
        let definitions = [
            ("OPERANDS", "3"),
            ("X0", "u8"),
            ("X1", self.1),
            ("X2", self.1),
            ("Y", self.1),
            ("F", &*self.0.function),
        ];
        Some(source(&definitions, TEXT))
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
        self.0.plan(planned)
    }
}

/// The kernel of a cast. Floats become integers by truncation, and saturate; integers wrap; a bool is 1 for all but zero.
fn cast(from: DType, to: DType) -> Option<Box<dyn Template>> {
    let plain = |d| in_f32(d) || matches!(d, DType::F64 | DType::I32 | DType::I64 | DType::Bool);
    // From f64 to a half there is one rounding, which a conversion by way of f32 would make two.
    let twice = from == DType::F64 && matches!(to, DType::F16 | DType::BF16);
    if !plain(from) || !plain(to) || twice {
        return None;
    }
    let floating = in_f32(from) || from == DType::F64;
    let text = match to {
        DType::F32 if from == DType::F64 => "f64_to_f32(x)",
        DType::F64 if in_f32(from) => "f32_to_f64(x)",
        DType::F32 | DType::F16 | DType::BF16 => "(f32)x",
        DType::F64 => "(f64)x",
        DType::Bool => "(u8)(x != 0)",
        DType::I32 if floating => {
            "truncated<i32>((f64)x, -2147483648.0, 2147483647.0, (i32)0x80000000, (i32)0x7fffffff)"
        }
        DType::I64 if floating => {
            "truncated<i64>((f64)x, -9223372036854775808.0, 9223372036854775808.0, (i64)0x8000000000000000ull, 0x7fffffffffffffffll)"
        }
        DType::I32 => "(i32)x",
        _ => "(i64)x",
    };
    kernel(&[from], to, text, [0.; 2])
}
