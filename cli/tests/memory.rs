//! Compares the memory peaks that a plan predicts for worker processes with those that the system counts.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;

use common::functions::node;
use common::{Daemon, Scratch};
use convoke::{Cluster, DType, HostTensor as Tensor, Token};
use convoke_common::memory::Purpose;
use convoke_graph::Dim;
use convoke_graph::graph::{Attrs, Function, Literal, TensorType};
use convoke_models::ArtifactIndex;

/// Rows and columns of a weight.
const SIDE: usize = 1024;
/// Bytes of a weight.
const WEIGHT: u64 = (SIDE * SIDE * 4) as u64;
/// The bytes by which any prediction may be wrong, in both directions: buffers that the transport may hold or not.
const NOISE: u64 = 8 << 20;

/// Makes the function x(i+1) = tanh(x(i) · w(i)), `layers` times, over any number of rows.
fn layers(layers: usize, file: &Path) -> (Function, Vec<convoke::Source>) {
    let weights = std::fs::File::create(file).unwrap();
    weights.set_len(WEIGHT * layers as u64).unwrap();
    for chunk in 0..weights.metadata().unwrap().len() >> 20 {
        // Chunks of equal content would be loaded once.
        let bytes = (chunk as f32 / 1e6).to_le_bytes();
        weights.write_all_at(&bytes, chunk << 20).unwrap();
    }
    let index = ArtifactIndex::new(None, None);
    let sources = index.sources(&[file.to_owned()], None).unwrap();
    let mut f = Function {
        name: "layers".into(),
        artifacts: vec![sources[0].meta().clone()],
        ..Function::default()
    };
    let rows = TensorType::new(DType::F32, vec![Dim::sym("rows"), Dim::from(SIDE)]);
    let mut last = f.add_value("x", rows.clone());
    f.params.push(last);
    for i in 0..layers {
        let weight = f.add_value(
            format!("w{i}"),
            TensorType::fixed(DType::F32, &[SIDE, SIDE]),
        );
        let range = Literal::Range {
            artifact: 0,
            offset: i as u64 * WEIGHT,
            len: WEIGHT,
        };
        f.literals.push((weight, range));
        let product = f.add_value(format!("p{i}"), rows.clone());
        let next = f.add_value(format!("t{i}"), rows.clone());
        f.nodes
            .push(node("MatMul", &[last, weight], product, Attrs::default()));
        f.nodes
            .push(node("Tanh", &[product], next, Attrs::default()));
        last = next;
    }
    f.results.push(("y".into(), last));
    (f, sources)
}

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

    let (f, sources) = layers(count, &scratch.path("weights"));
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
