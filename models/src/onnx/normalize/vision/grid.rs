//! AffineGrid.

use convoke_graph::DType;
use convoke_graph::graph::{Attrs, ValueId};

use crate::onnx::builder::Builder;
use crate::onnx::normalize::node::{Expansion, ImportedNode, Made, Outputs, unsupported};

/// Imports AffineGrid: the places of all elements of an image, from -1 to 1, times a matrix for each element of the
/// batch.
pub(in crate::onnx::normalize) fn affine_grid(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let corners = c.take_flag("align_corners", false)?;
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (theta, size) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b, c: &c };
    let shape = e.shape(size)?;
    let axes = match shape.as_slice() {
        [rank] => rank.as_const(),
        _ => None,
    };
    let axes = match axes {
        Some(4) => 2,
        Some(5) => 3,
        Some(_) => return Err(c.error("size must have four or five elements").into()),
        None => return Err(unsupported("a size of a length that is not known")),
    };
    let ty = e.ty(theta)?;
    let fits = |at: usize, want: i64| ty.shape[at].as_const().is_none_or(|d| d == want);
    if ty.shape.len() != 3 || !fits(1, axes) || !fits(2, axes + 1) {
        let reason = format!("theta must be [N, {axes}, {}]", axes + 1);
        return Err(c.error(reason).into());
    }
    let dtype = ty.dtype;
    let precise = match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let image = e.slice(size, 0, 2, i64::MAX, 1)?;
    let one = e.float("one", precise, 1.0)?;
    let ones = e.plain("Expand", &[one, image])?;
    // The last axis of an image is its first coordinate.
    let mut columns = Vec::new();
    for axis in (0..axes).rev() {
        let places = places(&mut e, size, axis + 2, corners, precise)?;
        let behind: Vec<i64> = (1..axes - axis).collect();
        let places = e.unsqueezed(places, &behind)?;
        columns.push(e.plain("Mul", &[ones, places])?);
    }
    columns.push(ones);
    for column in &mut columns {
        *column = e.unsqueezed(*column, &[axes])?;
    }
    let grid = e.joined(axes, &columns)?;
    let grid = e.reshaped(grid, &[-1, axes + 1])?;
    let grid = e.cast(grid, dtype)?;
    let theta = e.transposed(theta, &[0, 2, 1])?;
    let grid = e.plain("MatMul", &[grid, theta])?;
    let batch = e.slice(size, 0, 0, 1, 1)?;
    let last = e.ints("last", &[axes])?;
    let shape = e.joined(0, &[batch, image, last])?;
    Ok(vec![e.last(
        0,
        "Reshape",
        Attrs::default(),
        &[grid, shape],
    )?])
}

/// The coordinates of the elements along one axis of an image.
fn places(e: &mut Expansion<'_>, size: ValueId, axis: i64, corners: bool, dtype: DType) -> Made {
    let length = e.slice(size, 0, axis, axis + 1, 1)?;
    let length = e.scalar(length)?;
    let count = e.counted(length)?;
    let count = e.cast(count, dtype)?;
    let one = e.float("one", dtype, 1.0)?;
    let two = e.float("two", dtype, 2.0)?;
    let doubled = e.plain("Mul", &[count, two])?;
    let (numerator, denominator) = match corners {
        false => (e.plain("Add", &[doubled, one])?, length),
        true => {
            // A single element lies at -1.
            let step = e.int("step", 1)?;
            let last = e.plain("Sub", &[length, step])?;
            (doubled, e.plain("Max", &[last, step])?)
        }
    };
    let denominator = e.cast(denominator, dtype)?;
    let share = e.plain("Div", &[numerator, denominator])?;
    e.plain("Sub", &[share, one])
}
