//! The graph: a functional program in single-assignment form.
//!
//! A [`Function`] has typed parameters, literals, nodes in topological order, and named results. There is
//! no hidden state: a node's outputs depend on its operands and attributes only.
//!
//! Invariants, checked by [`Function::verify`]
//! 1. Every value has exactly one definition: a parameter, a literal, or an output of one node.
//! 2. Nodes stand in topological order.
//! 3. Every node satisfies its op's definition: operand count, attribute types, dtypes, shape rule.
//! 4. A node of the init part depends on literals and init nodes only.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use crate::artifact::ArtifactMeta;
use crate::codec::{self, CodecError};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::ids::FunctionId;
use crate::ops::OpError;
use crate::printable::{self, Printable};
use crate::tensor::Tensor;

/// Index into [`Function::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(pub u32);

impl ValueId {
    /// The id as an index into the table of values.
    pub fn ix(self) -> usize {
        self.0 as usize
    }
}

/// A dtype and a shape of symbolic dimensions.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    pub dtype: DType,
    pub shape: Vec<Dim>,
}

impl TensorType {
    /// Makes a type.
    pub fn new(dtype: DType, shape: Vec<Dim>) -> TensorType {
        TensorType { dtype, shape }
    }

    /// Makes a type of known dimensions.
    pub fn fixed(dtype: DType, shape: &[usize]) -> TensorType {
        TensorType {
            dtype,
            shape: shape.iter().map(|d| Dim::from(*d)).collect(),
        }
    }

    /// The dimensions as integers; `None` unless all are known and none is negative.
    pub fn fixed_shape(&self) -> Option<Vec<usize>> {
        self.shape
            .iter()
            .map(|d| usize::try_from(d.as_const()?).ok())
            .collect()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.shape.iter().map(|d| d.to_string()).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(", "))
    }
}
impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A value: one tensor of every run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Name as in the model, unique in the function.
    pub name: Arc<str>,
    pub ty: TensorType,
}

/// An attribute of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Attr {
    Int(i64),
    Float(f32),
    Str(Arc<str>),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Strs(Vec<Arc<str>>),
    Tensor(Tensor),
    DType(DType),
    /// A function that a control-flow op runs; it has no artifacts.
    Function(#[serde(deserialize_with = "bounded_function")] Arc<Function>),
}

/// Decodes a function that is nested in another one; the depth of nesting on the wire is bounded.
fn bounded_function<'de, D: Deserializer<'de>>(d: D) -> Result<Arc<Function>, D::Error> {
    crate::nesting::bounded(d)
}

/// Attributes by name, in a fixed order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Attrs(pub BTreeMap<Arc<str>, Attr>);

impl Attrs {
    /// Sets `name`; returns self to chain.
    pub fn with(mut self, name: &str, value: Attr) -> Attrs {
        self.0.insert(name.into(), value);
        self
    }
    /// The attribute called `name`, if it is present.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.get(name)
    }
    /// The integer attribute called `name`, or `default` where it is absent.
    pub fn int(&self, name: &str, default: i64) -> i64 {
        match self.get(name) {
            Some(Attr::Int(v)) => *v,
            _ => default,
        }
    }
    /// The float attribute called `name`, or `default` where it is absent.
    pub fn float(&self, name: &str, default: f32) -> f32 {
        match self.get(name) {
            Some(Attr::Float(v)) => *v,
            _ => default,
        }
    }
    /// The attribute called `name` as a list of integers, if it is present.
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.get(name) {
            Some(Attr::Ints(v)) => Some(v),
            _ => None,
        }
    }
    /// The string attribute called `name`, or `default` where it is absent.
    pub fn str<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        match self.get(name) {
            Some(Attr::Str(v)) => v,
            _ => default,
        }
    }
    /// The dtype attribute called `name`, if it is present.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        match self.get(name) {
            Some(Attr::DType(v)) => Some(*v),
            _ => None,
        }
    }
    /// The tensor attribute called `name`, if it is present.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        match self.get(name) {
            Some(Attr::Tensor(v)) => Some(v),
            _ => None,
        }
    }
    /// The function attribute called `name`, if it is present.
    pub fn function(&self, name: &str) -> Option<&Arc<Function>> {
        match self.get(name) {
            Some(Attr::Function(v)) => Some(v),
            _ => None,
        }
    }
    /// All function attributes, with their names.
    pub fn functions(&self) -> impl Iterator<Item = (&str, &Arc<Function>)> {
        self.0.iter().filter_map(|(name, attr)| match attr {
            Attr::Function(f) => Some((&**name, f)),
            _ => None,
        })
    }
}

impl GraphError {
    /// The error of a node that its op rejects.
    pub fn rejected(node: &str, op: &str, e: OpError) -> GraphError {
        let (node, op) = (node.to_string(), op.to_string());
        match e {
            OpError::ValueNeeded { operand } => GraphError::RankUnknown {
                node,
                op,
                operand: operand.into(),
            },
            e => GraphError::Op {
                node,
                op,
                reason: e.to_string(),
            },
        }
    }
}

/// When a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RunsAt {
    /// Once, at install.
    Init,
    /// In every step.
    Step,
}

/// One use of an op in a graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Name as in the model; the name of a fused node lists the nodes that it replaces, joined by `+`.
    pub name: Arc<str>,
    /// Name of the op in the registry.
    pub op: Arc<str>,
    pub attrs: Attrs,
    /// Operands; `None` stands for an optional operand that is left out.
    pub inputs: Vec<Option<ValueId>>,
    /// Outputs. Trailing optional outputs of the op that no node uses are left out.
    pub outputs: Vec<ValueId>,
    pub runs_at: RunsAt,
}

/// A constant, or the place of its bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Literal {
    /// A tensor of at most [`INLINE_LIMIT`] bytes, which travels inside the graph.
    Inline(Tensor),
    /// `len` bytes at `offset` of `Function::artifacts[artifact]`, row-major little-endian.
    Range {
        artifact: u32,
        offset: u64,
        len: u64,
    },
}

/// Largest constant that travels inside a graph, in bytes.
pub const INLINE_LIMIT: usize = 4096;

/// A tensor function.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Function {
    pub name: String,
    pub values: Vec<Value>,
    pub params: Vec<ValueId>,
    pub literals: Vec<(ValueId, Literal)>,
    pub nodes: Vec<Node>,
    /// Result names and values. A value may be a result more than once, and may be a parameter.
    pub results: Vec<(String, ValueId)>,
    /// Files that literals are ranges of.
    pub artifacts: Vec<ArtifactMeta>,
}

/// The invariant that a function breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// A value id points outside the table.
    #[error("node '{}' names a value that does not exist", Printable(node))]
    NoSuchValue { node: String },
    /// A value has two definitions.
    #[error("value '{}' is defined twice", Printable(value))]
    DefinedTwice { value: String },
    /// An operand or result has no definition before its use.
    #[error(
        "value '{}', used by '{}', is not defined before its use",
        Printable(value),
        Printable(user)
    )]
    Undefined { value: String, user: String },
    /// An init node depends on a parameter or a step node.
    #[error(
        "init node '{}' depends on step value '{}'",
        Printable(node),
        Printable(value)
    )]
    InitDependsOnStep { node: String, value: String },
    /// The registry lacks an op.
    #[error("op '{}' is not supported; it is used by {}", Printable(op), printable::list(nodes.iter().map(|n| &**n)))]
    Unsupported { op: String, nodes: Vec<String> },
    /// The op rejects the node.
    #[error("node '{}' ({}): {reason}", Printable(node), Printable(op))]
    Op {
        node: String,
        op: String,
        reason: String,
    },
    /// The rank of a node's result follows from the elements of an operand, or their number, which only a run knows.
    #[error(
        "node '{}' ({}): operand '{operand}' decides the rank of the result and must be known before the run",
        Printable(node),
        Printable(op)
    )]
    RankUnknown {
        node: String,
        op: String,
        operand: String,
    },
    /// The declared type of a value is not what its op yields.
    #[error(
        "value '{}' is declared {declared} but '{}' yields {inferred}",
        Printable(value),
        Printable(node)
    )]
    WrongType {
        node: String,
        value: String,
        declared: String,
        inferred: String,
    },
    /// A literal's bytes do not fit its type.
    #[error(
        "literal '{}' of type {ty} is backed by {bytes} bytes",
        Printable(value)
    )]
    LiteralSize {
        value: String,
        ty: String,
        bytes: u64,
    },
    /// A literal reaches outside its artifact.
    #[error("literal '{}' lies outside its file", Printable(value))]
    LiteralRange { value: String },
}

impl Function {
    /// The value with this id. Panics where the id points outside the table.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.ix()]
    }

    /// The content hash, over all that decides what is computed: neither the function's name nor the paths of files
    /// count.
    pub fn id(&self) -> Result<FunctionId, CodecError> {
        let files: Vec<_> = self.artifacts.iter().map(|a| a.id).collect();
        let Function {
            values,
            params,
            literals,
            nodes,
            results,
            ..
        } = self;
        let bytes = codec::encode(&(values, params, literals, nodes, results, files))?;
        Ok(FunctionId(*blake3::hash(&bytes).as_bytes()))
    }

    /// The type of the value with this id. Panics where the id points outside the table.
    pub fn ty(&self, id: ValueId) -> &TensorType {
        &self.value(id).ty
    }

    /// Adds a value and returns its id.
    pub fn add_value(&mut self, name: impl Into<Arc<str>>, ty: TensorType) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        self.values.push(Value {
            name: name.into(),
            ty,
        });
        id
    }

    /// The inline tensor that defines `id`, if there is one.
    pub fn inline(&self, id: ValueId) -> Option<&Tensor> {
        self.literals.iter().find_map(|(v, l)| match l {
            Literal::Inline(t) if *v == id => Some(t),
            _ => None,
        })
    }
}

/// Writes the graph as readable text, with one line per node.
impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = |id: &ValueId| format!("%{}", self.value(*id).name);
        writeln!(f, "function {}", self.name)?;
        for p in &self.params {
            writeln!(f, "  param {}: {}", v(p), self.ty(*p))?;
        }
        for (id, l) in &self.literals {
            let what = match l {
                Literal::Inline(_) => "inline".to_string(),
                Literal::Range {
                    artifact,
                    offset,
                    len,
                } => {
                    format!("artifact {artifact} @{offset}+{len}")
                }
            };
            writeln!(f, "  literal {}: {} = {what}", v(id), self.ty(*id))?;
        }
        for n in &self.nodes {
            let outs: Vec<String> = n
                .outputs
                .iter()
                .map(|o| format!("{}: {}", v(o), self.ty(*o)))
                .collect();
            let ins: Vec<String> = n
                .inputs
                .iter()
                .map(|i| i.as_ref().map_or("_".into(), v))
                .collect();
            let part = if n.runs_at == RunsAt::Init {
                "init "
            } else {
                ""
            };
            writeln!(
                f,
                "  {part}{} = {}({}) '{}'",
                outs.join(", "),
                n.op,
                ins.join(", "),
                n.name
            )?;
            for (name, body) in n.attrs.functions() {
                let text = body.to_string();
                let lines: Vec<&str> = text.lines().skip(1).collect();
                writeln!(f, "    {name}:\n    {}", lines.join("\n    "))?;
            }
        }
        for (name, id) in &self.results {
            writeln!(f, "  result {name} = {}", v(id))?;
        }
        Ok(())
    }
}
