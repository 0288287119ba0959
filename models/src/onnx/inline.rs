//! Inlining of nested graphs: calls of model-local functions, and branches that are known to be taken.

use convoke_graph::graph::ValueId;

use super::import::{Importer, OPSETS, check_opset};
use super::normalize::ImportFailure;
use super::proto::{AttributeProto, FunctionProto, GraphProto};
use super::scope::{Scope, opsets};
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

    /// Imports an If node by inlining the branch that its condition selects. A condition that is not constant is
    /// unsupported.
    pub(super) fn branch(
        &mut self,
        name: &str,
        inputs: &[Option<ValueId>],
        bound: &[(&'a str, &'a AttributeProto)],
        outputs: &'a [String],
    ) -> Result<(), ModelError> {
        let known = inputs
            .first()
            .copied()
            .flatten()
            .and_then(|id| self.b.elements(id));
        let Some([condition]) = known.as_deref() else {
            let reason = Err(ImportFailure::Unsupported(
                "its condition is not constant".into(),
            ));
            let out = self.reported(reason, "", "If", name, outputs)?;
            for (o, id) in outputs.iter().zip(out).filter(|(o, _)| !o.is_empty()) {
                self.scope().define(o, Some(id))?;
            }
            return Ok(());
        };
        let wanted = if *condition != 0 {
            "then_branch"
        } else {
            "else_branch"
        };
        let graph = bound
            .iter()
            .find(|(n, _)| *n == wanted)
            .and_then(|(_, a)| a.g.as_ref());
        let error = |reason: String| ModelError::Node {
            node: name.into(),
            op: "If".into(),
            reason,
        };
        let graph = graph.ok_or_else(|| error(format!("has no {wanted}")))?;
        let inner = Scope {
            open: true,
            prefix: format!("{name}/"),
            ..Scope::default()
        };
        let results = self.graph(graph, inner, name)?;
        if results.len() < outputs.len() {
            return Err(error(format!("{wanted} has {} outputs", results.len())));
        }
        for (o, id) in outputs.iter().zip(results).filter(|(o, _)| !o.is_empty()) {
            self.scope().define(o, id)?;
        }
        Ok(())
    }

    /// Imports a nested graph and returns its results.
    fn graph(
        &mut self,
        g: &'a GraphProto,
        mut inner: Scope<'a>,
        name: &str,
    ) -> Result<Vec<Option<ValueId>>, ModelError> {
        self.check_depth()?;
        inner.add_initializers(g)?;
        // A nested graph may refer to attributes of the enclosing function.
        inner.attrs = self.scope().attrs.clone();
        self.scopes.push(inner);
        self.nodes(&g.node, g.output.iter().map(|o| o.name()))?;
        let results = g
            .output
            .iter()
            .map(|o| self.resolve(o.name(), name))
            .collect();
        self.scopes.pop();
        results
    }

    /// Imports a call of a model-local function by inlining its nodes.
    pub(super) fn call(
        &mut self,
        f: &'a FunctionProto,
        name: &str,
        inputs: Vec<Option<ValueId>>,
        bound: Vec<(&'a str, &'a AttributeProto)>,
        outputs: &'a [String],
    ) -> Result<(), ModelError> {
        self.check_depth()?;
        let key = (f.domain(), f.name());
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
            function: Some(key),
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
            inner.define(formal, inputs.get(i).copied().flatten())?;
        }
        self.scopes.push(inner);
        self.nodes(&f.node, f.output.iter().map(String::as_str))?;
        let results: Result<Vec<_>, _> = f.output.iter().map(|o| self.resolve(o, name)).collect();
        self.scopes.pop();
        let results = results?;
        if results.len() < outputs.len() {
            return Err(error(format!("has {} outputs", results.len())));
        }
        for (o, id) in outputs.iter().zip(results).filter(|(o, _)| !o.is_empty()) {
            self.scope().define(o, id)?;
        }
        Ok(())
    }
}
