//! The placement that a model's file asks for: ONNX's annotations of nodes with devices and stages of a pipeline.
//!
//! ```text
//! file ──stages──> the names of each stage's nodes ──plan──> workers ──annotate──> file with these workers as annotations
//! ```
//!
//! Invariants
//! 1. Nodes of a file are numbered in the order of a walk through the file: a node comes before the nodes of the graphs in
//!    it, and these come before the next node. Reading and writing agree on that order.
//! 2. Annotations never change what a model computes: a node that has none, or one that says nothing, goes where the plan
//!    finds best.

mod annotate;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use convoke_common::rpc::Stage;
use convoke_graph::Printable;

use super::proto::{GraphProto, ModelProto, NodeProto};
use crate::error::ModelError;

pub use annotate::{Annotated, annotate};

/// The name of the configuration that plans are written as.
const CONFIGURATION: &str = "convoke";

/// Most stages of a model.
const MOST_STAGES: usize = 4096;

/// The names of the function's nodes that each node of the file became, by the node's number.
pub type Origins = Vec<Vec<Arc<str>>>;

/// Calls `see` with every node of `graph` and of the graphs in it, in the order of their numbers, and with the number of the
/// node that encloses it.
fn walk<'a>(
    graph: &'a GraphProto,
    enclosing: Option<usize>,
    count: &mut usize,
    see: &mut dyn FnMut(&'a NodeProto, Option<usize>),
) {
    for node in &graph.node {
        let number = *count;
        *count += 1;
        see(node, enclosing);
        let attributes = node.attribute.iter();
        for inner in attributes.flat_map(|a| a.g.iter().chain(&a.graphs)) {
            walk(inner, Some(number), count, see);
        }
    }
}

/// The origins of the function's nodes; `came_from` has the address of the file's node for each of them.
pub(super) fn origins(graph: &GraphProto, nodes: &[(Arc<str>, usize)]) -> Origins {
    let mut numbers: HashMap<usize, usize> = HashMap::new();
    let mut count = 0;
    walk(graph, None, &mut count, &mut |node, _| {
        let number = numbers.len();
        numbers.insert(std::ptr::from_ref(node) as usize, number);
    });
    let mut origins = vec![vec![]; count];
    for (name, address) in nodes {
        if let Some(number) = numbers.get(address) {
            origins[*number].push(name.clone());
        }
    }
    origins
}

/// The stages that the annotations of `model` divide it into, and remarks on annotations that have no effect.
pub(super) fn stages(
    model: &ModelProto,
    origins: &Origins,
) -> Result<(Vec<Stage>, Vec<String>), ModelError> {
    let mut remarks = Vec::new();
    let Some(graph) = &model.graph else {
        return Ok((vec![], remarks));
    };
    // By node, the stage that it has in each configuration. A node in a nested graph follows the node around it.
    let mut sharded = 0usize;
    let mut given: BTreeMap<&str, Vec<Option<i32>>> = BTreeMap::new();
    let mut count = 0;
    let mut number = 0;
    walk(graph, None, &mut count, &mut |node, enclosing| {
        for stages in given.values_mut() {
            let around = enclosing.and_then(|e| stages.get(e).copied().flatten());
            stages.push(around);
        }
        for c in &node.device_configurations {
            sharded += usize::from(!c.sharding_spec.is_empty());
            if let Some(stage) = c.pipeline_stage {
                let stages = given.entry(c.configuration_id()).or_default();
                stages.resize(number + 1, None);
                stages[number] = Some(stage);
            }
        }
        number += 1;
    });
    if sharded > 0 {
        remarks.push(format!(
            "{sharded} nodes of the model say how tensors are sharded, which is ignored: nodes run whole"
        ));
    }
    // A plan that was written to the file comes before what the file had already.
    let mut known = model
        .configuration
        .iter()
        .filter(|c| given.contains_key(c.name()));
    let written = known.clone().find(|c| c.name() == CONFIGURATION);
    let named = written.or(known.next());
    let Some(chosen) = named.map(|c| c.name()).or(given.keys().next().copied()) else {
        return Ok((vec![], remarks));
    };
    let others = given.keys().filter(|name| **name != chosen).count();
    if others > 0 {
        remarks.push(format!(
            "the model has several configurations of devices: '{}' is used, {others} others are ignored",
            Printable(chosen)
        ));
    }
    let stages = divide(&given[chosen], origins, |stage| {
        let devices = &named?.device;
        let device = devices.get(usize::try_from(stage).ok()?)?;
        (!device.is_empty()).then(|| device.clone())
    });
    match stages.len() <= MOST_STAGES {
        true => Ok((stages, remarks)),
        false => Err(ModelError::TooLarge {
            what: "stages of a pipeline",
            limit: MOST_STAGES as u64,
        }),
    }
}

/// The stages of a configuration, in their order. `stage_of` has the stage of each node of the file.
fn divide(
    stage_of: &[Option<i32>],
    origins: &Origins,
    device: impl Fn(i32) -> Option<String>,
) -> Vec<Stage> {
    let mut nodes: BTreeMap<i32, Vec<String>> = BTreeMap::new();
    for (stage, names) in stage_of.iter().zip(origins) {
        if let Some(stage) = stage {
            let names = names.iter().map(|n| n.to_string());
            nodes.entry(*stage).or_default().extend(names);
        }
    }
    let stages = nodes.into_iter().map(|(stage, nodes)| Stage {
        device: device(stage),
        nodes,
    });
    stages.collect()
}
