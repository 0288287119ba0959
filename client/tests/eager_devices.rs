//! Eager ops at workers that have a device with memory of their own: all that eager tensors do at other workers, and where
//! values and ops are.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

#[path = "eager.rs"]
mod eager;
#[path = "eager_ops.rs"]
mod eager_ops;

use std::time::Duration;

use convoke::{Attr, Attrs, Cluster, Code, DType, Embedded, Operand, Tensor};
use convoke_common::rpc::WorkerStatus;

async fn cluster(devices: &[&str], device_memory: u64) -> Cluster {
    let embedded = Embedded::new(devices.len()).threads(1).memory(1 << 30);
    let devices = devices.iter().map(|d| d.parse().unwrap());
    let embedded = embedded.devices(devices).device_memory(device_memory);
    embedded.start().await.unwrap()
}

#[track_caller]
fn op(name: &str, attrs: Attrs, operands: &[&Tensor]) -> convoke::Result<Tensor> {
    let operands: Vec<_> = operands.iter().map(|t| Operand::Tensor(t)).collect();
    convoke::issue(name, attrs, &operands, 1).map(|mut made| made.remove(0))
}

async fn status(cluster: &Cluster, worker: usize) -> WorkerStatus {
    let members = cluster.status().await.unwrap().members;
    members[worker].status.clone().unwrap()
}

/// Bytes in use on a worker's device, and the most there ever were.
async fn on_device(cluster: &Cluster, worker: usize) -> (u64, u64) {
    let memory = status(cluster, worker).await.device_memory;
    let memory = memory.map(|memory| (memory.used.values().sum(), memory.peak));
    memory.unwrap_or_default()
}

/// Waits until the devices have no memory in use: the thread that ran the last task may hold its memory for a moment.
async fn check_at_rest(cluster: &Cluster, workers: usize) {
    let rest = async {
        for worker in 0..workers {
            while on_device(cluster, worker).await.0 > 0 {}
        }
    };
    let rested = tokio::time::timeout(Duration::from_secs(10), rest).await;
    assert!(rested.is_ok());
}

/// Ops on `x` of a worker with this device, among them one that no device runs, one that reads a size, and a chain whose
/// operands nobody holds.
async fn mixed(device: &str) -> (Vec<f32>, Vec<i64>, Vec<i64>, (u64, u64)) {
    let cluster = cluster(&[device], 1 << 28).await;
    let at = cluster.device("w0").unwrap();
    let x: Vec<f32> = (0..4096).map(|i| (i % 61) as f32 - 30.5).collect();
    let x = at.put(&x).unwrap();
    let square = op(
        "Reshape",
        Attrs::default(),
        &[&x, &at.put([64i64, 64]).unwrap()],
    )
    .unwrap();
    let mut y = op("MatMul", Attrs::default(), &[&square, &square]).unwrap();
    for _ in 0..10 {
        y = op("Tanh", Attrs::default(), &[&y]).unwrap();
        y = op("Add", Attrs::default(), &[&y, &square]).unwrap();
    }
    let positive = op("Relu", Attrs::default(), &[&y]).unwrap();
    // Its size depends on data, so that the host runs it.
    let found = op("NonZero", Attrs::default(), &[&positive]).unwrap();
    let size = op("Shape", Attrs::default(), &[&y]).unwrap();
    // Its host operand is a value that the host computed from a value of the device.
    let flat = op(
        "Reshape",
        Attrs::default(),
        &[
            &y,
            &op("Neg", Attrs::default(), &[&at.put([1i64]).unwrap()]).unwrap(),
        ],
    );
    let flat = flat.unwrap().fetch().await.unwrap();
    let made = (
        flat,
        found.fetch().await.unwrap(),
        size.fetch().await.unwrap(),
        on_device(&cluster, 0).await,
    );
    drop((x, square, y, positive, found, size));
    at.synchronize().await.unwrap();
    check_at_rest(&cluster, 1).await;
    cluster.shutdown().await;
    made
}

#[tokio::test]
async fn ops_run_on_the_device_and_have_the_bits_of_the_cpu() {
    let (flat, found, size, there) = mixed("cpu").await;
    assert_eq!((size.as_slice(), there), (&[64, 64][..], (0, 0)));
    let (on_device, found_there, size_there, there) = mixed("simgpu").await;
    assert_eq!(on_device, flat);
    assert_eq!((found_there, size_there), (found, size));
    assert!(there.1 >= 2 * 4 * 4096, "{there:?}");
}

#[tokio::test]
async fn values_stay_on_the_device_and_are_freed_with_their_handles() {
    let cluster = cluster(&["simgpu", "cpu"], 1 << 28).await;
    let (gpu, cpu) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let bytes = 4_u64 << 20;
    let x = gpu.put(vec![1f32; 1 << 20]).unwrap();
    let y = op("Neg", Attrs::default(), &[&x]).unwrap();
    gpu.synchronize().await.unwrap();
    // A large value that was copied there is on the host no more.
    let (used, _) = on_device(&cluster, 0).await;
    assert_eq!(used, 2 * bytes);
    assert!(status(&cluster, 0).await.handle_bytes < bytes);
    // Moved to a worker without such a device, and back.
    let moved = op("Neg", Attrs::default(), &[&y.to(&cpu).unwrap()]).unwrap();
    let back = op("Add", Attrs::default(), &[&moved.to(&gpu).unwrap(), &y]).unwrap();
    let sum: Vec<f32> = back.fetch().await.unwrap();
    assert!(sum.iter().all(|x| *x == 0.));
    drop((x, y, moved, back));
    gpu.synchronize().await.unwrap();
    check_at_rest(&cluster, 1).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn memory_that_a_device_lacks_is_said_and_only_its_readers_fail() {
    let cluster = cluster(&["simgpu"], 8 << 20).await;
    let gpu = cluster.device("w0").unwrap();
    let x = gpu.put(vec![1f32; 1 << 20]).unwrap();
    let fits = op("Neg", Attrs::default(), &[&x]).unwrap();
    gpu.synchronize().await.unwrap();
    let (beyond, line) = (op("Abs", Attrs::default(), &[&x]).unwrap(), line!());
    let reader = op("Neg", Attrs::default(), &[&beyond]).unwrap();
    for failed in [&beyond, &reader] {
        let e = failed.fetch::<Vec<f32>>().await.unwrap_err();
        assert_eq!(e.code, Code::OutOfMemory, "{e}");
        let site = e.site.as_ref().unwrap();
        assert_eq!(site.device.as_deref(), Some("simgpu:0"), "{e}");
        assert_eq!(site.op.as_deref(), Some("Abs"), "{e}");
        assert_eq!(site.origin, Some(format!("{}:{line}", file!())), "{e}");
        assert_eq!(site.operands, ["f32[1048576]"], "{e}");
        assert!(e.message.starts_with("the device of worker w0 has"), "{e}");
        assert!(e.advice.contains("raise --device-memory"), "{e}");
    }
    let told = gpu.synchronize().await.unwrap_err();
    assert_eq!(told.code, Code::OutOfMemory, "{told}");
    gpu.synchronize().await.unwrap();
    // There is room again once a handle is dropped.
    drop((beyond, reader, fits));
    let fits = op("Abs", Attrs::default(), &[&x]).unwrap();
    assert_eq!(fits.fetch::<Vec<f32>>().await.unwrap()[0], 1.);
    cluster.shutdown().await;
}

#[tokio::test]
async fn steps_read_and_fill_handles_of_a_device() {
    let cluster = cluster(&["simgpu"], 1 << 28).await;
    let gpu = cluster.device("w0").unwrap();
    let next = cluster.function(|t| Ok(vec![op("Tanh", Attrs::default(), &[&t[0]])?]));
    let next = next.donate(0).unwrap();
    let mut state = op(
        "Neg",
        Attrs::default(),
        &[&gpu.put(vec![1f32; 1 << 15]).unwrap()],
    )
    .unwrap();
    let mut want = -1f32;
    for _ in 0..3 {
        state = next.call(&[state]).await.unwrap().remove(0);
        state = op("Neg", Attrs::default(), &[&state]).unwrap();
        want = -want.tanh();
    }
    let got: Vec<f32> = state.fetch().await.unwrap();
    assert!(
        got.iter().all(|x| (x - want).abs() < 1e-6),
        "{} {want}",
        got[0]
    );
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_session_that_ends_frees_what_it_has_on_the_device() {
    let cluster = cluster(&["simgpu"], 1 << 28).await;
    let gpu = cluster.device("w0").unwrap();
    let mut x = gpu.put(vec![0.5f32; 1 << 18]).unwrap();
    let kept: Vec<Tensor> = (0..40)
        .map(|_| {
            x = op("Tanh", Attrs::default(), &[&x]).unwrap();
            x.clone()
        })
        .collect();
    let to = Attrs::default().with("to", Attr::DType(DType::F64));
    let wide = op("Cast", to, &[&x]).unwrap();
    // Most of it has not begun.
    cluster.shutdown().await;
    let e = wide.fetch::<Vec<f64>>().await.unwrap_err();
    assert!(kept[39].fetch::<Vec<f32>>().await.is_err(), "{e}");
}
