//! Splicing: a graph that was made elsewhere becomes a part of a trace.
//!
//! Types are inferred again, from the types of the operands. So a model whose axes are dynamic gets the sizes, or the
//! symbols, of the operands that it is applied to.

use std::panic::Location;
use std::sync::Arc;

use convoke_common::error::{Code, Error, Result, Site};
use convoke_graph::Dim;
use convoke_graph::Tensor as HostTensor;
use convoke_graph::graph::{Function, Literal, Node, TensorType, ValueId};
use convoke_graph::ops::{self, HostValue, InferredOutput};
use convoke_models::Source;

use super::{SymbolicTensor, Trace, TraceState};
use crate::device::scope::scope;
use crate::tensor::Tensor;

/// A value of the spliced graph, as far as the trace knows it.
struct SplicedValue<'g> {
    id: ValueId,
    ty: TensorType,
    host: Option<HostValue>,
    literal: Option<&'g HostTensor>,
}

impl Trace {
    /// Adds `graph`, whose literals lie in the files `sources`, with its parameters bound to `operands`. Returns its
    /// results.
    pub fn splice(
        self: &Arc<Trace>,
        graph: &Function,
        sources: &[Source],
        operands: &[Tensor],
        at: &Location<'_>,
    ) -> Result<Vec<Tensor>> {
        let mut known: Vec<Option<SplicedValue<'_>>> = graph.values.iter().map(|_| None).collect();
        for (param, t) in graph.params.iter().zip(operands) {
            known[param.ix()] = Some(SplicedValue {
                id: self.value_of(t)?,
                ty: t.ty(),
                host: t.traced().and_then(|s| s.host.clone()),
                literal: None,
            });
        }
        let scope = scope();
        let mut guard = self.state();
        let state = &mut *guard;
        state.open()?;
        let artifacts = state.artifacts(graph, sources);
        for (value, literal) in &graph.literals {
            known[value.ix()] = Some(state.literal(graph, *value, literal, &artifacts)?);
        }
        for node in &graph.nodes {
            let name = state.name(&node.name);
            let inferred = infer(graph, node, &name, &known);
            let inferred = inferred.map_err(|e| located(e, node, at))?;
            if let Some(devices) = &scope {
                state.pins.push((name.clone(), devices.spec()));
            }
            let inputs = node.inputs.iter().map(|v| match v {
                None => Ok(None),
                Some(v) => Ok(Some(defined(graph, &known, *v)?.id)),
            });
            let inputs: Result<Vec<Option<ValueId>>> = inputs.collect();
            let mut outputs = Vec::new();
            for (i, (value, out)) in node.outputs.iter().zip(inferred).enumerate() {
                let id = state
                    .function
                    .add_value(format!("{name}.{i}"), out.ty.clone());
                outputs.push(id);
                known[value.ix()] = Some(SplicedValue {
                    id,
                    ty: out.ty,
                    host: out.value,
                    literal: None,
                });
            }
            state.function.nodes.push(Node {
                name: name.into(),
                inputs: inputs?,
                outputs,
                ..node.clone()
            });
        }
        drop(guard);
        let results = graph.results.iter().map(|(_, value)| {
            let known = defined(graph, &known, *value)?;
            Ok(Tensor::symbolic(SymbolicTensor {
                trace: self.clone(),
                value: known.id,
                shape: known.ty.fixed_shape(),
                ty: known.ty.clone(),
                host: known.host.clone(),
            }))
        });
        results.collect()
    }
}

impl TraceState {
    /// Adds the graph's artifacts to the trace, and returns the number that each has there.
    fn artifacts(&mut self, graph: &Function, sources: &[Source]) -> Vec<u32> {
        let mut numbers = Vec::new();
        for meta in &graph.artifacts {
            let all = &mut self.function.artifacts;
            let known = all.iter().position(|a| a.id == meta.id);
            numbers.push(known.unwrap_or(all.len()) as u32);
            if known.is_none() {
                all.push(meta.clone());
                let of = sources.iter().filter(|s| s.meta().id == meta.id);
                self.files.sources.extend(of.cloned());
            }
        }
        numbers
    }

    fn literal<'g>(
        &mut self,
        graph: &'g Function,
        value: ValueId,
        literal: &'g Literal,
        artifacts: &[u32],
    ) -> Result<SplicedValue<'g>> {
        let (own, ty) = (graph.value(value), graph.ty(value).clone());
        let (literal, key) = match literal {
            Literal::Inline(_) => (literal.clone(), None),
            Literal::Range {
                artifact,
                offset,
                len,
            } => {
                let none = || Error::internal("a range of no artifact");
                let number = artifacts.get(*artifact as usize).ok_or_else(none)?;
                let moved = Literal::Range {
                    artifact: *number,
                    offset: *offset,
                    len: *len,
                };
                (moved, Some((*number, *offset, ty.to_string())))
            }
        };
        let there = key.as_ref().and_then(|k| self.files.ranges.get(k));
        let id = match there {
            Some(id) => *id,
            None => {
                let name = self.name(&format!("constant '{}'", own.name));
                let id = self.function.add_value(name, ty.clone());
                self.function.literals.push((id, literal.clone()));
                if let Some(key) = key {
                    self.files.ranges.insert(key, id);
                }
                id
            }
        };
        let inline = graph.inline(value);
        Ok(SplicedValue {
            id,
            ty,
            host: inline.and_then(ops::host_value),
            literal: inline,
        })
    }
}

fn defined<'k, 'g>(
    graph: &Function,
    known: &'k [Option<SplicedValue<'g>>],
    value: ValueId,
) -> Result<&'k SplicedValue<'g>> {
    let known = known.get(value.ix()).and_then(Option::as_ref);
    known.ok_or_else(|| {
        let msg = format!("value {} of {} is not defined", value.0, graph.name);
        Error::new(Code::InvalidGraph, msg)
    })
}

/// Infers the results of a node, whose name in the trace is `name`, from the known values.
fn infer(
    graph: &Function,
    node: &Node,
    name: &str,
    known: &[Option<SplicedValue<'_>>],
) -> Result<Vec<InferredOutput>> {
    let unsupported = || {
        let msg = format!("op '{}' is not supported", node.op);
        Error::new(Code::UnsupportedOp, msg)
    };
    let def = ops::lookup(&node.op).ok_or_else(unsupported)?;
    let mut inputs = Vec::new();
    for value in &node.inputs {
        inputs.push(match value {
            None => None,
            Some(v) => {
                let known = defined(graph, known, *v)?;
                Some(ops::Operand {
                    ty: &known.ty,
                    value: known.host.as_ref(),
                    tensor: known.literal,
                })
            }
        });
    }
    let fresh = |output: usize, axis: usize| Dim::sym(&format!("{name}.{output}#{axis}"));
    let inferred = ops::infer_op(def, &node.attrs, &inputs, node.outputs.len(), &fresh);
    inferred.map_err(|e| Error::new(Code::InvalidInput, e.to_string()))
}

/// Adds the node, and the line that applies the graph, to an error.
fn located(error: Error, node: &Node, at: &Location<'_>) -> Error {
    error.at(Site {
        node: Some(node.name.to_string()),
        op: Some(node.op.to_string()),
        origin: Some(format!("{}:{}", at.file(), at.line())),
        ..Site::default()
    })
}
