//! Tests of steps on devices with memory of their own: the events that they wait for, and how they end.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use convoke_common::world::Compute;
use convoke_common::{Code, Result};
use convoke_graph::dim::Dim;
use convoke_graph::program::{
    DriverProgram, DriverSlot, Feed, Fetch, FetchFrom, RecvSlot, SendEdge,
};
use convoke_graph::{DType, Tensor};
use convoke_worker::Threads;
use convoke_worker::device::simgpu::SimGpu;
use convoke_worker::device::suite::{Comparison, check};
use harness::{Cluster, joined, node, of_nobody, on_devices, program, value};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(60);

/// Two workers with simulated GPUs: w0 computes s = x + x and w1 computes y = -s for the driver. `x` is f32[n].
fn cluster(in_flight: u32) -> Cluster {
    let n = Dim::sym("n");
    let f32s = |name: &str| value(name, DType::F32, std::slice::from_ref(&n));
    let send = |to| SendEdge {
        value: 1,
        to,
        slot: 0,
        priority: 1,
    };
    let recv = |from| RecvSlot { value: 0, from };
    let double = node("double", "Add", &[0, 0], 1);
    let mut first = program(vec![f32s("x"), f32s("s")], vec![double]);
    (first.recvs, first.sends) = (vec![recv(2)], vec![send(1)]);
    let negate = node("negate", "Neg", &[0], 1);
    let mut second = program(vec![f32s("s"), f32s("y")], vec![negate]);
    (second.recvs, second.sends) = (vec![recv(0)], vec![send(2)]);
    let ty = f32s("x").ty;
    let driver = DriverProgram {
        feeds: vec![Feed {
            name: "x".into(),
            ty: ty.clone(),
            to: vec![(0, 0)],
        }],
        fetches: vec![Fetch {
            name: "y".into(),
            ty: ty.clone(),
            from: FetchFrom::Worker { from: 1, slot: 0 },
        }],
        slots: vec![DriverSlot { from: 1, ty }],
    };
    on_devices(joined(), in_flight, [first, second], driver, true)
}

fn x() -> Vec<Tensor> {
    vec![Tensor::from_slice(&[2], &[1f32, -3.]).unwrap()]
}

async fn call(c: &Cluster) -> Result<Vec<f32>> {
    let made = c.driver.call(x(), vec![2], None).await?;
    Ok(made[0].as_slice().unwrap().to_vec())
}

/// Keeps a worker's compute thread busy until the sender is dropped.
fn occupy(c: &Cluster, worker: usize) -> mpsc::Sender<()> {
    let (hold, held) = mpsc::channel::<()>();
    let job = Box::new(move || {
        let _ = held.recv();
    });
    let submitted = c.threads[worker].submit(&of_nobody(), i64::MAX, job);
    assert!(submitted.is_ok());
    hold
}

#[tokio::test]
async fn results_are_those_of_the_host() {
    let c = cluster(2);
    for _ in 0..20 {
        assert_eq!(call(&c).await.unwrap(), [-2., 6.]);
    }
    c.check_at_rest().await;
}

#[tokio::test]
async fn a_step_that_ends_waits_for_no_thread() {
    let c = cluster(1);
    let hold = occupy(&c, 0);
    for _ in 0..3 {
        assert!(timeout(Duration::from_millis(1), call(&c)).await.is_err());
        timeout(LONG, c.driver.quiesce()).await.unwrap();
    }
    drop(hold);
    assert_eq!(call(&c).await.unwrap(), [-2., 6.]);
    c.check_at_rest().await;
    assert!(c.engines.iter().all(|e| e.watch.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_kernel_of_the_device_that_does_not_stop_wedges_its_worker() {
    let c = cluster(2);
    let engine = c.engines[0].clone();
    c.holds[0].set(true);
    let driver = c.driver.clone();
    let mut first = Box::pin(async move { driver.call(x(), vec![2], None).await });
    tokio::select! {
        biased;
        _ = &mut first => panic!("ended"),
        () = tokio::task::yield_now() => {}
    }
    c.holds[0].wait();
    // The caller gives up.
    drop(first);
    let wedged = timeout(LONG, engine.watch.wedged()).await.unwrap();
    assert_eq!(wedged.code, Code::Wedged);
    let site = wedged.site.clone().unwrap();
    assert_eq!(
        (site.node.as_deref(), site.worker.as_deref()),
        (Some("double"), Some("w0")),
        "{wedged}"
    );
    c.holds[0].set(false);
}

#[test]
fn the_simulated_gpu_passes_the_suite() {
    let threads = Threads::start("suite", 2).unwrap();
    let device = SimGpu::new(Arc::new(threads));
    let report = check(&device, Comparison::Bits).unwrap();
    let some = ["Add", "Exp", "MatMul", "Relu", "Softmax"];
    assert!(some.iter().all(|op| report.ops.contains(op)), "{report:?}");
}
