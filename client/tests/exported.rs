//! Models as their exporters wrote them, with what ONNX Runtime computes of them, on embedded clusters.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use convoke::{Cluster, DType, DeviceId, Embedded, HostTensor, Numerics, Outputs, numpy};

/// Numbers of workers, and their devices.
const WAYS: [(usize, &str); 6] = [
    (1, "cpu"),
    (2, "cpu"),
    (3, "cpu"),
    (5, "cpu"),
    (1, "simgpu"),
    (3, "simgpu"),
];

type Arrays = Vec<(String, HostTensor)>;

/// A folder of fixtures/exported.
struct Exported {
    name: String,
    model: PathBuf,
    numerics: Numerics,
    inputs: Arrays,
    /// The results, under `expected/` and their names.
    expected: Arrays,
}

fn exported() -> Vec<Exported> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/exported");
    let entries = std::fs::read_dir(root).unwrap();
    let read = entries.map(|entry| {
        let folder = entry.unwrap().path();
        let arrays = numpy::read_npz(folder.join("test.npz")).unwrap();
        let is_result = |(name, _): &(String, HostTensor)| name.starts_with("expected/");
        let (expected, inputs) = arrays.into_iter().partition(is_result);
        Exported {
            name: folder.file_name().unwrap().to_str().unwrap().to_owned(),
            model: folder.join("model.onnx"),
            numerics: match std::fs::read_to_string(folder.join("numerics")) {
                Ok(name) if name.trim() == "int8" => Numerics::Int8,
                Ok(name) => panic!("a numerics profile that no model had: {name}"),
                Err(_) => Numerics::Standard,
            },
            inputs,
            expected,
        }
    });
    read.collect()
}

/// The results of a model on this many workers, each of which has a part of it.
async fn run(cluster: &Cluster, workers: usize, of: &Exported) -> Outputs {
    let load = cluster.load(&of.model).numerics(of.numerics);
    let loaded = load.workers(workers as u32).await;
    let model = loaded.unwrap_or_else(|e| panic!("{}: {e}", of.name));
    let called = model.call(of.inputs.clone()).await;
    let outputs = called.unwrap_or_else(|e| panic!("{}: {e}", of.name));
    let parts = model.plan().await.unwrap().parts;
    assert_eq!(parts.len(), workers, "{}", of.name);
    assert!(parts.iter().all(|p| p.nodes > 0), "{}", of.name);
    model.unload().await.unwrap();
    outputs
}

/// The elements of a tensor of floats.
fn floats(t: &HostTensor) -> Option<Vec<f64>> {
    match t.dtype() {
        DType::F32 => {
            let all = t.as_slice::<f32>().unwrap();
            Some(all.iter().map(|v| (*v).into()).collect())
        }
        DType::F16 => {
            let all = t.as_slice::<half::f16>().unwrap();
            Some(all.iter().map(|v| v.to_f64()).collect())
        }
        _ => None,
    }
}

/// Compares floats by a share of the largest one, and anything else by its bits.
fn check(of: &str, got: &HostTensor, want: &HostTensor) {
    assert_eq!(got.dtype(), want.dtype(), "{of}");
    assert_eq!(got.shape(), want.shape(), "{of}");
    let (Some(a), Some(b)) = (floats(got), floats(want)) else {
        assert_eq!(got.bytes(), want.bytes(), "{of}");
        return;
    };
    assert!(b.iter().all(|v| v.is_finite()), "{of}: {b:?}");
    let share = match want.dtype() {
        DType::F16 => 5e-3,
        _ => 1e-5,
    };
    let most = share * b.iter().fold(0f64, |most, v| most.max(v.abs()));
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= most;
    assert!(a.iter().zip(&b).all(near), "{of}: {a:?}, not {b:?}");
}

#[tokio::test]
async fn models_of_exporters_are_what_onnx_runtime_makes_of_them_on_any_workers() {
    let models = exported();
    // README of the fixtures names them.
    assert_eq!(models.len(), 16);
    let mut first: Vec<Outputs> = vec![];
    for (workers, device) in WAYS {
        let device: DeviceId = device.parse().unwrap();
        let embedded = Embedded::new(workers).threads(1).devices([device.clone()]);
        let cluster = embedded.memory(1 << 30).start().await.unwrap();
        for (i, model) in models.iter().enumerate() {
            let outputs = run(&cluster, workers, model).await;
            let way = format!("{} on {workers} of {device}", model.name);
            assert_eq!(outputs.0.len(), model.expected.len(), "{way}");
            for (name, want) in &model.expected {
                let name = name.trim_start_matches("expected/");
                check(&format!("{name} of {way}"), &outputs[name], want);
            }
            match first.get(i) {
                Some(first) => assert_eq!(&outputs, first, "{way}"),
                None => first.push(outputs),
            }
        }
        cluster.shutdown().await;
    }
}
