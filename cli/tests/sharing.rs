//! Two clients share one worker process with one compute thread: neither keeps the other from it, and a thread that
//! stands still is noticed.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::BOUND;
use common::cluster::Processes;
use common::functions::product_chain;
use common::kernels::freeze;
use common::waits::{await_member, is_free};
use convoke::{CallOptions, Cluster, Code, DType, HostTensor as Tensor, Model, Retry, for_loop};
use convoke_common::rpc::{MemberState, MemberStatus};

/// A function that takes about 0.3 ms on one thread.
const BRIEF: (usize, usize) = (128, 2);

/// A function that takes some milliseconds on one thread, so that all of its steps are jobs of the compute thread.
const STEADY: (usize, usize) = (256, 8);

fn one_worker(name: &str) -> Processes {
    let mut processes = Processes::prepare(name, "1GiB");
    processes.start_coordinator();
    processes.add_worker();
    processes
}

async fn load(cluster: &Cluster, (side, nodes): (usize, usize)) -> Arc<Model> {
    let loading = async {
        cluster
            .load_function(product_chain(side, nodes), vec![])
            .await
    };
    let model = tokio::time::timeout(BOUND, loading).await.unwrap();
    Arc::new(model.unwrap())
}

async fn call(model: &Model, side: usize, deadline: Option<Duration>) -> convoke::Result<()> {
    let x = Tensor::zeros(DType::F32, &[side, side]).unwrap();
    let options = CallOptions {
        retry: Retry::Off,
        deadline,
    };
    model.call_with([("x", x)], options).await.map(drop)
}

/// Counts the clients whose jobs a worker runs, or keeps waiting.
fn turns(m: &MemberStatus) -> usize {
    m.status.as_ref().map_or(0, |w| w.compute.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_without_end_keeps_nobody_from_the_worker() {
    let processes = one_worker("endless");
    let (greedy, other) = (processes.connect().await, processes.connect().await);
    let device = greedy.device("w0").unwrap();
    let x = device
        .put(Tensor::from_slice(&[4], &[1f32, 2.0, 3.0, 4.0]).unwrap())
        .unwrap();
    let endless = greedy.function(|t: &[convoke::Tensor]| {
        for_loop(i64::MAX / 2, t, |_, t| Ok(vec![t[0].mul(1.0)?]))
    });
    let running = tokio::spawn(async move { endless.call(&[x]).await.map(drop) });
    await_member(&other, "w0", |m| turns(m) == 1).await;

    // Another client's eager work, load and calls must be served meanwhile.
    let deadline = Some(Duration::from_secs(10));
    let start = Instant::now();
    let device = other.device("w0").unwrap();
    let ones = device.put(Tensor::zeros(DType::F32, &[256, 256]).unwrap());
    let product = ones
        .as_ref()
        .unwrap()
        .matmul(ones.as_ref().unwrap())
        .unwrap();
    let fetched = tokio::time::timeout(BOUND, product.fetch::<Tensor>());
    fetched.await.unwrap().unwrap();
    let model = load(&other, BRIEF).await;
    for _ in 0..20 {
        call(&model, BRIEF.0, deadline).await.unwrap();
    }
    println!("another client had its results after {:?}", start.elapsed());
    assert!(!running.is_finished());

    // During a long call, `status` says who waits behind whom.
    let long = load(&other, (1024, 64)).await;
    let waiting = {
        let long = long.clone();
        tokio::spawn(async move { call(&long, 1024, None).await })
    };
    let status = await_member(&other, "w0", |m| turns(m) == 2).await;
    let compute = &status.members[0].status.as_ref().unwrap().compute;
    println!("{compute:#?}");
    assert_ne!(compute[0].member, compute[1].member);
    assert!(compute.iter().filter(|u| u.runs).count() <= 1);
    waiting.abort();

    running.abort();
    drop((model, long));
    await_member(&other, "w0", |m| turns(m) == 0 && is_free(m)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_call_is_served_beside_the_many_of_another() {
    let processes = one_worker("many");
    let (greedy, other) = (processes.connect().await, processes.connect().await);
    let (many, one) = (load(&greedy, BRIEF).await, load(&other, BRIEF).await);
    let deadline = Some(BOUND);
    let mut alone = Vec::new();
    for _ in 0..51 {
        let start = Instant::now();
        call(&one, BRIEF.0, deadline).await.unwrap();
        alone.push(start.elapsed());
    }
    alone.sort_unstable();
    let done = Arc::<AtomicUsize>::default();
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let (many, done) = (many.clone(), done.clone());
            tokio::spawn(async move {
                loop {
                    call(&many, BRIEF.0, None).await.unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    // After this, all calls are in flight, at the worker or on their way.
    while done.load(Ordering::Relaxed) < 200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut between = Vec::new();
    let mut times = Vec::new();
    for _ in 0..51 {
        let (before, start) = (done.load(Ordering::Relaxed), Instant::now());
        call(&one, BRIEF.0, deadline).await.unwrap();
        between.push(done.load(Ordering::Relaxed) - before);
        times.push(start.elapsed());
    }
    callers.iter().for_each(|c| c.abort());
    between.sort_unstable();
    times.sort_unstable();
    println!(
        "calls of the other client during one: {} at p50, {} at most; one took {:?} at p50, {:?} alone",
        between[25], between[50], times[25], alone[25]
    );
    assert!(between[25] <= 16, "{between:?}");
}

/// Stops the compute thread of a worker when two callers have called it without a deadline, again and again, for
/// `delay`; both get an error with the cause in time. Without a delay the thread is at rest and the callers are two
/// clients. With a delay there is one client, because calls of a second one could run on another thread, which is not
/// stopped.
async fn check_still(name: String, delay: Duration) {
    let processes = one_worker(&name);
    let (first, second) = (processes.connect().await, processes.connect().await);
    let (a, b) = (load(&first, STEADY).await, load(&second, STEADY).await);
    call(&a, STEADY.0, None).await.unwrap();
    let until_it_fails = |model: Arc<Model>| async move {
        loop {
            if let Err(error) = call(&model, STEADY.0, None).await {
                return error;
            }
        }
    };
    let pid = processes.worker(0).pid() as i32;
    let b = if delay.is_zero() { b } else { a.clone() };
    if delay.is_zero() {
        freeze(pid);
    }
    let calls = [a, b].map(|model| tokio::spawn(until_it_fails(model)));
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
        freeze(pid);
    }
    let start = Instant::now();
    for call in calls {
        let error = tokio::time::timeout(BOUND, call).await.unwrap().unwrap();
        println!("{delay:?}: after {:?}: {error}", start.elapsed());
        // If the stopped thread holds a lock that the network thread needs, that thread hangs too, and the worker falls
        // silent.
        let told = match error.code {
            Code::Wedged => "worker w0 is wedged: compute thread convoke-compute-0 stands still",
            _ => "lost contact with w0: no answer for",
        };
        assert!(error.message.starts_with(told), "{error}");
    }
    let took = start.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    await_member(&second, "w0", |m| m.state != MemberState::Alive).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compute_thread_that_stands_still_wedges_its_worker() {
    // The thread is stopped at rest, and at some point of its work.
    let delays = [0, 20, 23, 31].map(Duration::from_millis);
    let checks = delays.iter().enumerate();
    let checks = checks.map(|(i, delay)| check_still(format!("still-{i}"), *delay));
    futures::future::join_all(checks).await;
}
