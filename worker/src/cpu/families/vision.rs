//! Ops of vision models, determinants and inverses. Halves are computed in f32 and rounded once, at the end.

use convoke_common::Error;
use convoke_graph::ops::attrs::{
    DeformAttrs, GridMode, GridOutside, GridSampleAttrs, RoiAttrs, Window, flag, unpooled_len,
};
use convoke_graph::ops::{OpError, VisionOp};
use convoke_graph::{DType, Element, Outputs, Tensor};
use convoke_kernels::pooling::max_unpool;
use convoke_kernels::vision::{
    Deform, DeformKernels, DeformOperands, GridKernels, GridPadding, GridSample, RoiAlign,
    RoiKernels, RoiMode, Sampling, Suppression, TakeKernels, deform_conv, grid_places, grid_sample,
    max_roi_pool, roi_align, suppress, take_places,
};
use convoke_kernels::{Exec, KernelError};

use crate::cpu::cast::wide::{convert, narrow_to};
use crate::cpu::dispatch::by_size;
use crate::cpu::image;
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, OpLaunch, Spec, bits, body, one, write, write_bits,
};

pub(super) fn find(op: VisionOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        VisionOp::DeformConv => computed(spec, deform::<f32>, deform::<f64>),
        VisionOp::GridSample => {
            let attrs = GridSampleAttrs::new(spec.attrs)?;
            let dtype = spec.dtype(0)?;
            match (dtype.is_float() && !dtype.is_narrow(), attrs.mode) {
                (true, _) => computed(spec, sample::<f32>, sample::<f64>),
                (false, GridMode::Nearest) => by_size!(dtype, T => match spec.dtype(1)? {
                    DType::F64 => body(taken::<T, f64>),
                    _ => body(taken::<T, f32>),
                }),
                (false, _) => Err(spec.no_dtype(dtype)),
            }
        }
        VisionOp::ImageDecoder => image::find(spec),
        VisionOp::MaxRoiPool => {
            RoiAttrs::max_pool(spec.attrs)?;
            computed(spec, max_pool::<f32>, max_pool::<f64>)
        }
        VisionOp::MaxUnpool => by_size!(spec.dtype(0)?, T => body(unpool::<T>)),
        VisionOp::NonMaxSuppression => body(suppression),
        VisionOp::RoiAlign => {
            RoiAttrs::align(spec.attrs)?;
            computed(spec, align::<f32>, align::<f64>)
        }
    }
}

/// Makes the kernel of determinants.
pub(super) fn det(spec: &Spec<'_>) -> FamilyAnswer {
    computed(
        spec,
        |call| of_matrices(call, convoke_kernels::det::det::<f32>),
        |call| of_matrices(call, convoke_kernels::det::det::<f64>),
    )
}

/// Makes the kernel of inverses.
pub(super) fn inverse(spec: &Spec<'_>) -> FamilyAnswer {
    computed(
        spec,
        |call| of_matrices(call, convoke_kernels::inverse::inverse::<f32>),
        |call| of_matrices(call, convoke_kernels::inverse::inverse::<f64>),
    )
}

/// A kernel that computes in one type.
type In = fn(&OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure>;

/// The kernel that computes in f64 where that is the dtype of the first operand, and else in f32.
fn computed(spec: &Spec<'_>, single: In, double: In) -> Result<KernelBody, OpError> {
    let run = match spec.dtype(0)? {
        DType::F32 | DType::F16 | DType::BF16 => single,
        DType::F64 => double,
        other => return Err(spec.no_dtype(other)),
    };
    body(move |call| run(&call))
}

/// Operand `i` in the type that the op is computed in.
fn given<W: Element>(call: &OpLaunch<'_, '_>, i: usize) -> Result<Tensor, KernelFailure> {
    convert(call, call.input(i)?, W::DTYPE)
}

/// Output 0 in the type that the op is computed in.
fn made<W: Element>(call: &OpLaunch<'_, '_>) -> Result<Tensor, KernelFailure> {
    Ok(call.launch.pool.tensor(W::DTYPE, call.out_shape(0))?)
}

fn finish(call: &OpLaunch<'_, '_>, y: Tensor) -> Result<Outputs, KernelFailure> {
    one(narrow_to(call, 0, y)?)
}

/// Whether the result has no elements. Sizes of axes of such operands may have a product beyond all bounds, so that no
/// kernel is asked.
fn is_empty(call: &OpLaunch<'_, '_>) -> bool {
    call.out_shape(0).contains(&0)
}

fn refused(t: &Tensor) -> KernelFailure {
    KernelFailure::values(format!("{t:?} has other axes than the op needs"))
}

/// The sizes and modes of sampling `x`.
fn of_grid<'a>(call: &OpLaunch<'_, '_>, x: &'a Tensor) -> Result<GridSample<'a>, KernelFailure> {
    let attrs = GridSampleAttrs::new(call.attrs)?;
    let &[batch, channels, ref spatial @ ..] = x.shape() else {
        return Err(refused(x));
    };
    Ok(GridSample {
        batch,
        channels,
        spatial,
        places: call.out_shape(0).iter().skip(2).product(),
        sampling: match attrs.mode {
            GridMode::Nearest => Sampling::Nearest,
            GridMode::Linear => Sampling::Linear,
            GridMode::Cubic => Sampling::Cubic,
        },
        padding: match attrs.outside {
            GridOutside::Zeros => GridPadding::Zeros,
            GridOutside::Border => GridPadding::Border,
            GridOutside::Reflection => GridPadding::Reflection,
        },
        align_corners: attrs.align_corners,
    })
}

/// Takes the nearest elements, of any type, at places of type `W`.
fn taken<T, W>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure>
where
    T: TakeKernels + bytemuck::Pod,
    W: Element + GridKernels,
{
    if is_empty(&call) {
        return one(call.output(0)?);
    }
    let (x, grid) = (call.input(0)?, given::<W>(&call, 1)?);
    let sizes = of_grid(&call, x)?;
    let (exec, mut y) = (call.launch.exec, call.output(0)?);
    let mut nearest = call.scratch::<i64>(sizes.batch * sizes.places)?;
    grid_places::<W>(&exec, &sizes, grid.as_slice()?, write(&mut nearest)?)?;
    take_places::<T>(
        &exec,
        &sizes,
        bits(x),
        nearest.as_slice()?,
        write_bits(&mut y)?,
    )?;
    one(y)
}

fn sample<W: Element + GridKernels>(call: &OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    if is_empty(call) {
        return one(call.output(0)?);
    }
    let (x, grid) = (given::<W>(call, 0)?, given::<W>(call, 1)?);
    let sizes = of_grid(call, &x)?;
    let mut y = made::<W>(call)?;
    let exec = &call.launch.exec;
    grid_sample::<W>(
        exec,
        &sizes,
        x.as_slice()?,
        grid.as_slice()?,
        write(&mut y)?,
    )?;
    finish(call, y)
}

/// The sizes of a pooling of regions, one for each image in `images`.
fn regions<'a>(
    attrs: &RoiAttrs,
    x: &Tensor,
    images: &'a [i64],
) -> Result<RoiAlign<'a>, KernelFailure> {
    let &[batch, channels, height, width] = x.shape() else {
        return Err(refused(x));
    };
    Ok(RoiAlign {
        batch,
        channels,
        map: [height, width],
        pooled: attrs.pooled,
        mode: if attrs.max {
            RoiMode::Max
        } else {
            RoiMode::Average
        },
        sampling: attrs.sampling,
        scale: attrs.scale,
        half_pixel: attrs.half_pixel,
        images,
    })
}

fn align<W: Element + RoiKernels>(call: &OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let attrs = RoiAttrs::align(call.attrs)?;
    let (x, rois) = (given::<W>(call, 0)?, given::<W>(call, 1)?);
    let sizes = regions(&attrs, &x, call.slice(2)?)?;
    let mut y = made::<W>(call)?;
    let exec = &call.launch.exec;
    roi_align::<W>(
        exec,
        &sizes,
        x.as_slice()?,
        rois.as_slice()?,
        write(&mut y)?,
    )?;
    finish(call, y)
}

fn max_pool<W: Element + RoiKernels + convoke_kernels::math::Real>(
    call: &OpLaunch<'_, '_>,
) -> Result<Outputs, KernelFailure> {
    let attrs = RoiAttrs::max_pool(call.attrs)?;
    let (x, rois) = (given::<W>(call, 0)?, given::<W>(call, 1)?);
    // A region begins with the number of its image, and goes on with its corners.
    let count = rois.elements() / 5;
    let mut corners = call.scratch::<W>(4 * count)?;
    let mut images = call.scratch::<i64>(count)?;
    let (to, numbers) = (write::<W>(&mut corners)?, write::<i64>(&mut images)?);
    let rows = rois.as_slice::<W>()?.chunks_exact(5);
    for ((roi, to), number) in rows.zip(to.chunks_exact_mut(4)).zip(numbers) {
        *number = roi[0].to_f64() as i64;
        to.copy_from_slice(&roi[1..]);
    }
    let sizes = regions(&attrs, &x, images.as_slice()?)?;
    let mut y = made::<W>(call)?;
    let exec = &call.launch.exec;
    max_roi_pool::<W>(
        exec,
        &sizes,
        x.as_slice()?,
        corners.as_slice()?,
        write(&mut y)?,
    )?;
    finish(call, y)
}

/// Numbers of one to three axes, with `front` for axes in front of them; `None` of more axes, or none.
fn in_three_axes<T: Copy>(all: &[T], front: T) -> Option<[T; 3]> {
    match *all {
        [a] => Some([front, front, a]),
        [a, b] => Some([front, a, b]),
        [a, b, c] => Some([a, b, c]),
        _ => None,
    }
}

fn deform<W: Element + DeformKernels>(call: &OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    if is_empty(call) {
        return one(call.output(0)?);
    }
    let (x, w, offset) = (
        given::<W>(call, 0)?,
        given::<W>(call, 1)?,
        given::<W>(call, 2)?,
    );
    let optional = |i: usize| {
        call.optional(i)
            .map(|t| convert(call, t, W::DTYPE))
            .transpose()
    };
    let (bias, mask) = (optional(3)?, optional(4)?);
    let (&[batch, channels, ref map @ ..], &[filters, _, ref kernel @ ..]) = (x.shape(), w.shape())
    else {
        return Err(refused(&w));
    };
    let attrs = DeformAttrs::new(call.attrs, kernel)?;
    let (window, output) = (
        &attrs.window,
        call.out_shape(0).get(2..).unwrap_or_default(),
    );
    let pads: Vec<i64> = map
        .iter()
        .enumerate()
        .map(|(axis, len)| i64::try_from(window.pads(axis, *len).0).unwrap_or(i64::MAX))
        .collect();
    let of_three = |all: &[usize]| in_three_axes(all, 1).ok_or_else(|| refused(&x));
    let sizes = Deform {
        batch,
        channels,
        filters,
        groups: attrs.group,
        offset_groups: attrs.offset_group,
        axes: map.len(),
        map: of_three(map)?,
        kernel: of_three(kernel)?,
        output: of_three(output)?,
        strides: of_three(&window.strides)?,
        dilations: of_three(&window.dilations)?,
        pads: in_three_axes(&pads, 0).ok_or_else(|| refused(&x))?,
    };
    let (columns, products) = sizes.scratch();
    let (mut columns, mut products) = (call.scratch::<W>(columns)?, call.scratch::<W>(products)?);
    let operands = DeformOperands {
        w: w.as_slice::<W>()?,
        offset: offset.as_slice()?,
        bias: bias.as_ref().map(Tensor::as_slice).transpose()?,
        mask: mask.as_ref().map(Tensor::as_slice).transpose()?,
    };
    let mut y = made::<W>(call)?;
    deform_conv::<W>(
        &call.launch.exec,
        &sizes,
        x.as_slice()?,
        &operands,
        (write(&mut columns)?, write(&mut products)?),
        write(&mut y)?,
    )?;
    finish(call, y)
}

fn unpool<T>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure>
where
    T: convoke_kernels::pooling::UnpoolKernels + bytemuck::Pod,
{
    let x = call.input(0)?;
    let Some(spatial) = x.shape().get(2..) else {
        return Err(refused(x));
    };
    let window = Window::new(call.attrs, spatial.len(), None)?;
    let mut within = x.shape()[..2].to_vec();
    for (axis, input) in spatial.iter().enumerate() {
        // An axis without windows has no elements whose places could be asked for.
        within.push(unpooled_len(&window, axis, *input).unwrap_or(0));
    }
    let shape = call.out_shape(0);
    let fits = within.len() == shape.len() && within.iter().zip(shape).all(|(w, s)| w <= s);
    if !fits {
        return Err(KernelFailure::values(format!(
            "the output of shape {shape:?} does not hold the {within:?} that were pooled"
        )));
    }
    let mut y = call.output(0)?;
    max_unpool::<T>(
        &call.launch.exec,
        bits(x),
        call.slice(1)?,
        &within,
        shape,
        write_bits(&mut y)?,
    )?;
    one(y)
}

/// The only element of an optional operand; `None` where it is left out or empty.
fn scalar<T: Element>(call: &OpLaunch<'_, '_>, i: usize) -> Result<Option<T>, KernelFailure> {
    let given = call.optional_slice::<T>(i)?;
    Ok(given.and_then(|v| v.first().copied()))
}

fn suppression(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let scores = call.input(1)?;
    let &[batch, classes, boxes] = scores.shape() else {
        return Err(refused(scores));
    };
    let most = scalar::<i64>(&call, 2)?.unwrap_or(0).max(0);
    let sizes = Suppression {
        batch,
        classes,
        boxes,
        centred: flag(call.attrs, "center_point_box", false),
        most: usize::try_from(most).unwrap_or(usize::MAX),
        overlap: scalar(&call, 3)?.unwrap_or(0.0),
        score: scalar(&call, 4)?,
    };
    let room = sizes.bound().checked_mul(3);
    let room = room.ok_or_else(|| Error::internal("more boxes than an address range holds"))?;
    if u32::try_from(boxes).is_err() {
        return Err(KernelFailure::values(format!(
            "an image of {boxes} boxes; give fewer than 2^32"
        )));
    }
    let mut order = call.scratch::<i64>(boxes)?;
    let mut spare = call.scratch::<i64>(boxes)?;
    let mut columns = call.scratch::<f32>(sizes.scratch())?;
    let mut chosen = call.scratch::<i64>(room)?;
    let count = suppress(
        &call.launch.exec,
        &sizes,
        call.slice(0)?,
        scores.as_slice()?,
        (write(&mut order)?, write(&mut spare)?),
        write(&mut columns)?,
        write(&mut chosen)?,
    )?;
    let mut y = call.launch.pool.tensor(DType::I64, &[count, 3])?;
    write::<i64>(&mut y)?.copy_from_slice(&chosen.as_slice::<i64>()?[..3 * count]);
    one(y)
}

/// A kernel of square matrices of one size, which are overwritten.
type MatrixKernel<W> = fn(&Exec<'_>, usize, &mut [W], &mut [W]) -> Result<(), KernelError>;

/// The results of a kernel for the matrices of operand 0.
fn of_matrices<W: Element>(
    call: &OpLaunch<'_, '_>,
    kernel: MatrixKernel<W>,
) -> Result<Outputs, KernelFailure> {
    let x = given::<W>(call, 0)?;
    let side = x.shape().last().copied().unwrap_or(0);
    let mut work = call.scratch::<W>(x.elements())?;
    write::<W>(&mut work)?.copy_from_slice(x.as_slice()?);
    let mut y = made::<W>(call)?;
    kernel(&call.launch.exec, side, write(&mut work)?, write(&mut y)?)?;
    finish(call, y)
}
