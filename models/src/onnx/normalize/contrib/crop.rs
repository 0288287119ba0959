//! CropAndResize: parts of images at one size, whose corners are those of the parts.
//!
//! ```text
//! X [n, c, h, w] ── rows of channels [n * h * w, c] ── Gather of the places around a sample ── weighted sum ── Y
//! ```

use convoke_graph::DType;
use convoke_graph::graph::ValueId;

use super::super::super::builder::Builder;
use super::super::node::{Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, perm_of};

/// The samples along one spatial axis: of each part, as many as the result has.
struct Samples {
    /// Whether a sample lies within the image.
    inside: ValueId,
    /// The place before a sample, and the place after it.
    places: [ValueId; 2],
    /// How far a sample lies behind the place before it.
    part: ValueId,
}

/// Imports CropAndResize.
pub(super) fn crop_and_resize(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let outside = c.take_float("extrapolation_value")?.unwrap_or(0.0);
    let nearest = match c.take_name("mode")?.as_deref() {
        None | Some("bilinear") => false,
        Some("nearest") => true,
        Some(_) => return Err(c.wrong("mode", "bilinear or nearest").into()),
    };
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (x, parts, images, size) = (c.need(0)?, c.need(1)?, c.need(2)?, c.need(3)?);
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    if e.shape(x)?.len() != 4 || e.shape(parts)?.len() != 2 {
        return Err(c.error("X must have rank 4, and rois rank 2").into());
    }
    let [of_part] = &e.shape(images)?[..] else {
        return Err(c.error("batch_indices must have rank 1").into());
    };
    let counts = (e.shape(parts)?[0].as_const(), of_part.as_const());
    if let (Some(parts), Some(images)) = counts
        && parts != images
    {
        let reason = format!("batch_indices has {images} elements for {parts} rois");
        return Err(c.error(reason).into());
    }
    let size = e.cast(size, DType::I64)?;
    let [height, width] = [2, 3].map(|axis| e.length(x, axis));
    let (height, width) = (height?, width?);
    let rows = samples(e, parts, (0, 2), height, size, 0, nearest)?;
    let columns = samples(e, parts, (1, 3), width, size, 1, nearest)?;
    // Samples are [parts, rows, columns, channels].
    let of_channels = e.transposed(x, &[0, 2, 3, 1])?;
    let channels = e.length(x, 1)?;
    let rest = e.ints("rest", &[-1])?;
    let flat = e.joined(0, &[rest, channels])?;
    let flat = e.plain("Reshape", &[of_channels, flat])?;
    let images = e.cast(images, DType::I64)?;
    // A number below zero is none of an image, and Gather must refuse it: it becomes one that is too large.
    let zero = e.int("zero", 0)?;
    let all = e.length(x, 0)?;
    let negative = e.plain("Less", &[images, zero])?;
    let images = e.plain("Where", &[negative, all, images])?;
    let images = e.unsqueezed(images, &[1])?;
    let first = e.plain("Mul", &[images, height])?;
    let row_part = e.unsqueezed(rows.part, &[2, 3])?;
    let column_part = e.unsqueezed(columns.part, &[1, 3])?;
    let mut lines = Vec::new();
    for row in rows.places {
        let line = e.plain("Add", &[first, row])?;
        let line = e.plain("Mul", &[line, width])?;
        let line = e.unsqueezed(line, &[2])?;
        let mut ends = Vec::new();
        for column in columns.places {
            let column = e.unsqueezed(column, &[1])?;
            let place = e.plain("Add", &[line, column])?;
            ends.push(e.op("Gather", axis_of(0), &[flat, place])?);
        }
        lines.push(between(e, ends[0], ends[1], column_part)?);
    }
    let y = between(e, lines[0], lines[1], row_part)?;
    let row_inside = e.unsqueezed(rows.inside, &[2, 3])?;
    let column_inside = e.unsqueezed(columns.inside, &[1, 3])?;
    let inside = e.plain("And", &[row_inside, column_inside])?;
    let dtype = e.ty(x)?.dtype;
    let outside = e.float("outside", dtype, outside.into())?;
    let y = e.plain("Where", &[inside, y, outside])?;
    Ok(vec![e.last(
        0,
        "Transpose",
        perm_of(&[0, 3, 1, 2]),
        &[y],
    )?])
}

/// The samples along an axis of `length` places, from column `from` of the parts to column `to`.
fn samples(
    e: &mut Expansion<'_>,
    parts: ValueId,
    (from, to): (i64, i64),
    length: ValueId,
    size: ValueId,
    which: i64,
    nearest: bool,
) -> Result<Samples, ImportFailure> {
    let dtype = e.ty(parts)?.dtype;
    let one = e.ints("one", &[1])?;
    let last = e.plain("Sub", &[length, one])?;
    let last = e.cast(last, dtype)?;
    let from = e.slice(parts, 1, from, from + 1, 1)?;
    let to = e.slice(parts, 1, to, to + 1, 1)?;
    let (begin, end) = (e.plain("Mul", &[from, last])?, e.plain("Mul", &[to, last])?);
    let count = e.slice(size, 0, which, which + 1, 1)?;
    let intervals = e.plain("Sub", &[count, one])?;
    let several = e.plain("Greater", &[count, one])?;
    // One sample lies in the middle of its part.
    let divisor = e.plain("Max", &[intervals, one])?;
    let divisor = e.cast(divisor, dtype)?;
    let span = e.plain("Sub", &[to, from])?;
    let span = e.plain("Mul", &[span, last])?;
    let step = e.plain("Div", &[span, divisor])?;
    let count = e.scalar(count)?;
    let number = e.counted(count)?;
    let is_last = e.plain("Equal", &[number, intervals])?;
    let number = e.cast(number, dtype)?;
    let way = e.plain("Mul", &[step, number])?;
    let spread = e.plain("Add", &[begin, way])?;
    // The last sample lies at the end itself, which rounding would leave the image by.
    let spread = e.plain("Where", &[is_last, end, spread])?;
    let half = e.float("half", dtype, 0.5)?;
    let sum = e.plain("Add", &[from, to])?;
    let middle = e.plain("Mul", &[sum, half])?;
    let middle = e.plain("Mul", &[middle, last])?;
    let place = e.plain("Where", &[several, spread, middle])?;
    let zero = e.float("zero", dtype, 0.0)?;
    let after = e.plain("GreaterOrEqual", &[place, zero])?;
    let before = e.plain("LessOrEqual", &[place, last])?;
    let inside = e.plain("And", &[after, before])?;
    let mut place = e.plain("Max", &[place, zero])?;
    place = e.plain("Min", &[place, last])?;
    if nearest {
        place = e.plain("Add", &[place, half])?;
        place = e.plain("Floor", &[place])?;
    }
    let low = e.plain("Floor", &[place])?;
    let high = e.plain("Ceil", &[place])?;
    Ok(Samples {
        inside,
        part: e.plain("Sub", &[place, low])?,
        places: [e.cast(low, DType::I64)?, e.cast(high, DType::I64)?],
    })
}

/// The value at `part` of the way from one value to another.
fn between(e: &mut Expansion<'_>, from: ValueId, to: ValueId, part: ValueId) -> Made {
    let way = e.plain("Sub", &[to, from])?;
    let way = e.plain("Mul", &[way, part])?;
    e.plain("Add", &[from, way])
}
