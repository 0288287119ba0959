//! Conversion of ONNX attributes to attributes of the graph.

use std::sync::Arc;

use convoke_graph::Tensor;
use convoke_graph::graph::{Attr, INLINE_LIMIT};

use super::proto::{AttributeProto, attribute_proto::AttributeType};
use super::skeleton::Payload;
use super::tensor::{self, Content};

/// The type of an attribute's value. Files of the first IR version do not state the type, which then follows from the
/// field that is set.
pub(super) fn type_of(a: &AttributeProto) -> AttributeType {
    match a.r#type() {
        AttributeType::Undefined => {}
        t => return t,
    }
    if a.f.is_some() {
        AttributeType::Float
    } else if a.i.is_some() {
        AttributeType::Int
    } else if a.s.is_some() {
        AttributeType::String
    } else if a.t.is_some() {
        AttributeType::Tensor
    } else if a.g.is_some() {
        AttributeType::Graph
    } else if !a.floats.is_empty() {
        AttributeType::Floats
    } else if !a.strings.is_empty() {
        AttributeType::Strings
    } else {
        AttributeType::Ints
    }
}

/// Converts an attribute, or says why the graph has no form for it.
pub(super) fn convert(a: &AttributeProto, payloads: &[Payload]) -> Result<Attr, String> {
    Ok(match type_of(a) {
        AttributeType::Float => Attr::Float(a.f()),
        AttributeType::Int => Attr::Int(a.i()),
        AttributeType::String => Attr::Str(text(a.s())?),
        AttributeType::Floats => Attr::Floats(a.floats.clone()),
        AttributeType::Ints => Attr::Ints(a.ints.clone()),
        AttributeType::Strings => Attr::Strs(
            a.strings
                .iter()
                .map(|s| text(s))
                .collect::<Result<_, _>>()?,
        ),
        AttributeType::Tensor => Attr::Tensor(inline(a, payloads)?),
        AttributeType::Graph | AttributeType::Graphs => {
            return Err("graphs are not supported here".into());
        }
        other => return Err(format!("type {} is not supported", other.as_str_name())),
    })
}

fn text(bytes: &[u8]) -> Result<Arc<str>, String> {
    Ok(std::str::from_utf8(bytes)
        .map_err(|_| "is not valid UTF-8")?
        .into())
}

fn inline(a: &AttributeProto, payloads: &[Payload]) -> Result<Tensor, String> {
    let t = a.t.as_ref().ok_or("holds no tensor")?;
    match tensor::constant(t, a.name(), payloads)
        .map_err(|e| e.to_string())?
        .content
    {
        Content::Inline(t) if t.byte_len() <= INLINE_LIMIT => Ok(t),
        _ => Err("holds a tensor of more than 4096 bytes".into()),
    }
}

/// Whether an attribute that the registry does not know can be dropped without changing what the op computes: its value
/// is the default, or it concerns training.
pub(super) fn is_default(name: &str, value: &Attr) -> bool {
    match (name, value) {
        // These belong to the first operator sets, or to training.
        ("consumed_inputs" | "momentum", _) => true,
        ("spatial" | "stash_type", Attr::Int(v)) => *v == 1,
        (
            "training_mode"
            | "layout"
            | "storage_order"
            | "ceil_mode"
            | "noop_with_empty_axes"
            | "count_include_pad"
            | "select_last_index"
            | "allowzero"
            | "fmod"
            | "batch_dims"
            | "exclusive"
            | "reverse"
            | "antialias"
            | "exclude_outside"
            | "transA"
            | "transB",
            Attr::Int(v),
        ) => *v == 0,
        ("keepdims" | "keepaspectratio", Attr::Int(v)) => *v == 1,
        ("dilations" | "strides", Attr::Ints(v)) => v.iter().all(|d| *d == 1),
        ("pads" | "output_padding", Attr::Ints(v)) => v.iter().all(|d| *d == 0),
        ("auto_pad", Attr::Str(s)) => matches!(&**s, "NOTSET" | ""),
        ("reduction" | "approximate", Attr::Str(s)) => &**s == "none",
        ("direction", Attr::Str(s)) => &**s == "forward",
        _ => false,
    }
}
