//! Ten thousand steps over real processes: memory and file descriptors stay as they were after the first thousand
//! steps, whether tensors share the lane or have streams of their own.
//!
//! The client is this process, so that this file has one test.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

mod common;

use common::BOUND;
use common::cluster::Processes;
use common::functions::tanh_chain;
use common::usage::Usage;
use common::waits::await_status;
use convoke::{HostTensor as Tensor, Model};
use convoke_common::rpc::WorkerStatus;
use futures::StreamExt;

/// The number of elements of the tensors that the steps of each model pass on: 4 KiB, which share the lane, and 48 KiB,
/// which have streams of their own. A leak in each step would show a thousandfold.
const SIZES: [usize; 2] = [1 << 10, 12 << 10];
/// The number of steps in flight at once.
const IN_FLIGHT: usize = 8;
/// The bytes by which a process may grow between step 1,000 and step 10,000 of both models, as allocators round and
/// tables grow to their bounds. One leaked tensor of 4 KiB in 18 steps of its model exceeds it, as do 120 bytes per
/// step.
const GROWTH: u64 = 2 << 20;

/// Runs `count` steps of each model, several at once.
async fn steps(models: &[Model], count: usize) {
    for (model, size) in models.iter().zip(SIZES) {
        let x = Tensor::from_slice(&[size], &vec![0.5f32; size]).unwrap();
        let calls = futures::stream::iter(0..count).map(|_| model.call([("x", x.clone())]));
        let done = calls.buffer_unordered(IN_FLIGHT).map(|out| out.unwrap());
        let all = tokio::time::timeout(BOUND, done.count()).await;
        assert_eq!(all, Ok(count));
    }
}

/// The usage of each process, by name.
fn usage(processes: &Processes) -> Vec<(String, Usage)> {
    let coordinator = processes.coordinator.as_ref().unwrap().pid();
    let own = ("client".to_owned(), Usage::of(std::process::id()));
    let mut all = vec![own, ("coordinator".into(), Usage::of(coordinator))];
    for (i, worker) in processes.workers.iter().flatten().enumerate() {
        all.push((format!("w{i}"), Usage::of(worker.pid())));
    }
    all
}

#[tokio::test]
async fn ten_thousand_steps_leave_nothing_behind() {
    let mut processes = Processes::prepare("flat", "1GiB");
    processes.start_coordinator();
    for i in 0..3 {
        processes.block_shared_memory(i);
        processes.add_worker();
    }
    let cluster = processes.connect().await;
    let mut models = vec![];
    for size in SIZES {
        let chain = cluster.load_function(tanh_chain(&[size], 6), vec![]);
        let model = chain.workers(3).in_flight(IN_FLIGHT as u32).await;
        models.push(model.unwrap());
    }
    // Tripwires are connections of their own, which are made a moment later than links.
    await_status(&cluster, "all tripwires", |s| {
        let armed = |w: &WorkerStatus| w.links.len() >= 3 && w.links.iter().all(|l| l.tripwire);
        let members = &mut s.members.iter();
        members.all(|m| m.tripwire && m.status.as_ref().is_some_and(armed))
    })
    .await;
    let members = cluster.status().await.unwrap().members;
    let links = members
        .iter()
        .flat_map(|m| m.status.iter().flat_map(|w| &w.links));
    assert!(links.clone().count() == 9 && links.clone().all(|l| l.path == "quic"));
    steps(&models, 1_000).await;
    let before = usage(&processes);
    steps(&models, 9_000).await;
    let after = usage(&processes);
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        println!("{name}: {before} after 1,000 steps, {after} after 10,000");
    }
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        assert_eq!(before.files, after.files, "{name}");
        let grown = after.memory.saturating_sub(before.memory);
        assert!(grown <= GROWTH, "{name}: {grown} bytes more");
    }
    cluster.shutdown().await;
}
