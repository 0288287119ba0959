//! Lengths of operands that decide the rank of a result.
//!
//! The rank of a tensor is part of its type, so the number of elements of a shape that Reshape takes must be known when a
//! model is imported. It mostly follows from the operands. Where data decides it, the rank is taken that the model declares
//! for the result, and a Reshape of the operand refuses another number of elements when it runs.

use std::collections::HashMap;

use convoke_graph::Dim;
use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::tensor::MAX_RANK;

use super::builder::Builder;
use super::proto::{GraphProto, NodeProto, ValueInfoProto, type_proto};
use super::scope::domain;
use crate::error::ModelError;

/// The ranks that a model declares, by name of the value.
pub(super) type Ranks<'a> = HashMap<&'a str, usize>;

/// The declared ranks of values.
pub(super) fn declared<'a>(all: impl Iterator<Item = &'a ValueInfoProto>) -> Ranks<'a> {
    all.filter_map(|v| match v.r#type.as_ref()?.value.as_ref()? {
        type_proto::Value::TensorType(t) => Some((v.name(), t.shape.as_ref()?.dim.len())),
        _ => None,
    })
    .collect()
}

/// The operand of `op` whose number of elements decides the rank of the result.
fn deciding(op: &str) -> Option<usize> {
    match op {
        "Reshape" | "Expand" | "Squeeze" | "Unsqueeze" => Some(1),
        "ConstantOfShape" => Some(0),
        _ => None,
    }
}

/// Whether a node of `graph` takes its input `name` as an operand that decides a rank.
pub(super) fn decides(graph: &GraphProto, name: &str) -> bool {
    graph.node.iter().any(|n| {
        let at = deciding(n.op_type()).filter(|_| domain(n.domain()).is_empty());
        at.and_then(|at| n.input.get(at)).is_some_and(|i| i == name)
    })
}

/// Gives the operand of `node` that decides the rank of its result a known length, if the declared `rank` of the result says
/// which. Returns the length where it stays open.
pub(super) fn settle(
    b: &mut Builder,
    name: &str,
    node: &NodeProto,
    inputs: &mut [Option<ValueId>],
    rank: Option<usize>,
) -> Result<Option<Dim>, ModelError> {
    let Some(at) = deciding(node.op_type()).filter(|_| domain(node.domain()).is_empty()) else {
        return Ok(None);
    };
    let Some(operand) = inputs.get(at).copied().flatten() else {
        return Ok(None);
    };
    let open = b.ty(operand).and_then(|t| match t.shape.as_slice() {
        [length] => Some(length.clone()).filter(|l| l.as_const().is_none()),
        _ => None,
    });
    let Some(open) = open else {
        return Ok(None);
    };
    let given = inputs.first().copied().flatten();
    let given = given.and_then(|x| b.ty(x)).map(|t| t.shape.len());
    let length = rank.filter(|r| *r <= MAX_RANK).and_then(|rank| {
        Some(match node.op_type() {
            "Squeeze" => given?.checked_sub(rank)?,
            "Unsqueeze" => rank.checked_sub(given?)?,
            _ => rank,
        })
    });
    let Some(length) = length else {
        return Ok(Some(open));
    };
    let mut operand = operand;
    if node.op_type() == "Expand" {
        operand = padded(b, name, operand, length)?;
    }
    inputs[at] = Some(fixed(b, name, operand, length)?);
    Ok(None)
}

/// `operand` with `length` elements; another number of them is refused when it runs.
fn fixed(
    b: &mut Builder,
    name: &str,
    operand: ValueId,
    length: usize,
) -> Result<ValueId, ModelError> {
    let length = b.ints(&format!("{name}/length"), &[length as i64])?;
    // The length 0 does not stand for that of the operand.
    let attrs = Attrs::default().with("allowzero", Attr::Int(1));
    let name = format!("{name}/Reshape");
    one(b, "Reshape", &name, attrs, vec![operand, length])
}

/// `operand` with ones in front of it, so that it has at least `length` elements: Expand takes a shorter shape for one with
/// leading ones. A longer operand stays as it is.
fn padded(
    b: &mut Builder,
    name: &str,
    operand: ValueId,
    length: usize,
) -> Result<ValueId, ModelError> {
    if length == 0 {
        return Ok(operand);
    }
    let none = Attrs::default;
    let has = one(b, "Shape", &format!("{name}/Shape"), none(), vec![operand])?;
    let ones = b.ints(&format!("{name}/ones"), &vec![1; length])?;
    let to = b.ints(&format!("{name}/ends"), &[i64::MAX])?;
    let slice = format!("{name}/Slice");
    let lacking = one(b, "Slice", &slice, none(), vec![ones, has, to])?;
    let axis = none().with("axis", Attr::Int(0));
    let concat = format!("{name}/Concat");
    one(b, "Concat", &concat, axis, vec![lacking, operand])
}

/// Adds a node with one result.
fn one(
    b: &mut Builder,
    op: &str,
    name: &str,
    attrs: Attrs,
    inputs: Vec<ValueId>,
) -> Result<ValueId, ModelError> {
    let inputs = inputs.into_iter().map(Some).collect();
    let made = b.emit(op, name, attrs, inputs, &[name.to_owned()])?;
    made.first().copied().ok_or_else(|| ModelError::Node {
        node: name.into(),
        op: op.into(),
        reason: "has no output".into(),
    })
}
