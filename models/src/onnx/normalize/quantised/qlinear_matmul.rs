//! QLinearMatMul of operands that its kernel does not take.
//!
//! ```text
//! a ──┬── MatMulInteger, or MatMul of numbers where one has float8 ── · (a scale · b scale / y scale) ── rounded ── + zero point ── y
//! b ──┘
//! ```

use convoke_graph::graph::{Attrs, ValueId};
use convoke_graph::{DType, Dim, Tensor};

use super::super::super::builder::Builder;
use super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, to_dtype, unsupported,
};

/// The dtypes of codes that ONNX allows.
const CODES: [DType; 6] = [
    DType::I8,
    DType::U8,
    DType::F8E4M3FN,
    DType::F8E4M3FNUZ,
    DType::F8E5M2,
    DType::F8E5M2FNUZ,
];

/// The side of the product that parameters belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// A number for each row.
    Rows,
    /// A number for each column.
    Columns,
}

/// Imports QLinearMatMul. The op of the graph has one scale, or a list of scales, for each operand of codes; other operands
/// are computed by their meaning, with the same numbers.
pub(in super::super) fn qlinear_matmul(b: &mut Builder, c: ImportedNode) -> Outputs {
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    for i in [0, 3, 7] {
        let dtype = c.dtype(b, i);
        if !CODES.contains(&dtype) {
            return Err(unsupported(format!("operand {i} of {dtype}")));
        }
    }
    let listed = |i: usize| {
        let ty = c.input(i).and_then(|id| b.ty(id));
        ty.is_none_or(|ty| ty.shape.len() < 2)
    };
    let of_codes = |i: usize| matches!(c.dtype(b, i), DType::I8 | DType::U8);
    if [0, 3, 7].into_iter().all(of_codes) && [1, 4, 6, 7].into_iter().all(listed) {
        return c.emit(b);
    }
    c.no_more_attributes()?;
    let codes = of_codes(0) && of_codes(3);
    let mut e = Expansion { b, c: &c };
    let sums = match codes {
        true => sums_of_codes(&mut e)?,
        false => sums_of_numbers(&mut e)?,
    };
    let (left, right) = (c.need(0)?, c.need(3)?);
    let of_a = parameter(&mut e, 1, left, Side::Rows)?;
    let of_b = parameter(&mut e, 4, right, Side::Columns)?;
    let of_y = parameter(&mut e, 6, sums, Side::Rows)?;
    let operands = e.plain("Mul", &[of_a, of_b])?;
    let factor = e.plain("Div", &[operands, of_y])?;
    let y = e.plain("Mul", &[sums, factor])?;
    let to = e.ty(c.need(7)?)?.dtype;
    let zero = parameter(&mut e, 7, sums, Side::Rows)?;
    if to.is_narrow() {
        // The zero point of float8 is zero; to add it shows that of NaN.
        let y = e.plain("Add", &[y, zero])?;
        return c.finish(b, "Cast", to_dtype(to), vec![Some(y)]);
    }
    let (low, high) = match to {
        DType::I8 => (-128f32, 127f32),
        _ => (0., 255.),
    };
    let rounded = e.plain("Round", &[y])?;
    let y = e.plain("Add", &[rounded, zero])?;
    let low = e.b.literal(&c.sub("low"), Tensor::scalar(low));
    let high = e.b.literal(&c.sub("high"), Tensor::scalar(high));
    let y = e.plain("Clip", &[y, low, high])?;
    c.finish(b, "Cast", to_dtype(to), vec![Some(y)])
}

/// The exact sums of codes less their zero points, as f32 numbers.
fn sums_of_codes(e: &mut Expansion<'_>) -> Made {
    let c = e.c;
    let mut operands = vec![c.input(0), c.input(3)];
    for zero in [c.need(2)?, c.need(5)?] {
        let shape = e.shape(zero)?;
        operands.push(Some(
            match shape.len() > 1 && shape.iter().all(|d| d.is(1)) {
                true => e.reshaped(zero, &[])?,
                false => zero,
            },
        ));
    }
    let sums = c.before(e.b, "MatMulInteger", Attrs::default(), operands)?;
    e.cast(sums, DType::F32)
}

/// The product of the operands as f32 numbers, each less its zero point.
fn sums_of_numbers(e: &mut Expansion<'_>) -> Made {
    let (left, right) = (e.c.need(0)?, e.c.need(3)?);
    let mut numbers = vec![];
    for (x, zero, side) in [(left, 2, Side::Rows), (right, 5, Side::Columns)] {
        let zero = parameter(e, zero, x, side)?;
        let x = e.cast(x, DType::F32)?;
        numbers.push(e.plain("Sub", &[x, zero])?);
    }
    e.plain("MatMul", &numbers)
}

/// Operand `i` as f32 numbers that are broadcast to `x`: one number, a list of one for each row or column, or one for
/// each row or column of each matrix.
fn parameter(e: &mut Expansion<'_>, i: usize, x: ValueId, side: Side) -> Made {
    let given = e.c.need(i)?;
    let (own, all) = (e.shape(given)?, e.shape(x)?);
    let number = e.cast(given, DType::F32)?;
    if own.iter().all(|d| d.is(1)) {
        return match own.is_empty() {
            true => Ok(number),
            false => e.reshaped(number, &[]),
        };
    }
    check(e.c, i, (&own, &all), side)?;
    match (own.len(), side) {
        (1, Side::Rows) => e.unsqueezed(number, &[1]),
        _ => Ok(number),
    }
}

/// Checks that parameters of shape `own` are a list, or have a number for each row or column of each matrix.
fn check(
    c: &ImportedNode,
    i: usize,
    (own, all): (&[Dim], &[Dim]),
    side: Side,
) -> Result<(), ImportFailure> {
    let [.., rows, columns] = all else {
        let reason =
            format!("operand {i} must be one number, because the product has no such axis");
        return Err(c.error(reason).into());
    };
    let equal = |a: &Dim, b: &Dim| match (a.as_const(), b.as_const()) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    let fits = match (own, side) {
        ([list], Side::Rows) => equal(list, rows),
        ([list], Side::Columns) => equal(list, columns),
        ([batch @ .., a, b], side) => {
            let batches = &all[..all.len() - 2];
            let (many, one) = match side {
                Side::Rows => (equal(a, rows), b),
                Side::Columns => (equal(b, columns), a),
            };
            let pairs = batch.iter().zip(batches);
            many && one.is(1)
                && batch.len() == batches.len()
                && pairs.into_iter().all(|(a, b)| equal(a, b))
        }
        ([], _) => true,
    };
    match fits {
        true => Ok(()),
        false => {
            let own: Vec<_> = own.iter().map(Dim::to_string).collect();
            let what = match side {
                Side::Rows => "row",
                Side::Columns => "column",
            };
            let reason = format!(
                "operand {i} of shape [{}] has not one number for each {what} of each matrix",
                own.join(", ")
            );
            Err(c.error(reason).into())
        }
    }
}
