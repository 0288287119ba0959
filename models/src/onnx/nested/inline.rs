//! Import of nested graphs into the function under construction, and calls of model-local functions.

use convoke_graph::graph::ValueId;

use super::super::import::{Importer, OPSETS, check_opset};
use super::super::lengths;
use super::super::proto::{AttributeProto, FunctionProto, GraphProto};
use super::super::scope::{Meaning, Scope, opsets};
use crate::error::ModelError;

/// Deepest nesting of functions and inlined branches.
const MAX_DEPTH: usize = 32;

impl<'a> Importer<'a> {
    fn check_depth(&self) -> Result<(), ModelError> {
        if self.scopes.len() > MAX_DEPTH {
            return Err(ModelError::TooLarge {
                what: "levels of functions",
                limit: MAX_DEPTH as u64,
            });
        }
        Ok(())
    }

    /// Imports the graph `g` that is nested in node `name`, an `op`, whose inputs are `params`, and returns the outputs for
    /// which `kept` holds.
    pub(super) fn graph(
        &mut self,
        g: &'a GraphProto,
        params: &[ValueId],
        kept: &[bool],
        name: &str,
        op: &str,
    ) -> Result<Vec<ValueId>, ModelError> {
        let params = params.iter().copied().map(Meaning::Tensor).collect();
        let results = self.nested(g, params, kept, name)?;
        let mut ids = Vec::with_capacity(results.len());
        for result in results {
            self.refuse_single(&result, name, op);
            let reason = match result {
                Meaning::Tensor(id) => {
                    ids.push(id);
                    continue;
                }
                Meaning::Sequence(_) | Meaning::Packed(_) => "its body yields a sequence",
                Meaning::Nothing | Meaning::Optional(..) => "its body yields an optional value",
                Meaning::Map { .. } => "its body yields a map",
            };
            self.b.unsupported(name, op, Some(reason.into()));
            ids.extend(self.b.stand_ins(&[format!("{name}/nothing")]));
        }
        Ok(ids)
    }

    /// As [`Self::graph`], with operands and outputs that need not be tensors.
    pub(super) fn nested(
        &mut self,
        g: &'a GraphProto,
        params: Vec<Meaning>,
        kept: &[bool],
        name: &str,
    ) -> Result<Vec<Meaning>, ModelError> {
        self.check_depth()?;
        self.count_nodes(g.initializer.len() + g.sparse_initializer.len())?;
        let mut inner = Scope {
            open: true,
            prefix: format!("{name}/"),
            level: self.enclosing.len(),
            // A nested graph may refer to attributes of the enclosing function.
            attrs: self.scope().attrs.clone(),
            ranks: lengths::declared(g.value_info.iter().chain(&g.output)),
            ..Scope::default()
        };
        inner.add_initializers(g)?;
        for (input, meaning) in g.input.iter().zip(params) {
            inner.define_as(input.name(), meaning)?;
        }
        self.scopes.push(inner);
        let moved = self.moved.get(&(std::ptr::from_ref(g) as usize));
        let moved = moved.into_iter().flatten().copied();
        let nodes = moved.chain(&g.node).collect();
        let outputs = g.output.iter().zip(kept).filter(|(_, kept)| **kept);
        let outputs = outputs.map(|(o, _)| o.name());
        self.nodes(nodes, outputs.clone())?;
        let mut results = Vec::new();
        for output in outputs {
            let meaning = self.meaning(output, name)?;
            results.push(self.refuse_map(meaning, name, "the output of a nested graph"));
        }
        self.scopes.pop();
        Ok(results)
    }

    /// Imports a call of a model-local function by inlining its nodes.
    pub(in super::super) fn call(
        &mut self,
        f: &'a FunctionProto,
        name: &str,
        inputs: Vec<Meaning>,
        bound: Vec<(&'a str, &'a AttributeProto)>,
        outputs: &'a [String],
    ) -> Result<(), ModelError> {
        self.check_depth()?;
        let key = (f.domain(), f.name(), f.overload());
        if self.scopes.iter().any(|s| s.function == Some(key)) {
            return Err(ModelError::Recursion {
                function: format!("{}.{}", key.0, key.1),
            });
        }
        let error = |reason: String| ModelError::Node {
            node: name.into(),
            op: f.name().into(),
            reason,
        };
        if inputs.len() > f.input.len() {
            return Err(error(format!(
                "takes {} operands, {} given",
                f.input.len(),
                inputs.len()
            )));
        }
        let mut inner = Scope {
            opsets: opsets(&f.opset_import),
            prefix: format!("{name}/"),
            level: self.enclosing.len(),
            function: Some(key),
            ranks: lengths::declared(f.value_info.iter()),
            ..Scope::default()
        };
        // A function that does not import a domain uses the version that the model imports.
        let outer = self.scopes[0].opsets.clone();
        outer.into_iter().for_each(|(d, v)| {
            inner.opsets.entry(d).or_insert(v);
        });
        check_opset(inner.opsets.get("").copied().unwrap_or(*OPSETS.end()))?;
        let defaults = f.attribute_proto.iter().map(|a| (a.name(), a));
        inner.attrs = defaults.chain(bound).collect();
        for (i, formal) in f.input.iter().enumerate() {
            let given = inputs.get(i).cloned().unwrap_or(Meaning::Nothing);
            inner.define_as(formal, given)?;
        }
        self.scopes.push(inner);
        self.nodes(f.node.iter().collect(), f.output.iter().map(String::as_str))?;
        let results: Result<Vec<_>, _> = f.output.iter().map(|o| self.meaning(o, name)).collect();
        self.scopes.pop();
        let results = results?;
        if results.len() < outputs.len() {
            return Err(error(format!("has {} outputs", results.len())));
        }
        for (o, id) in outputs.iter().zip(results).filter(|(o, _)| !o.is_empty()) {
            self.scope().define_as(o, id)?;
        }
        Ok(())
    }
}
