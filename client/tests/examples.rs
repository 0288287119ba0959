//! The examples on an embedded cluster: each checks what it computes.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]
// Each example is a program of its own, which includes the module that all of them share.
#![allow(clippy::duplicate_mod)]

use convoke::{Cluster, Embedded, Result};

// The dead code here is `main`.
#[allow(dead_code)]
#[path = "../examples/decoder.rs"]
mod decoder;
#[allow(dead_code)]
#[path = "../examples/eager.rs"]
mod eager;
#[allow(dead_code)]
#[path = "../examples/generate.rs"]
mod generate;
#[allow(dead_code)]
#[path = "../examples/kmeans.rs"]
mod kmeans;
#[allow(dead_code)]
#[path = "../examples/power_iteration.rs"]
mod power_iteration;

async fn check(workers: usize, run: impl AsyncFnOnce(&Cluster) -> Result<()>) {
    let cluster = Embedded::new(workers).threads(1).start().await.unwrap();
    run(&cluster).await.unwrap();
    cluster.shutdown().await;
}

#[tokio::test]
async fn eager_runs() {
    check(2, eager::run).await;
}

#[tokio::test]
async fn power_iteration_runs() {
    check(2, power_iteration::run).await;
}

#[tokio::test]
async fn kmeans_runs() {
    check(3, kmeans::run).await;
}

#[tokio::test]
async fn decoder_runs() {
    check(2, decoder::run).await;
}

#[tokio::test]
async fn generate_runs() {
    check(2, generate::run).await;
}
