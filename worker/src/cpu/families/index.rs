//! Ops that read and write at indices.

use convoke_common::Error;
use convoke_graph::ops::IndexOp;
use convoke_graph::ops::OpError;
use convoke_graph::ops::attrs::{Reduction, axis, circular};
use convoke_graph::{DType, Element, Outputs, Shape, Tensor};
use convoke_kernels::cast::{CastTo, cast};
use convoke_kernels::element::{Bits, Number};
use convoke_kernels::movement::{
    Indices, Places, ScatterReduction, compress, copy, count_nonzero, gather, gather_elements,
    gather_nd, nonzero, one_hot, scatter_elements, scatter_nd, write_steps,
};
use convoke_kernels::shape::Axis;

use crate::cpu::dispatch::{by_dtype, by_size};
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, OpLaunch, Spec, bits, body, one, write, write_bits,
};

pub(super) fn find(op: IndexOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        IndexOp::Gather => by_size!(spec.dtype(0)?, T => body(gathered::<T>)),
        IndexOp::GatherElements => by_size!(spec.dtype(0)?, T => body(gathered_elements::<T>)),
        IndexOp::GatherND => by_size!(spec.dtype(0)?, T => body(gathered_rows::<T>)),
        IndexOp::ScatterElements => scatter(spec, true),
        IndexOp::ScatterND => scatter(spec, false),
        IndexOp::TensorScatter => by_size!(spec.dtype(0)?, T => body(written::<T>)),
        IndexOp::OneHot => hot(spec),
        IndexOp::NonZero => {
            let dtype = spec.dtype(0)?;
            let found = by_dtype!(any dtype, T => body(places::<T>)?);
            found.ok_or_else(|| spec.no_dtype(dtype))
        }
        IndexOp::Compress => by_size!(spec.dtype(0)?, T => body(kept::<T>)),
        IndexOp::Unique => super::unique::find(spec),
    }
}

pub(super) fn indices(t: &Tensor) -> Result<Indices<'_>, KernelFailure> {
    Ok(match t.dtype() {
        DType::I32 => Indices::I32(t.as_slice()?),
        _ => Indices::I64(t.as_slice()?),
    })
}

fn gathered<T: Bits + bytemuck::Pod>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let x = call.input(0)?;
    let axis = axis(call.attrs, 0, x.shape().len())?;
    let mut y = call.output(0)?;
    gather::<T>(
        &call.launch.exec,
        bits(x),
        x.shape(),
        axis,
        indices(call.input(1)?)?,
        write_bits(&mut y)?,
    )?;
    one(y)
}

/// Checks that `small` lies inside `large` in every axis except `axis`.
fn check_inside(small: &[usize], large: &[usize], axis: usize) -> Result<(), KernelFailure> {
    let fits = |(a, (s, l)): (usize, (&usize, &usize))| a == axis || s <= l;
    if small.len() == large.len() && small.iter().zip(large).enumerate().all(fits) {
        return Ok(());
    }
    Err(KernelFailure::values(format!(
        "indices {small:?} reach outside {large:?} beside axis {axis}"
    )))
}

fn gathered_elements<T: Bits + bytemuck::Pod>(
    call: OpLaunch<'_, '_>,
) -> Result<Outputs, KernelFailure> {
    let x = call.input(0)?;
    let axis = axis(call.attrs, 0, x.shape().len())?;
    let shape = call.out_shape(0);
    check_inside(shape, x.shape(), axis)?;
    let mut y = call.output(0)?;
    let at = indices(call.input(1)?)?;
    gather_elements::<T>(
        &call.launch.exec,
        bits(x),
        x.shape(),
        axis,
        at,
        write_bits(&mut y)?,
        shape,
    )?;
    one(y)
}

/// The number of coordinates in each row of an index tensor.
fn depth(indices: &Tensor) -> Result<usize, KernelFailure> {
    let depth = indices.shape().last().copied().filter(|d| *d > 0);
    depth.ok_or_else(|| KernelFailure::values(format!("indices {indices:?} have no coordinates")))
}

fn gathered_rows<T: Bits + bytemuck::Pod>(
    call: OpLaunch<'_, '_>,
) -> Result<Outputs, KernelFailure> {
    let (x, rows) = (call.input(0)?, call.input(1)?);
    let batch = usize::try_from(call.attrs.int("batch_dims", 0)).unwrap_or(usize::MAX);
    let depth = depth(rows)?;
    if batch.saturating_add(depth) > x.shape().len() {
        return Err(KernelFailure::values(format!(
            "indices of {depth} coordinates do not fit {x:?}"
        )));
    }
    let mut y = call.output(0)?;
    gather_nd::<T>(
        &call.launch.exec,
        bits(x),
        x.shape(),
        batch,
        indices(rows)?,
        depth,
        write_bits(&mut y)?,
    )?;
    one(y)
}

fn scatter(spec: &Spec<'_>, elements: bool) -> Result<KernelBody, OpError> {
    let reduction = match Reduction::new(spec.attrs)? {
        // A scatter without a reduction only moves elements.
        Reduction::None => {
            return by_size!(spec.dtype(0)?, T => body(move |call| {
                scattered::<T>(call, elements, ScatterReduction::None, bits, write_bits)
            }));
        }
        Reduction::Add => ScatterReduction::Add,
        Reduction::Mul => ScatterReduction::Mul,
        Reduction::Max => ScatterReduction::Max,
        Reduction::Min => ScatterReduction::Min,
    };
    let dtype = spec.dtype(0)?;
    let found = by_dtype!(number dtype, T => body(move |call| {
        scattered::<T>(call, elements, reduction, bits, write_bits)
    })?);
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn scattered<T: Number>(
    mut call: OpLaunch<'_, '_>,
    elements: bool,
    reduction: ScatterReduction,
    read: fn(&Tensor) -> &[T],
    open: fn(&mut Tensor) -> Result<&mut [T], KernelFailure>,
) -> Result<Outputs, KernelFailure> {
    let mut y = match call.reuse(0, 0) {
        Some(y) => y,
        None => copied(&call)?,
    };
    let (at, updates, shape) = (call.input(1)?, call.input(2)?, call.out_shape(0));
    if elements {
        let axis = axis(call.attrs, 0, shape.len())?;
        check_inside(at.shape(), shape, axis)?;
        let (indices, new) = (indices(at)?, read(updates));
        scatter_elements(
            &call.launch.exec,
            reduction,
            open(&mut y)?,
            shape,
            axis,
            indices,
            new,
            updates.shape(),
        )?;
    } else {
        let depth = depth(at)?;
        if depth > shape.len() {
            return Err(KernelFailure::values(format!(
                "indices of {depth} coordinates do not fit {shape:?}"
            )));
        }
        scatter_nd(
            &call.launch.exec,
            reduction,
            open(&mut y)?,
            shape,
            indices(at)?,
            depth,
            read(updates),
        )?;
    }
    one(y)
}

/// Computes `TensorScatter`, in the cache itself where no one else reads it.
fn written<T: Bits + bytemuck::Pod>(mut call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let mut y = match call.reuse(0, 0) {
        Some(y) => y,
        None => copied(&call)?,
    };
    let shape: Shape = call.out_shape(0).into();
    let (update, first) = (call.input(1)?, call.optional_slice::<i64>(2)?);
    let at = axis(call.attrs, -2, shape.len())?;
    let fits = |(k, (whole, part)): (usize, (&usize, &usize))| match k == at {
        true => part <= whole,
        false => part == whole,
    };
    let mut pairs = shape.iter().zip(update.shape()).enumerate();
    let batch = shape.first().copied().unwrap_or(0);
    if update.shape().len() != shape.len()
        || !pairs.all(fits)
        || first.is_some_and(|first| first.len() != batch)
    {
        return Err(KernelFailure::values(format!(
            "{update:?} cannot be written into a cache of {shape:?}"
        )));
    }
    let places = Places {
        first,
        batch,
        circular: circular(call.attrs)?,
        axis: at,
    };
    let steps = update.shape()[at];
    let axis = Axis::of(&shape, at);
    write_steps::<T>(
        &call.launch.exec,
        write_bits(&mut y)?,
        axis,
        bits(update),
        steps,
        places,
    )?;
    one(y)
}

/// Copies operand 0 into a buffer of its own.
fn copied(call: &OpLaunch<'_, '_>) -> Result<Tensor, KernelFailure> {
    let mut y = call.output(0)?;
    copy::<u8>(
        &call.launch.exec,
        call.input(0)?.bytes(),
        write_bits(&mut y)?,
    )?;
    Ok(y)
}

fn hot(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let dtype = spec.dtype(0)?;
    let wide = by_dtype!(number dtype, I => as_i64::<I> as fn(&OpLaunch<'_, '_>) -> Result<Tensor, KernelFailure>);
    let wide = wide.ok_or_else(|| spec.no_dtype(dtype))?;
    by_size!(spec.dtype(2)?, T => body(move |call| {
        let shape = call.out_shape(0);
        let axis = Axis::of(shape, axis(call.attrs, -1, shape.len())?);
        let indices = wide(&call)?;
        let values = call.input(2)?;
        let &[off, on] = bits::<T>(values) else {
            return Err(KernelFailure::values(format!("'values' must be [off, on], not {values:?}")));
        };
        let mut y = call.output(0)?;
        one_hot(&call.launch.exec, Indices::I64(indices.as_slice()?), axis, off, on, write_bits(&mut y)?)?;
        one(y)
    }))
}

/// Operand 0 converted to i64.
fn as_i64<I: Element + CastTo<i64>>(call: &OpLaunch<'_, '_>) -> Result<Tensor, KernelFailure> {
    let x = call.input(0)?;
    let mut y = call.launch.pool.tensor(DType::I64, x.shape())?;
    cast::<I, i64>(&call.launch.exec, x.as_slice()?, write(&mut y)?)?;
    Ok(y)
}

fn places<T: Element + Number>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let x = call.input(0)?;
    let mut y = call.output(0)?;
    if y.elements() > 0 {
        nonzero::<T>(&call.launch.exec, x.as_slice()?, x.shape(), write(&mut y)?)?;
    }
    one(y)
}

fn kept<T: Bits + bytemuck::Pod>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let (x, condition) = (call.input(0)?, call.slice::<u8>(1)?);
    let axis = match call.attrs.get("axis") {
        None => Axis {
            outer: 1,
            len: x.elements(),
            inner: 1,
        },
        Some(_) => Axis::of(x.shape(), axis(call.attrs, 0, x.shape().len())?),
    };
    let condition = &condition[..condition.len().min(axis.len)];
    let mut y = call.output(0)?;
    let kept = count_nonzero(&call.launch.exec, condition)?;
    if y.elements() != axis.outer * kept * axis.inner {
        return Err(Error::internal(
            "the size of a compressed tensor differs between registry and kernel",
        )
        .into());
    }
    compress::<T>(
        &call.launch.exec,
        bits(x),
        axis,
        condition,
        write_bits(&mut y)?,
    )?;
    one(y)
}

#[cfg(test)]
mod tests {
    use convoke_common::Code;
    use convoke_graph::Tensor;
    use convoke_graph::graph::{Attr, Attrs};

    use crate::cpu::testing::{counting, one, vec1};

    fn none() -> Attrs {
        Attrs::default()
    }

    fn int(name: &str, v: i64) -> Attrs {
        Attrs::default().with(name, Attr::Int(v))
    }

    #[test]
    fn an_index_out_of_range_is_named() {
        let x = counting(&[3, 2]);
        assert_eq!(
            one("Gather", none(), &[&x, &vec1(&[-1i32])])
                .unwrap()
                .as_slice::<f32>()
                .unwrap(),
            [4.0, 5.0]
        );
        let e = one("Gather", none(), &[&x, &vec1(&[0i64, 9])]).unwrap_err();
        assert_eq!(e.code, Code::KernelFailed);
        assert!(
            e.message
                .contains("index 9 is out of range for axis 0 of length 3"),
            "{e}"
        );
    }

    #[test]
    fn elements_and_rows() {
        let x = counting(&[2, 3]);
        let at = Tensor::from_slice(&[1, 3], &[1i64, 0, -1]).unwrap();
        let y = one("GatherElements", none(), &[&x, &at]).unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap(), [3.0, 1.0, 5.0]);
        let outside = Tensor::from_slice(&[1, 4], &[0i64; 4]).unwrap();
        assert!(one("GatherElements", none(), &[&x, &outside]).is_err());
        let y = one(
            "GatherND",
            none(),
            &[&x, &Tensor::from_slice(&[1, 2], &[1i64, 2]).unwrap()],
        )
        .unwrap();
        assert_eq!(y, vec1(&[5f32]));
    }

    #[test]
    fn scattering_replaces_or_combines() {
        let x = vec1(&[1f32, 2.0, 3.0]);
        let (at, new) = (vec1(&[2i64, 2]), vec1(&[10f32, 20.0]));
        let add = none().with("reduction", Attr::Str("add".into()));
        assert_eq!(
            one("ScatterElements", add, &[&x, &at, &new]).unwrap(),
            vec1(&[1f32, 2.0, 33.0])
        );
        let rows = Tensor::from_slice(&[1, 1], &[0i64]).unwrap();
        let flags = Tensor::from_bools(&[2], &[false, false]).unwrap();
        let set = Tensor::from_bools(&[1], &[true]).unwrap();
        let y = one("ScatterND", none(), &[&flags, &rows, &set]).unwrap();
        assert_eq!(y, Tensor::from_bools(&[2], &[true, false]).unwrap());
        assert!(one("ScatterElements", none(), &[&x, &vec1(&[3i64, 0]), &new]).is_err());
    }

    #[test]
    fn what_data_decides() {
        let x = Tensor::from_slice(&[2, 2], &[0f32, 1.0, -0.0, 2.0]).unwrap();
        let y = one("NonZero", none(), &[&x]).unwrap();
        assert_eq!(y, Tensor::from_slice(&[2, 2], &[0i64, 1, 1, 1]).unwrap());
        let c = Tensor::from_bools(&[2], &[false, true]).unwrap();
        let y = one("Compress", int("axis", 1), &[&x, &c]).unwrap();
        assert_eq!(y, Tensor::from_slice(&[2, 1], &[1f32, 2.0]).unwrap());
        let y = one(
            "OneHot",
            none(),
            &[
                &vec1(&[1f32, -1.0]),
                &Tensor::scalar(3i64),
                &vec1(&[0u8, 9]),
            ],
        )
        .unwrap();
        assert_eq!(
            y,
            Tensor::from_slice(&[2, 3], &[0u8, 9, 0, 0, 0, 9]).unwrap()
        );
    }
}
