//! Compares the memory peaks that a plan predicts for worker processes with those that the system counts.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use common::functions::{SIDE, layers};
use common::{Daemon, Scratch};
use convoke::{Cluster, DType, HostTensor as Tensor, Token};
use convoke_common::memory::Purpose;

/// The bytes by which any prediction may be wrong, in both directions: buffers that the transport may hold or not.
const NOISE: u64 = 8 << 20;

/// Runs `count` layers with `rows` rows over two fresh worker processes, which may use `memory` each.
async fn check(name: &str, count: usize, rows: usize, memory: &str) {
    let scratch = Scratch::new(name);
    let run_dir = scratch.path("run");
    let daemon = Daemon::start([
        "up",
        "--workers",
        "2",
        "--listen",
        "127.0.0.1:0",
        "--threads",
        "1",
        "--memory",
        memory,
        "--run-dir",
        run_dir.to_str().unwrap(),
        "--json",
        "--log",
        "warn",
    ]);
    let ready: serde_json::Value = serde_json::from_str(&daemon.line()).unwrap();
    let token = Token::from_file(ready["client_token_file"].as_str().unwrap()).unwrap();
    let address = ready["connect"].as_str().unwrap();
    let cluster: Cluster = convoke::connect(address, token).await.unwrap();

    let (f, sources) = layers(count, &scratch.path("weights"), 0);
    // The prediction counts every step that may be in flight; here there is only one.
    let model = cluster.load_function(f, sources).workers(2).in_flight(1);
    let model = model.await.unwrap();
    let x = Tensor::zeros(DType::F32, &[rows, SIDE]).unwrap();
    for _ in 0..3 {
        model.call([("x", x.clone())]).await.unwrap();
    }
    let plan = model.plan().await.unwrap();
    let status = cluster.status().await.unwrap();
    for part in &plan.parts {
        let member = status.members.iter().find(|m| m.name == part.name);
        let account = member.unwrap().status.as_ref().unwrap();
        assert!(
            account.resident_peak <= account.memory_budget,
            "{account:?}"
        );
        let measured = account.resident_peak - account.memory_used[&Purpose::Base];
        let tolerance = (part.peak_bytes / 100 * 15).max(NOISE);
        assert!(
            measured.abs_diff(part.peak_bytes) <= tolerance,
            "{name}: measured {measured}, predicted {}: {part:?} {account:?}",
            part.peak_bytes
        );
    }
    model.unload().await.unwrap();
    cluster.shutdown().await;
    assert_eq!(daemon.interrupt(), Some(0));
}

#[tokio::test]
async fn many_weights() {
    check("weights", 32, 1, "512MiB").await;
}

#[tokio::test]
async fn next_to_nothing() {
    check("nothing", 2, 1, "512MiB").await;
}

#[tokio::test]
async fn large_tensors() {
    check("tensors", 2, 12288, "1GiB").await;
}
