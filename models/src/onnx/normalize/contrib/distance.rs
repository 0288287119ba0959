//! CDist: the distances of the rows of two matrices.
//!
//! ```text
//! A [m, k], B [n, k] ── |-2 · A · Bᵀ + squares of A's rows + squares of B's rows| ── Sqrt, or none ── Y [m, n]
//! ```

use convoke_graph::graph::{Attr, Attrs};

use super::super::super::builder::Builder;
use super::super::node::{Expansion, ImportedNode, Outputs, unsupported};

/// Imports CDist.
pub(super) fn distances(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let metric = c.take_name("metric")?;
    let squared = match metric.as_deref() {
        None | Some("sqeuclidean") => true,
        Some("euclidean") => false,
        Some(other) => return Err(unsupported(format!("the metric {other}"))),
    };
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (left, right) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b, c: &c };
    if e.shape(left)?.len() != 2 || e.shape(right)?.len() != 2 {
        return Err(c.error("the operands must have rank 2").into());
    }
    let axes = e.ints("axes", &[1])?;
    let kept = |keep: i64| Attrs::default().with("keepdims", Attr::Int(keep));
    let left_squares = e.op("ReduceSumSquare", kept(1), &[left, axes])?;
    let right_squares = e.op("ReduceSumSquare", kept(0), &[right, axes])?;
    let columns = e.transposed(right, &[1, 0])?;
    let product = e.plain("MatMul", &[left, columns])?;
    let dtype = e.ty(product)?.dtype;
    let twice = e.float("factor", dtype, -2.0)?;
    // The squares of near rows are close to twice their product: the order of the sums is that of ONNX Runtime.
    let mut y = e.plain("Mul", &[product, twice])?;
    y = e.plain("Add", &[y, left_squares])?;
    y = e.plain("Add", &[y, right_squares])?;
    if squared {
        return Ok(vec![e.last(0, "Abs", Attrs::default(), &[y])?]);
    }
    y = e.plain("Abs", &[y])?;
    Ok(vec![e.last(0, "Sqrt", Attrs::default(), &[y])?])
}
