//! Softmax, LogSoftmax and Hardmax before operator set 13, which treated their operand as a matrix: the dimensions
//! before `axis` are its rows, and all other dimensions together are its columns.

use convoke_graph::Dim;
use convoke_graph::graph::{Attr, Attrs};

use crate::onnx::builder::Builder;
use crate::onnx::normalize::node::{ImportedNode, Outputs, exact};

/// Rewrites the node to act along one axis: directly where at most one column dimension is not 1, otherwise by
/// reshaping the operand to the matrix.
pub(in crate::onnx::normalize) fn flattening(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let x = c.need(0)?;
    let axis = c.take_int("axis")?.unwrap_or(1);
    let shape = b.ty(x).map(|t| t.shape.clone());
    if let Some(along) = shape.as_ref().and_then(|s| one_axis(s, axis)) {
        c.attrs = c.attrs.with("axis", Attr::Int(along));
        return c.emit(b);
    }
    let with_axis = |axis| Attrs::default().with("axis", Attr::Int(axis));
    let fixed: Option<Vec<i64>> = shape.and_then(|s| s.iter().map(Dim::as_const).collect());
    let back = match fixed {
        Some(s) => b.ints(&c.sub("shape"), &s)?,
        None => c.before(b, "Shape", Attrs::default(), vec![Some(x)])?,
    };
    let flat = c.before(b, "Flatten", with_axis(axis), vec![Some(x)])?;
    let op = c.op.clone();
    let y = c.before(b, &op, with_axis(1), vec![Some(flat)])?;
    c.finish(b, "Reshape", exact(), vec![Some(y), Some(back)])
}

/// The only axis from `axis` on whose size is not 1, counted from the front; `None` where there are several.
fn one_axis(shape: &[Dim], axis: i64) -> Option<i64> {
    let rank = shape.len() as i64;
    let first = if axis < 0 { axis + rank } else { axis };
    let columns = shape.get(usize::try_from(first).ok()?..)?;
    let mut wide = columns
        .iter()
        .enumerate()
        .filter(|(_, d)| !d.is_one_or_none())
        .map(|(i, _)| i as i64);
    match (wide.next(), wide.next()) {
        (Some(i), None) => Some(first + i),
        // All column dimensions are 1, so any of their axes will do.
        (None, None) if !columns.is_empty() => Some(rank - 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_axis_that_matters() {
        let check = |shape: &[i64], axis, want| {
            let shape: Vec<Dim> = shape.iter().map(|d| Dim::from(*d)).collect();
            assert_eq!(one_axis(&shape, axis), want);
        };
        check(&[2, 3], 1, Some(1));
        check(&[2, 3], -1, Some(1));
        check(&[1, 1000, 1, 1], 1, Some(1));
        check(&[1, 1, 1, 7], 1, Some(3));
        check(&[2, 3, 4], 1, None);
        check(&[2, 1], 1, Some(1));
        check(&[2], 1, None);
        check(&[2], -3, None);
    }
}
