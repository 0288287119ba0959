//! Reading of a `SparseTensorProto`: its elements are scattered into zeros, since tensors of a function are dense.
//!
//! Invariants
//! 1. The positions of elements ascend strictly and lie inside the tensor, so that decoding is one pass over both.
//! 2. Elements and positions are checked before anything of the dense size exists; [`super::super::files`] bounds that size.

use convoke_graph::{DType, Printable, Tensor};

use super::super::files::Files;
use super::content::{Constant, Content, Scattered};
use crate::error::ModelError;
use crate::onnx::proto::SparseTensorProto;
use crate::onnx::skeleton::Payload;

/// Reads the sparse constant `s`, which errors call `name`, as a dense one.
pub(in crate::onnx) fn constant(
    s: &SparseTensorProto,
    name: &str,
    files: &mut Files<'_>,
    payloads: &[Payload],
) -> Result<Constant, ModelError> {
    let wrong = |reason: String| ModelError::Tensor {
        tensor: name.into(),
        reason,
    };
    let values = s.values.as_ref();
    let values = values.ok_or_else(|| wrong("is sparse and has no values".into()))?;
    let values = super::constant(values, name, payloads)?;
    let dtype = values.dtype;
    if dtype == DType::Str || dtype.is_narrow() {
        return Err(ModelError::UnsupportedType {
            what: format!("tensor '{}'", Printable(name)),
            reason: format!("is sparse, which is not supported for {dtype}"),
        });
    }
    let shape = super::shape(&s.dims).map_err(wrong)?;
    let bytes = Tensor::size_of(dtype, &shape).map_err(|e| wrong(e.to_string()))?;
    let [count] = *values.shape.as_slice() else {
        let rank = values.shape.len();
        return Err(wrong(format!("is sparse and has values of rank {rank}")));
    };
    let total = elements_of(&shape);
    if count as u64 > total {
        return Err(wrong(format!(
            "is sparse and has {count} values for {total} elements"
        )));
    }
    let positions = match &s.indices {
        Some(indices) => {
            let what = format!("{name} (indices)");
            let indices = super::constant(indices, &what, payloads)?;
            if indices.dtype != DType::I64 {
                return Err(wrong(format!("has indices of type {}", indices.dtype)));
            }
            let are_rows = are_rows(&indices.shape, count, shape.len()).map_err(wrong)?;
            let read = files.read(&what, &indices)?;
            let read = read.as_slice::<i64>().map_err(|e| wrong(e.to_string()))?;
            positions(are_rows, read, &shape).map_err(wrong)?
        }
        None if count == 0 => vec![],
        None => return Err(wrong("is sparse and has no indices".into())),
    };
    let elements = files.read(name, &values)?.bytes().to_vec();
    Ok(Constant {
        dtype,
        shape,
        bytes: bytes as u64,
        content: Content::Scattered(Scattered {
            elements,
            positions,
        }),
    })
}

/// Whether indices of shape `form` are rows of one number for each of `rank` axes, and not positions. Fails where they are
/// neither, for `count` elements.
fn are_rows(form: &[usize], count: usize, rank: usize) -> Result<bool, String> {
    match *form {
        [n] if n == count => Ok(false),
        [n, axes] if n == count && axes == rank && rank > 0 => Ok(true),
        _ => Err(format!(
            "has indices of shape {form:?} for {count} values of a tensor of rank {rank}"
        )),
    }
}

/// The positions of elements in a dense tensor of shape `shape`, from indices that are positions already, or rows of one
/// number for each axis.
fn positions(are_rows: bool, indices: &[i64], shape: &[usize]) -> Result<Vec<u64>, String> {
    let total = elements_of(shape);
    let found: Vec<u64> = match are_rows {
        false => {
            let one = |v: &i64| u64::try_from(*v).ok().filter(|at| *at < total);
            let all = indices.iter().map(|v| {
                one(v).ok_or_else(|| format!("has the index {v}, outside of its {total} elements"))
            });
            all.collect::<Result<_, _>>()?
        }
        true => {
            let all = indices.chunks_exact(shape.len()).map(|row| {
                position(row, shape)
                    .ok_or_else(|| format!("has the index {row:?}, outside of its shape {shape:?}"))
            });
            all.collect::<Result<_, _>>()?
        }
    };
    match found.windows(2).find(|pair| pair[0] >= pair[1]) {
        Some([a, b]) if a == b => Err(format!("has two values at position {a}")),
        Some(_) => Err("has indices that do not ascend".into()),
        None => Ok(found),
    }
}

/// The number of elements of a tensor of shape `shape`; 0 where it is too large to count.
fn elements_of(shape: &[usize]) -> u64 {
    let total = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d as u64));
    total.unwrap_or(0)
}

/// The position of the element at `row`; `None` where the shape has no such element.
fn position(row: &[i64], shape: &[usize]) -> Option<u64> {
    row.iter().zip(shape).try_fold(0u64, |at, (index, size)| {
        let index = usize::try_from(*index).ok().filter(|i| i < size)?;
        at.checked_mul(*size as u64)?.checked_add(index as u64)
    })
}
