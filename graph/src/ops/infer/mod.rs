//! Infers the types of a whole function from its parameters and literals.
//!
//! Inference is one pass in topological order. It follows the elements of small integer and bool values, so that
//! exported shape arithmetic resolves to symbolic dimensions.
//!
//! Whatever runs the rules of ops is here: `check` looks at what a rule is given and what it gives, `concrete` runs it
//! on sizes of run time, and `verify` compares with the types that a function declares.

mod check;
mod concrete;
mod partial;
pub(super) mod verify;

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::custom;
use super::def::{HostValue, Infer, InferredOutput, OpDef, Operand};
use super::error::OpError;
use super::host;
use super::registry::lookup;
use crate::graph::{Function, GraphError, Literal, Node, TensorType, Value, ValueId};
use crate::tensor::Tensor;
use crate::{DType, Dim};
use check::{MAX_WEIGHT, check_given, check_literal};

pub use concrete::{infer_concrete, infer_launch};

/// The most errors that are reported about one function.
const MAX_ERRORS: usize = 32;

/// The most weight of followed elements in a whole function, which takes some 200 MB. Elements beyond that are unknown.
const MAX_FOLLOWED: usize = 1 << 22;

/// The known elements of a function's small integer and bool values.
#[derive(Debug, Clone, Default)]
pub struct HostValues(Vec<Option<HostValue>>);

impl HostValues {
    /// The elements of `id`, where they are known.
    pub fn get(&self, id: ValueId) -> Option<&HostValue> {
        self.0.get(id.ix())?.as_ref()
    }

    /// Every value whose elements are known.
    pub fn iter(&self) -> impl Iterator<Item = (ValueId, &HostValue)> {
        self.0
            .iter()
            .enumerate()
            .filter_map(|(i, v)| Some((ValueId(i as u32), v.as_ref()?)))
    }
}

/// Checks one application of an op against its definition and gives its outputs.
pub fn infer_op(
    op: &OpDef,
    attrs: &crate::graph::Attrs,
    inputs: &[Option<Operand<'_>>],
    outputs: usize,
    fresh: &dyn Fn(usize, usize) -> Dim,
) -> Result<Vec<InferredOutput>, OpError> {
    let inputs: SmallVec<[Option<Operand<'_>>; 8]> = inputs
        .iter()
        .map(|o| o.map(|o| partial::visible(op.op, o)))
        .collect();
    let mut out = apply(op, attrs, &inputs, outputs, fresh)?;
    if let Some(first) = out.first_mut() {
        partial::follow(op.op, &inputs, first, fresh);
    }
    Ok(out)
}

/// As [`infer_op`], for operands of which no elements are known only in part.
pub(super) fn apply(
    op: &OpDef,
    attrs: &crate::graph::Attrs,
    inputs: &[Option<Operand<'_>>],
    outputs: usize,
    fresh: &dyn Fn(usize, usize) -> Dim,
) -> Result<Vec<InferredOutput>, OpError> {
    let dtypes: SmallVec<[Option<DType>; 8]> = inputs
        .iter()
        .map(|i| i.as_ref().map(|i| i.ty.dtype))
        .collect();
    check::check_operands(op, &dtypes)?;
    check::check_attrs(op, attrs)?;
    check::check_outputs(op, outputs)?;
    let given = Infer {
        attrs,
        inputs,
        outputs,
        fresh,
    };
    let mut out = custom::guarded(op, || (op.infer)(&given))??;
    if custom::is_custom(op.name) {
        // Some processes do not know the definition. All must infer the same, so elements stay unknown everywhere.
        out.iter_mut().for_each(|o| o.value = None);
    }
    out.truncate(outputs);
    if out.len() < outputs {
        return Err(OpError::shape(format!(
            "has {} outputs, {outputs} declared",
            out.len()
        )));
    }
    check::settle(&mut out, MAX_WEIGHT, fresh)?;
    Ok(out)
}

/// Facts about values beside their types, collected while a function is walked.
pub(super) struct ValueFacts<'f> {
    values: Vec<Option<HostValue>>,
    tensors: Vec<Option<&'f Tensor>>,
    /// The weight that is left of [`MAX_FOLLOWED`].
    left: usize,
}

impl<'f> ValueFacts<'f> {
    /// Starts from the inline literals.
    pub fn new(literals: &'f [(ValueId, Literal)], count: usize) -> ValueFacts<'f> {
        let mut k = ValueFacts {
            values: vec![None; count],
            tensors: vec![None; count],
            left: MAX_FOLLOWED,
        };
        for (id, literal) in literals {
            if let (Literal::Inline(t), true) = (literal, id.ix() < count) {
                k.values[id.ix()] = host::from_tensor(t, host::LIMIT);
                k.tensors[id.ix()] = Some(t);
            }
        }
        k
    }

    /// Infers the outputs of `node` from the types in `values`; the node's value ids must have been checked.
    pub fn infer(&self, node: &Node, values: &[Value]) -> Result<Vec<InferredOutput>, OpError> {
        let fresh = |output: usize, axis: usize| {
            let named = node.outputs.get(output).or(node.outputs.first());
            let name = named.map_or(&node.name, |id| &values[id.ix()].name);
            Dim::sym(&format!("{name}#{axis}"))
        };
        let Some(op) = lookup(&node.op) else {
            let mut out = custom::declared(node, values)?;
            check::settle(&mut out, MAX_WEIGHT, &fresh)?;
            return Ok(out);
        };
        let inputs: SmallVec<[Option<Operand<'_>>; 8]> = node
            .inputs
            .iter()
            .map(|id| {
                let i = (*id)?.ix();
                let value = self.values[i].as_ref();
                Some(Operand {
                    ty: &values[i].ty,
                    value,
                    tensor: self.tensors[i],
                })
            })
            .collect();
        infer_op(op, &node.attrs, &inputs, node.outputs.len(), &fresh)
    }

    /// Records the elements of an output, as far as [`MAX_FOLLOWED`] allows.
    pub fn set(&mut self, id: ValueId, value: Option<HostValue>) {
        let weight = |v: &HostValue| v.elements.iter().map(|d| d.weight(MAX_WEIGHT)).sum();
        let left = self.left.checked_sub(value.as_ref().map_or(0, weight));
        self.values[id.ix()] = value.filter(|_| left.is_some());
        self.left = left.unwrap_or(self.left);
    }
}

/// The error of a node that its op rejects.
pub(super) fn rejected(node: &Node, e: OpError) -> GraphError {
    GraphError::rejected(&node.name, &node.op, e)
}

/// An error for every op that the registry lacks, with all nodes that use it.
pub(super) fn unsupported(f: &Function) -> Vec<GraphError> {
    let mut missing: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let known = |op: &str| custom::is_custom(op) || lookup(op).is_some();
    for n in f.nodes.iter().filter(|n| !known(&n.op)) {
        missing.entry(&n.op).or_default().push(n.name.to_string());
    }
    let error = |(op, nodes): (&str, _)| GraphError::Unsupported {
        op: op.into(),
        nodes,
    };
    missing.into_iter().map(error).collect()
}

/// Fills in the types of all node outputs. Unsupported ops are reported all at once; otherwise each
/// node that its op rejects is reported, but not the nodes that depend on it.
pub fn infer_types(f: &mut Function) -> Result<(), Vec<GraphError>> {
    let missing = unsupported(f);
    if !missing.is_empty() {
        return Err(missing);
    }
    let mut errors = Vec::new();
    let count = f.values.len();
    let given = f.params.iter().map(|id| (id, "parameter"));
    let mut state = vec![InferenceState::Undefined; count];
    for (id, what) in given.chain(f.literals.iter().map(|(id, _)| (id, "literal"))) {
        match f.values.get(id.ix()) {
            None => errors.push(GraphError::NoSuchValue { node: what.into() }),
            Some(v) => {
                errors.extend(check_given(v, what).err());
                state[id.ix()] = InferenceState::Typed;
            }
        }
    }
    for (id, literal) in &f.literals {
        let check = |v| check_literal(f, v, literal);
        errors.extend(f.values.get(id.ix()).map(check).and_then(Result::err));
    }
    if !errors.is_empty() {
        errors.truncate(MAX_ERRORS);
        return Err(errors);
    }
    let mut known = ValueFacts::new(&f.literals, count);
    for node in &f.nodes {
        if errors.len() >= MAX_ERRORS {
            break;
        }
        match readable(node, &f.values, &state) {
            Err(e) => errors.push(e),
            Ok(false) => {}
            Ok(true) => match known.infer(node, &f.values) {
                Err(e) => errors.push(rejected(node, e)),
                Ok(outputs) => {
                    for (id, out) in node.outputs.iter().zip(outputs) {
                        f.values[id.ix()].ty = out.ty;
                        known.set(*id, out.value);
                        state[id.ix()] = InferenceState::Typed;
                    }
                    continue;
                }
            },
        }
        for id in node.outputs.iter().filter(|id| id.ix() < count) {
            state[id.ix()] = InferenceState::Failed;
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum InferenceState {
    Undefined,
    Typed,
    /// The value's node was rejected, or depends on a rejected one.
    Failed,
}

/// Whether all operands of `node` have types; an error where an id or a definition is missing.
fn readable(node: &Node, values: &[Value], state: &[InferenceState]) -> Result<bool, GraphError> {
    let mut typed = true;
    for id in node.inputs.iter().flatten().chain(&node.outputs) {
        if id.ix() >= values.len() {
            return Err(GraphError::NoSuchValue {
                node: node.name.to_string(),
            });
        }
    }
    for id in node.inputs.iter().flatten() {
        match state[id.ix()] {
            InferenceState::Typed => {}
            InferenceState::Failed => typed = false,
            InferenceState::Undefined => {
                let (value, user) = (values[id.ix()].name.to_string(), node.name.to_string());
                return Err(GraphError::Undefined { value, user });
            }
        }
    }
    Ok(typed)
}

/// Elements of small integer and bool values that follow from literals and shapes. The function must be
/// typed; nodes that cannot be followed are passed over.
pub fn fold_host(f: &Function) -> HostValues {
    let count = f.values.len();
    let mut known = ValueFacts::new(&f.literals, count);
    for node in &f.nodes {
        let ids = node.inputs.iter().flatten().chain(&node.outputs);
        if ids.into_iter().any(|id| id.ix() >= count) {
            continue;
        }
        let foldable = |id: &ValueId| foldable(&f.values[id.ix()].ty);
        if !node.outputs.iter().any(foldable) {
            continue;
        }
        if let Ok(outputs) = known.infer(node, &f.values) {
            for (id, out) in node.outputs.iter().zip(outputs) {
                known.set(*id, out.value);
            }
        }
    }
    let mut values = known.values;
    for value in &mut values {
        *value = value.take().filter(|v| !partial::is_partial(v));
    }
    HostValues(values)
}

/// Whether the elements of a value of this type can be followed.
fn foldable(ty: &TensorType) -> bool {
    !ty.dtype.is_float() && host::fixed(&ty.shape).is_some()
}
