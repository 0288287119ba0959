//! The system under test: a cluster of three workers that imports a model and computes tensors.

use std::collections::BTreeMap;
use std::path::Path;

use convoke::{Cluster, DeviceId, Error, Model, ModelBuilder, Outputs, Result};
use convoke_models::onnx::{GivenInput, LoadOptions, load};
use convoke_models::{ImportedModel, ModelError};

use crate::case::NamedTensors;
use crate::feed::{BEFORE, BEHIND, surrounded};

/// The names of the workers of an embedded cluster.
const WORKERS: [&str; 3] = ["w0", "w1", "w2"];
/// Memory of each worker in bytes; no case is large.
const MEMORY: u64 = 1 << 30;

/// Imports the model at `path`, whose inputs that are sequences or optional hold what `inputs` says.
pub fn import(
    path: &Path,
    cache: &Path,
    inputs: BTreeMap<String, GivenInput>,
) -> std::result::Result<ImportedModel, ModelError> {
    let options = LoadOptions {
        cache_dir: Some(cache.into()),
        inputs,
        ..LoadOptions::default()
    };
    load(path, &options)
}

/// Number of workers that run a model apart.
pub const APART: usize = WORKERS.len();

/// Starts the cluster that runs all cases, on devices of this kind.
pub async fn cluster(device: DeviceId) -> Result<Cluster> {
    let cluster = convoke::Embedded::new(WORKERS.len()).devices([device]);
    cluster.threads(1).memory(MEMORY).start().await
}

/// The results of a run, and how its nodes were placed.
pub struct Ran {
    /// The outputs for each data set.
    pub outputs: Vec<Outputs>,
    /// Number of nodes that each worker runs in a step.
    pub nodes: Vec<u32>,
    /// Number of cut edges.
    pub cuts: usize,
}

/// Runs the model on each of `sets`, on one worker.
pub async fn alone(cluster: &Cluster, model: &ImportedModel, sets: &[NamedTensors]) -> Result<Ran> {
    let builder = cluster.load_function(model.function.clone(), model.sources.clone());
    let builder = builder.outputs(model.outputs.clone());
    run(builder.workers(1), sets).await
}

/// Runs the model on each of `sets`, on a worker whose operands come from another one and whose results a third one reads.
pub async fn apart(cluster: &Cluster, model: &ImportedModel, sets: &[NamedTensors]) -> Result<Ran> {
    let builder = cluster.load_function(surrounded(&model.function), model.sources.clone());
    let builder = builder.outputs(model.outputs.clone());
    let [before, own, behind] = WORKERS;
    let pinned = builder
        .pin(BEFORE, before)
        .pin(BEHIND, behind)
        .pin("*", own);
    run(pinned.workers(WORKERS.len() as u32), sets).await
}

async fn run(builder: ModelBuilder, sets: &[NamedTensors]) -> Result<Ran> {
    let model = builder.await?;
    let ran = call(&model, sets).await;
    let unloaded = model.unload().await;
    let ran = ran?;
    unloaded?;
    Ok(ran)
}

async fn call(model: &Model, sets: &[NamedTensors]) -> Result<Ran> {
    let mut outputs = Vec::new();
    for inputs in sets {
        outputs.push(model.call(inputs.clone()).await?);
    }
    let plan = model.plan().await;
    let plan = plan.ok_or_else(|| Error::internal("a model that was called has no plan"))?;
    Ok(Ran {
        outputs,
        nodes: plan.parts.iter().map(|p| p.nodes).collect(),
        cuts: plan.cut_edges.len(),
    })
}
