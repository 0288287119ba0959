//! The product on an embedded cluster: a committed model, whole and split.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use convoke::{Code, DType, Embedded, Outputs, Tensor};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures")
        .join(name)
}

/// Images that differ in every pixel.
fn images(count: usize) -> Tensor {
    let pixels: Vec<f32> = (0..count * 64)
        .map(|i| (i * 37 % 101) as f32 / 101.0)
        .collect();
    Tensor::from_slice(&[count, 1, 8, 8], &pixels).unwrap()
}

async fn digits(workers: u32, threads: usize, count: usize) -> Outputs {
    let cluster = Embedded::new(workers as usize)
        .threads(threads)
        .start()
        .await
        .unwrap();
    let model = cluster
        .load(fixture("digits/model.onnx"))
        .workers(workers)
        .await
        .unwrap();
    let out = model.call([("image", images(count))]).await.unwrap();
    let plan = model.plan().await.unwrap();
    assert_eq!(plan.parts.len(), workers as usize);
    assert!(plan.parts.iter().all(|p| p.nodes > 0));
    model.unload().await.unwrap();
    cluster.shutdown().await;
    out
}

#[tokio::test]
async fn every_split_gives_the_same_bits() {
    let whole = digits(1, 1, 5).await;
    assert_eq!(whole["logits"].shape(), [5, 10]);
    for (workers, threads) in [(1, 2), (2, 1), (3, 2), (5, 1)] {
        assert_eq!(
            digits(workers, threads, 5).await,
            whole,
            "{workers} workers"
        );
    }
}

#[tokio::test]
async fn wrong_inputs_are_all_named() {
    let cluster = Embedded::new(1).start().await.unwrap();
    let model = cluster.load(fixture("digits/model.onnx")).await.unwrap();
    let wrong = Tensor::zeros(DType::F64, &[1, 1, 8, 9]).unwrap();
    let e = model
        .call([("image", wrong), ("mask", images(1))])
        .await
        .unwrap_err();
    assert_eq!(e.code, Code::InvalidInput);
    assert_eq!(
        e.to_string(),
        "input 'image' is f64[1, 1, 8, 9], expected f32[batch, 1, 8, 8]; \
         the model has no input 'mask'\n  the model's inputs are: image"
    );
    cluster.shutdown().await;
}

#[tokio::test]
async fn larger_inputs_plan_anew() {
    let cluster = Embedded::new(2).start().await.unwrap();
    let model = cluster
        .load(fixture("digits/model.onnx"))
        .workers(2)
        .await
        .unwrap();
    for count in [1, 2, 7, 3] {
        let out = model.call([("image", images(count))]).await.unwrap();
        assert_eq!(out["logits"].shape(), [count, 10]);
    }
    cluster.shutdown().await;
}
