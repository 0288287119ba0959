//! A node to import, its operands, and why it cannot be imported.

use convoke_graph::DType;
use convoke_graph::graph::{Attrs, ValueId};

use crate::error::ModelError;
use crate::onnx::builder::Builder;

/// A node to import, with resolved operands.
pub(in crate::onnx) struct ImportedNode {
    pub name: String,
    pub op: String,
    pub inputs: Vec<Option<ValueId>>,
    pub attrs: Attrs,
    /// The names of the outputs, of which there is at least one. An output with an empty name is never read.
    pub outputs: Vec<String>,
    /// The version of the operator set of the op's domain.
    pub opset: i64,
}

/// Why a node cannot be imported.
pub(in crate::onnx) enum ImportFailure {
    /// The node is not supported, for this reason, which is empty where the op itself is unknown. It is reported
    /// together with all other such nodes.
    Unsupported(String),
    /// The type of an operand is not known, because the node that makes it was refused. It is that node which is reported.
    Consequence,
    /// The model is wrong, which ends the import.
    Error(ModelError),
}

impl From<ModelError> for ImportFailure {
    fn from(e: ModelError) -> ImportFailure {
        ImportFailure::Error(e)
    }
}

/// The outputs of an imported node.
pub(in crate::onnx) type Outputs = Result<Vec<ValueId>, ImportFailure>;

/// The failure of a node that is not supported, for this reason.
pub(in super::super) fn unsupported(reason: impl Into<String>) -> ImportFailure {
    ImportFailure::Unsupported(reason.into())
}

impl ImportedNode {
    /// A node that the importer expands by itself.
    pub(in crate::onnx) fn of_expansion(name: &str, outputs: Vec<String>) -> ImportedNode {
        ImportedNode {
            name: name.into(),
            op: String::new(),
            inputs: vec![],
            attrs: Attrs::default(),
            outputs,
            opset: 0,
        }
    }

    /// Operand `i`; `None` where it is left out.
    pub(in super::super) fn input(&self, i: usize) -> Option<ValueId> {
        self.inputs.get(i).copied().flatten()
    }

    /// Operand `i`. Fails where it is left out.
    pub(in super::super) fn need(&self, i: usize) -> Result<ValueId, ModelError> {
        self.input(i)
            .ok_or_else(|| self.error(format!("operand {i} is missing")))
    }

    /// Sets operand `i`.
    pub(in super::super) fn set(&mut self, i: usize, id: Option<ValueId>) {
        if self.inputs.len() <= i {
            self.inputs.resize(i + 1, None);
        }
        self.inputs[i] = id;
    }

    /// The error of a model that is wrong at this node.
    pub(in crate::onnx) fn error(&self, reason: impl Into<String>) -> ModelError {
        ModelError::Node {
            node: self.name.clone(),
            op: self.op.clone(),
            reason: reason.into(),
        }
    }

    /// The name of a node or value that is added for this node.
    pub(in super::super) fn sub(&self, what: &str) -> String {
        format!("{}/{what}", self.name)
    }

    /// Adds a node before the last one, and returns its only output.
    pub(in super::super) fn before(
        &self,
        b: &mut Builder,
        op: &str,
        attrs: Attrs,
        inputs: Vec<Option<ValueId>>,
    ) -> Result<ValueId, ModelError> {
        let name = self.sub(op);
        let output = [name.clone()];
        let out = b.emit(op, &name, attrs, inputs, &output)?;
        out.first()
            .copied()
            .ok_or_else(|| self.error("has no output"))
    }

    /// Adds the last node of a rewriting: `op` on `inputs`.
    pub(in super::super) fn finish(
        self,
        b: &mut Builder,
        op: &str,
        attrs: Attrs,
        inputs: Vec<Option<ValueId>>,
    ) -> Outputs {
        Ok(b.emit(op, &self.name, attrs, inputs, &self.outputs)?)
    }

    /// Adds the node in its current form.
    pub(in crate::onnx) fn emit(self, b: &mut Builder) -> Outputs {
        Ok(b.emit(&self.op, &self.name, self.attrs, self.inputs, &self.outputs)?)
    }

    /// Adds the node with another op.
    pub(in super::super) fn emit_as(mut self, b: &mut Builder, op: &str) -> Outputs {
        self.op = op.into();
        self.emit(b)
    }

    /// The dtype of operand `i`; f32 where it is not known.
    pub(in super::super) fn dtype(&self, b: &Builder, i: usize) -> DType {
        self.input(i)
            .and_then(|id| b.ty(id))
            .map_or(DType::F32, |t| t.dtype)
    }

    /// Whether the type of one of the operands is not known, because a node before this one was refused. It is that
    /// node which is reported.
    pub(in super::super) fn follows_a_refusal(&self, b: &Builder) -> bool {
        self.inputs.iter().flatten().any(|id| b.ty(*id).is_none())
    }
}
