//! FlexAttention: graphs of the node are inlined between the steps of attention.

use convoke_graph::Dim;
use convoke_graph::graph::ValueId;

use super::super::import::Importer;
use super::super::normalize::{Flex, FlexAttention, ImportFailure, ImportedNode, Outputs};
use super::super::proto::AttributeProto;
use crate::error::ModelError;

impl<'a> Importer<'a> {
    /// Imports FlexAttention.
    pub(in super::super) fn flex_attention(
        &mut self,
        name: &str,
        inputs: Vec<Option<ValueId>>,
        bound: &[(&'a str, &'a AttributeProto)],
        outputs: &[String],
    ) -> Outputs {
        let is_modifier = |attr: &str| matches!(attr, "score_mod" | "prob_mod");
        let plain = bound.iter().filter(|(attr, _)| !is_modifier(attr));
        let plain: Vec<_> = plain.copied().collect();
        let call = ImportedNode {
            name: name.into(),
            op: "FlexAttention".into(),
            inputs,
            attrs: self.attributes(&plain)?,
            outputs: self.full_names(outputs),
            opset: 1,
        };
        let modified = plain.len() < bound.len();
        let steps = match FlexAttention::begin(&mut self.b, call, modified)? {
            Flex::Whole(outputs) => return Ok(outputs),
            Flex::Steps(steps) => steps,
        };
        let scores = self.modified(name, "score_mod", bound, steps.scores)?;
        let weights = steps.weights(&mut self.b, scores)?;
        let weights = self.modified(name, "prob_mod", bound, weights)?;
        steps.finish(&mut self.b, weights)
    }

    /// The result of the graph in an attribute for `x`; `x` itself where there is none.
    fn modified(
        &mut self,
        name: &str,
        attr: &str,
        bound: &[(&'a str, &'a AttributeProto)],
        x: ValueId,
    ) -> Result<ValueId, ImportFailure> {
        let Some((_, modifier)) = bound.iter().find(|(known, _)| *known == attr) else {
            return Ok(x);
        };
        let error = |reason: &str| ModelError::Node {
            node: name.into(),
            op: "FlexAttention".into(),
            reason: format!("{attr} {reason}"),
        };
        let graph = modifier.g.as_ref();
        let graph = graph.ok_or_else(|| error("must be a graph"))?;
        if (graph.input.len(), graph.output.len()) != (1, 1) {
            return Err(error("must have one input and one output").into());
        }
        let before = self.b.ty(x).cloned();
        let made = self.graph(
            graph,
            &[x],
            &[true],
            &format!("{name}/{attr}"),
            "ai.onnx.preview.FlexAttention",
        )?;
        let y = made
            .first()
            .copied()
            .ok_or_else(|| error("has no output"))?;
        let (Some(before), Some(after)) = (before, self.b.ty(y)) else {
            return Ok(y);
        };
        if before.dtype != after.dtype {
            return Err(error(&format!("must keep the dtype {}", before.dtype)).into());
        }
        let differs = |(a, b): (&Dim, &Dim)| {
            let both = a.as_const().zip(b.as_const());
            both.is_some_and(|(a, b)| a != b)
        };
        let mut dims = before.shape.iter().zip(&after.shape);
        if before.shape.len() != after.shape.len() || dims.any(differs) {
            let reason = format!("must keep the shape: it makes {after} of {before}");
            return Err(error(&reason).into());
        }
        Ok(y)
    }
}
