//! Runs the client's examples over processes, as with `-- HOST:PORT TOKEN_FILE`; each checks its own results.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
// Each example is a program of its own that includes the shared module.
#![allow(clippy::duplicate_mod)]

use crate::common;

use common::cluster::Processes;
use convoke::{Cluster, Result};

// Only `main` is unused here.
#[allow(dead_code)]
#[path = "../../client/examples/decoder.rs"]
mod decoder;
#[allow(dead_code)]
#[path = "../../client/examples/eager.rs"]
mod eager;
#[allow(dead_code)]
#[path = "../../client/examples/generate.rs"]
mod generate;
#[allow(dead_code)]
#[path = "../../client/examples/kmeans.rs"]
mod kmeans;
#[allow(dead_code)]
#[path = "../../client/examples/power_iteration.rs"]
mod power_iteration;

async fn check(workers: usize, name: &str, run: impl AsyncFnOnce(&Cluster) -> Result<()>) {
    let processes = Processes::start(&format!("example-{name}"), workers, "512MiB");
    let cluster = processes.connect().await;
    run(&cluster).await.unwrap();
    assert_eq!(cluster.memory().await.unwrap(), []);
    cluster.shutdown().await;
}

#[tokio::test]
async fn eager_runs() {
    check(2, "eager", eager::run).await;
}

#[tokio::test]
async fn power_iteration_runs() {
    check(2, "power-iteration", power_iteration::run).await;
}

#[tokio::test]
async fn kmeans_runs() {
    check(3, "kmeans", kmeans::run).await;
}

#[tokio::test]
async fn decoder_runs() {
    check(2, "decoder", decoder::run).await;
}

#[tokio::test]
async fn generate_runs() {
    check(2, "generate", generate::run).await;
}
