//! ConvTranspose as a convolution.
//!
//! A transposed convolution of stride `s` is a convolution of the operand with `s - 1` zeros between its elements, by the
//! weights with their spatial axes reversed and their channels exchanged:
//!
//! ```text
//! X ── zeros between elements ──┐
//!                               ├── Conv (stride 1) ── Y
//! W ── channels exchanged, reversed ──┘     (once, at install)
//! ```
//!
//! Where the kernel is a whole number of strides long, no product meets one of these zeros: elements of the result that are
//! a stride apart are made by the same weights, so that each such *phase* is a channel of a smaller convolution. A channel of Y
//! has `s` phases where there is one spatial axis, and `s * s` where there are two.
//!
//! ```text
//! X ── Conv, a channel for each phase of Y ── phases between each other ── Y without its padding
//! ```

use convoke_graph::graph::{Attr, Attrs, ValueId};

use crate::onnx::builder::Builder;
use crate::onnx::normalize::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, unsupported,
};

/// The bound of the length that a kernel covers along an axis, to which numbers of 2^31 are added. No tensor is that
/// long.
const MOST_EXTENT: i64 = 1 << 60;

/// The numbers of one spatial axis.
#[derive(Clone, Copy)]
struct SpatialAxis {
    /// The distance between the first and the last element under the kernel.
    extent: i64,
    stride: i64,
    dilation: i64,
    output_padding: i64,
    /// Padding that the transposed convolution removes from the beginning and the end of its result.
    pads: (i64, i64),
}

impl SpatialAxis {
    /// Padding of the convolution; a negative number removes elements.
    fn convolution_pads(&self) -> (i64, i64) {
        let (begin, end) = self.pads;
        (self.extent - begin, self.extent - end + self.output_padding)
    }
}

/// Imports ConvTranspose.
pub(in crate::onnx::normalize) fn conv_transpose(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let (x, w) = (c.need(0)?, c.need(1)?);
    let shape = b.ty(w).and_then(|ty| ty.fixed_shape());
    let shape = shape.ok_or_else(|| unsupported("weights of a shape that is not known"))?;
    let shape: Vec<i64> = shape.iter().map(|d| *d as i64).collect();
    if shape.len() < 3 || shape.contains(&0) {
        return Err(c.error(format!("weights of shape {shape:?}")).into());
    }
    let group = c.take_int("group")?.unwrap_or(1);
    if group < 1 || shape[0] % group != 0 {
        let reason = format!("{} channels are not {group} groups", shape[0]);
        return Err(c.error(reason).into());
    }
    let axes = spatial_axes(b, &mut c, x, &shape[2..])?;
    if let Some(stride) = phases(&axes) {
        return by_phases(b, c, (x, w), &shape, group, (&axes, stride));
    }
    let w = exchanged(b, &c, w, &shape, group)?;
    let mut x = x;
    for (i, axis) in axes.iter().enumerate() {
        if axis.stride > 1 {
            x = spread(b, &c, x, (shape.len(), 2 + i), axis.stride)?;
        }
    }
    let pads: Vec<_> = axes.iter().map(SpatialAxis::convolution_pads).collect();
    if pads.iter().any(|(begin, end)| *begin < 0 || *end < 0) {
        let cut = |side: fn(&(i64, i64)) -> i64| {
            let cut = pads.iter().map(move |p| side(p).min(0));
            [0, 0].into_iter().chain(cut)
        };
        let both: Vec<i64> = cut(|p| p.0).chain(cut(|p| p.1)).collect();
        let both = b.ints(&c.sub("cut"), &both)?;
        x = c.before(b, "Pad", Attrs::default(), vec![Some(x), Some(both)])?;
    }
    let begins = pads.iter().map(|p| p.0.max(0));
    let ends = pads.iter().map(|p| p.1.max(0));
    let dilations = axes.iter().map(|a| a.dilation).collect();
    let attrs = Attrs::default()
        .with("group", Attr::Int(group))
        .with("dilations", Attr::Ints(dilations))
        .with("pads", Attr::Ints(begins.chain(ends).collect()));
    let bias = c.input(2);
    c.finish(b, "Conv", attrs, vec![Some(x), Some(w), bias])
}

/// The stride of all axes, where the convolution has phases: the kernel is a whole number of strides long, and the result
/// has no element beyond its reach, and at least one.
fn phases(axes: &[SpatialAxis]) -> Option<i64> {
    let stride = axes.first()?.stride;
    let fits = |a: &SpatialAxis| {
        a.stride == stride
            && a.dilation == 1
            && (a.extent + 1) % stride == 0
            && a.output_padding <= a.pads.1
            && a.pads.0 + a.pads.1 - a.output_padding <= a.extent
    };
    (stride > 1 && axes.len() <= 2 && axes.iter().all(fits)).then_some(stride)
}

/// Imports a transposed convolution in one or two spatial axes that has phases.
fn by_phases(
    b: &mut Builder,
    c: ImportedNode,
    (x, w): (ValueId, ValueId),
    shape: &[i64],
    group: i64,
    (axes, stride): (&[SpatialAxis], i64),
) -> Outputs {
    let (channels, n) = (shape[0], axes.len());
    let lengths: Vec<i64> = shape[2..].iter().map(|k| k / stride).collect();
    let count = stride.pow(n as u32);
    let made = shape[1].checked_mul(group);
    let all = made.and_then(|made| made.checked_mul(count));
    let (made, all) = made.zip(all).ok_or_else(|| c.error("too many channels"))?;
    let mut e = Expansion { b, c: &c };
    // The weights [C, M/group, K..] as [M * phases, C/group, K/stride..], reversed.
    let mut parts = vec![group, channels / group, shape[1]];
    parts.extend(lengths.iter().flat_map(|length| [*length, stride]));
    let w = e.reshaped(w, &parts)?;
    let phase = (0..n).map(|i| 4 + 2 * i);
    let perm: Vec<usize> = [0, 2]
        .into_iter()
        .chain(phase)
        .chain([1])
        .chain((0..n).map(|i| 3 + 2 * i))
        .collect();
    let w = e.transposed(w, &perm)?;
    let w = e.reshaped(w, &[&[all, channels / group], &lengths[..]].concat())?;
    let w = reversed(&mut e, w, n)?;
    let pads = lengths.iter().chain(&lengths).map(|length| length - 1);
    let attrs = Attrs::default()
        .with("group", Attr::Int(group))
        .with("pads", Attr::Ints(pads.collect()));
    let mut operands = vec![x, w];
    if let Some(bias) = c.input(2) {
        let column = e.unsqueezed(bias, &[1])?;
        let wide = e.ints("phases", &[made, count])?;
        let wide = e.plain("Expand", &[column, wide])?;
        operands.push(e.reshaped(wide, &[all])?);
    }
    let mut y = e.op("Conv", attrs, &operands)?;
    y = match n {
        1 => {
            let apart = e.reshaped(y, &[0, made, stride, -1])?;
            let between = e.transposed(apart, &[0, 1, 3, 2])?;
            e.reshaped(between, &[0, made, -1])?
        }
        _ => {
            let attrs = Attrs::default()
                .with("blocksize", Attr::Int(stride))
                .with("mode", Attr::Str("CRD".into()));
            e.op("DepthToSpace", attrs, &[y])?
        }
    };
    let removed = |a: &SpatialAxis| (a.pads.0, a.pads.1 - a.output_padding);
    let cut: Vec<_> = (2..).zip(axes.iter().map(removed)).collect();
    let cut = cut.into_iter().filter(|(_, removed)| *removed != (0, 0));
    let (mut starts, mut ends, mut along) = (Vec::new(), Vec::new(), Vec::new());
    for (axis, (start, end)) in cut {
        along.push(axis);
        starts.push(start);
        ends.push(if end == 0 { i64::MAX } else { -end });
    }
    if along.is_empty() {
        return Ok(vec![e.last(0, "Identity", Attrs::default(), &[y])?]);
    }
    let operands = [
        y,
        e.ints("starts", &starts)?,
        e.ints("ends", &ends)?,
        e.ints("axes", &along)?,
    ];
    Ok(vec![e.last(0, "Slice", Attrs::default(), &operands)?])
}

/// The numbers of each spatial axis, from the attributes.
fn spatial_axes(
    b: &Builder,
    c: &mut ImportedNode,
    x: ValueId,
    kernel: &[i64],
) -> Result<Vec<SpatialAxis>, ImportFailure> {
    let n = kernel.len();
    let given = c.take_ints("kernel_shape")?;
    if given.is_some_and(|given| given != kernel) {
        return Err(c.error("kernel_shape is not that of the weights").into());
    }
    let strides = list(c, "strides", n, 1)?;
    let dilations = list(c, "dilations", n, 1)?;
    let paddings = list(c, "output_padding", n, 0)?;
    let pads = list(c, "pads", 2 * n, 0)?;
    let auto_pad = match c.take("auto_pad") {
        None => "NOTSET".to_owned(),
        Some(Attr::Str(mode)) => mode.to_string(),
        Some(_) => return Err(c.wrong("auto_pad", "a string").into()),
    };
    let (same, upper) = match auto_pad.as_str() {
        "SAME_UPPER" => (true, true),
        "SAME_LOWER" => (true, false),
        "NOTSET" | "VALID" | "" => (false, false),
        _ => return Err(c.wrong("auto_pad", "a mode of padding").into()),
    };
    let sizes = c.take_ints("output_shape")?;
    if sizes.as_ref().is_some_and(|sizes| sizes.len() != n) {
        return Err(c
            .wrong("output_shape", "one size for each spatial axis")
            .into());
    }
    let mut axes = Vec::with_capacity(n);
    for i in 0..n {
        let extent = dilations[i].checked_mul(kernel[i] - 1);
        let extent = extent.filter(|extent| *extent < MOST_EXTENT);
        let mut axis = SpatialAxis {
            extent: extent.ok_or_else(|| c.error("the kernel is too large"))?,
            stride: strides[i],
            dilation: dilations[i],
            output_padding: paddings[i],
            pads: (pads[i], pads[n + i]),
        };
        if axis.stride == 0 || axis.dilation == 0 {
            return Err(c.error("strides and dilations must be above zero").into());
        }
        // The total padding that is removed, where the size of the result decides it.
        let full = axis.extent + 1 + axis.output_padding;
        let removed = match &sizes {
            Some(sizes) => {
                let length = b.ty(x).and_then(|ty| ty.shape.get(2 + i)?.as_const());
                let length = length
                    .ok_or_else(|| unsupported("output_shape where the operand's is not known"))?;
                let whole = (length - 1)
                    .checked_mul(axis.stride)
                    .and_then(|all| all.checked_add(full)?.checked_sub(sizes[i]));
                Some(whole.ok_or_else(|| c.wrong("output_shape", "a list of sizes"))?)
            }
            None if same => Some(full - axis.stride),
            None => None,
        };
        if let Some(removed) = removed {
            // A result that is larger than what the kernel reaches has zeros at its end.
            let (lack, removed) = (removed.min(0), removed.max(0));
            let less = removed / 2;
            axis.pads = match upper {
                true => (less, removed - less + lack),
                false => (removed - less, less + lack),
            };
        }
        axes.push(axis);
    }
    Ok(axes)
}

/// Takes an attribute of `n` numbers from 0 to 2^31, each of which is `default` where the attribute is absent.
fn list(
    c: &mut ImportedNode,
    attr: &str,
    n: usize,
    default: i64,
) -> Result<Vec<i64>, ImportFailure> {
    let values = c.take_ints(attr)?.unwrap_or_else(|| vec![default; n]);
    let fits = |v: &i64| (0..1 << 31).contains(v);
    if values.len() != n || !values.iter().all(fits) {
        return Err(c.wrong(attr, &format!("{n} numbers from 0 to 2^31")).into());
    }
    Ok(values)
}

/// The weights `[C, M/group, ..]` as `[M, C/group, ..]`, with their spatial axes reversed.
fn exchanged(
    b: &mut Builder,
    c: &ImportedNode,
    w: ValueId,
    shape: &[i64],
    group: i64,
) -> Result<ValueId, ImportFailure> {
    let (channels, made, spatial) = (shape[0], shape[1], &shape[2..]);
    let reshaped = |b: &mut Builder, w: ValueId, to: Vec<i64>| {
        let to = b.ints(&c.sub("shape"), &to)?;
        c.before(b, "Reshape", Attrs::default(), vec![Some(w), Some(to)])
    };
    let grouped = [&[group, channels / group, made], spatial].concat();
    let mut w = reshaped(b, w, grouped)?;
    let rest = 3..3 + spatial.len() as i64;
    let perm = [0, 2, 1].into_iter().chain(rest).collect();
    let perm = Attrs::default().with("perm", Attr::Ints(perm));
    w = c.before(b, "Transpose", perm, vec![Some(w)])?;
    let all = made
        .checked_mul(group)
        .ok_or_else(|| c.error("too many channels"))?;
    w = reshaped(b, w, [&[all, channels / group], spatial].concat())?;
    reversed(&mut Expansion { b, c }, w, spatial.len())
}

/// Weights with their `n` spatial axes reversed.
fn reversed(e: &mut Expansion<'_>, w: ValueId, n: usize) -> Made {
    let axes: Vec<i64> = (2..2 + n as i64).collect();
    let operands = [
        w,
        e.ints("starts", &vec![-1; n])?,
        e.ints("ends", &vec![i64::from(i32::MIN); n])?,
        e.ints("axes", &axes)?,
        e.ints("steps", &vec![-1; n])?,
    ];
    e.plain("Slice", &operands)
}

/// Puts `stride - 1` zeros between the elements of `x` along an axis.
fn spread(
    b: &mut Builder,
    c: &ImportedNode,
    x: ValueId,
    (rank, axis): (usize, usize),
    stride: i64,
) -> Result<ValueId, ImportFailure> {
    let last = rank - 1;
    let mut perm: Vec<i64> = (0..rank as i64).collect();
    perm.swap(axis, last);
    let swapped = |b: &mut Builder, x: ValueId| match axis == last {
        true => Ok(x),
        false => {
            let perm = Attrs::default().with("perm", Attr::Ints(perm.clone()));
            c.before(b, "Transpose", perm, vec![Some(x)])
        }
    };
    let mut x = swapped(b, x)?;
    let behind = b.ints(&c.sub("axes"), &[-1])?;
    x = c.before(
        b,
        "Unsqueeze",
        Attrs::default(),
        vec![Some(x), Some(behind)],
    )?;
    let mut zeros = vec![0; 2 * (rank + 1)];
    zeros[2 * rank + 1] = stride - 1;
    let zeros = b.ints(&c.sub("zeros"), &zeros)?;
    x = c.before(b, "Pad", Attrs::default(), vec![Some(x), Some(zeros)])?;
    let mut merged = vec![0; rank];
    merged[last] = -1;
    let merged = b.ints(&c.sub("shape"), &merged)?;
    x = c.before(b, "Reshape", Attrs::default(), vec![Some(x), Some(merged)])?;
    x = swapped(b, x)?;
    // The zeros behind the last element are not between elements.
    let operands = [
        Some(x),
        Some(b.ints(&c.sub("starts"), &[0])?),
        Some(b.ints(&c.sub("ends"), &[1 - stride])?),
        Some(b.ints(&c.sub("axes"), &[axis as i64])?),
    ];
    Ok(c.before(b, "Slice", Attrs::default(), operands.into())?)
}
