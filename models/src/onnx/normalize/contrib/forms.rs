//! Ops that ONNX has in another form.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs};

use super::super::super::builder::Builder;
use super::super::node::{Expansion, ImportedNode, Outputs, axis_of, perm_of};

/// Imports ExpandDims, whose axis is a scalar.
pub(super) fn expand_dims(b: &mut Builder, c: ImportedNode) -> Outputs {
    let (x, axis) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b, c: &c };
    let axis = e.reshaped(axis, &[1])?;
    let axis = e.cast(axis, DType::I64)?;
    Ok(vec![e.last(
        0,
        "Unsqueeze",
        Attrs::default(),
        &[x, axis],
    )?])
}

/// Imports GatherND without axes of a batch.
pub(super) fn gather_nd(b: &mut Builder, c: ImportedNode) -> Outputs {
    let (x, indices) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b, c: &c };
    let indices = e.cast(indices, DType::I64)?;
    Ok(vec![e.last(
        0,
        "GatherND",
        Attrs::default(),
        &[x, indices],
    )?])
}

/// Imports Range, whose operands may be lists of one number, and whose last one may be left out.
pub(super) fn range(b: &mut Builder, c: ImportedNode) -> Outputs {
    let (start, limit) = (c.need(0)?, c.need(1)?);
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let mut e = Expansion { b, c: &c };
    let dtype = e.ty(start)?.dtype;
    let step = match c.input(2) {
        Some(step) => step,
        None => {
            let one = e.int("step", 1)?;
            e.cast(one, dtype)?
        }
    };
    let mut operands = vec![];
    for x in [start, limit, step] {
        operands.push(match e.shape(x)?.is_empty() {
            true => x,
            false => e.reshaped(x, &[])?,
        });
    }
    Ok(vec![e.last(0, "Range", Attrs::default(), &operands)?])
}

/// Imports Pad, whose padding may be a matrix of one row, and whose value a list of one number.
pub(super) fn pad(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let attrs = std::mem::take(&mut c.attrs);
    let mut operands = vec![c.need(0)?];
    let mut e = Expansion { b, c: &c };
    let pads = c.need(1)?;
    operands.push(match e.shape(pads)?.len() {
        2 => e.reshaped(pads, &[-1])?,
        _ => pads,
    });
    if let Some(value) = c.input(2) {
        operands.push(match e.shape(value)?.len() {
            1 => e.reshaped(value, &[])?,
            _ => value,
        });
    }
    Ok(vec![e.last(0, "Pad", attrs, &operands)?])
}

/// Imports Unique of a list: its different elements in the order in which they occur, the place of each element among
/// them, and how often each occurs.
pub(super) fn unique(b: &mut Builder, c: ImportedNode) -> Outputs {
    c.no_more_attributes()?;
    let x = c.need(0)?;
    let attrs = Attrs::default().with("sorted", Attr::Int(0));
    let name = |o: usize| c.outputs.get(o).cloned().unwrap_or_default();
    let outputs = [name(0), String::new(), name(1), name(2)];
    let made = b.emit("Unique", &c.name, attrs, vec![Some(x)], &outputs)?;
    let [y, _, places, counts] = made[..] else {
        return Err(c.error("has no results").into());
    };
    let mut out = vec![y, places, counts];
    out.truncate(c.outputs.len());
    Ok(out)
}

/// Imports UnfoldTensor: windows of `size` elements along an axis, which become the last axis.
pub(super) fn unfold(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let (dim, step) = (
        c.take_int("dim")?.unwrap_or(-1),
        c.take_int("step")?.unwrap_or(1),
    );
    let size = c.take_int("size")?.filter(|size| *size > 0);
    let size = size.ok_or_else(|| c.wrong("size", "above zero"))?;
    if step < 1 {
        return Err(c.wrong("step", "above zero").into());
    }
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let x = c.need(0)?;
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    let rank = e.shape(x)?.len() as i64;
    let axis = if dim < 0 { dim + rank } else { dim };
    if !(0..rank).contains(&axis) {
        return Err(c.wrong("dim", "an axis of the operand").into());
    }
    let known = e.shape(x)?[axis as usize].as_const();
    if known.is_some_and(|length| length < size) {
        let msg = format!("windows of {size} elements do not fit axis {axis} of the operand");
        return Err(c.error(msg).into());
    }
    let length = e.length(x, axis)?;
    let length = e.scalar(length)?;
    let (step, size) = (e.int("step", step)?, e.int("size", size)?);
    let more = e.plain("Sub", &[length, size])?;
    let more = e.plain("Div", &[more, step])?;
    let one = e.int("one", 1)?;
    let count = e.plain("Add", &[more, one])?;
    // Where not even the first window fits, it is made all the same: to gather its elements is an error.
    let count = match known {
        Some(_) => count,
        None => e.plain("Max", &[count, one])?,
    };
    let window = e.counted(count)?;
    let first = e.plain("Mul", &[window, step])?;
    let first = e.unsqueezed(first, &[1])?;
    let within = e.counted(size)?;
    let places = e.plain("Add", &[first, within])?;
    let windows = e.op("Gather", axis_of(axis), &[x, places])?;
    let mut perm: Vec<usize> = (0..=rank as usize).collect();
    perm[axis as usize + 1..].rotate_left(1);
    Ok(vec![e.last(0, "Transpose", perm_of(&perm), &[windows])?])
}
