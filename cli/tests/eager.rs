//! Eager tensors and functions over real processes, some of which are killed.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use common::clients::{client, told_cluster, told_worker};
use common::cluster::Processes;
use common::usage::Usage;
use common::waits::{await_status, await_that};
use common::{BOUND, finish, run};
use convoke::{
    Attr, Attrs, CallOptions, Cluster, ClusterStatus, Code, Device, Error, Function, HostTensor,
    Operand, Tensor,
};
use convoke_common::detection::bounds::PROCESS_KILLED;
use convoke_common::rpc::MemberState;

/// Ten times the bound within which a loss is known everywhere.
const DETECTION: Duration = PROCESS_KILLED.saturating_mul(10);
/// Rows and columns of a product that takes some milliseconds.
const SIZE: usize = 512;
/// The number of products of a chain that takes some seconds.
const LONG: usize = 600;

#[track_caller]
fn op(name: &str, operands: &[&Tensor]) -> convoke::Result<Tensor> {
    let operands: Vec<_> = operands.iter().map(|t| Operand::Tensor(t)).collect();
    convoke::issue(name, Attrs::default(), &operands, 1).map(|mut made| made.remove(0))
}

fn square() -> HostTensor {
    let identity = |i: usize| f32::from(u8::from(i.is_multiple_of(SIZE + 1)));
    let values: Vec<f32> = (0..SIZE * SIZE).map(identity).collect();
    HostTensor::from_slice(&[SIZE, SIZE], &values).unwrap()
}

/// Issues a chain of products, each of which needs the one before.
fn products(x: &Tensor, count: usize) -> convoke::Result<Tensor> {
    let mut y = op("MatMul", &[x, x])?;
    for _ in 1..count {
        y = op("MatMul", &[&y, x])?;
    }
    Ok(y)
}

/// Fetches these tensors, and checks that all fetches end in time.
async fn fetched(tensors: &[Tensor]) -> Vec<Result<Vec<f32>, Error>> {
    let fetches = tensors.iter().map(Tensor::fetch::<Vec<f32>>);
    let all = futures::future::join_all(fetches);
    tokio::time::timeout(BOUND, all).await.unwrap()
}

#[track_caller]
fn check_lost(answer: Result<Vec<f32>, Error>, worker: &str) {
    let e = answer.unwrap_err();
    assert_eq!(e.code, Code::PeerLost, "{e}");
    assert!(e.to_string().contains(worker), "{e}");
}

/// The number of live handles of all workers, and their bytes.
fn held(s: &ClusterStatus) -> (u64, u64) {
    let of = s.members.iter().filter_map(|m| m.status.as_ref());
    of.fold((0, 0), |(handles, bytes), w| {
        (handles + w.live_handles, bytes + w.handle_bytes)
    })
}

async fn devices(cluster: &Cluster) -> [Device; 2] {
    let all = cluster.devices().await.unwrap();
    all.try_into().unwrap()
}

#[tokio::test]
async fn a_killed_worker_fails_its_handles_and_no_others() {
    let mut processes = Processes::start("eager-killed", 2, "1GiB");
    let cluster = processes.connect().await;
    let [a, b] = devices(&cluster).await;
    let (x, y) = (a.put([1f32, 2.]).unwrap(), b.put([3f32]).unwrap());
    let large = b.put(square()).unwrap();
    let moved = op("Add", &[&x, &y.to(&a).unwrap()]).unwrap();
    assert_eq!(moved.fetch::<Vec<f32>>().await.unwrap(), [4., 5.]);
    // None of these is done when the worker dies: a value there, one on its way from there, and values that depend on
    // them.
    let pending = products(&large, LONG).unwrap();
    let coming = pending.to(&a).unwrap();
    let after = op("Neg", &[&coming]).unwrap();
    let lost = [y.clone(), large, pending, coming, after];
    let waiting = tokio::spawn({
        let waiting: Vec<_> = (0..24).map(|i| lost[2 + i % 3].clone()).collect();
        async move { fetched(&waiting).await }
    });
    await_status(&cluster, "the products run", |s| {
        held(s).0 > LONG as u64 / 2
    })
    .await;
    assert!(!waiting.is_finished());
    processes.kill_worker(1);
    let killed = Instant::now();
    let answers = waiting.await.unwrap();
    let took = killed.elapsed();
    println!("a worker was killed: its handles failed after {took:?}");
    assert!(took < DETECTION, "{took:?}");
    assert_eq!(answers.len(), 24);
    answers.into_iter().for_each(|a| check_lost(a, "w1"));
    fetched(&lost)
        .await
        .into_iter()
        .for_each(|a| check_lost(a, "w1"));
    check_lost(y.fetch().await, "w1");
    let e = op("Neg", &[&y]).unwrap_err();
    assert_eq!(e.code, Code::PeerLost, "{e}");
    // The handles at the other worker are unchanged.
    let held = cluster.memory().await.unwrap();
    assert!(
        !held.is_empty() && held.iter().all(|h| h.device == "w0/cpu:0"),
        "{held:?}"
    );
    let fine = op("Add", &[&x, &moved]).unwrap();
    assert_eq!(fine.fetch::<Vec<f32>>().await.unwrap(), [5., 7.]);
    processes.start_worker(1);
    let back = |s: &ClusterStatus| {
        let alive = s.members.iter().filter(|m| m.state == MemberState::Alive);
        alive.count() == 2
    };
    await_status(&cluster, "the worker is back", back).await;
    let [same, anew] = devices(&cluster).await;
    assert_eq!(same, a);
    assert_ne!(anew, b);
    let z = op("Add", &[&x.to(&anew).unwrap(), &anew.put(1f32).unwrap()]).unwrap();
    assert_eq!(
        z.to(&a).unwrap().fetch::<Vec<f32>>().await.unwrap(),
        [2., 3.]
    );
    check_lost(y.fetch().await, "w1");
    cluster.shutdown().await;
}

/// Queues more than the workers can finish: products, transfers in both directions, handles and fetches.
async fn queue_up(cluster: &Cluster) -> Vec<Tensor> {
    let [a, b] = devices(cluster).await;
    let mut kept = Vec::new();
    for (here, there) in [(&a, &b), (&b, &a)] {
        let x = here.put(square()).unwrap();
        let last = products(&x, LONG).unwrap();
        kept.push(last.to(there).unwrap());
        for _ in 0..2000 {
            kept.push(op("Neg", &[&last]).unwrap());
            kept.push(here.put([1f32; 4]).unwrap());
        }
        kept.push(x);
    }
    kept
}

async fn await_freed(observer: &Cluster) -> Duration {
    let since = Instant::now();
    await_status(observer, "nothing is held", |s| held(s) == (0, 0)).await;
    since.elapsed()
}

#[tokio::test]
async fn a_client_that_goes_leaves_nothing() {
    let processes = Processes::start("eager-gone", 2, "1GiB");
    let observer = processes.connect().await;
    for orderly in [true, false] {
        let client = processes.connect().await;
        let mut kept = queue_up(&client).await;
        await_status(&observer, "much is held", |s| held(s).0 > 4000).await;
        match orderly {
            true => client.shutdown().await,
            // Any tensor that is left would keep the connection.
            false => drop((client, std::mem::take(&mut kept))),
        }
        let took = await_freed(&observer).await;
        println!("a client left, orderly {orderly}: all was free after {took:?}");
        assert!(took < DETECTION, "{took:?}");
        drop(kept);
    }
    observer.shutdown().await;
}

const QUEUED: &str = "all is queued";

#[tokio::test]
async fn a_killed_client_leaves_nothing() {
    if let Some(cluster) = told_cluster().await {
        let _kept = queue_up(&cluster).await;
        println!("\n{QUEUED}");
        return std::future::pending().await;
    }
    let processes = Processes::start("eager-dead", 2, "1GiB");
    let observer = processes.connect().await;
    let mut client = client(&processes, "eager::a_killed_client_leaves_nothing");
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    assert!(lines.any(|l| l.unwrap() == QUEUED));
    let s = await_status(&observer, "much is held", |s| held(s).0 > 4000).await;
    assert!(held(&s).1 > (SIZE * SIZE * 4) as u64, "{s:?}");
    let token = processes.client_token();
    let args = [
        "status",
        "--connect",
        &processes.address,
        "--token-file",
        &token,
    ];
    let text = run(args).expect(0).stdout;
    assert!(text.contains("HANDLES"), "{text}");
    client.kill().unwrap();
    let took = await_freed(&observer).await;
    client.wait().unwrap();
    println!("a client was killed: all was free after {took:?}");
    assert!(took < DETECTION, "{took:?}");
    // The workers go on with the work of other clients.
    let [a, b] = devices(&observer).await;
    let x = a.put([1f32; 9]).unwrap().to(&b).unwrap();
    assert_eq!(x.fetch::<Vec<f32>>().await.unwrap(), [1.; 9]);
    let text = run(args).expect(0).stdout;
    assert!(text.contains("1, 36 B"), "{text}");
    observer.shutdown().await;
}

/// Issues `count` ops one after the other, each on the result of the one before; most results are freed at once.
async fn count_up(a: &Device, count: usize) -> f32 {
    let one = a.put(1f32).unwrap();
    let mut x = a.put(0f32).unwrap();
    for _ in 0..count {
        x = op("Add", &[&x, &one]).unwrap();
    }
    x.fetch().await.unwrap()
}

/// Issues as many ops as may wait, behind a tensor that is computed late; returns the ops, and the error that ended the
/// loop.
fn fill_behind(cluster: &Cluster, late: &Tensor) -> (Vec<Tensor>, Error) {
    let scalar = Attrs::default().with("keepdims", Attr::Int(0));
    let sum = convoke::issue("ReduceSum", scalar, &[Operand::Tensor(late)], 1);
    let mut waiting = sum.unwrap();
    cluster.fail_when_full(true);
    let refused = loop {
        match op("Neg", &[&waiting[waiting.len() - 1]]) {
            Ok(y) => waiting.push(y),
            Err(e) => break e,
        }
    };
    cluster.fail_when_full(false);
    assert_eq!(refused.code, Code::WouldBlock, "{refused}");
    (waiting, refused)
}

/// Issues as many ops as may wait, behind some that take long: what comes later needs no more memory.
async fn fill_window(cluster: &Cluster, a: &Device) {
    let late = products(&a.put(square()).unwrap(), LONG / 2).unwrap();
    let (waiting, refused) = fill_behind(cluster, &late);
    let (op, ops) = ("Neg at cli/tests/eager.rs:", "ops are on their way to w0");
    assert!(
        refused.message.starts_with(op) && refused.message.ends_with(ops),
        "{refused}"
    );
    assert!(waiting.len() > 60_000, "{}", waiting.len());
    drop(waiting);
    a.synchronize().await.unwrap();
}

/// A million ops in an optimised build; otherwise a tenth of that, so that the test ends in seconds.
const OPS: usize = if cfg!(debug_assertions) {
    100_000
} else {
    1_000_000
};
/// The bytes by which a process may grow meanwhile. Forty leaked bytes per op would exceed it.
const GROWTH: u64 = 4 << 20;

/// Runs [`count_up`], and checks by how much the processes grow.
async fn count_and_measure(cluster: Cluster) {
    let a = cluster.device("w0").unwrap();
    fill_window(&cluster, &a).await;
    assert_eq!(count_up(&a, 1000).await, 1000.);
    let pids = [std::process::id(), told_worker()];
    let before = pids.map(Usage::of);
    assert_eq!(count_up(&a, OPS).await, OPS as f32);
    let after = pids.map(Usage::of);
    for (name, (before, after)) in ["client", "w0"].iter().zip(before.iter().zip(&after)) {
        println!("{name}: {before} before, {after} after {OPS} ops");
        let grown = after.memory.saturating_sub(before.memory);
        assert!(grown <= GROWTH, "{name}: {grown} bytes more");
    }
    await_status(&cluster, "nothing is held", |s| held(s) == (0, 0)).await;
    cluster.shutdown().await;
}

/// The client is a process of its own, since other tests in this process would count too.
#[tokio::test]
async fn many_ops_leave_nothing_behind() {
    if let Some(cluster) = told_cluster().await {
        return count_and_measure(cluster).await;
    }
    let processes = Processes::start("eager-flat", 1, "1GiB");
    let client = client(&processes, "eager::many_ops_leave_nothing_behind");
    let ended = finish(client).expect(0);
    for told in ended.stdout.lines().filter(|l| l.contains(" after ")) {
        println!("{told}");
    }
    assert!(ended.stdout.contains("1 passed"), "{ended:?}");
}

/// Independent chains of products, which are faster on several workers than on one.
fn branches(t: &[Tensor]) -> convoke::Result<Vec<Tensor>> {
    let each = |first| products(&op(first, &[&t[0]])?, 100);
    ["Neg", "Abs", "Sqrt", "Tanh", "Floor", "Ceil"]
        .map(each)
        .into_iter()
        .collect()
}

/// The worker other than `w0` that a function uses, although `w0` has all its operands.
async fn bystander(f: &Function, operands: &[Tensor]) -> String {
    let parts = f.plan(operands).await.unwrap().parts;
    parts.iter().find(|p| p.name != "w0").unwrap().name.clone()
}

/// Calls [`branches`] and kills a worker while the step runs; returns the results of the call.
async fn call_and_kill(
    f: &Function,
    operands: &[Tensor],
    cluster: &Cluster,
    processes: &mut Processes,
    killed: &str,
) -> Vec<Tensor> {
    let runs = |s: &ClusterStatus| {
        let of = s.members.iter().filter_map(|m| m.status.as_ref());
        of.map(|w| w.live_steps).sum::<u64>() > 0
    };
    let called = tokio::spawn(f.call(operands));
    await_status(cluster, "the step runs", runs).await;
    processes.kill_worker(killed[1..].parse().unwrap());
    called.await.unwrap().unwrap()
}

/// Checks the results of [`branches`], none of which may be on the killed worker.
async fn check_branches(out: &[Tensor], killed: &str) {
    for (i, y) in out.iter().enumerate() {
        assert_ne!(y.device().unwrap().worker(), killed);
        let y: Vec<f32> = y.fetch().await.unwrap();
        let (sign, is_tanh) = (if i == 0 { -1. } else { 1. }, i == 3);
        let one = if is_tanh { y[0] } else { sign };
        assert_eq!((y[0], y[SIZE + 1], y[1]), (one, one, 0.), "{i}");
    }
}

#[tokio::test]
async fn a_function_runs_again_where_no_operand_was_lost() {
    let mut processes = Processes::start("eager-function", 3, "1GiB");
    let cluster = processes.connect().await;
    let devices = cluster.devices().await.unwrap();
    let x = devices[0].put(square()).unwrap();
    let f = cluster.function(branches);
    let operands = std::slice::from_ref(&x);
    let other = bystander(&f, operands).await;
    let out = call_and_kill(&f, operands, &cluster, &mut processes, &other).await;
    check_branches(&out, &other).await;
    check_branches(&f.call(operands).await.unwrap(), &other).await;
    let killed: usize = other[1..].parse().unwrap();
    // An operand that was lost with its worker cannot be recovered.
    let at = if killed == 1 { 2 } else { 1 };
    let y = devices[at].put(square()).unwrap();
    let g = cluster.function(|t| Ok(vec![op("Add", &[&t[0], &t[1]])?]));
    let both = [x, y];
    g.call(&both).await.unwrap();
    let waits = op("Add", &[&products(&both[1], LONG).unwrap(), &both[0]]).unwrap();
    let called = tokio::spawn(g.call(&[both[0].clone(), waits]));
    processes.kill_worker(at);
    let e = called.await.unwrap().unwrap_err();
    assert_eq!(e.code, Code::StateLost, "{e}");
    let e = g.call(&both).await.unwrap_err();
    println!("{e}");
    assert_eq!(e.code, Code::StateLost, "{e}");
    let lost = format!("is lost: lost contact with w{at}: its process ended");
    assert_eq!(e.message, format!("operand 1, f32[512, 512], {lost}"));
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_retained_operand_is_there_for_the_second_run() {
    let mut processes = Processes::start("eager-retained", 3, "1GiB");
    let cluster = processes.connect().await;
    let devices = cluster.devices().await.unwrap();
    let operands = [devices[0].put(square()).unwrap()];
    let f = cluster.function(branches).donate_retain(0).unwrap();
    let other = bystander(&f, &operands).await;
    let out = call_and_kill(&f, &operands, &cluster, &mut processes, &other).await;
    check_branches(&out, &other).await;
    // The call has succeeded, so the donated operand is gone only now.
    let e = op("Neg", &[&operands[0]]).unwrap_err();
    assert_eq!(e.code, Code::StateLost, "{e}");
    cluster.shutdown().await;
}

#[tokio::test]
async fn tensors_of_a_file_that_workers_see_are_read_by_them() {
    let mut processes = Processes::prepare("eager-shared", "1GiB");
    let root = processes.path("shared");
    std::fs::create_dir(&root).unwrap();
    processes.variables = vec![("CONVOKE_ARTIFACT_ROOT", root.clone())];
    processes.start_coordinator();
    (0..2).for_each(|_| processes.add_worker());
    let cluster = processes.connect().await;
    let [a, b] = devices(&cluster).await;
    // The second file has other weights: those of the first are there already.
    for (own, factor) in [(true, 1f32), (false, 3.)] {
        let square = square();
        let values = square.as_slice::<f32>().unwrap().iter();
        let values: Vec<f32> = values.map(|v| factor * v).collect();
        let square = HostTensor::from_slice(&[SIZE, SIZE], &values).unwrap();
        let (x, y) = (a.put(square.clone()).unwrap(), b.put([factor, 2.]).unwrap());
        let path = std::path::Path::new(&root).join(format!("{factor}.safetensors"));
        let all = [("x", &x), ("y", &y)];
        cluster.save_tensors(&path, &all).await.unwrap();
        let (to, there) = (a.clone(), b.clone());
        let place = move |name: &str, _: &_| {
            Some(if name == "x" {
                there.clone()
            } else {
                to.clone()
            })
        };
        let load = cluster.load_tensors(&path, place);
        let loaded = match own {
            true => load.artifact_root(&root).await,
            false => load.await,
        };
        let loaded = loaded.unwrap();
        assert_eq!(loaded["x"].device(), Some(b.clone()));
        assert_eq!(loaded["x"].fetch::<HostTensor>().await.unwrap(), square);
        assert_eq!(loaded["y"].fetch::<Vec<f32>>().await.unwrap(), [factor, 2.]);
        let bytes = (SIZE * SIZE + 2) as u64 * 4;
        let from = |s: &ClusterStatus| {
            let of = s.members.iter().filter_map(|m| m.status.as_ref());
            let read = of.map(|w| match own {
                true => w.loaded.shared_path,
                false => w.loaded.clients,
            });
            read.sum::<u64>()
        };
        await_status(&cluster, "it is known where from", |s| from(s) >= bytes).await;
    }
    cluster.shutdown().await;
}

/// The bytes that all links of workers have sent or received over the network.
async fn wired(cluster: &Cluster) -> u64 {
    let members = cluster.status().await.unwrap().members;
    let workers = members.iter().filter_map(|m| m.status.as_ref());
    workers
        .flat_map(|w| &w.links)
        .map(|l| l.sent + l.received)
        .sum()
}

#[tokio::test]
async fn on_one_host_large_values_pass_through_memory() {
    let processes = Processes::start("eager-shm", 2, "1GiB");
    let cluster = processes.connect().await;
    let [a, b] = devices(&cluster).await;
    let bytes: Vec<u8> = (0..(5 << 20) + 13).map(|i| (i % 251) as u8).collect();
    let value = HostTensor::from_slice(&[bytes.len()], &bytes).unwrap();
    // Tensors pass over each kind of link, until all processes know that they are on one host.
    let pass = async {
        loop {
            let before = wired(&cluster).await;
            let there = a.put(value.clone()).unwrap().to(&b).unwrap();
            assert_eq!(there.fetch::<HostTensor>().await.unwrap(), value);
            if wired(&cluster).await - before < bytes.len() as u64 / 2 {
                return;
            }
        }
    };
    tokio::time::timeout(BOUND, pass).await.unwrap();
    let members = cluster.status().await.unwrap().members;
    let workers = members.iter().filter_map(|m| m.status.as_ref());
    let mut links = workers.flat_map(|w| &w.links);
    assert!(links.all(|l| l.path == "shm"));
    await_status(&cluster, "nothing is left", |s| held(s) == (0, 0)).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_value_that_does_not_fit_is_a_failure_of_its_device() {
    let processes = Processes::start("eager-full", 1, "256MiB");
    let cluster = processes.connect().await;
    let a = cluster.device("w0").unwrap();
    let x = a.put(vec![0f32; 100 << 20]).unwrap();
    let e = a.synchronize().await.unwrap_err();
    assert_eq!(e.code, Code::OutOfMemory, "{e}");
    check_full(&x).await;
    // Small tensors, each of which travels with its command, count as well.
    let mut small = Vec::new();
    while small.len() < 12_000 {
        small.push(a.put(vec![1f32; 6000]).unwrap());
    }
    let e = a.synchronize().await.unwrap_err();
    assert_eq!(e.code, Code::OutOfMemory, "{e}");
    check_full(&small[small.len() - 1]).await;
    drop(small);
    assert_eq!(a.put(1f32).unwrap().fetch::<f32>().await.unwrap(), 1.);
    cluster.shutdown().await;
}

/// Runs loops that issue faster than workers compute and links carry.
#[tokio::test]
async fn loops_wait_for_room() {
    let processes = Processes::start("eager-room", 2, "256MiB");
    let cluster = processes.connect().await;
    let [a, b] = devices(&cluster).await;
    let mut x = a.put([1f32, 2.]).unwrap();
    for _ in 0..3000 {
        x = x.to(&b).unwrap().to(&a).unwrap();
    }
    assert_eq!(x.fetch::<Vec<f32>>().await.unwrap(), [1., 2.]);
    // Together these are more than may be on its way at once.
    let large = vec![1f32; 4 << 20];
    for _ in 0..40 {
        drop(a.put(large.clone()).unwrap());
    }
    // A tensor that was dropped on its way is counted until it has arrived.
    a.synchronize().await.unwrap();
    drop(x);
    let mut x = a.put(vec![1f32; 1 << 12]).unwrap();
    for _ in 0..100_000 {
        x = op("Neg", &[&x]).unwrap();
    }
    assert_eq!(x.fetch::<Vec<f32>>().await.unwrap()[0], 1.);
    drop(x);
    assert_eq!(cluster.memory().await.unwrap(), []);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_room_hears_of_the_loss() {
    let mut processes = Processes::start("eager-lost-room", 1, "256MiB");
    let cluster = processes.connect().await;
    let a = cluster.device("w0").unwrap();
    let slow = products(&a.put(square()).unwrap(), 400).unwrap();
    let issuing = tokio::task::spawn_blocking(move || {
        let mut x = slow;
        loop {
            match op("Neg", &[&x]) {
                Ok(y) => x = y,
                Err(e) => return e,
            }
        }
    });
    let full = |tables: Vec<(&str, usize)>| {
        let mut tables = tables.into_iter();
        tables.any(|(name, n)| name == "unresolved ops" && n >= 1 << 16)
    };
    await_that("as much waits as may", || {
        std::future::ready(full(cluster.tables()))
    })
    .await;
    processes.kill_worker(0);
    let lost = tokio::time::timeout(BOUND, issuing).await.unwrap().unwrap();
    assert_ne!(lost.code, Code::WouldBlock, "{lost}");
    assert!(lost.to_string().contains("w0"), "{lost}");
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_call_waits_for_room_until_its_deadline() {
    let processes = Processes::start("eager-deadline", 2, "256MiB");
    let cluster = processes.connect().await;
    let [a, b] = devices(&cluster).await;
    let x = a.put([1f32, 2.]).unwrap();
    let deadline = Duration::from_millis(300);
    let options = CallOptions {
        deadline: Some(deadline),
        ..CallOptions::default()
    };
    let f = cluster.function(|t| Ok(vec![op("Neg", &[&t[0]])?]));
    let f = f.options(options).unwrap();
    // Installed, so that the call has nothing else to wait for.
    f.plan(std::slice::from_ref(&x)).await.unwrap();
    // The other worker computes it: no op of the first is over, and so makes room, before it arrives. The products are
    // cancelled at the end, and take longer than filling and waiting even where other work keeps the machine busy.
    let late = products(&b.put(square()).unwrap(), 40 * LONG).unwrap();
    let (waiting, _) = fill_behind(&cluster, &late.to(&a).unwrap());
    let since = Instant::now();
    let e = f.call(&[x]).await.unwrap_err();
    assert!(since.elapsed() >= deadline, "{:?}", since.elapsed());
    assert_eq!(e.code, Code::DeadlineExceeded, "{e}");
    let said = "the deadline passed while the call waited for room at w0";
    assert_eq!(e.message, said);
    drop(waiting);
    cluster.shutdown().await;
}

/// Issues until that is refused.
fn refused(mut issue: impl FnMut() -> convoke::Result<Tensor>) -> Error {
    let mut kept = vec![];
    while kept.len() < 10_000 {
        match issue() {
            Ok(made) => kept.push(made),
            Err(e) => return e,
        }
    }
    panic!("there is always room");
}

#[tokio::test]
async fn moves_and_puts_without_room_name_their_lines() {
    let processes = Processes::start("eager-refused", 2, "1GiB");
    let cluster = processes.connect().await;
    let [a, b] = devices(&cluster).await;
    // None of its moves is over before it is computed.
    let slow = products(&a.put(square()).unwrap(), LONG).unwrap();
    let large = HostTensor::zeros(convoke::DType::F32, &[16 << 20]).unwrap();
    cluster.fail_when_full(true);
    let line = line!() + 1;
    let moved = refused(|| slow.to(&b));
    let put = refused(|| b.put(large.clone()));
    for (e, what, line, full) in [
        (moved, "a move", line, "1000 moves"),
        (put, "a put", line + 1, "256 MiB of values"),
    ] {
        assert_eq!(e.code, Code::WouldBlock, "{e}");
        let said = format!(
            "{what} at cli/tests/eager.rs:{line} cannot be issued yet: {full} are on their way to w1"
        );
        assert_eq!(e.message, said);
    }
    cluster.shutdown().await;
}

async fn check_full(x: &Tensor) {
    let e = x.fetch::<Vec<f32>>().await.unwrap_err();
    assert_eq!(e.code, Code::OutOfMemory, "{e}");
}
