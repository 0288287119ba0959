//! Steps that end before they have run: what they wait for, and how a worker treats one that does not stop.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::sync::mpsc;
use std::time::Duration;

use convoke_common::world::Compute;
use convoke_common::{Code, Result};
use convoke_graph::Tensor;
use convoke_worker::health::wedge::WEDGED;
use harness::{Cluster, cluster, ids, of_nobody};
use tokio::time::{Instant, timeout};

const LONG: Duration = Duration::from_secs(60);

/// Keeps a worker's compute thread busy until the sender is dropped.
fn occupy(c: &Cluster, worker: usize) -> mpsc::Sender<()> {
    let (hold, held) = mpsc::channel::<()>();
    let job = Box::new(move || {
        let _ = held.recv();
    });
    assert!(
        c.threads[worker]
            .submit(&of_nobody(), i64::MAX, job)
            .is_ok()
    );
    hold
}

/// Starts a step without waiting for its result.
macro_rules! begin {
    ($c:ident, $name:ident) => {
        let driver = $c.driver.clone();
        let mut $name =
            Box::pin(async move { driver.call(vec![ids(&[1])], vec![1], None).await });
        tokio::select! { biased; _ = &mut $name => panic!("ended"), () = tokio::task::yield_now() => {} }
    };
}

fn code(result: Result<Vec<Tensor>>) -> Code {
    result.unwrap_err().code
}

#[tokio::test]
async fn a_step_that_ends_waits_for_no_thread() {
    let c = cluster(1);
    let hold = occupy(&c, 0);
    for _ in 0..3 {
        begin!(c, call);
        assert_eq!(c.executors[0].live_steps(), 1);
        drop(timeout(Duration::from_millis(1), call).await);
        timeout(LONG, c.driver.quiesce()).await.unwrap();
    }
    drop(hold);
    assert_eq!(c.call(&[1]).await.unwrap(), [12]);
    c.check_at_rest().await;
    assert!(c.engines.iter().all(|e| e.watch.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_does_not_stop_wedges_its_worker() {
    let c = cluster(2);
    let engine = c.engines[0].clone();
    c.holds[0].set(true);
    begin!(c, first);
    c.holds[0].wait();
    begin!(c, second);
    let start = Instant::now();
    // The caller gives up.
    assert!(timeout(Duration::from_millis(1), first).await.is_err());
    let wedged = timeout(LONG, engine.watch.wedged()).await.unwrap();
    assert!(start.elapsed() >= WEDGED && start.elapsed() < 2 * WEDGED);
    assert_eq!(wedged.code, Code::Wedged);
    assert_eq!(
        wedged.message,
        "worker w0 is wedged: node 'double' of test did not stop within 5s after its step had ended"
    );
    let site = wedged.site.clone().unwrap();
    assert_eq!(
        (site.op.as_deref(), site.worker.as_deref()),
        (Some("Add"), Some("w0"))
    );

    // Callers that wait for this worker are told of the node that holds it up.
    engine.gate.wedge(&wedged);
    c.executors[0].wedge(&wedged);
    let error = timeout(LONG, second).await.unwrap().unwrap_err();
    assert_eq!(
        (error.code, &error.message),
        (Code::Wedged, &wedged.message)
    );
    assert_eq!(
        code(c.driver.call(vec![ids(&[1])], vec![1], None).await),
        Code::Wedged
    );
    c.holds[0].set(false);
}

#[tokio::test(start_paused = true)]
async fn work_that_goes_on_or_waits_wedges_nobody() {
    let c = cluster(2);
    let engine = c.engines[0].clone();
    // A step runs for a long time.
    c.holds[0].set(true);
    begin!(c, healthy);
    c.holds[0].wait();
    // Another step waits for the thread, and ends meanwhile.
    begin!(c, waiting);
    assert!(timeout(Duration::from_millis(1), waiting).await.is_err());
    assert!(timeout(LONG, engine.watch.wedged()).await.is_err());
    c.holds[0].set(false);
    healthy.await.unwrap();
    c.check_at_rest().await;
}

#[tokio::test]
async fn a_worker_that_leaves_finishes_what_runs_and_refuses_the_rest() {
    let c = cluster(2);
    let engine = c.engines[0].clone();
    c.holds[0].set(true);
    begin!(c, running);
    c.holds[0].wait();
    engine.gate.leave("w0");
    let refused = c.driver.call(vec![ids(&[1])], vec![1], Some(LONG)).await;
    let refused = refused.unwrap_err();
    assert_eq!(
        (refused.code, &*refused.message),
        (Code::WorkerLeaving, "worker w0 is leaving")
    );
    assert!(
        timeout(Duration::from_millis(1), engine.gate.idle())
            .await
            .is_err()
    );
    c.holds[0].set(false);
    let out = timeout(LONG, running).await.unwrap().unwrap();
    assert_eq!(out[0].as_slice::<i64>().unwrap(), [12]);
    drop(out);
    timeout(LONG, engine.gate.idle()).await.unwrap();
    c.check_at_rest().await;
}
