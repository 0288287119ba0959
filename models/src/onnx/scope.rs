//! What names mean: one scope per graph or model-local function that is being imported.

use std::collections::HashMap;

use convoke_common::Printable;
use convoke_common::graph::ValueId;

use super::proto::{AttributeProto, FunctionProto, GraphProto, OperatorSetIdProto, TensorProto};
use crate::error::ModelError;

/// Version of each operator set, by domain.
pub(super) type Opsets<'a> = HashMap<&'a str, i64>;

/// Names and what they stand for.
#[derive(Default)]
pub(super) struct Scope<'a> {
    /// `None` for an optional operand of a function that was left out.
    pub names: HashMap<&'a str, Option<ValueId>>,
    /// Constants that nothing has read yet.
    pub pending: HashMap<&'a str, &'a TensorProto>,
    pub opsets: Opsets<'a>,
    /// Attributes of the call, for a function.
    pub attrs: HashMap<&'a str, &'a AttributeProto>,
    /// Goes before the names of values and nodes.
    pub prefix: String,
    /// Whether names of the enclosing scope are visible.
    pub open: bool,
    /// Model-local functions being expanded here.
    pub function: Option<(&'a str, &'a str)>,
}

/// The name of the default domain is the empty string.
pub(super) fn domain(name: &str) -> &str {
    match name {
        "ai.onnx" => "",
        other => other,
    }
}

/// Versions by domain.
pub(super) fn opsets<'a>(imports: &'a [OperatorSetIdProto]) -> Opsets<'a> {
    imports
        .iter()
        .map(|o| (domain(o.domain()), o.version()))
        .collect()
}

impl<'a> Scope<'a> {
    /// Takes in the initializers of `g`.
    pub(super) fn add_initializers(&mut self, g: &'a GraphProto) -> Result<(), ModelError> {
        for t in &g.initializer {
            if self.pending.insert(t.name(), t).is_some() {
                return Err(ModelError::Duplicate {
                    value: t.name().into(),
                });
            }
        }
        match g.sparse_initializer.first() {
            None => Ok(()),
            Some(s) => {
                let name = s.values.as_ref().map_or("", |v| v.name());
                let reason = "sparse tensors are not supported".into();
                Err(ModelError::UnsupportedType {
                    what: format!("tensor '{}'", Printable(name)),
                    reason,
                })
            }
        }
    }

    /// Defines `name`.
    pub(super) fn define(&mut self, name: &'a str, id: Option<ValueId>) -> Result<(), ModelError> {
        if self.pending.contains_key(name) || self.names.insert(name, id).is_some() {
            return Err(ModelError::Duplicate {
                value: format!("{}{name}", self.prefix),
            });
        }
        Ok(())
    }
}

/// Model-local functions by domain, name and overload.
pub(super) type Functions<'a> = HashMap<(&'a str, &'a str, &'a str), &'a FunctionProto>;

/// The functions of a model.
pub(super) fn functions(all: &[FunctionProto]) -> Result<Functions<'_>, ModelError> {
    let mut out = Functions::new();
    for f in all {
        if out
            .insert((domain(f.domain()), f.name(), f.overload()), f)
            .is_some()
        {
            return Err(ModelError::Duplicate {
                value: format!("function {}.{}", f.domain(), f.name()),
            });
        }
    }
    Ok(out)
}
