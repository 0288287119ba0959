//! Ten thousand steps over real processes: memory and file descriptors stay what they were after the first thousand.
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

/// Elements of the tensor that steps pass on: what a step leaves behind of that would show a thousandfold.
const SIZE: usize = 1024;
/// Steps in flight at once.
const IN_FLIGHT: usize = 8;
/// What a process may grow by between step 1,000 and step 10,000. One leaked tensor in three steps is more, and so are
/// 120 bytes of each step; allocators round, and tables grow to their bounds.
const GROWTH: u64 = 1 << 20;

/// Runs steps, some at once.
async fn steps(model: &Model, count: usize) {
    let x = Tensor::from_slice(&[SIZE], &[0.5f32; SIZE]).unwrap();
    let calls = futures::stream::iter(0..count).map(|_| model.call([("x", x.clone())]));
    let done = calls.buffer_unordered(IN_FLIGHT).map(|out| out.unwrap());
    let all = tokio::time::timeout(BOUND, done.count()).await;
    assert_eq!(all, Ok(count));
}

/// All processes by name.
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
    let processes = Processes::start("flat", 3, "1GiB");
    let cluster = processes.connect().await;
    let chain = cluster.load_function(tanh_chain(&[SIZE], 6), vec![]);
    let model = chain.workers(3).in_flight(IN_FLIGHT as u32).await.unwrap();
    // Connections of their own, which come a moment later than links.
    await_status(&cluster, "all tripwires", |s| {
        let armed = |w: &WorkerStatus| w.links.len() == 3 && w.links.iter().all(|l| l.tripwire);
        let members = &mut s.members.iter();
        members.all(|m| m.tripwire && m.status.as_ref().is_some_and(armed))
    })
    .await;
    steps(&model, 1_000).await;
    let before = usage(&processes);
    steps(&model, 9_000).await;
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
