//! The meaning of names: there is one scope for each graph or model-local function that is being imported.

use std::collections::HashMap;

use convoke_graph::graph::ValueId;

use super::lengths::Ranks;
use super::nested::Packed;
use super::proto::{
    AttributeProto, FunctionProto, GraphProto, OperatorSetIdProto, SparseTensorProto, TensorProto,
};
use crate::error::ModelError;

/// The version of each operator set, by domain.
pub(super) type Opsets<'a> = HashMap<&'a str, i64>;

/// The meaning of a name.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Meaning {
    /// An optional operand that is left out, or an optional value that holds nothing.
    Nothing,
    Tensor(ValueId),
    /// The tensors of a sequence, in order.
    Sequence(Vec<ValueId>),
    /// A sequence of a length that only the run decides.
    Packed(Packed),
    /// An optional value whose presence only the run decides: a bool that says whether it is present, and the value
    /// that it then holds.
    Optional(ValueId, Box<Meaning>),
    /// A map: two lists of one length.
    Map {
        keys: ValueId,
        values: ValueId,
    },
}

impl Meaning {
    /// The same with other values.
    pub(super) fn map(self, to: &mut impl FnMut(ValueId) -> ValueId) -> Meaning {
        match self {
            Meaning::Nothing => Meaning::Nothing,
            Meaning::Tensor(id) => Meaning::Tensor(to(id)),
            Meaning::Sequence(all) => Meaning::Sequence(all.into_iter().map(to).collect()),
            Meaning::Packed(p) => Meaning::Packed(Packed {
                data: to(p.data),
                shapes: to(p.shapes),
                ranks: p.ranks,
            }),
            Meaning::Optional(has, held) => {
                let has = to(has);
                Meaning::Optional(has, Box::new(held.map(to)))
            }
            Meaning::Map { keys, values } => Meaning::Map {
                keys: to(keys),
                values: to(values),
            },
        }
    }
}

/// A constant of a graph, as the file has it.
#[derive(Clone, Copy)]
pub(super) enum Initializer<'a> {
    Dense(&'a TensorProto),
    Sparse(&'a SparseTensorProto),
}

impl<'a> Initializer<'a> {
    /// The constants of a graph, with their names.
    pub(super) fn all(g: &'a GraphProto) -> impl Iterator<Item = (&'a str, Initializer<'a>)> {
        let dense = g.initializer.iter();
        let dense = dense.map(|t| (t.name(), Initializer::Dense(t)));
        let sparse = g.sparse_initializer.iter();
        // A sparse tensor has the name of its values.
        let sparse = sparse.map(|s| {
            let name = s.values.as_ref().map_or("", |v| v.name());
            (name, Initializer::Sparse(s))
        });
        dense.chain(sparse)
    }

    /// The address of the message.
    pub(super) fn address(self) -> usize {
        match self {
            Initializer::Dense(t) => std::ptr::from_ref(t) as usize,
            Initializer::Sparse(s) => std::ptr::from_ref(s) as usize,
        }
    }
}

/// Names and their meanings.
#[derive(Default)]
pub(super) struct Scope<'a> {
    /// The value of each name; `None` for an optional operand that a call of a function left out.
    pub names: HashMap<&'a str, Option<ValueId>>,
    /// The meaning of each name that is neither a tensor nor nothing.
    pub compounds: HashMap<&'a str, Meaning>,
    /// Constants that nothing has read yet.
    pub pending: HashMap<&'a str, Initializer<'a>>,
    pub opsets: Opsets<'a>,
    /// The ranks that the model declares for values.
    pub ranks: Ranks<'a>,
    /// The attributes of the call, in the scope of a function.
    pub attrs: HashMap<&'a str, &'a AttributeProto>,
    /// The prefix of the names of values and nodes.
    pub prefix: String,
    /// How many functions enclose the one that the values are in.
    pub level: usize,
    /// Whether names of the enclosing scope are visible.
    pub open: bool,
    /// The domain, name and overload of the model-local function that is being expanded, if the scope is that of one.
    pub function: Option<(&'a str, &'a str, &'a str)>,
}

/// The normalized name of a domain: `ai.onnx` becomes the empty string, the other name of the default domain.
pub(super) fn domain(name: &str) -> &str {
    match name {
        "ai.onnx" => "",
        other => other,
    }
}

/// The version of each imported operator set, by domain.
pub(super) fn opsets<'a>(imports: &'a [OperatorSetIdProto]) -> Opsets<'a> {
    imports
        .iter()
        .map(|o| (domain(o.domain()), o.version()))
        .collect()
}

impl<'a> Scope<'a> {
    /// Adds the initializers of `g` as pending constants.
    pub(super) fn add_initializers(&mut self, g: &'a GraphProto) -> Result<(), ModelError> {
        for (name, constant) in Initializer::all(g) {
            if self.pending.insert(name, constant).is_some() {
                return Err(ModelError::Duplicate { value: name.into() });
            }
        }
        Ok(())
    }

    /// Defines `name`. Fails where the scope already has the name.
    pub(super) fn define(&mut self, name: &'a str, id: Option<ValueId>) -> Result<(), ModelError> {
        let id = id.map_or(Meaning::Nothing, Meaning::Tensor);
        self.define_as(name, id)
    }

    /// Defines `name` with any meaning. Fails where the scope already has the name.
    pub(super) fn define_as(&mut self, name: &'a str, meaning: Meaning) -> Result<(), ModelError> {
        let known = self.pending.contains_key(name)
            || self.names.contains_key(name)
            || self.compounds.contains_key(name);
        if known {
            return Err(ModelError::Duplicate {
                value: format!("{}{name}", self.prefix),
            });
        }
        match meaning {
            Meaning::Nothing => drop(self.names.insert(name, None)),
            Meaning::Tensor(id) => drop(self.names.insert(name, Some(id))),
            compound => drop(self.compounds.insert(name, compound)),
        }
        Ok(())
    }
}

/// The model-local functions, by domain, name and overload.
pub(super) type Functions<'a> = HashMap<(&'a str, &'a str, &'a str), &'a FunctionProto>;

/// Indexes the functions of a model. Fails where two have the same domain, name and overload.
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
