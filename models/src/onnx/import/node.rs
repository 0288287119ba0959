//! Imports one node: a call of a function, a control-flow or sequence op, or an op that is brought to the form of the graph.

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::ops::{self, Op};
use prost::Message as _;

use super::super::nested::{self, Reads};
use super::super::normalize::{self, ImportFailure, ImportedNode, Outputs};
use super::super::proto::{AttributeProto, NodeProto};
use super::super::scope::domain;
use super::super::{attrs, lengths, sort, tensor};
use super::Importer;
use crate::error::{COMPUTED_RANK, ModelError, UNKNOWN_RANK};

/// The domain of classical models.
pub(super) const LEARN: &str = "ai.onnx.ml";

/// Attributes of ops of ONNX that only Convoke's own programs and passes may set.
const OWN_ATTRS: [&str; 3] = ["kept", "packed_input_size", "refuse_empty"];

impl<'a> Importer<'a> {
    pub(super) fn node(&mut self, n: &'a NodeProto, index: usize) -> Result<(), ModelError> {
        self.count_nodes(1)?;
        let name = format!("{}{}", self.scope().prefix, sort::node_name(n, index));
        let domain = domain(n.domain());
        self.b.opset = self.opset(domain);
        self.b.operands.clear();
        let bound = self.bind_attributes(n);
        if self.scopes.len() > 1 {
            self.expand(&name, n, &bound)?;
        }
        let outputs = self.used_outputs(n);
        let called = self.functions.get(&(domain, n.op_type(), n.overload()));
        if let Some(f) = called.copied() {
            let inputs = n.input.iter().map(|i| self.meaning(i, &name));
            let inputs = inputs.collect::<Result<_, _>>()?;
            return self.call(f, &name, inputs, bound, outputs);
        }
        if self.of_maps(&name, n, &bound, outputs)? || self.of_sequences(&name, n, &bound)? {
            return Ok(());
        }
        let mut inputs = Vec::with_capacity(n.input.len());
        for i in &n.input {
            inputs.push(if i.is_empty() {
                None
            } else {
                self.resolve(i, &name)?
            });
        }
        self.b.operands.extend(inputs.iter().flatten());
        let reads = match domain {
            "" => nested::reads(&self.b, n.op_type(), &inputs),
            _ => nested::reads(&self.b, "", &inputs),
        };
        if reads == Reads::Otherwise {
            let out = Err(ImportFailure::Unsupported(nested::REASON.into()));
            let out = self.reported(out, domain, n.op_type(), &name, outputs)?;
            return self.define_all(outputs, out);
        }
        let rank = n
            .output
            .first()
            .and_then(|o| self.scope().ranks.get(o.as_str()).copied());
        if let Some(open) = lengths::settle(&mut self.b, &name, n, &mut inputs, rank)? {
            let outermost = self.enclosing.first().unwrap_or(&self.b);
            let reason = match outermost.is_of_inputs(&open) {
                true => UNKNOWN_RANK,
                false => COMPUTED_RANK,
            };
            let out = Err(ImportFailure::Unsupported(reason.into()));
            let out = self.reported(out, domain, n.op_type(), &name, outputs)?;
            return self.define_all(outputs, out);
        }
        // Without axes, those that are 1 go; which of the open ones are is assumed.
        let named = bound
            .iter()
            .any(|(attr, a)| *attr == "axes" && !a.ints.is_empty());
        if let ("", "Squeeze", [Some(x)] | [Some(x), None], false) =
            (domain, n.op_type(), &*inputs, named)
            && let Some(ty) = self.b.ty(*x)
        {
            let open = ty.shape.iter();
            // One that has one element or none goes all the same.
            let open = open.filter(|d| d.as_const().is_none() && !d.is_one_or_none());
            self.assumed_others.extend(open.cloned());
        }
        let out = match (domain, n.op_type()) {
            ("", "Constant") => self.constant(&name, outputs, &bound),
            ("", "If") => return self.branch(&name, n, &inputs, &bound),
            ("", "Loop") => return self.repeated(&name, n, &inputs, &bound),
            ("", "Scan") => return self.scanned(&name, n, &inputs, &bound),
            ("ai.onnx.preview", "FlexAttention") => {
                self.flex_attention(&name, inputs, &bound, outputs)
            }
            _ => self.op(domain, n.op_type(), &name, inputs, &bound, outputs),
        };
        let out = self.reported(out, domain, n.op_type(), &name, outputs)?;
        if reads == Reads::PassedOn {
            self.b.single.extend(&out);
        }
        self.define_all(outputs, out)
    }

    pub(super) fn define_all(
        &mut self,
        outputs: &'a [String],
        ids: Vec<ValueId>,
    ) -> Result<(), ModelError> {
        for (o, id) in outputs.iter().zip(ids).filter(|(o, _)| !o.is_empty()) {
            self.scope().define(o, Some(id))?;
        }
        Ok(())
    }

    /// Counts the bytes of a node that comes from an expanded function or branch.
    fn expand(
        &mut self,
        name: &str,
        n: &NodeProto,
        bound: &[(&str, &AttributeProto)],
    ) -> Result<(), ModelError> {
        let attributes: usize = bound.iter().map(|(_, a)| a.encoded_len()).sum();
        let named = n.input.len() + 2 * n.output.len() + 1;
        let bytes = n.encoded_len() + attributes + named * name.len();
        self.count_bytes(bytes as u64)
    }

    /// The outputs up to the last one that something reads. All outputs of a Split are kept, since their number
    /// matters.
    fn used_outputs(&self, n: &'a NodeProto) -> &'a [String] {
        let optional = |o: &&String| o.is_empty() || !self.read.contains(o.as_str());
        let unread = n.output.iter().rev().take_while(optional).count();
        match n.op_type() {
            "Split" => &n.output,
            _ => &n.output[..(n.output.len() - unread).max(n.output.len().min(1))],
        }
    }

    /// The attributes of a node. References to attributes of the enclosing function are replaced by those, or dropped
    /// where the call does not set them.
    fn bind_attributes(&mut self, n: &'a NodeProto) -> Vec<(&'a str, &'a AttributeProto)> {
        let scope = self.scope();
        n.attribute
            .iter()
            .filter_map(|a| match a.ref_attr_name() {
                "" => Some((a.name(), a)),
                outer => Some((a.name(), *scope.attrs.get(outer)?)),
            })
            .collect()
    }

    /// Notes an unsupported node. Its outputs get placeholder values, so that the import continues and finds all other
    /// unsupported nodes.
    pub(in crate::onnx) fn reported(
        &mut self,
        out: Outputs,
        domain: &str,
        op: &str,
        name: &str,
        outputs: &[String],
    ) -> Result<Vec<ValueId>, ModelError> {
        match out {
            Ok(out) => Ok(out),
            Err(ImportFailure::Error(e)) => Err(e),
            Err(ImportFailure::Consequence) => Ok(self.b.stand_ins(outputs)),
            Err(ImportFailure::Unsupported(reason)) => {
                let op = if domain.is_empty() {
                    op.into()
                } else {
                    format!("{domain}.{op}")
                };
                let reason = Some(reason).filter(|r| !r.is_empty());
                self.b.unsupported(name, &op, reason);
                Ok(self.b.stand_ins(outputs))
            }
        }
    }

    /// The attributes of a node, in the graph's form.
    pub(in crate::onnx) fn attributes(
        &self,
        bound: &[(&str, &AttributeProto)],
    ) -> Result<Attrs, ImportFailure> {
        let mut attributes = Attrs::default();
        for (attr, a) in bound {
            let value = attrs::convert(a, self.payloads).map_err(|reason| {
                ImportFailure::Unsupported(format!("attribute '{attr}' {reason}"))
            })?;
            attributes.0.insert((*attr).into(), value);
        }
        Ok(attributes)
    }

    /// As [`Self::attributes`], with tensors of any size, which are read from the model's file.
    pub(super) fn whole_attributes(
        &mut self,
        bound: &[(&str, &AttributeProto)],
    ) -> Result<Attrs, ImportFailure> {
        let is_tensor = |a: &AttributeProto| a.t.is_some();
        let small: Vec<_> = bound
            .iter()
            .filter(|(_, a)| !is_tensor(a))
            .copied()
            .collect();
        let mut attributes = self.attributes(&small)?;
        for (attr, a) in bound {
            if let Some(t) = &a.t {
                let c = tensor::constant(t, attr, self.payloads)?;
                if self.scopes.len() > 1 {
                    self.count_bytes(c.bytes)?;
                }
                let t = self.files.read(attr, &c)?;
                attributes.0.insert((*attr).into(), Attr::Tensor(t));
            }
        }
        Ok(attributes)
    }

    /// The version of an operator set that the model imports.
    pub(super) fn version(&self, domain: &str) -> Result<i64, ImportFailure> {
        let missing = || ImportFailure::Unsupported("its operator set is not imported".into());
        self.opset(domain).ok_or_else(missing)
    }

    fn op(
        &mut self,
        domain: &str,
        op: &str,
        name: &str,
        inputs: Vec<Option<ValueId>>,
        bound: &[(&str, &AttributeProto)],
        outputs: &[String],
    ) -> Outputs {
        let version = self.version(domain)?;
        let custom = match domain {
            "" | "com.microsoft" | "com.microsoft.nchwc" => None,
            LEARN => ops::lookup(&format!("{domain}.{op}")),
            _ => match ops::lookup(&format!("{domain}.{op}")) {
                None => return Err(ImportFailure::Unsupported(String::new())),
                found => found,
            },
        };
        let own = ops::lookup(op).filter(|_| domain.is_empty());
        if own.is_some_and(|def| matches!(def.op, Op::Fused(_) | Op::Handle(_) | Op::Learn(_))) {
            return Err(ImportFailure::Unsupported(String::new()));
        }
        if let Some((attr, _)) = bound.iter().find(|(attr, _)| OWN_ATTRS.contains(attr)) {
            return Err(ImportFailure::Unsupported(format!("attribute '{attr}'")));
        }
        let graphs = |a: &AttributeProto| a.g.is_some() || !a.graphs.is_empty();
        if bound.iter().any(|(_, a)| graphs(a)) {
            return Err(ImportFailure::Unsupported("control flow".into()));
        }
        let attributes = match (domain, custom) {
            (LEARN, None) => self.whole_attributes(bound)?,
            _ => self.attributes(bound)?,
        };
        if outputs.is_empty() {
            return Ok(vec![]);
        }
        let outputs = self.full_names(outputs);
        let op = custom.map_or(op, |def| def.name);
        let (name, op) = (name.into(), op.into());
        let call = ImportedNode {
            name,
            op,
            inputs,
            attrs: attributes,
            outputs,
            opset: version,
        };
        match (domain, custom) {
            ("", _) if call.op == "TfIdfVectorizer" => normalize::tf_idf(self, call),
            ("", _) => normalize::standard(&mut self.b, call),
            (_, Some(_)) => call.emit(&mut self.b),
            (LEARN, None) => normalize::learned(self, call),
            ("com.microsoft.nchwc", _) => normalize::blocked(&mut self.b, call, self.block),
            _ if call.op == "DynamicQuantizeLSTM" => normalize::dynamic_lstm(self, call),
            _ => normalize::microsoft(&mut self.b, call),
        }
    }

    /// The version of the operator set of `domain` in the current scope; a branch uses that of the enclosing graph.
    pub(super) fn opset(&self, domain: &str) -> Option<i64> {
        for s in self.scopes.iter().rev() {
            if let Some(v) = s.opsets.get(domain) {
                return Some(*v);
            }
            if !s.open {
                break;
            }
        }
        // Models that use ONNX Runtime's ops do not always import their domain.
        domain.starts_with("com.microsoft").then_some(1)
    }

    pub(in crate::onnx) fn full_names(&mut self, names: &[String]) -> Vec<String> {
        let prefix = self.scope().prefix.clone();
        let full = |n: &String| {
            if n.is_empty() {
                String::new()
            } else {
                format!("{prefix}{n}")
            }
        };
        names.iter().map(full).collect()
    }
}
