//! The device keeps what every device promises, and models run on it.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::path::Path;

use convoke::devices::suite::{Comparison, check};
use convoke::{Cluster, Code, Embedded, HostTensor, Model, Result};
use convoke_custom_device::{FileDevice, PROFILE, register};

#[test]
fn the_device_passes_the_suite() {
    let report = check(&FileDevice::open().unwrap(), Comparison::Within(1e-5)).unwrap();
    let mut ops = report.ops;
    ops.sort();
    assert_eq!(ops, ["Add", "MatMul", "Mul", "Neg", "Relu"]);
}

async fn cluster(devices: &[&str]) -> Cluster {
    register().unwrap();
    let devices = devices.iter().map(|d| d.parse().unwrap());
    let embedded = Embedded::new(devices.len()).threads(1).devices(devices);
    embedded.memory(1 << 30).start().await.unwrap()
}

fn fixture() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/mini_transformer")
}

/// The first result of a transformer.
async fn result(model: &Model) -> Result<HostTensor> {
    let wanted: Vec<String> = model.inputs().into_iter().map(|i| i.name).collect();
    let arrays = convoke::numpy::read_npz(fixture().join("test.npz")).unwrap();
    let given = arrays.into_iter().filter(|(name, _)| wanted.contains(name));
    let made = model.call(given.collect::<Vec<_>>()).await?;
    Ok(made.0.into_iter().next().unwrap().1)
}

/// The profiles of the parts of a model that was called.
async fn profiles(model: &Model) -> Vec<String> {
    let parts = model.plan().await.unwrap().parts;
    parts.into_iter().map(|part| part.profile).collect()
}

/// The first result on all workers of a cluster with these devices.
async fn run(devices: &[&str]) -> HostTensor {
    let cluster = cluster(devices).await;
    let load = cluster.load(fixture().join("model.onnx"));
    let model = load.workers(devices.len() as u32).await.unwrap();
    let made = result(&model).await.unwrap();
    let of_file = profiles(&model).await.iter().all(|p| p == PROFILE);
    assert_eq!(of_file, devices[0] != "cpu");
    cluster.shutdown().await;
    made
}

#[tokio::test]
async fn a_split_model_has_the_bits_of_the_whole_one() {
    let (cpu, whole, split) = (
        run(&["cpu"]).await,
        run(&["file"]).await,
        run(&["file"; 3]).await,
    );
    assert_eq!(whole, split);
    let close = |(x, y): (&f32, &f32)| (x - y).abs() < 1e-4;
    let (x, y) = (
        cpu.as_slice::<f32>().unwrap(),
        whole.as_slice::<f32>().unwrap(),
    );
    assert!(x.iter().zip(y).all(close));
    assert_ne!(x, y, "the device has kernels of its own");
}

#[tokio::test]
async fn one_model_runs_on_devices_of_one_profile() {
    let cluster = cluster(&["cpu", "file", "file"]).await;
    let load = || cluster.load(fixture().join("model.onnx"));

    let uniform = load().workers(3).await.unwrap();
    let refused = result(&uniform).await.unwrap_err();
    assert!(refused.message.contains("3 workers"), "{refused}");
    assert!(refused.advice.contains("--mix-profiles"), "{refused}");

    let mixed = load().workers(3).mix_profiles(true).await.unwrap();
    result(&mixed).await.unwrap();
    let mut of_file = profiles(&mixed).await;
    of_file.retain(|p| p == PROFILE);
    assert_eq!(of_file.len(), 2);
    mixed.unload().await.unwrap();

    let two = load().profile(PROFILE).workers(2).await.unwrap();
    result(&two).await.unwrap();
    assert_eq!(profiles(&two).await, [PROFILE; 2]);
    let nobody = load().profile("other").await.unwrap();
    let nobody = result(&nobody).await.unwrap_err();
    assert_eq!(nobody.code, Code::NoWorkers);
    assert!(nobody.message.contains("profile other is left"), "{nobody}");
    cluster.shutdown().await;
}
