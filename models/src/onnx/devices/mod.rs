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

use std::collections::{BTreeMap, BTreeSet, HashMap};
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

/// Most configurations of devices that the nodes of a model have annotations of.
const MOST_CONFIGURATIONS: usize = 16;

/// Most bytes of a device's name.
const MOST_NAME: usize = 512;

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
    let defined: BTreeSet<&str> = model.configuration.iter().map(|c| c.name()).collect();
    let (mut sharded, mut used) = (0usize, BTreeSet::new());
    let (mut undefined, mut first_undefined) = (0usize, None);
    walk(graph, None, &mut 0, &mut |node, _| {
        let mut all = node.device_configurations.iter();
        if let Some(c) = all.find(|c| !defined.contains(c.configuration_id())) {
            undefined += 1;
            first_undefined.get_or_insert(c.configuration_id());
        }
        for c in &node.device_configurations {
            sharded += usize::from(!c.sharding_spec.is_empty());
            // Reading one more than the maximum shows that there are too many.
            if c.pipeline_stage.is_some() && used.len() <= MOST_CONFIGURATIONS {
                used.insert(c.configuration_id());
            }
        }
    });
    check_most("configurations of devices", used.len(), MOST_CONFIGURATIONS)?;
    if let Some(first) = first_undefined {
        let name = match undefined {
            1 => "1 node of the model names".to_owned(),
            n => format!("{n} nodes of the model name"),
        };
        remarks.push(format!(
            "{name} a configuration of devices that the model does not define ('{}'): it says of no devices",
            Printable(first)
        ));
    }
    if sharded > 0 {
        let say = match sharded {
            1 => "1 node of the model says".to_owned(),
            n => format!("{n} nodes of the model say"),
        };
        remarks.push(format!(
            "{say} how tensors are sharded, which is ignored: nodes run whole"
        ));
    }
    // A configuration that an earlier plan wrote to the file comes before the others.
    let mut known = model
        .configuration
        .iter()
        .filter(|c| used.contains(c.name()));
    let written = known.clone().find(|c| c.name() == CONFIGURATION);
    let named = written.or(known.next());
    let Some(chosen) = named.map(|c| c.name()).or(used.first().copied()) else {
        return Ok((vec![], remarks));
    };
    let others = used.len() - 1;
    if others > 0 {
        remarks.push(format!(
            "the model has several configurations of devices: '{}' is used, {others} others are ignored",
            Printable(chosen)
        ));
    }
    let stages = divide(&stages_of(graph, chosen), origins, |stage| {
        let devices = &named?.device;
        let device = devices.get(usize::try_from(stage).ok()?)?;
        (!device.is_empty()).then_some(device.as_str())
    });
    check_most("stages of a pipeline", stages.len(), MOST_STAGES)?;
    let names = stages.iter().filter_map(|(device, _)| *device);
    let longest = names.map(str::len).max().unwrap_or(0);
    check_most("bytes of a device's name", longest, MOST_NAME)?;
    let stages = stages.into_iter().map(|(device, nodes)| Stage {
        device: device.map(str::to_owned),
        nodes,
    });
    Ok((stages.collect(), remarks))
}

fn check_most(what: &'static str, count: usize, most: usize) -> Result<(), ModelError> {
    match count <= most {
        true => Ok(()),
        false => Err(ModelError::TooLarge {
            what,
            limit: most as u64,
        }),
    }
}

/// By node of the file, the stage that it has in the configuration. A node in a nested graph follows the node around it.
fn stages_of(graph: &GraphProto, configuration: &str) -> Vec<Option<i32>> {
    let mut stages: Vec<Option<i32>> = Vec::new();
    walk(graph, None, &mut 0, &mut |node, enclosing| {
        let all = node.device_configurations.iter().rev();
        let mut own = all.filter(|c| c.configuration_id() == configuration);
        let around = || enclosing.and_then(|e| stages.get(e).copied().flatten());
        let stage = own.find_map(|c| c.pipeline_stage).or_else(around);
        stages.push(stage);
    });
    stages
}

/// The device and the nodes of each stage of a configuration, in their order. `stage_of` has the stage of each node of the file.
fn divide<'a>(
    stage_of: &[Option<i32>],
    origins: &Origins,
    device: impl Fn(i32) -> Option<&'a str>,
) -> Vec<(Option<&'a str>, Vec<String>)> {
    let mut nodes: BTreeMap<i32, Vec<String>> = BTreeMap::new();
    for (stage, names) in stage_of.iter().zip(origins) {
        if let Some(stage) = stage {
            let names = names.iter().map(|n| n.to_string());
            nodes.entry(*stage).or_default().extend(names);
        }
    }
    let stages = nodes.into_iter();
    stages
        .map(|(stage, nodes)| (device(stage), nodes))
        .collect()
}
