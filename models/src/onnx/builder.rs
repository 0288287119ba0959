//! The function under construction: values with unique names, literals, nodes, and the types that are known so far,
//! which the rewriting of older forms of ops needs.

use std::collections::HashMap;
use std::sync::Arc;

use convoke_graph::graph::{Attr, Attrs, Function, Literal, Node, RunsAt, TensorType, ValueId};
use convoke_graph::ops::{self, AttrKind, HostValue, OpDef, Operand};
use convoke_graph::{DType, Dim, Tensor};

use super::attrs::is_default;
use super::encoded::Job;
use super::files::StoredConstant;
use crate::error::{ModelError, UnsupportedNode};

/// The facts about a value that are known so far.
#[derive(Default)]
struct ValueFacts {
    /// Whether the type is known.
    typed: bool,
    /// The elements, where the value is a small integer or bool tensor and they are known.
    elements: Option<HostValue>,
    /// The content, for an inline literal.
    tensor: Option<Tensor>,
}

/// The most elements that a literal may have for its elements to be tracked.
const MAX_FOLLOWED: usize = 64;

/// Builds a [`Function`].
pub(super) struct Builder {
    pub f: Function,
    /// The names of values, each with the first suffix to try for the next value of that name.
    taken: HashMap<Arc<str>, u32>,
    /// The known facts, indexed by value.
    known: Vec<ValueFacts>,
    /// Literals that will lie in the sidecar: the index into `f.literals`, and the index of the decoding job.
    sidecar: Vec<(usize, usize)>,
    unsupported: Vec<UnsupportedNode>,
    /// The version of the operator set of the node that is being imported, where the model imports that set.
    pub opset: Option<i64>,
}

impl Builder {
    pub(super) fn new(name: &str) -> Builder {
        Builder {
            f: Function {
                name: name.into(),
                ..Function::default()
            },
            taken: HashMap::new(),
            known: Vec::new(),
            sidecar: Vec::new(),
            unsupported: Vec::new(),
            opset: None,
        }
    }

    /// Adds a value, whose name gets a suffix where it is already taken.
    fn value(&mut self, name: &str, ty: Option<TensorType>) -> ValueId {
        let mut unique: Arc<str> = name.into();
        if let Some(mut n) = self.taken.get(name).copied() {
            while self.taken.contains_key(&unique) {
                unique = format!("{name}.{n}").into();
                n += 1;
            }
            self.taken.insert(name.into(), n);
        }
        self.taken.insert(unique.clone(), 1);
        self.known.push(ValueFacts {
            typed: ty.is_some(),
            ..ValueFacts::default()
        });
        // Inference replaces this placeholder of an unknown type.
        self.f.add_value(
            unique,
            ty.unwrap_or_else(|| TensorType::new(DType::F32, vec![])),
        )
    }

    /// Adds a parameter.
    pub(super) fn param(&mut self, name: &str, ty: TensorType) -> ValueId {
        let id = self.value(name, Some(ty));
        self.f.params.push(id);
        id
    }

    /// Adds an inline constant.
    pub(super) fn literal(&mut self, name: &str, t: Tensor) -> ValueId {
        let ty = TensorType::fixed(t.dtype(), t.shape());
        self.constant(name, ty, StoredConstant::Literal(Literal::Inline(t)))
    }

    /// Adds a one-dimensional inline constant.
    pub(super) fn ints(&mut self, name: &str, v: &[i64]) -> Result<ValueId, ModelError> {
        let t = Tensor::from_slice(&[v.len()], v);
        let t = t.map_err(|e| ModelError::Tensor {
            tensor: name.into(),
            reason: e.to_string(),
        })?;
        Ok(self.literal(name, t))
    }

    /// Adds a constant of type `ty`.
    pub(super) fn constant(
        &mut self,
        name: &str,
        ty: TensorType,
        placed: StoredConstant,
    ) -> ValueId {
        let id = self.value(name, Some(ty));
        let literal = match placed {
            StoredConstant::Literal(l) => l,
            StoredConstant::Sidecar(job) => {
                self.sidecar.push((self.f.literals.len(), job));
                // `place_sidecar` fills in the range.
                Literal::Range {
                    artifact: 0,
                    offset: 0,
                    len: 0,
                }
            }
        };
        if let Literal::Inline(t) = &literal {
            let small = t.elements() <= MAX_FOLLOWED;
            let elements = small.then(|| t.to_i64s()).flatten();
            let known = &mut self.known[id.ix()];
            known.elements = elements.map(|v| HostValue {
                shape: t.shape().to_vec(),
                elements: v.into_iter().map(Dim::from).collect(),
            });
            known.tensor = Some(t.clone());
        }
        self.f.literals.push((id, literal));
        id
    }

    /// Sets the ranges of the decoded tensors, which lie in `artifact` at `offsets`.
    pub(super) fn place_sidecar(&mut self, artifact: u32, jobs: &[Job], offsets: &[u64]) {
        for (literal, job) in std::mem::take(&mut self.sidecar) {
            let (offset, len) = (offsets[job], jobs[job].bytes);
            self.f.literals[literal].1 = Literal::Range {
                artifact,
                offset,
                len,
            };
        }
    }

    /// The type of `id`, where it is known.
    pub(super) fn ty(&self, id: ValueId) -> Option<&TensorType> {
        self.known[id.ix()].typed.then(|| self.f.ty(id))
    }

    /// The elements of a small integer or bool value, where they are known.
    pub(super) fn elements(&self, id: ValueId) -> Option<Vec<i64>> {
        self.known[id.ix()].elements.as_ref()?.ints()
    }

    /// Notes that a node cannot be imported.
    pub(super) fn unsupported(&mut self, node: &str, op: &str, reason: Option<String>) {
        self.unsupported.push(UnsupportedNode {
            node: node.into(),
            op: op.into(),
            opset: self.opset,
            reason,
        });
    }

    /// Fails when a node could not be imported.
    pub(super) fn check_supported(&mut self) -> Result<(), ModelError> {
        match std::mem::take(&mut self.unsupported) {
            nodes if nodes.is_empty() => Ok(()),
            nodes => Err(ModelError::Unsupported { nodes }),
        }
    }

    /// Adds values of unknown type in place of the outputs of a node that cannot be imported.
    pub(super) fn stand_ins(&mut self, names: &[String]) -> Vec<ValueId> {
        names.iter().map(|n| self.value(n, None)).collect()
    }

    /// Adds values for the outputs of node `name`, at least `least` of them. Outputs without a name are named after the
    /// node.
    fn outputs(&mut self, name: &str, outputs: &[String], least: usize) -> Vec<ValueId> {
        (0..outputs.len().max(least))
            .map(|i| match outputs.get(i) {
                Some(n) if !n.is_empty() => self.value(n, None),
                _ => self.value(&format!("{name}.{i}"), None),
            })
            .collect()
    }

    /// Adds a node in the newest form of `op`, and returns its outputs.
    pub(super) fn emit(
        &mut self,
        op: &str,
        name: &str,
        mut attrs: Attrs,
        mut inputs: Vec<Option<ValueId>>,
        outputs: &[String],
    ) -> Result<Vec<ValueId>, ModelError> {
        let Some(def) = ops::lookup(op) else {
            self.unsupported(name, op, None);
            return Ok(self.stand_ins(outputs));
        };
        let mut surplus = None;
        attrs.0.retain(|attr, value| {
            let known = def.attrs.iter().find(|d| d.name == &**attr);
            if let (Some(d), Attr::Int(code)) = (known, &*value)
                && d.kind == AttrKind::DType
            {
                match i32::try_from(*code)
                    .map_err(|e| e.to_string())
                    .and_then(super::tensor::dtype)
                {
                    Ok(dtype) => *value = Attr::DType(dtype),
                    Err(reason) => surplus = Some(format!("attribute '{attr}': {reason}")),
                }
            }
            if known.is_none() && !is_default(attr, value) {
                surplus = Some(format!("attribute '{attr}'"));
            }
            known.is_some()
        });
        if let Some(reason) = surplus {
            self.unsupported(name, op, Some(reason));
            return Ok(self.stand_ins(outputs));
        }
        while inputs.last().is_some_and(|i| i.is_none()) {
            inputs.pop();
        }
        let outputs = self.outputs(name, outputs, def.outputs.0);
        let node = Node {
            name: name.into(),
            op: def.name.into(),
            attrs,
            inputs,
            outputs: outputs.clone(),
            runs_at: RunsAt::Step,
        };
        self.observe(def, &node);
        self.f.nodes.push(node);
        Ok(outputs)
    }

    /// Infers the types of a node's outputs. Errors are ignored here, since the inference of the whole function reports
    /// them.
    fn observe(&mut self, def: &OpDef, node: &Node) {
        if node
            .inputs
            .iter()
            .flatten()
            .any(|i| !self.known[i.ix()].typed)
        {
            return;
        }
        let operand = |id: &ValueId| {
            let k = &self.known[id.ix()];
            Operand {
                ty: self.f.ty(*id),
                value: k.elements.as_ref(),
                tensor: k.tensor.as_ref(),
            }
        };
        let inputs: Vec<Option<Operand<'_>>> = node
            .inputs
            .iter()
            .map(|i| i.as_ref().map(operand))
            .collect();
        let fresh = |output: usize, axis: usize| {
            let name = node
                .outputs
                .get(output)
                .map_or(&node.name, |id| &self.f.value(*id).name);
            Dim::sym(&format!("{name}#{axis}"))
        };
        let inferred = ops::infer_op(def, &node.attrs, &inputs, node.outputs.len(), &fresh);
        for (id, i) in node.outputs.iter().zip(inferred.unwrap_or_default()) {
            self.f.values[id.ix()].ty = i.ty;
            self.known[id.ix()] = ValueFacts {
                typed: true,
                elements: i.value,
                tensor: None,
            };
        }
    }
}
