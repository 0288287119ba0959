//! The function under construction: values with unique names, literals, nodes, and the types that are known so far,
//! which the rewriting of older forms of ops needs.
//!
//! A function that a control-flow op runs has a builder of its own. Values of the enclosing function that it reads are
//! its last parameters, except that small constants are copied.

mod body;
pub(super) mod integers;

pub(super) use body::Body;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use convoke_graph::graph::{
    Attr, Attrs, Function, GraphError, Literal, Node, RunsAt, TensorType, ValueId,
};
use convoke_graph::ops::{self, AttrKind, HostValue, OpDef, OpError, Operand};
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
    /// Whether the value depends on constants only.
    constant: bool,
    /// The number of the node that yields the value.
    node: Option<usize>,
}

impl ValueFacts {
    /// The value as an inline tensor of `dtype`, where all its elements are known.
    fn small_constant(&self, dtype: DType) -> Option<Tensor> {
        if let Some(t) = &self.tensor {
            return Some(t.clone());
        }
        let known = self.elements.as_ref()?;
        let (shape, elements) = (&known.shape, known.ints()?);
        match dtype {
            DType::I64 => Tensor::from_slice(shape, &elements).ok(),
            DType::I32 => {
                let narrow = elements.iter().map(|v| i32::try_from(*v));
                let narrow: Result<Vec<_>, _> = narrow.collect();
                Tensor::from_slice(shape, &narrow.ok()?).ok()
            }
            DType::Bool => {
                let bools: Vec<bool> = elements.iter().map(|v| *v != 0).collect();
                Tensor::from_bools(shape, &bools).ok()
            }
            _ => None,
        }
    }
}

/// How many nodes a builder refused.
#[derive(Clone, Copy)]
pub(super) struct Refusals {
    unsupported: usize,
    rejected: usize,
}

/// The most elements that a literal may have for its elements to be tracked.
const MAX_FOLLOWED: usize = 64;

/// The most rejected nodes that are named. Each may be the cause of all that are rejected after it.
const MOST_REJECTED: usize = 100;

/// The most nodes between the comparison of a size and the choice that depends on it.
const MOST_BETWEEN: usize = 16;

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
    /// The nodes that their ops reject.
    rejected: Vec<GraphError>,
    /// Whether the function is one that a control-flow op runs.
    is_body: bool,
    /// The values of the enclosing function that are captured, each with the parameter that stands for it.
    captured: Vec<(ValueId, ValueId)>,
    /// By value of the enclosing function that is read here, the value that stands for it: a parameter, or a copy of a
    /// constant.
    stands_for: HashMap<ValueId, ValueId>,
    /// The values that are a scalar in one branch of an If, and a list of one number in the other; see `nested::reads`.
    pub single: HashSet<ValueId>,
    /// The version of the operator set of the node that is being imported, where the model imports that set.
    pub opset: Option<i64>,
    /// The operands of the node that is being imported, as far as they are tensors.
    pub operands: Vec<ValueId>,
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
            rejected: Vec::new(),
            is_body: false,
            captured: Vec::new(),
            stands_for: HashMap::new(),
            single: HashSet::new(),
            opset: None,
            operands: Vec::new(),
        }
    }

    /// The builder of a function that a control-flow op runs. Its first parameters are the op's own; those for captured
    /// values follow.
    pub(super) fn body(name: &str) -> Builder {
        Builder {
            is_body: true,
            ..Builder::new(name)
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
        self.param_of(name, Some(ty))
    }

    /// Adds a parameter whose type may be unknown, because a node before it was rejected.
    pub(super) fn param_of(&mut self, name: &str, ty: Option<TensorType>) -> ValueId {
        let id = self.value(name, ty);
        self.f.params.push(id);
        id
    }

    /// The value that stands here for a value of the enclosing function.
    pub(super) fn capture(&mut self, outer: &Builder, id: ValueId) -> ValueId {
        if let Some(known) = self.stands_for.get(&id) {
            return *known;
        }
        let name = outer.f.value(id).name.clone();
        let here = match outer.known[id.ix()].small_constant(outer.f.ty(id).dtype) {
            Some(t) => self.literal(&name, t),
            None => {
                let here = self.param_of(&name, outer.ty(id).cloned());
                self.known[here.ix()].constant = outer.known[id.ix()].constant;
                self.captured.push((id, here));
                here
            }
        };
        self.stands_for.insert(id, here);
        if outer.single.contains(&id) {
            self.single.insert(here);
        }
        here
    }

    /// Ends the function of a control-flow op, which yields `results`. Nodes that cannot be imported are reported with
    /// those of `outer`, the enclosing function.
    pub(super) fn finish_body(mut self, results: &[ValueId], outer: &mut Builder) -> Body {
        outer.unsupported.append(&mut self.unsupported);
        outer.rejected.append(&mut self.rejected);
        outer.rejected.truncate(MOST_REJECTED);
        let results = results.iter().enumerate();
        self.f.results = results.map(|(i, id)| (format!("result{i}"), *id)).collect();
        let known = self.known.into_iter().zip(&self.f.values);
        let types = known.map(|(k, v)| k.typed.then(|| v.ty.clone())).collect();
        Body::new(self.f, self.captured, types)
    }

    /// Whether `condition` says that a size equals 1.
    pub(super) fn is_one(&self, mut condition: ValueId, size: &Dim) -> bool {
        let one = |d: &Dim| d.as_const() == Some(1);
        for _ in 0..=MOST_BETWEEN {
            let made_by = self.known[condition.ix()].node;
            let Some(node) = made_by.and_then(|n| self.f.nodes.get(n)) else {
                return false;
            };
            let operands: Vec<ValueId> = node.inputs.iter().copied().flatten().collect();
            match (&*node.op, operands.as_slice()) {
                ("Cast" | "Identity" | "Squeeze" | "Reshape", [x]) => condition = *x,
                ("Equal", [a, b]) => {
                    return match (self.dim(*a), self.dim(*b)) {
                        (Some(a), Some(b)) => (a == *size && one(&b)) || (b == *size && one(&a)),
                        _ => false,
                    };
                }
                _ => return false,
            }
        }
        false
    }

    /// Whether a size depends on sizes of the parameters only.
    pub(super) fn is_of_inputs(&self, size: &Dim) -> bool {
        let (mut all, mut own) = (BTreeSet::new(), BTreeSet::new());
        let params = self.f.params.iter().flat_map(|id| &self.f.ty(*id).shape);
        params.for_each(|d| d.symbols(&mut all));
        size.symbols(&mut own);
        own.is_subset(&all)
    }

    /// Whether `id` depends on constants and on sizes of the parameters only.
    pub(super) fn is_of_sizes(&self, id: ValueId) -> bool {
        let (mut open, mut seen) = (vec![id], HashSet::from([id]));
        while let Some(id) = open.pop() {
            let known = &self.known[id.ix()];
            if known.constant {
                continue;
            }
            let Some(node) = known.node.and_then(|n| self.f.nodes.get(n)) else {
                return false;
            };
            if !ops::lookup(&node.op).is_some_and(|def| def.pure_op) {
                return false;
            }
            let operands = node.inputs.iter().flatten();
            if matches!(&*node.op, "Shape" | "Size") {
                let mut sizes = operands.flat_map(|x| &self.f.ty(*x).shape);
                if !sizes.all(|d| self.is_of_inputs(d)) {
                    return false;
                }
                continue;
            }
            open.extend(operands.copied().filter(|x| seen.insert(*x)));
        }
        true
    }

    /// Whether `id` depends on constants only.
    pub(super) fn is_constant(&self, id: ValueId) -> bool {
        self.known[id.ix()].constant
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
        self.known[id.ix()].constant = true;
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

    /// The whole number that a literal f32 of one element is, such as the sizes of the first operator set.
    pub(super) fn whole(&self, id: ValueId) -> Option<i64> {
        let tensor = self.known[id.ix()].tensor.as_ref()?;
        match *tensor.as_slice::<f32>().ok()? {
            [v] if v.fract() == 0.0 && v.abs() < 1e6 => Some(v as i64),
            _ => None,
        }
    }

    /// Whether a literal of one element is zero.
    pub(super) fn is_zero(&self, id: ValueId) -> bool {
        let tensor = self.known[id.ix()].tensor.as_ref();
        tensor.is_some_and(|t| t.elements() == 1 && t.bytes().iter().all(|byte| *byte == 0))
    }

    /// The element of a value of one element, where it is known, if only as a dimension.
    pub(super) fn dim(&self, id: ValueId) -> Option<Dim> {
        match self.known[id.ix()].elements.as_ref()?.elements.as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        }
    }

    /// Notes that a node cannot be imported.
    pub(super) fn unsupported(&mut self, node: &str, op: &str, reason: Option<String>) {
        let mut types = self.operands.iter().filter_map(|id| self.ty(*id));
        let dtype = types.next().map(|ty| ty.dtype);
        self.unsupported.push(UnsupportedNode {
            node: node.into(),
            op: op.into(),
            opset: self.opset,
            dtype,
            reason,
        });
    }

    /// How many nodes were refused.
    pub(super) fn refusals(&self) -> Refusals {
        Refusals {
            unsupported: self.unsupported.len(),
            rejected: self.rejected.len(),
        }
    }

    /// Forgets all but the first refused nodes, because the others are imported again.
    pub(super) fn forget_refusals(&mut self, first: Refusals) {
        self.unsupported.truncate(first.unsupported);
        self.rejected.truncate(first.rejected);
    }

    /// Infers the types of the whole function.
    pub(super) fn infer(&mut self) -> Result<(), ModelError> {
        let inferred = ops::infer_types(&mut self.f);
        let errors = match inferred {
            Ok(()) if self.rejected.is_empty() => return Ok(()),
            // Nodes that depend on a rejected node may not be needed by any result, and then neither is that node.
            Ok(()) => match self.f.verify() {
                Ok(()) => return Ok(()),
                Err(e) => vec![e],
            },
            Err(errors) => errors,
        };
        // If nodes were rejected while they were added, their results are values without a definition, and a node that
        // runs functions is rejected because of a node inside them.
        let mut causes = std::mem::take(&mut self.rejected);
        let nodes = self.f.nodes.iter();
        let with_functions = nodes.filter(|n| n.attrs.functions().next().is_some());
        let with_functions: HashSet<&str> = with_functions.map(|n| &*n.name).collect();
        let is_consequence = |e: &GraphError| match e {
            GraphError::Undefined { .. } => true,
            GraphError::Op { node, .. } | GraphError::RankUnknown { node, .. } => {
                with_functions.contains(&**node)
            }
            _ => false,
        };
        let known = causes.len();
        for e in errors {
            if causes.len() >= MOST_REJECTED {
                break;
            }
            if known == 0 || !(is_consequence(&e) || causes.contains(&e)) {
                causes.push(e);
            }
        }
        Err(ModelError::Graph { errors: causes })
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
        if self.is_body && (!def.pure_op || ops::is_custom(def.name)) {
            surplus = Some("in a branch or loop".into());
        }
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
        let observed = self.observe(def, &node);
        // A node that runs functions is rejected for the error inside them, where that is known.
        let inside = node.attrs.functions().next().is_some() && !self.rejected.is_empty();
        if let (Err(e), false) = (observed, inside || self.rejected.len() >= MOST_REJECTED) {
            self.rejected.push(GraphError::rejected(name, op, e));
        }
        let number = self.f.nodes.len();
        for id in &outputs {
            self.known[id.ix()].node = Some(number);
        }
        self.f.nodes.push(node);
        Ok(outputs)
    }

    /// Infers the types of a node's outputs, as far as those of its operands are known.
    fn observe(&mut self, def: &OpDef, node: &Node) -> Result<(), OpError> {
        if node
            .inputs
            .iter()
            .flatten()
            .any(|i| !self.known[i.ix()].typed)
        {
            return Ok(());
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
        let inferred = ops::infer_op(def, &node.attrs, &inputs, node.outputs.len(), &fresh)?;
        let mut read = node.inputs.iter().flatten();
        let constant = def.pure_op && read.all(|id| self.known[id.ix()].constant);
        for (id, i) in node.outputs.iter().zip(inferred) {
            self.f.values[id.ix()].ty = i.ty;
            self.known[id.ix()] = ValueFacts {
                typed: true,
                elements: i.value,
                tensor: None,
                constant,
                node: None,
            };
        }
        Ok(())
    }
}
