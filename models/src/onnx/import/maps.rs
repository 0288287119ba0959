//! Maps. An input of the graph that is a map is two lists, its keys and its values, which the ops of `ai.onnx.ml` that
//! take a map read. Every other reader of a map is refused.

use convoke_graph::graph::ValueId;

use super::super::normalize::{self, ImportFailure, ImportedNode, Outputs};
use super::super::proto::{AttributeProto, NodeProto};
use super::super::scope::{Meaning, domain};
use super::Importer;
use super::node::LEARN;
use crate::error::{ModelError, OF_MAPS};

impl<'a> Importer<'a> {
    /// Imports a node that reads a map. Returns `false` where it reads none.
    pub(super) fn of_maps(
        &mut self,
        name: &str,
        n: &'a NodeProto,
        bound: &[(&str, &AttributeProto)],
        outputs: &'a [String],
    ) -> Result<bool, ModelError> {
        if self.scopes.iter().all(|s| s.compounds.is_empty()) {
            return Ok(false);
        }
        let map = n.input.iter().find(|input| self.is_map(input));
        let Some(Meaning::Map { keys, values }) = map.and_then(|map| self.compound(map)) else {
            return Ok(false);
        };
        let (domain, op) = (domain(n.domain()), n.op_type());
        let out = match (domain, op, n.input.len()) {
            (LEARN, "CastMap" | "DictVectorizer", 1) => {
                self.b.operands.extend([keys, values]);
                let inputs = vec![Some(keys), Some(values)];
                self.map_op(op, name, inputs, bound, outputs)
            }
            _ => Err(ImportFailure::Unsupported(OF_MAPS.into())),
        };
        let out = self.reported(out, domain, op, name, outputs)?;
        self.define_all(outputs, out)?;
        Ok(true)
    }

    fn map_op(
        &mut self,
        op: &str,
        name: &str,
        inputs: Vec<Option<ValueId>>,
        bound: &[(&str, &AttributeProto)],
        outputs: &[String],
    ) -> Outputs {
        let opset = self.version(LEARN)?;
        let attrs = self.whole_attributes(bound)?;
        if outputs.is_empty() {
            return Ok(vec![]);
        }
        let call = ImportedNode {
            name: name.into(),
            op: op.into(),
            inputs,
            attrs,
            outputs: self.full_names(outputs),
            opset,
        };
        normalize::of_map(self, call)
    }

    /// Reports a map that the model's graph or a nested graph yields, and puts a value of no type into its place.
    pub(in crate::onnx) fn refuse_map(
        &mut self,
        meaning: Meaning,
        name: &str,
        user: &str,
    ) -> Meaning {
        if !matches!(meaning, Meaning::Map { .. }) {
            return meaning;
        }
        self.b.unsupported(name, user, Some(OF_MAPS.into()));
        let stand_ins = self.b.stand_ins(&[name.to_owned()]);
        let stand_in = stand_ins.first().copied();
        stand_in.map_or(Meaning::Nothing, Meaning::Tensor)
    }
}
