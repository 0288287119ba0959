//! The types of the graph's inputs.

use std::collections::{HashMap, HashSet};

use convoke_graph::graph::TensorType;
use convoke_graph::tensor::{MAX_RANK, byte_size};
use convoke_graph::{DType, Dim, Printable};

use super::proto::{GraphProto, TensorProto, tensor_shape_proto, type_proto};
use super::tensor;
use crate::error::ModelError;

/// The names and types of the graph's inputs, without those that have an initializer as their default.
pub(super) fn types<'a>(
    graph: &'a GraphProto,
    initializers: &HashMap<&'a str, &'a TensorProto>,
) -> Result<Vec<(&'a str, TensorType)>, ModelError> {
    let declared = graph
        .input
        .iter()
        .filter(|i| !initializers.contains_key(i.name()));
    let inputs: Vec<_> = declared.collect();
    // The symbols that the model names. Symbols for unknown dimensions must differ from them.
    let mut symbols = HashSet::new();
    for i in &inputs {
        if let Some(shape) = tensor_type(i.r#type.as_ref()).and_then(|t| t.shape.as_ref()) {
            symbols.extend(shape.dim.iter().filter_map(symbol));
        }
    }
    inputs
        .into_iter()
        .map(|i| {
            let what = || format!("input '{}'", Printable(i.name()));
            let unsupported = |reason| ModelError::UnsupportedType {
                what: what(),
                reason,
            };
            let t = tensor_type(i.r#type.as_ref());
            let t = t.ok_or_else(|| unsupported("is not a tensor".into()))?;
            let dtype = tensor::dtype(t.elem_type()).map_err(unsupported)?;
            let shape = shape(i.name(), dtype, t, &symbols);
            let shape = shape.map_err(|reason| ModelError::Input {
                input: i.name().into(),
                reason,
            })?;
            Ok((i.name(), TensorType::new(dtype, shape)))
        })
        .collect()
}

fn tensor_type(t: Option<&super::proto::TypeProto>) -> Option<&type_proto::Tensor> {
    match t?.value.as_ref()? {
        type_proto::Value::TensorType(t) => Some(t),
        _ => None,
    }
}

fn symbol(d: &tensor_shape_proto::Dimension) -> Option<&str> {
    match d.value.as_ref()? {
        tensor_shape_proto::dimension::Value::DimParam(s) => {
            // Some exporters write an unknown dimension as a question mark.
            Some(s.trim()).filter(|s| !s.is_empty() && *s != "?")
        }
        _ => None,
    }
}

fn shape(
    name: &str,
    dtype: DType,
    t: &type_proto::Tensor,
    symbols: &HashSet<&str>,
) -> Result<Vec<Dim>, String> {
    use tensor_shape_proto::dimension::Value::DimValue;
    let shape = t.shape.as_ref().ok_or("has no declared shape")?;
    if shape.dim.len() > MAX_RANK {
        return Err(format!(
            "rank {} is above the limit of {MAX_RANK}",
            shape.dim.len()
        ));
    }
    let mut dims = Vec::with_capacity(shape.dim.len());
    for (axis, d) in shape.dim.iter().enumerate() {
        dims.push(match (symbol(d), &d.value) {
            (Some(s), _) => Dim::sym(s),
            (None, Some(DimValue(v))) if *v > 0 => Dim::from(*v),
            // A list may be empty.
            (None, Some(DimValue(0))) if shape.dim.len() == 1 => Dim::from(0i64),
            // Some exporters write an unknown dimension as -1 or 0.
            (None, _) => {
                let mut made_up = format!("{name}.{axis}");
                while symbols.contains(made_up.as_str()) {
                    made_up.push('_');
                }
                Dim::sym(&made_up)
            }
        });
    }
    check_size(dtype, &dims)?;
    Ok(dims)
}

/// Fails where the known dimensions alone exceed the address space.
fn check_size(dtype: DType, dims: &[Dim]) -> Result<(), String> {
    let known: Vec<usize> = dims
        .iter()
        .filter_map(Dim::as_const)
        .filter_map(|d| usize::try_from(d).ok())
        .collect();
    byte_size(dtype, &known)
        .map(|_| ())
        .ok_or_else(|| format!("dimensions {known:?} are too large"))
}
