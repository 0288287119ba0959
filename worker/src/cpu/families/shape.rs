//! Ops on sizes, and tensors that are made from sizes alone.

use convoke_graph::graph::Attrs;
use convoke_graph::ops::OpError;
use convoke_graph::ops::ShapeOp;
use convoke_graph::ops::attrs::fill_value;
use convoke_graph::{Element, Outputs};
use convoke_kernels::element::Number;
use convoke_kernels::movement;

use super::views;
use crate::cpu::dispatch::{by_dtype, by_size};
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, OpLaunch, Spec, body, one, write, write_bits,
};
use crate::cpu::packed;

pub(super) fn find(op: ShapeOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        ShapeOp::Shape => shape(spec),
        ShapeOp::Size => body(|call| {
            let size = call.input(0)?.elements() as i64;
            sized(&call, &[size])
        }),
        ShapeOp::ConstantOfShape => constant(spec),
        ShapeOp::Reshape | ShapeOp::Squeeze | ShapeOp::Unsqueeze | ShapeOp::Flatten => {
            views::view()
        }
        ShapeOp::Range => range(spec),
        ShapeOp::EyeLike => eye(spec),
        ShapeOp::Constant => {
            let value = spec
                .attrs
                .tensor("value")
                .ok_or_else(|| spec.bad_attr("value", "is required"))?
                .clone();
            body(move |_| one(value.clone()))
        }
    }
}

fn sized(call: &OpLaunch<'_, '_>, values: &[i64]) -> Result<Outputs, KernelFailure> {
    let mut y = call.output(0)?;
    write(&mut y)?.copy_from_slice(values);
    one(y)
}

fn shape(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let range = shape_range(spec.attrs);
    body(move |call| {
        let dims = shape_between(range, call.shape(0)?);
        sized(&call, &dims)
    })
}

/// The attributes `start` and `end` of the op Shape.
pub(crate) fn shape_range(attrs: &Attrs) -> (i64, i64) {
    (attrs.int("start", 0), attrs.int("end", i64::MAX))
}

/// The dimensions of `shape` from the first number to before the second, which count from the back where they are
/// negative.
pub(crate) fn shape_between((start, end): (i64, i64), shape: &[usize]) -> Vec<i64> {
    let rank = shape.len() as i64;
    let place =
        |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
    let dims = shape.get(place(start)..place(end)).unwrap_or(&[]);
    dims.iter().map(|d| *d as i64).collect()
}

/// A tensor with one value everywhere: the attribute `value`, or 0 in f32 without it.
fn constant(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let (dtype, bytes) = fill_value(spec.attrs)?;
    if let ([element], true) = (&bytes[..], dtype.is_packed()) {
        return packed::repeated(dtype, *element);
    }
    by_size!(dtype, T => {
        let value: T = bytemuck::pod_read_unaligned(&bytes);
        body(move |call| {
            let mut y = call.output(0)?;
            movement::fill(&call.launch.exec, value, write_bits::<T>(&mut y)?)?;
            one(y)
        })
    })
}

fn range(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let dtype = spec.dtype(0)?;
    let found = by_dtype!(number dtype, T => body(range_of::<T>)?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn range_of<T: Element + Number>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let scalar = |i: usize| match call.slice::<T>(i)? {
        [x] => Ok(*x),
        _ => Err(KernelFailure::values(
            "the bounds and the step of a range must be scalars",
        )),
    };
    let (start, delta) = (scalar(0)?, scalar(2)?);
    let mut y = call.output(0)?;
    movement::range::<T>(&call.launch.exec, start, delta, write(&mut y)?)?;
    one(y)
}

/// A matrix with ones on diagonal `k`.
fn eye(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let k = spec.attrs.int("k", 0);
    let dtype = spec
        .attrs
        .dtype("dtype")
        .map_or_else(|| spec.dtype(0), Ok)?;
    let unit = by_dtype!(any dtype, T => bytemuck::bytes_of(&T::ONE).to_vec());
    let unit = unit.ok_or_else(|| spec.no_dtype(dtype))?;
    by_size!(dtype, T => {
        let unit: T = bytemuck::pod_read_unaligned(&unit);
        body(move |call| {
            let columns = call.out_shape(0).last().copied().unwrap_or(0);
            let mut y = call.output(0)?;
            movement::eye(&call.launch.exec, unit, columns, k, write_bits(&mut y)?)?;
            one(y)
        })
    })
}

#[cfg(test)]
mod tests {
    use convoke_graph::Tensor;
    use convoke_graph::graph::{Attr, Attrs};

    use crate::cpu::testing::{counting, one, vec1};

    #[test]
    fn parts_of_a_shape() {
        let x = counting(&[2, 3, 4]);
        let check = |start: Option<i64>, end: Option<i64>, want: &[i64]| {
            let mut attrs = Attrs::default();
            for (name, v) in [("start", start), ("end", end)] {
                if let Some(v) = v {
                    attrs = attrs.with(name, Attr::Int(v));
                }
            }
            assert_eq!(one("Shape", attrs, &[&x]).unwrap(), vec1(want));
        };
        check(None, None, &[2, 3, 4]);
        check(Some(-1), None, &[4]);
        check(Some(1), Some(-1), &[3]);
        check(Some(-10), Some(10), &[2, 3, 4]);
    }

    #[test]
    fn ranges_and_constants() {
        let scalar = Tensor::scalar::<i64>;
        let y = one(
            "Range",
            Attrs::default(),
            &[&scalar(10), &scalar(4), &scalar(-2)],
        )
        .unwrap();
        assert_eq!(y, vec1(&[10i64, 8, 6]));
        let eye = Attrs::default()
            .with("k", Attr::Int(1))
            .with("dtype", Attr::DType(convoke_graph::DType::F64));
        let y = one("EyeLike", eye, &[&counting(&[2, 2])]).unwrap();
        assert_eq!(y.as_slice::<f64>().unwrap(), [0.0, 1.0, 0.0, 0.0]);
        let attrs = Attrs::default().with("value", Attr::Tensor(vec1(&[7i16])));
        assert_eq!(
            one("ConstantOfShape", attrs, &[&vec1(&[2i64])]).unwrap(),
            vec1(&[7i16, 7])
        );
    }
}
