//! Reductions over axes, extremes along one axis, and running sums.

use convoke_graph::ops::attrs::{ReduceAttrs, flag};
use convoke_graph::ops::{OpError, normalize_axis};
use convoke_graph::ops::{ReduceOp, ScanOp};
use convoke_graph::{DType, Element, Outputs, Shape};
use convoke_kernels::element::{Float, Integer, Number};
use convoke_kernels::reduce::{
    Covered, Extreme, Reduce, Running, arg_extreme, cumulate, reduce_float, reduce_integer, top_k,
};
use convoke_kernels::shape::Axis;

use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, OpLaunch, Spec, body, one, write,
};

/// The reduction over axes that an op computes; the others find one extreme along one axis.
pub(super) fn reduction(op: ReduceOp) -> Result<Reduce, Extreme> {
    Ok(match op {
        ReduceOp::ReduceSum => Reduce::Sum,
        ReduceOp::ReduceMean => Reduce::Mean,
        ReduceOp::ReduceMax => Reduce::Max,
        ReduceOp::ReduceMin => Reduce::Min,
        ReduceOp::ReduceProd => Reduce::Prod,
        ReduceOp::ReduceL1 => Reduce::L1,
        ReduceOp::ReduceL2 => Reduce::L2,
        ReduceOp::ReduceLogSum => Reduce::LogSum,
        ReduceOp::ReduceLogSumExp => Reduce::LogSumExp,
        ReduceOp::ReduceSumSquare => Reduce::SumSquare,
        ReduceOp::ArgMax => return Err(Extreme::Max),
        ReduceOp::ArgMin => return Err(Extreme::Min),
    })
}

/// Finds the kernel of a running sum, or of the greatest elements.
pub(super) fn find_scan(op: ScanOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        ScanOp::CumProd => accumulate(spec, Running::Product),
        ScanOp::CumSum => accumulate(spec, Running::Sum),
        ScanOp::TopK => top(spec),
    }
}

pub(super) fn find(op: ReduceOp, spec: &Spec<'_>) -> FamilyAnswer {
    let op = match reduction(op) {
        Ok(op) => op,
        Err(extreme) => return arg(spec, extreme),
    };
    let attrs = ReduceAttrs::new(spec.attrs);
    let dtype = spec.dtype(0)?;
    let found = match dtype {
        DType::Bool => Some(body(move |call| reduce_bools(call, op, attrs))?),
        d if d.is_float() => {
            by_dtype!(float d, T => body(move |call| reduce_floats::<T>(call, op, attrs))?)
        }
        d => by_dtype!(integer d, T => body(move |call| reduce_ints::<T>(call, op, attrs))?),
    };
    found.ok_or_else(|| spec.no_dtype(dtype))
}

/// The axes to reduce, as operand 1 and the attributes give them.
fn axes(call: &OpLaunch<'_, '_>, attrs: &ReduceAttrs) -> Result<Vec<usize>, KernelFailure> {
    let given = call.ints(1)?.unwrap_or_default();
    Ok(attrs.axes(&given, call.shape(0)?.len())?)
}

/// The operand's shape and the axes of a reduction into `outputs` elements. For an operand without elements only the
/// number of results counts.
fn over(
    call: &OpLaunch<'_, '_>,
    attrs: &ReduceAttrs,
    outputs: usize,
) -> Result<(Shape, Vec<usize>), KernelFailure> {
    let axes = axes(call, attrs)?;
    Ok(match call.input(0)?.elements() {
        0 => (Shape::from_slice(&[outputs, 0]), vec![1]),
        _ => (Shape::from_slice(call.shape(0)?), axes),
    })
}

fn reduce_floats<T: Element + Float>(
    call: OpLaunch<'_, '_>,
    op: Reduce,
    attrs: ReduceAttrs,
) -> Result<Outputs, KernelFailure> {
    let mut y = call.output(0)?;
    let (shape, axes) = over(&call, &attrs, y.elements())?;
    reduce_float::<T>(
        &call.launch.exec,
        op,
        call.slice(0)?,
        &shape,
        &axes,
        write(&mut y)?,
    )?;
    one(y)
}

fn reduce_ints<T: Element + Integer>(
    call: OpLaunch<'_, '_>,
    op: Reduce,
    attrs: ReduceAttrs,
) -> Result<Outputs, KernelFailure> {
    let mut y = call.output(0)?;
    let (shape, axes) = over(&call, &attrs, y.elements())?;
    reduce_integer::<T>(
        &call.launch.exec,
        op,
        call.slice(0)?,
        &shape,
        &axes,
        write(&mut y)?,
    )?;
    one(y)
}

/// The greatest or the least of bools, which are reduced as bytes. Without elements the identity of bytes would not be
/// a bool.
fn reduce_bools(
    call: OpLaunch<'_, '_>,
    op: Reduce,
    attrs: ReduceAttrs,
) -> Result<Outputs, KernelFailure> {
    if call.input(0)?.elements() > 0 {
        return reduce_ints::<u8>(call, op, attrs);
    }
    let mut y = call.output(0)?;
    write::<u8>(&mut y)?.fill(u8::from(op == Reduce::Min));
    one(y)
}

fn arg(spec: &Spec<'_>, extreme: Extreme) -> Result<KernelBody, OpError> {
    let (axis, last) = (
        spec.attrs.int("axis", 0),
        ReduceAttrs::new(spec.attrs).select_last,
    );
    let dtype = spec.dtype(0)?;
    let found = by_dtype!(number dtype, T => body(move |call| {
        let shape = call.shape(0)?;
        let axis = Axis::of(shape, normalize_axis(axis, shape.len())?);
        let mut y = call.output(0)?;
        if axis.len == 0 && y.elements() > 0 {
            return Err(KernelFailure::values(format!("{:?} has no elements to choose from", call.input(0)?)));
        }
        arg_extreme::<T>(&call.launch.exec, extreme, call.slice(0)?, axis, last, write(&mut y)?)?;
        one(y)
    })?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn top(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let axis = spec.attrs.int("axis", -1);
    let extreme = if flag(spec.attrs, "largest", true) {
        Extreme::Max
    } else {
        Extreme::Min
    };
    let dtype = spec.dtype(0)?;
    let found = by_dtype!(number dtype, T => body(move |call| top_of::<T>(call, axis, extreme))?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn top_of<T: Element + Number>(
    call: OpLaunch<'_, '_>,
    axis: i64,
    extreme: Extreme,
) -> Result<Outputs, KernelFailure> {
    let shape = call.shape(0)?;
    let at = normalize_axis(axis, shape.len())?;
    let (axis, k) = (Axis::of(shape, at), call.out_shape(0)[at]);
    if k > axis.len {
        return Err(KernelFailure::values(format!(
            "the top {k} of {} elements do not exist",
            axis.len
        )));
    }
    let mut values = call.output(0)?;
    let mut indices = call.launch.pool.tensor(DType::I64, call.out_shape(0))?;
    top_k::<T>(
        &call.launch.exec,
        extreme,
        call.slice(0)?,
        axis,
        k,
        write(&mut values)?,
        write(&mut indices)?,
    )?;
    let mut outputs = Outputs::from([values, indices]);
    outputs.truncate(call.outputs.len());
    Ok(outputs)
}

fn accumulate(spec: &Spec<'_>, running: Running) -> Result<KernelBody, OpError> {
    let covered = Covered {
        exclusive: flag(spec.attrs, "exclusive", false),
        reverse: flag(spec.attrs, "reverse", false),
    };
    let dtype = spec.dtype(0)?;
    let found = by_dtype!(number dtype, T => body(move |call| {
        let shape = call.shape(0)?;
        let Some(&[axis]) = call.ints(1)?.as_deref() else {
            return Err(KernelFailure::values("the axis of a running sum or product must be a scalar"));
        };
        let axis = Axis::of(shape, normalize_axis(axis, shape.len())?);
        let mut y = call.output(0)?;
        cumulate::<T>(&call.launch.exec, running, call.slice(0)?, axis, covered, write(&mut y)?)?;
        one(y)
    })?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};
    use convoke_graph::{DType, Tensor};

    use crate::cpu::testing::{counting, launch, one, vec1};

    #[test]
    fn axes_are_an_operand() {
        let x = counting(&[2, 3]);
        let sum = |axes: &[i64]| one("ReduceSum", Attrs::default(), &[&x, &vec1(axes)]).unwrap();
        assert_eq!(
            sum(&[-1]),
            Tensor::from_slice(&[2, 1], &[3f32, 12.0]).unwrap()
        );
        assert_eq!(sum(&[]), Tensor::from_slice(&[1, 1], &[15f32]).unwrap());
        let noop = Attrs::default().with("noop_with_empty_axes", Attr::Int(1));
        assert_eq!(
            launch("ReduceSum", noop, vec![Some(x.clone())], 1).unwrap()[0],
            x
        );
    }

    #[test]
    fn nothing_reduces_to_the_identity() {
        let x = Tensor::zeros(DType::F32, &[0, 2, 3]).unwrap();
        let sum = one("ReduceSum", Attrs::default(), &[&x, &vec1(&[0i64])]).unwrap();
        assert_eq!(sum, Tensor::zeros(DType::F32, &[1, 2, 3]).unwrap());
        let least = one("ReduceMax", Attrs::default(), &[&x, &vec1(&[0i64, 2])]).unwrap();
        assert_eq!(least.as_slice::<f32>().unwrap(), [f32::NEG_INFINITY; 2]);
        let none = Tensor::zeros(DType::Bool, &[0]).unwrap();
        let all = one("ReduceMin", Attrs::default(), &[&none]).unwrap();
        assert_eq!(all, Tensor::from_bools(&[1], &[true]).unwrap());
    }

    #[test]
    fn extremes_and_their_places() {
        let x = vec1(&[3i64, 9, 9, 1]);
        let arg = Attrs::default()
            .with("select_last_index", Attr::Int(1))
            .with("keepdims", Attr::Int(0));
        assert_eq!(one("ArgMax", arg, &[&x]).unwrap(), Tensor::scalar(2i64));
        let inputs = vec![Some(x), Some(vec1(&[3i64]))];
        let top = launch("TopK", Attrs::default(), inputs, 2).unwrap();
        assert_eq!(top, [vec1(&[9i64, 9, 3]), vec1(&[1i64, 2, 0])]);
    }

    #[test]
    fn running_sums() {
        let attrs = Attrs::default().with("exclusive", Attr::Int(1));
        let y = one(
            "CumSum",
            attrs,
            &[&vec1(&[1f32, 2.0, 3.0]), &Tensor::scalar(0i64)],
        )
        .unwrap();
        assert_eq!(y, vec1(&[0f32, 1.0, 3.0]));
    }
}
