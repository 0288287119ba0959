//! Tests that import whole models, which they build themselves.

mod content;
mod contrib;
mod control;
mod devices;
mod early;
mod expansions;
mod forms;
mod hostile;
mod learn;
mod lengths;
mod seeds;
mod sequences;
mod structure;
mod types;
mod variants;

use convoke_common::{Code, Error};
use convoke_graph::Tensor;
use convoke_graph::graph::{Function, Literal};
use prost::Message as _;

use super::proto::attribute_proto::AttributeType;
use super::proto::tensor_shape_proto::{Dimension, dimension::Value as DimValue};
use super::proto::*;
use super::{ImportedModel, LoadOptions, load};
use crate::error::ModelError;
use crate::testing::Scratch;

const F32: i32 = 1;
const I32: i32 = 6;
const I64: i32 = 7;
const BOOL: i32 = 9;
const F16: i32 = 10;

/// An input or output of a graph. A dimension that is not a number is a symbol, and an empty one is unknown.
fn value(name: &str, elem: i32, dims: &[&str]) -> ValueInfoProto {
    let dim = |d: &&str| Dimension {
        value: match d.parse() {
            Ok(v) => Some(DimValue::DimValue(v)),
            Err(_) if d.is_empty() => None,
            Err(_) => Some(DimValue::DimParam(d.to_string())),
        },
    };
    let shape = Some(TensorShapeProto {
        dim: dims.iter().map(dim).collect(),
    });
    let tensor = type_proto::Tensor {
        elem_type: Some(elem),
        shape,
    };
    let value = Some(type_proto::Value::TensorType(tensor));
    ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(TypeProto { value }),
    }
}

fn names(list: &str) -> Vec<String> {
    let one = |n: &str| {
        if n == "_" {
            String::new()
        } else {
            n.to_string()
        }
    };
    list.split_whitespace().map(one).collect()
}

/// A node with the name of its first output; `_` leaves an operand out.
fn node(op: &str, inputs: &str, outputs: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    let output = names(outputs);
    NodeProto {
        op_type: Some(op.into()),
        input: names(inputs),
        name: output
            .iter()
            .find(|n| !n.is_empty())
            .map(|n| format!("{n}_node")),
        output,
        attribute,
        ..NodeProto::default()
    }
}

fn attr(name: &str, r#type: AttributeType) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(r#type as i32),
        ..AttributeProto::default()
    }
}
fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        i: Some(i),
        ..attr(name, AttributeType::Int)
    }
}
fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto {
        f: Some(f),
        ..attr(name, AttributeType::Float)
    }
}
fn ints(name: &str, v: &[i64]) -> AttributeProto {
    AttributeProto {
        ints: v.to_vec(),
        ..attr(name, AttributeType::Ints)
    }
}
fn text(name: &str, s: &str) -> AttributeProto {
    AttributeProto {
        s: Some(s.as_bytes().to_vec()),
        ..attr(name, AttributeType::String)
    }
}
fn tensor_attr(name: &str, t: TensorProto) -> AttributeProto {
    AttributeProto {
        t: Some(t),
        ..attr(name, AttributeType::Tensor)
    }
}
fn graph_attr(name: &str, g: GraphProto) -> AttributeProto {
    AttributeProto {
        g: Some(g),
        ..attr(name, AttributeType::Graph)
    }
}

/// A tensor with little-endian content.
fn raw(name: &str, elem: i32, dims: &[i64], data: Vec<u8>) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(elem),
        dims: dims.to_vec(),
        raw_data: Some(data),
        ..TensorProto::default()
    }
}

fn floats(name: &str, dims: &[i64], data: &[f32]) -> TensorProto {
    raw(name, F32, dims, bytemuck::cast_slice(data).to_vec())
}

fn external(name: &str, dims: &[i64], entries: &[(&str, &str)]) -> TensorProto {
    TensorProto {
        raw_data: None,
        data_location: Some(1),
        external_data: entries
            .iter()
            .map(|(k, v)| StringStringEntryProto {
                key: Some(k.to_string()),
                value: Some(v.to_string()),
            })
            .collect(),
        ..raw(name, F32, dims, vec![])
    }
}

fn graph(
    input: Vec<ValueInfoProto>,
    initializer: Vec<TensorProto>,
    node: Vec<NodeProto>,
    output: &str,
) -> GraphProto {
    let output = names(output).iter().map(|n| value(n, F32, &[])).collect();
    GraphProto {
        name: Some("g".into()),
        node,
        initializer,
        input,
        output,
        ..GraphProto::default()
    }
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto {
        domain: Some(domain.into()),
        version: Some(version),
    }
}

fn model(version: i64, graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset("", version)],
        producer_name: Some("test".into()),
        graph: Some(graph),
        ..ModelProto::default()
    }
}

/// A model of one node on `x: f32[dims]`.
fn one(version: i64, dims: &[&str], n: NodeProto) -> ModelProto {
    let outputs = n.output.join(" ");
    model(
        version,
        graph(vec![value("x", F32, dims)], vec![], vec![n], &outputs),
    )
}

fn options(s: &Scratch) -> LoadOptions {
    LoadOptions {
        cache_dir: Some(s.path().join("cache")),
        ..LoadOptions::default()
    }
}

/// Writes the model into `s` and imports it.
fn import_in(s: &Scratch, m: &ModelProto) -> Result<ImportedModel, ModelError> {
    load(&s.write("m.onnx", &m.encode_to_vec()), &options(s))
}

fn try_import(m: &ModelProto) -> Result<ImportedModel, ModelError> {
    import_in(&Scratch::new(), m)
}

fn import(m: &ModelProto) -> Function {
    try_import(m)
        .unwrap_or_else(|e| panic!("{}", Error::from(e)))
        .function
}

fn fails(m: &ModelProto, code: Code, message: &str) {
    let e = try_import(m).expect_err(message);
    assert_eq!((e.code(), e.to_string()), (code, message.to_string()));
    assert!(!e.advice().is_empty());
}

/// Each node in the form `Op(a, b=[1, 2])`, with the elements of small literals.
fn lines(f: &Function) -> Vec<String> {
    let operand = |id| match f.inline(id) {
        None => f.value(id).name.to_string(),
        Some(t) => elements(t),
    };
    f.nodes
        .iter()
        .map(|n| {
            let ins: Vec<String> = n
                .inputs
                .iter()
                .map(|i| i.map_or("_".to_string(), operand))
                .collect();
            format!("{}({})", n.op, ins.join(", "))
        })
        .collect()
}

fn elements(t: &Tensor) -> String {
    match t.to_i64s() {
        Some(v) if t.shape().is_empty() => format!("{}", v[0]),
        Some(v) => format!("{v:?}"),
        None => match t.as_slice::<f32>() {
            Ok(v) => format!("{v:?}"),
            Err(_) => t.signature(),
        },
    }
}

fn literal<'f>(f: &'f Function, name: &str) -> &'f Literal {
    let of = |(id, _): &&(_, _)| &*f.value(*id).name == name;
    &f.literals
        .iter()
        .find(of)
        .unwrap_or_else(|| panic!("no literal {name}"))
        .1
}
