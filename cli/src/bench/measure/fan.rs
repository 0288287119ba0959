//! Measures steps of a function with a branch on each of many workers, by their cost for all processes together.
//!
//! ```text
//! caller -> client -> each worker: Sqrt -> the first: Sum -> client -> caller
//! ```

use convoke::graph::Function;
use convoke::{Attrs, Cluster, DType, Device, HostTensor, Model, TensorType};
use convoke_common::error::{Error, Result};

use super::steps::node;
use crate::bench::cpu::{own, taken};
use crate::bench::turns::{Samples, alone, bounded};
use crate::process::children::Process;

/// Steps in a turn, one after the other.
const STEPS: usize = 50;

/// Loads the function y = sqrt(x0) + sqrt(x1) + …, with one root on each worker and the sum on the first.
async fn load(cluster: &Cluster, workers: &[Device]) -> Result<Model> {
    let mut f = Function {
        name: "fan out".into(),
        ..Function::default()
    };
    let value =
        |f: &mut Function, name: String| f.add_value(name, TensorType::fixed(DType::F32, &[]));
    let mut roots = Vec::new();
    for i in 0..workers.len() {
        let x = value(&mut f, format!("x{i}"));
        let root = value(&mut f, format!("root{i}"));
        let name = format!("branch{i}");
        f.params.push(x);
        f.nodes
            .push(node(&name, "Sqrt", Attrs::default(), &[x], root));
        roots.push(root);
    }
    let y = value(&mut f, "y".into());
    f.nodes
        .push(node("sum", "Sum", Attrs::default(), &roots, y));
    f.results = vec![("y".into(), y)];
    let mut builder = cluster
        .load_function(f, vec![])
        .workers(workers.len() as u32)
        .pin("sum", workers[0].worker());
    for (i, worker) in workers.iter().enumerate() {
        builder = builder.pin(format!("branch{i}"), worker.worker());
    }
    bounded(async { builder.await }).await
}

/// Runs the steps of one turn.
async fn steps(model: &Model, width: usize) -> Result<()> {
    let inputs: Vec<(String, HostTensor)> = (0..width)
        .map(|i| (format!("x{i}"), HostTensor::scalar(4f32)))
        .collect();
    for _ in 0..STEPS {
        model.call(inputs.clone()).await?;
    }
    Ok(())
}

/// Measures the CPU time of a step in all processes, the caller's included, in microseconds.
pub async fn cpu(
    cluster: &Cluster,
    workers: &[Device],
    processes: &[Process],
    rounds: u32,
) -> Result<Samples> {
    let model = load(cluster, workers).await?;
    let all = || Ok::<_, Error>(taken(processes)?.iter().sum::<f64>() + own()?);
    let times = alone(rounds, async || {
        let before = all()?;
        steps(&model, workers.len()).await?;
        Ok(vec![(all()? - before) * 1e6 / STEPS as f64])
    });
    let times = times.await?;
    bounded(model.unload()).await?;
    Ok(times)
}

/// Measures how many UDP datagrams cross between processes per step, including acknowledgements and heartbeats.
pub async fn datagrams(cluster: &Cluster, workers: &[Device], rounds: u32) -> Result<Samples> {
    let model = load(cluster, workers).await?;
    let counts = alone(rounds, async || {
        let before = crossed(cluster, workers).await?;
        steps(&model, workers.len()).await?;
        let crossed = crossed(cluster, workers).await? - before;
        Ok(vec![crossed as f64 / STEPS as f64])
    });
    let counts = counts.await?;
    bounded(model.unload()).await?;
    Ok(counts)
}

/// The number of datagrams that workers have received from each other and the client, and sent to the client.
async fn crossed(cluster: &Cluster, workers: &[Device]) -> Result<u64> {
    let status = bounded(cluster.status()).await?;
    let is_worker = |name: &str| workers.iter().any(|w| w.worker() == name);
    let accounts = status.members.iter().filter_map(|m| m.status.as_ref());
    let each = accounts.flat_map(|w| &w.links).map(|l| {
        let sent = if is_worker(&l.peer) {
            0
        } else {
            l.sent_datagrams
        };
        l.received_datagrams + sent
    });
    Ok(each.sum())
}
