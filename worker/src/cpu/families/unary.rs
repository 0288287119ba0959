//! Functions of one element, and `Clip`.

use convoke_graph::ops::attrs::flag;
use convoke_graph::ops::{OpError, UnaryOp, float_function};
use convoke_graph::{DType, Element, Outputs, Tensor};
use convoke_kernels::Exec;
use convoke_kernels::cast::{CastTo, cast};
use convoke_kernels::element::Number;
use convoke_kernels::error::Result as KernelResult;
use convoke_kernels::unary::{self, FloatUnary, IntegerUnary, Test};

use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, OpLaunch, Spec, body, one, write,
};

use super::views;
use crate::cpu::cast as casts;

pub(super) fn find(op: UnaryOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        UnaryOp::IsNaN => return test(spec, Test::IsNan),
        UnaryOp::IsInf => {
            let sign = |name| flag(spec.attrs, name, true);
            let (positive, negative) = (sign("detect_positive"), sign("detect_negative"));
            return test(spec, Test::IsInf { positive, negative });
        }
        UnaryOp::Not => return Ok(map::<u8>(unary::not, unary::not_inplace)),
        UnaryOp::BitCast => return casts::reinterpret(spec),
        UnaryOp::Clip => return clip(spec),
        UnaryOp::Identity => return views::view(),
        UnaryOp::Dropout => return views::unchanged(),
        _ => {}
    }
    if let Some(to) = casts::target(op, spec)? {
        return casts::find(spec, to);
    }
    let (float, integer) = (float_function(op, spec.attrs)?, integer_function(op));
    let dtype = spec.dtype(0)?;
    let found = match (float, integer) {
        (Some(FloatUnary::Erf), _) if dtype.is_int() => {
            by_dtype!(integer dtype, T => body(erf_of::<T>)?)
        }
        (Some(op), _) if dtype.is_float() => by_dtype!(float dtype, T => map::<T>(
            move |e, x, y| unary::float(e, op, x, y),
            move |e, y| unary::float_inplace(e, op, y),
        )),
        (_, Some(op)) => by_dtype!(integer dtype, T => map::<T>(
            move |e, x, y| unary::integer(e, op, x, y),
            move |e, y| unary::integer_inplace(e, op, y),
        )),
        _ => None,
    };
    found.ok_or_else(|| spec.no_dtype(dtype))
}

/// The function of integers that `op` computes, if it computes one.
fn integer_function(op: UnaryOp) -> Option<IntegerUnary> {
    Some(match op {
        UnaryOp::Abs => IntegerUnary::Abs,
        UnaryOp::Neg => IntegerUnary::Neg,
        UnaryOp::Sign => IntegerUnary::Sign,
        UnaryOp::Relu => IntegerUnary::Relu,
        UnaryOp::BitwiseNot => IntegerUnary::BitwiseNot,
        _ => return None,
    })
}

/// Computes `y[i] = f(x[i])`, in place where the operand may be overwritten.
fn map<T: Element>(
    copy: impl Fn(&Exec<'_>, &[T], &mut [T]) -> KernelResult + Send + Sync + 'static,
    replace: impl Fn(&Exec<'_>, &mut [T]) -> KernelResult + Send + Sync + 'static,
) -> KernelBody {
    KernelBody::Own(Box::new(move |mut call| {
        if let Some(mut y) = call.reuse(0, 0) {
            replace(&call.launch.exec, write(&mut y)?)?;
            return one(y);
        }
        let mut y = call.output(0)?;
        copy(&call.launch.exec, call.slice(0)?, write(&mut y)?)?;
        one(y)
    }))
}

/// The error function of integers: computed in f64, and truncated.
fn erf_of<T: Element + CastTo<f64>>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure>
where
    f64: CastTo<T>,
{
    let x = call.slice::<T>(0)?;
    let mut wide = call.scratch::<f64>(x.len())?;
    let values = write(&mut wide)?;
    cast(&call.launch.exec, x, values)?;
    unary::float_inplace::<f64>(&call.launch.exec, FloatUnary::Erf, values)?;
    let mut y = call.output(0)?;
    cast::<f64, T>(&call.launch.exec, values, write(&mut y)?)?;
    one(y)
}

fn test(spec: &Spec<'_>, test: Test) -> Result<KernelBody, OpError> {
    let dtype = spec.dtype(0)?;
    let found = by_dtype!(float dtype, T => body(move |call| {
        let mut y = call.output(0)?;
        unary::test::<T>(&call.launch.exec, test, call.slice(0)?, write(&mut y)?)?;
        one(y)
    })?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn clip(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let dtype: DType = spec.dtype(0)?;
    let found = by_dtype!(number dtype, T => body(clip_as::<T>)?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn clip_as<T: Element + Number>(mut call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let min = bound(call.optional(1))?.unwrap_or(T::LOWEST);
    let max = bound(call.optional(2))?.unwrap_or(T::HIGHEST);
    if let Some(mut y) = call.reuse(0, 0) {
        unary::clip_inplace::<T>(&call.launch.exec, min, max, write(&mut y)?)?;
        return one(y);
    }
    let mut y = call.output(0)?;
    unary::clip::<T>(&call.launch.exec, min, max, call.slice(0)?, write(&mut y)?)?;
    one(y)
}

fn bound<T: Element>(t: Option<&Tensor>) -> Result<Option<T>, KernelFailure> {
    let Some(t) = t else { return Ok(None) };
    match t.as_slice::<T>()? {
        [bound] => Ok(Some(*bound)),
        _ => Err(KernelFailure::values(format!(
            "a bound must be a scalar, not {t:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};

    use super::*;
    use crate::cpu::testing::{launch, one, vec1};

    #[test]
    fn an_operand_held_alone_is_overwritten() {
        let x = vec1(&[-1f32, 2.0]);
        let at = x.bytes().as_ptr();
        let y = launch("Relu", Attrs::default(), vec![Some(x.clone())], 1)
            .unwrap()
            .remove(0);
        assert_ne!(y.bytes().as_ptr(), at);
        let y = launch("Relu", Attrs::default(), vec![Some(x)], 1)
            .unwrap()
            .remove(0);
        assert_eq!(y.bytes().as_ptr(), at);
        assert_eq!(y, vec1(&[0f32, 2.0]));
    }

    #[test]
    fn attributes_and_dtypes() {
        let slope = Attrs::default().with("alpha", Attr::Float(0.5));
        assert_eq!(
            one("LeakyRelu", slope, &[&vec1(&[-2f64, 2.0])]).unwrap(),
            vec1(&[-1f64, 2.0])
        );
        assert_eq!(
            one("Neg", Attrs::default(), &[&vec1(&[1i64 << 60])]).unwrap(),
            vec1(&[-(1i64 << 60)])
        );
        let half = |v: f32| half::f16::from_f32(v);
        assert_eq!(
            one("Abs", Attrs::default(), &[&vec1(&[half(-1.5)])]).unwrap(),
            vec1(&[half(1.5)])
        );
        let nan = one("IsNaN", Attrs::default(), &[&vec1(&[f32::NAN, 1.0])]).unwrap();
        assert_eq!(nan, Tensor::from_bools(&[2], &[true, false]).unwrap());
    }

    #[test]
    fn clip_takes_one_bound_or_two() {
        let x = || Some(vec1(&[-3i32, 0, 7]));
        let clip = |min: Option<i32>, max: Option<i32>| {
            let inputs = vec![x(), min.map(Tensor::scalar), max.map(Tensor::scalar)];
            launch("Clip", Attrs::default(), inputs, 1)
                .unwrap()
                .remove(0)
        };
        assert_eq!(clip(Some(-1), Some(5)), vec1(&[-1, 0, 5]));
        assert_eq!(clip(None, Some(5)), vec1(&[-3, 0, 5]));
        assert_eq!(clip(None, None), vec1(&[-3, 0, 7]));
    }
}
