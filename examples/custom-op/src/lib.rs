//! The custom op `example.SoftThreshold`, which moves numbers towards zero, and sets those near zero to zero.
//!
//! A program that uses the op needs its definition; workers also need its kernel.

pub mod faulty;

use convoke::kernels::{self, KernelCall, KernelFailure, Spec};
use convoke::ops::{
    AttrDef, AttrKind, Cost, Infer, InferredOutput, OpDef, OpError, OperandDef, operand, required,
};
use convoke::{Attrs, DType, Element, HostTensor, Result, TensorType};

const OPERANDS: &[OperandDef] = &[operand("X", &[DType::F32, DType::F64])];
const ATTRS: &[AttrDef] = &[required("lambda", AttrKind::Float)];

/// The definition of the op: `sign(X) * max(|X| - lambda, 0)`.
pub static SOFT_THRESHOLD: OpDef = OpDef::new(
    "example.SoftThreshold",
    "X brought nearer to 0 by `lambda`, and 0 where it is as near, any shape.",
    OPERANDS,
    rule,
)
.attrs(ATTRS)
.cost(cost);

/// Infers dtype and shape of the result. The number and dtypes of operands, and the names and kinds of attributes were
/// checked before.
fn rule(i: &Infer<'_>) -> Result<Vec<InferredOutput>, OpError> {
    let lambda = i.attrs.float("lambda", 0.0);
    // A NaN is refused as well.
    if lambda.is_nan() || lambda < 0.0 {
        return Err(OpError::Attr {
            attr: "lambda".into(),
            reason: format!("must be 0 or more, not {lambda}"),
        });
    }
    let x = i.required(0)?.ty;
    Ok(vec![InferredOutput::of(x.dtype, x.shape.clone())])
}

/// The cost of the op: three operations for each element.
fn cost(_: &Attrs, _: &[Option<&TensorType>], outputs: &[&TensorType]) -> Cost {
    let dims = outputs.iter().flat_map(|t| t.fixed_shape()).flatten();
    let elements: f64 = dims.map(|d| d as f64).product();
    let size = outputs.first().map_or(0, |t| t.dtype.width());
    Cost {
        flops: 3.0 * elements,
        bytes: 2.0 * elements * size as f64,
    }
}

/// Registers the definition and the kernel of the op, so that workers of this process can run it.
pub fn register() -> Result<()> {
    kernels::register(&SOFT_THRESHOLD, |spec: &Spec<'_>| {
        let lambda = spec.attrs().float("lambda", 0.0);
        Ok(match spec.dtype(0) {
            Some(DType::F64) => kernels::kernel(move |call| run::<f64>(call, lambda.into())),
            _ => kernels::kernel(move |call| run::<f32>(call, lambda)),
        })
    })
}

/// An element type of the op.
trait Float:
    Element + PartialOrd + std::ops::Sub<Output = Self> + std::ops::Neg<Output = Self>
{
    const ZERO: Self;
}

impl Float for f32 {
    const ZERO: f32 = 0.0;
}

impl Float for f64 {
    const ZERO: f64 = 0.0;
}

fn soft<T: Float>(x: T, lambda: T) -> T {
    match x {
        x if x > lambda => x - lambda,
        x if x < -lambda => -(-x - lambda),
        x if (-lambda..=lambda).contains(&x) => T::ZERO,
        nan => nan,
    }
}

/// Runs the kernel. Each element is computed on its own, so the bits are the same on any number of threads.
fn run<T: Float>(
    call: &mut KernelCall<'_, '_>,
    lambda: T,
) -> Result<Vec<HostTensor>, KernelFailure> {
    const GRAIN: usize = 16 << 10;
    // The kernel works in place where nothing else reads the operand.
    if let Some(mut y) = call.reuse(0, 0) {
        call.tiles(
            kernels::elements_mut(&mut y)?,
            1,
            GRAIN,
            |_, part: &mut [T]| {
                part.iter_mut().for_each(|x| *x = soft(*x, lambda));
            },
        )?;
        return Ok(vec![y]);
    }
    let mut y = call.output(0)?;
    let x = call.slice::<T>(0)?;
    call.tiles(kernels::elements_mut(&mut y)?, 1, GRAIN, |units, part| {
        let pairs = part.iter_mut().zip(&x[units]);
        pairs.for_each(|(y, x)| *y = soft(*x, lambda));
    })?;
    Ok(vec![y])
}
