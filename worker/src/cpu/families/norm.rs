//! Normalisations.

use convoke_common::Error;
use convoke_graph::ops::NormOp;
use convoke_graph::ops::attrs::{LrnAttrs, axis, epsilon, mvn_axes};
use convoke_graph::{DType, Element, Outputs, Tensor};
use convoke_kernels::binary::{Arith, arith_inplace};
use convoke_kernels::element::{Float, Number};
use convoke_kernels::norm::{
    LpNorm, batch_norm, group_norm, instance_norm, layer_norm, layer_norm_stats, lp_norm, lrn,
    mean_variance_norm, rms_norm,
};
use convoke_kernels::reduce::{Extreme, arg_extreme};
use convoke_kernels::shape::Axis;

use super::softmax;
use crate::cpu::cast::wide::{convert, narrow_to};
use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::{FamilyAnswer, KernelFailure, OpLaunch, Spec, body, one, operand, write};

pub(super) fn find(op: NormOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        NormOp::LayerNormalization => of_floats!(spec, layer),
        NormOp::RMSNormalization => body(rms),
        NormOp::BatchNormalization => body(batch),
        NormOp::InstanceNormalization => of_floats!(spec, instance),
        NormOp::GroupNormalization => of_floats!(spec, group),
        NormOp::LRN => of_floats!(spec, local_response),
        NormOp::MeanVarianceNormalization => of_floats!(spec, mean_variance),
        NormOp::LpNormalization => of_floats!(spec, lp),
        NormOp::Hardmax => of_floats!(spec, hardmax),
        NormOp::Softmax => softmax::find(spec, false),
        NormOp::LogSoftmax => softmax::find(spec, true),
    }
}

/// The implementation `body(f::<T>)` for the float type `T` of operand 0.
macro_rules! of_floats {
    ($spec:expr, $f:ident) => {{
        let dtype = $spec.dtype(0)?;
        by_dtype!(float dtype, T => body($f::<T>)).unwrap_or_else(|| Err($spec.no_dtype(dtype)))
    }};
}
use of_floats;

/// The dtype in which operands of these dtypes are computed together.
fn common(dtypes: impl IntoIterator<Item = DType>) -> DType {
    let mut dtypes = dtypes.into_iter();
    let first = dtypes.next().unwrap_or(DType::F32);
    dtypes.fold(first, |all, d| match (all, d) {
        (a, b) if a == b => a,
        (DType::F64, _) | (_, DType::F64) => DType::F64,
        _ => DType::F32,
    })
}

/// The channel axis, which is axis 1.
fn channels(x: &[usize]) -> Result<Axis, KernelFailure> {
    if x.len() < 2 {
        return Err(KernelFailure::values(format!("{x:?} has no channels")));
    }
    Ok(Axis::of(x, 1))
}

/// Operand `i`, which has one value per channel.
fn per_channel<'t, T: Element>(
    call: &'t OpLaunch<'_, '_>,
    i: usize,
    channels: Axis,
) -> Result<&'t [T], KernelFailure> {
    check_channels(call.slice(i)?, channels)
}

fn check_channels<T>(values: &[T], channels: Axis) -> Result<&[T], KernelFailure> {
    if values.len() != channels.len {
        let message = format!(
            "a parameter has {} values for {} channels",
            values.len(),
            channels.len
        );
        return Err(KernelFailure::values(message));
    }
    Ok(values)
}

fn layer<T: Element + Float>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure>
where
    T::Wide: Element,
{
    let x = call.input(0)?;
    let axis = axis(call.attrs, -1, x.shape().len())?;
    let (row, epsilon) = (&x.shape()[axis..], f64::from(epsilon(call.attrs)));
    let mut y = call.output(0)?;
    let (scale, bias) = (call.input(1)?, call.optional(2));
    if x.elements() > 0 {
        let whole = |t: &Tensor| t.shape() == row;
        if whole(scale) && bias.is_none_or(whole) {
            let bias = bias.map(Tensor::as_slice).transpose()?;
            layer_norm::<T>(
                &call.launch.exec,
                x.as_slice()?,
                scale.as_slice()?,
                bias,
                epsilon,
                write(&mut y)?,
            )?;
        } else {
            let ones = ones::<T>(&call, row.iter().product())?;
            layer_norm::<T>(
                &call.launch.exec,
                x.as_slice()?,
                ones.as_slice()?,
                None,
                epsilon,
                write(&mut y)?,
            )?;
            let out = call.out_shape(0);
            arith_inplace::<T>(
                &call.launch.exec,
                Arith::Mul,
                write(&mut y)?,
                out,
                operand(scale)?,
            )?;
            if let Some(bias) = bias {
                arith_inplace::<T>(
                    &call.launch.exec,
                    Arith::Add,
                    write(&mut y)?,
                    out,
                    operand(bias)?,
                )?;
            }
        }
    }
    let mut outputs = Outputs::from([y]);
    if call.outputs.len() > 1 {
        let wide = |o| {
            call.launch
                .pool
                .tensor(<T::Wide as Element>::DTYPE, call.out_shape(o))
        };
        let mut stats = [
            wide(1)?,
            call.launch
                .pool
                .tensor(<T::Wide as Element>::DTYPE, call.out_shape(1))?,
        ];
        let [mean, inverse] = &mut stats;
        if x.elements() > 0 {
            let n = row.iter().product();
            layer_norm_stats::<T>(
                &call.launch.exec,
                x.as_slice()?,
                n,
                epsilon,
                write(mean)?,
                write(inverse)?,
            )?;
        }
        for (i, stat) in stats.into_iter().enumerate().take(call.outputs.len() - 1) {
            outputs.push(narrow_to(&call, i + 1, stat)?);
        }
    }
    Ok(outputs)
}

fn ones<T: Element + Number>(call: &OpLaunch<'_, '_>, len: usize) -> Result<Tensor, KernelFailure> {
    let mut ones = call.scratch::<T>(len)?;
    write::<T>(&mut ones)?.fill(T::ONE);
    Ok(ones)
}

fn rms(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let (x, scale) = (call.input(0)?, call.input(1)?);
    let dtype = common([x.dtype(), scale.dtype()]);
    let (x, scale) = (convert(&call, x, dtype)?, convert(&call, scale, dtype)?);
    let y = by_dtype!(float dtype, T => rms_of::<T>(&call, &x, &scale)?);
    one(narrow_to(
        &call,
        0,
        y.ok_or_else(|| Error::internal("only floats are normalised"))?,
    )?)
}

fn rms_of<T: Element + Float>(
    call: &OpLaunch<'_, '_>,
    x: &Tensor,
    scale: &Tensor,
) -> Result<Tensor, KernelFailure> {
    let axis = axis(call.attrs, -1, x.shape().len())?;
    let (row, epsilon) = (&x.shape()[axis..], f64::from(epsilon(call.attrs)));
    let mut y = call.launch.pool.tensor(T::DTYPE, x.shape())?;
    if x.elements() == 0 {
        return Ok(y);
    }
    if scale.shape() == row {
        rms_norm::<T>(
            &call.launch.exec,
            x.as_slice()?,
            scale.as_slice()?,
            epsilon,
            write(&mut y)?,
        )?;
    } else {
        let ones = ones::<T>(call, row.iter().product())?;
        rms_norm::<T>(
            &call.launch.exec,
            x.as_slice()?,
            ones.as_slice()?,
            epsilon,
            write(&mut y)?,
        )?;
        arith_inplace::<T>(
            &call.launch.exec,
            Arith::Mul,
            write(&mut y)?,
            x.shape(),
            operand(scale)?,
        )?;
    }
    Ok(y)
}

fn batch(mut call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let dtypes = || call.launch.inputs.iter().flatten().map(Tensor::dtype);
    let dtype = common(dtypes());
    let of_one_dtype = dtypes().all(|d| d == dtype);
    let parameter = |i: usize| convert(&call, call.input(i)?, dtype);
    let parameters = [parameter(1)?, parameter(2)?, parameter(3)?, parameter(4)?];
    // If all operands have one dtype, X itself may be overwritten.
    let own = if of_one_dtype { call.reuse(0, 0) } else { None };
    let (x, y) = match own {
        Some(own) => (None, own),
        None => {
            let x = convert(&call, call.input(0)?, dtype)?;
            let y = call.launch.pool.tensor(dtype, x.shape())?;
            (Some(x), y)
        }
    };
    let y = by_dtype!(float dtype, T => batch_of::<T>(&call, x.as_ref(), &parameters, y)?);
    one(narrow_to(
        &call,
        0,
        y.ok_or_else(|| Error::internal("only floats are normalised"))?,
    )?)
}

/// Normalises `x` into `y`, or without `x` the elements of `y`.
fn batch_of<T: Element + Float>(
    call: &OpLaunch<'_, '_>,
    x: Option<&Tensor>,
    parameters: &[Tensor; 4],
    mut y: Tensor,
) -> Result<Tensor, KernelFailure> {
    let channels = channels(y.shape())?;
    let p = |i: usize| check_channels(parameters[i].as_slice::<T>()?, channels);
    let (scale, bias, mean, variance) = (p(0)?, p(1)?, p(2)?, p(3)?);
    let epsilon = f64::from(epsilon(call.attrs));
    batch_norm(
        &call.launch.exec,
        x.map(Tensor::as_slice).transpose()?,
        channels,
        scale,
        bias,
        mean,
        variance,
        epsilon,
        write(&mut y)?,
    )?;
    Ok(y)
}

fn instance<T: Element + Float>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let channels = channels(call.shape(0)?)?;
    let (scale, bias) = (
        per_channel::<T>(&call, 1, channels)?,
        per_channel(&call, 2, channels)?,
    );
    let mut y = call.output(0)?;
    let epsilon = f64::from(epsilon(call.attrs));
    instance_norm(
        &call.launch.exec,
        call.slice(0)?,
        channels,
        scale,
        bias,
        epsilon,
        write(&mut y)?,
    )?;
    one(y)
}

fn group<T: Element + Float>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let channels = channels(call.shape(0)?)?;
    let (scale, bias) = (
        per_channel::<T>(&call, 1, channels)?,
        per_channel(&call, 2, channels)?,
    );
    let groups = usize::try_from(call.attrs.int("num_groups", 0)).unwrap_or(0);
    if groups == 0 || !channels.len.is_multiple_of(groups) {
        return Err(KernelFailure::values(format!(
            "{} channels do not form {groups} groups",
            channels.len
        )));
    }
    let mut y = call.output(0)?;
    let epsilon = f64::from(epsilon(call.attrs));
    group_norm(
        &call.launch.exec,
        call.slice(0)?,
        channels,
        groups,
        scale,
        bias,
        epsilon,
        write(&mut y)?,
    )?;
    one(y)
}

fn local_response<T: Element + Float>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let LrnAttrs {
        size,
        alpha,
        beta,
        bias,
    } = LrnAttrs::new(call.attrs)?;
    let (alpha, beta, bias) = (f64::from(alpha), f64::from(beta), f64::from(bias));
    let channels = channels(call.shape(0)?)?;
    let mut y = call.output(0)?;
    lrn::<T>(
        &call.launch.exec,
        call.slice(0)?,
        channels,
        size,
        alpha,
        beta,
        bias,
        write(&mut y)?,
    )?;
    one(y)
}

fn mean_variance<T: Element + Float>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let shape = call.shape(0)?;
    let axes = mvn_axes(call.attrs, shape.len())?;
    let kept = shape
        .iter()
        .enumerate()
        .filter(|(axis, _)| !axes.contains(axis))
        .map(|(_, d)| d);
    let mut scratch = call.scratch::<T>(kept.product())?;
    let mut y = call.output(0)?;
    if y.elements() == 0 {
        return one(y);
    }
    mean_variance_norm::<T>(
        &call.launch.exec,
        call.slice(0)?,
        shape,
        &axes,
        write(&mut scratch)?,
        write(&mut y)?,
    )?;
    one(y)
}

fn lp<T: Element + Float>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let norm = if call.attrs.int("p", 2) == 1 {
        LpNorm::L1
    } else {
        LpNorm::L2
    };
    let shape = call.shape(0)?;
    let axis = Axis::of(shape, axis(call.attrs, -1, shape.len())?);
    let mut y = call.output(0)?;
    lp_norm::<T>(
        &call.launch.exec,
        norm,
        call.slice(0)?,
        axis,
        write(&mut y)?,
    )?;
    one(y)
}

/// Computes 1 at the first maximum along an axis, and 0 elsewhere.
fn hardmax<T: Element + Float>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let shape = call.shape(0)?;
    let axis = Axis::of(shape, axis(call.attrs, -1, shape.len())?);
    let mut y = call.output(0)?;
    let out = write::<T>(&mut y)?;
    if out.is_empty() {
        return one(y);
    }
    let mut places = call.scratch::<i64>(axis.outer * axis.inner)?;
    arg_extreme::<T>(
        &call.launch.exec,
        Extreme::Max,
        call.slice(0)?,
        axis,
        false,
        write(&mut places)?,
    )?;
    out.fill(T::ZERO);
    for (column, place) in places.as_slice::<i64>()?.iter().enumerate() {
        let (o, i) = (column / axis.inner, column % axis.inner);
        out[(o * axis.len + *place as usize) * axis.inner + i] = T::ONE;
    }
    one(y)
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};

    use super::*;
    use crate::cpu::testing::{counting, launch, one, vec1};

    fn rounded(t: &Tensor) -> Vec<i64> {
        t.as_slice::<f32>()
            .unwrap()
            .iter()
            .map(|x| (x * 100.0).round() as i64)
            .collect()
    }

    #[test]
    fn layers_take_scales_of_any_shape_that_broadcasts() {
        let x = counting(&[2, 3]);
        let scale = |t: Tensor| one("LayerNormalization", Attrs::default(), &[&x, &t, &t]).unwrap();
        let want = [-22, 100, 222]
            .repeat(2)
            .into_iter()
            .map(|v| if v == 222 { 222 } else { v });
        assert_eq!(
            rounded(&scale(vec1(&[1f32, 1.0, 1.0]))),
            want.clone().collect::<Vec<_>>()
        );
        assert_eq!(
            rounded(&scale(Tensor::scalar(1f32))),
            want.collect::<Vec<_>>()
        );
        let inputs = vec![Some(x.clone()), Some(vec1(&[1f32, 1.0, 1.0]))];
        let all = launch("LayerNormalization", Attrs::default(), inputs, 3).unwrap();
        assert_eq!(all[1], Tensor::from_slice(&[2, 1], &[1f32, 4.0]).unwrap());
        assert_eq!(rounded(&all[2]), [122, 122]);
    }

    #[test]
    fn parameters_may_be_wider_than_the_operand() {
        let x = Tensor::from_slice(&[1, 2], &[1.0, 3.0].map(half::f16::from_f32)).unwrap();
        let p = |v: f32| vec1(&[v, v]);
        let y = one(
            "BatchNormalization",
            Attrs::default(),
            &[&x, &p(2.0), &p(1.0), &p(1.0), &p(1.0)],
        )
        .unwrap();
        assert_eq!(
            (y.dtype(), y.as_slice::<half::f16>().unwrap()[1].to_f32()),
            (DType::F16, 5.0)
        );
        let y = one(
            "RMSNormalization",
            Attrs::default(),
            &[&x, &vec1(&[1f64, 1.0])],
        )
        .unwrap();
        assert_eq!(y.dtype(), DType::F64);
    }

    #[test]
    fn groups_instances_and_neighbours() {
        let x = counting(&[1, 4, 2]);
        let p = vec1(&[1f32; 4]);
        let y = one("InstanceNormalization", Attrs::default(), &[&x, &p, &p]).unwrap();
        assert_eq!(rounded(&y), [0, 200].repeat(4));
        let groups = Attrs::default().with("num_groups", Attr::Int(2));
        let y = one("GroupNormalization", groups, &[&x, &p, &p]).unwrap();
        assert_eq!(rounded(&y), [-34, 55, 145, 234].repeat(2));
        let lrn = Attrs::default()
            .with("size", Attr::Int(3))
            .with("alpha", Attr::Float(3.0));
        assert_eq!(one("LRN", lrn, &[&x]).unwrap().shape(), [1, 4, 2]);
        let y = one(
            "MeanVarianceNormalization",
            Attrs::default().with("axes", Attr::Ints(vec![2])),
            &[&x],
        )
        .unwrap();
        assert_eq!(rounded(&y), [-100, 100].repeat(4));
    }

    #[test]
    fn hardmax_marks_the_first_maximum() {
        let x = Tensor::from_slice(&[3, 2], &[1f32, 9.0, 5.0, 2.0, 5.0, 9.0]).unwrap();
        let y = one(
            "Hardmax",
            Attrs::default().with("axis", Attr::Int(0)),
            &[&x],
        )
        .unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap(), [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
        let y = one("LpNormalization", Attrs::default(), &[&vec1(&[3f32, 4.0])]).unwrap();
        assert_eq!(rounded(&y), [60, 80]);
    }
}
