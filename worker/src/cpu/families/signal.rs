//! Transforms of signals, and sums of overlapping blocks.

use convoke_graph::ops::attrs::{DftAttrs, FoldAttrs};
use convoke_graph::ops::{OpError, SignalOp, normalize_axis};
use convoke_graph::{Element, Outputs};
use convoke_kernels::element::{Float, Number};
use convoke_kernels::shape::Axis;
use convoke_kernels::signal::{self, Dft, Fold};

use crate::cpu::dispatch::by_dtype;
use crate::cpu::kernel::{FamilyAnswer, KernelFailure, OpLaunch, Spec, body, one, write};

pub(super) fn find(op: SignalOp, spec: &Spec<'_>) -> FamilyAnswer {
    let dtype = spec.dtype(0)?;
    let found = match op {
        SignalOp::Col2Im => by_dtype!(number dtype, T => body(folded::<T>)?),
        SignalOp::DFT => by_dtype!(float dtype, T => body(transformed::<T>)?),
    };
    found.ok_or_else(|| spec.no_dtype(dtype))
}

fn transformed<T: Element + Float>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let attrs = DftAttrs::new(call.attrs);
    let shape = call.shape(0)?;
    let one_of = |values: Option<Vec<i64>>| values.and_then(|v| v.first().copied());
    let axis = normalize_axis(one_of(call.ints(2)?).unwrap_or(-2), shape.len())?;
    let bad = |what: String| Err(KernelFailure::values(what));
    let Some((parts, rest)) = shape.split_last() else {
        return bad("a scalar cannot be transformed".into());
    };
    if axis == rest.len()
        || !(1..=2).contains(parts)
        || (attrs.one_sided && !attrs.inverse && *parts == 2)
    {
        return bad(format!("axis {axis} of {shape:?} cannot be transformed"));
    }
    let length = match one_of(call.ints(1)?) {
        Some(length) => usize::try_from(length).unwrap_or(0),
        None if attrs.to_real() => 2 * rest[axis].saturating_sub(1),
        None => rest[axis],
    };
    let complex = *parts == 2;
    let dft = Dft::new(
        length.max(1),
        Axis::of(rest, axis),
        complex,
        attrs.inverse,
        attrs.one_sided,
    );
    let scratch = dft.and_then(|dft| dft.scratch_len());
    let (Some(dft), Some(scratch), true) = (dft, scratch, length > 0) else {
        return bad(format!("a transform of length {length} does not exist"));
    };
    let mut scratch = call.scratch::<f64>(scratch)?;
    let mut y = call.output(0)?;
    signal::dft::<T>(
        &call.launch.exec,
        call.slice(0)?,
        &dft,
        write(&mut scratch)?,
        write(&mut y)?,
    )?;
    one(y)
}

fn folded<T: Element + Number>(call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let lengths = |i: usize| -> Result<Vec<usize>, KernelFailure> {
        let all = call.ints(i)?.unwrap_or_default();
        let length = |d: &i64| usize::try_from(*d).ok().filter(|d| *d > 0);
        let all: Option<Vec<usize>> = all.iter().map(length).collect();
        all.ok_or_else(|| KernelFailure::values("the lengths of a block must be above zero"))
    };
    let (image, block) = (lengths(1)?, lengths(2)?);
    let bad = |e: OpError| KernelFailure::values(e.to_string());
    let attrs = FoldAttrs::new(call.attrs, image.len()).map_err(bad)?;
    let positions = attrs.positions(&image, &block).map_err(bad)?;
    let product = |all: &[usize]| all.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let fits = match (call.shape(0)?, product(&block), product(&positions)) {
        (&[_, rows, columns], Some(size), Some(all)) => rows % size == 0 && columns == all,
        _ => false,
    };
    if !fits || image.len() != block.len() || image.is_empty() {
        return Err(KernelFailure::values(format!(
            "{:?} does not hold the blocks {block:?} of images {image:?}",
            call.input(0)?
        )));
    }
    let mut y = call.output(0)?;
    let fold = Fold {
        image: &image,
        block: &block,
        strides: &attrs.strides,
        dilations: &attrs.dilations,
        pads: &attrs.pads,
        positions: &positions,
    };
    signal::col2im::<T>(&call.launch.exec, call.slice(0)?, &fold, write(&mut y)?)?;
    one(y)
}
