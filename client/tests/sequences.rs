//! Models with sequences of which the data decide how many tensors they have, on embedded clusters.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use convoke::{Cluster, Code, Embedded, HostTensor, Outputs, numpy};

fn fixture(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("../fixtures/sequences").join(name)
}

async fn cluster(workers: u32) -> Cluster {
    let cluster = Embedded::new(workers as usize).threads(1);
    cluster.start().await.unwrap()
}

fn x() -> HostTensor {
    let values: Vec<f32> = (0..3 * 64)
        .map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0)
        .collect();
    HostTensor::from_slice(&[3, 64], &values).unwrap()
}

/// The results of the fixture for each of these numbers of iterations.
async fn results(workers: u32, all: &[i64]) -> Vec<Outputs> {
    let cluster = cluster(workers).await;
    let model = cluster.load(fixture("model.onnx")).workers(workers);
    let model = model.await.unwrap();
    let mut results = Vec::new();
    for times in all {
        let inputs = [("x", x()), ("times", HostTensor::scalar(*times))];
        results.push(model.call(inputs).await.unwrap());
    }
    let parts = model.plan().await.unwrap().parts;
    assert!(parts.len() == workers as usize && parts.iter().all(|p| p.nodes > 0));
    cluster.shutdown().await;
    results
}

#[tokio::test]
async fn a_sequence_has_as_many_tensors_as_the_loop_has_iterations_on_any_workers() {
    let counts = [1, 7, 2, 40];
    let whole = results(1, &counts).await;
    for (outputs, count) in whole.iter().zip(counts) {
        let parts = outputs
            .0
            .iter()
            .filter(|(name, _)| name.starts_with("parts["));
        let shapes: Vec<&[usize]> = parts.map(|(_, t)| t.shape()).collect();
        let want = (0..count).map(|i| if i % 2 == 0 { &[3, 64][..] } else { &[2, 64] });
        assert_eq!(shapes, want.collect::<Vec<_>>());
        assert_eq!(outputs["count"].to_i64s().unwrap(), [count]);
        let last = &outputs[&*format!("parts[{}]", count - 1)];
        assert_eq!(&outputs["last"], last);
    }
    for workers in [2, 3] {
        assert_eq!(results(workers, &counts).await, whole, "{workers} workers");
    }
}

#[tokio::test]
async fn a_sequence_is_what_onnx_runtime_makes_of_it() {
    let arrays = numpy::read_npz(fixture("test.npz")).unwrap();
    let given = |wanted: &str| {
        let found = arrays.iter().find(|(name, _)| name == wanted);
        found.unwrap_or_else(|| panic!("no {wanted}")).1.clone()
    };
    let inputs = [("x", given("x")), ("times", given("times"))];
    let cluster = cluster(3).await;
    let model = cluster
        .load(fixture("model.onnx"))
        .workers(3)
        .await
        .unwrap();
    let outputs = model.call(inputs).await.unwrap();
    assert_eq!(outputs.0.len(), 3 + 7);
    for (name, got) in &outputs.0 {
        let want = given(&format!("expected/{name}"));
        assert_eq!(got.shape(), want.shape(), "{name}");
        let Ok(want) = want.as_slice::<f32>() else {
            assert_eq!(*got, want);
            continue;
        };
        let near = got.as_slice::<f32>().unwrap().iter().zip(want);
        let worst = near.map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(worst < 1e-5, "{name} differs by {worst}");
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_sequence_of_no_tensors_cannot_be_joined() {
    let cluster = cluster(2).await;
    let model = cluster.load(fixture("model.onnx")).await.unwrap();
    let inputs = || [("x", x()), ("times", HostTensor::scalar(0i64))];
    let failed = model.call(inputs()).await.unwrap_err();
    assert_eq!(failed.code, Code::KernelFailed, "{failed}");
    // Results that do not depend on the join arrive: the empty list of tensors, and its length.
    let partial = model.partial().call(inputs()).await.unwrap();
    assert_eq!(partial["count"].as_ref().unwrap().to_i64s().unwrap(), [0]);
    assert!(partial["y"].is_err() && partial["last"].is_err());
    assert!(partial.0.iter().all(|(name, _)| !name.starts_with("parts")));
    cluster.shutdown().await;
}
