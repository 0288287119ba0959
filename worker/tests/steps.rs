//! Steps of a lease over two executors and a driver, linked inside the process.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use convoke_common::world::Compute;
use convoke_common::{Code, Error};
use convoke_graph::{DType, Tensor};
use convoke_rendezvous::StepHandler;
use convoke_rendezvous::driver::core::QUIESCE_BOUND;
use harness::{LEASE, cluster, ids, of_nobody};

#[tokio::test]
async fn results_cross_two_workers_in_order() {
    let c = cluster(3);
    for i in 0..500i64 {
        let x = 1 + i % 4;
        assert_eq!(c.call(&[x, 1]).await.unwrap(), [12 / x, 12]);
    }
    c.check_at_rest().await;
    assert!(c.hubs.iter().all(|h| h.refused().is_empty()));
}

#[tokio::test]
async fn concurrent_calls_share_the_window() {
    let c = Arc::new(cluster(2));
    let calls = (0..50i64).map(|i| {
        let c = c.clone();
        tokio::spawn(
            async move { assert_eq!(c.call(&[1 + i % 4]).await.unwrap(), [12 / (1 + i % 4)]) },
        )
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    c.check_at_rest().await;
}

#[tokio::test]
async fn a_kernel_error_names_its_place_and_harms_no_later_step() {
    let c = cluster(2);
    for _ in 0..20 {
        let e = c.call(&[1, 0]).await.unwrap_err();
        assert_eq!(e.code, Code::KernelFailed, "{e}");
        let site = e.site.clone().unwrap();
        assert_eq!(site.worker.as_deref(), Some("w1"));
        assert_eq!(site.node.as_deref(), Some("divide"));
        assert_eq!(site.op.as_deref(), Some("Div"));
        assert_eq!(site.operands, ["i64[1]", "i64[2]"]);
        assert_eq!(e.stopped, ["w0"]);
        assert_eq!(c.call(&[3]).await.unwrap(), [4]);
    }
    c.check_at_rest().await;
}

#[tokio::test]
async fn axes_beyond_their_bounds_are_refused_before_anything_starts() {
    let c = cluster(2);
    let e = c
        .driver
        .call(vec![ids(&[0])], vec![1 << 21], None)
        .await
        .unwrap_err();
    assert_eq!(e.code, Code::InvalidInput);
    c.check_at_rest().await;
}

#[tokio::test]
async fn dropped_calls_leave_nothing_behind() {
    let c = cluster(2);
    for polls in 0..50 {
        let call = c.driver.call(vec![ids(&[1])], vec![1], None);
        tokio::pin!(call);
        for _ in 0..polls % 4 {
            tokio::select! { biased; _ = &mut call => break, () = tokio::task::yield_now() => {} }
        }
    }
    c.check_at_rest().await;
}

#[tokio::test]
async fn a_lost_worker_ends_its_steps() {
    let c = cluster(2);
    assert_eq!(c.call(&[1]).await.unwrap(), [12]);
    let link = c.hubs[2].link(&c.hubs[1].me).unwrap();
    link.close("test");
    c.hubs[2].link_lost(&link, "killed");
    let e = c.call(&[1]).await.unwrap_err();
    assert_eq!(e.code, Code::PeerLost, "{e}");
    assert!(c.driver.broken().is_some());
}

#[tokio::test]
async fn a_lost_link_between_workers_ends_this_and_later_steps() {
    let c = cluster(2);
    assert_eq!(c.call(&[1]).await.unwrap(), [12]);
    // No step is in flight, so that no one is told.
    c.hubs[0].link(&c.hubs[1].me).unwrap().close("test");
    for _ in 0..3 {
        let e = c.call(&[1]).await.unwrap_err();
        assert_eq!(e.code, Code::PeerLost, "{e}");
    }
    assert!(c.driver.broken().is_some());
    c.check_at_rest().await;
}

#[tokio::test]
async fn a_lease_that_a_worker_dropped_ends_its_steps() {
    let c = cluster(2);
    assert_eq!(c.call(&[1]).await.unwrap(), [12]);
    c.hubs[0].remove_lease(LEASE);
    for _ in 0..3 {
        let e = c.call(&[1]).await.unwrap_err();
        assert_eq!(e.code, Code::PeerLost, "{e}");
    }
    c.driver.quiesce().await;
}

/// Keeps a worker's compute thread busy until the sender is dropped.
fn occupy(c: &harness::Cluster, worker: usize) -> mpsc::Sender<()> {
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

#[tokio::test]
async fn a_lease_released_under_a_running_step_still_retires_it() {
    let mut c = cluster(1);
    c.holds[0].set(true);
    let driver = c.driver.clone();
    let call = driver.call(vec![ids(&[1])], vec![1], None);
    tokio::pin!(call);
    tokio::select! { biased; _ = &mut call => panic!("ended"), () = tokio::task::yield_now() => {} }
    c.holds[0].wait();
    c.executors[0].abort_all(&Error::new(Code::WorkerLeaving, "w0 is leaving"));
    c.hubs[0].remove_lease(LEASE);
    c.leases.remove(0);
    assert_eq!(call.await.unwrap_err().code, Code::WorkerLeaving);
    assert_eq!(c.executors[0].live_steps(), 1);
    c.holds[0].set(false);
    driver.quiesce().await;
    assert_eq!(c.executors[0].live_steps(), 0);
}

#[tokio::test]
async fn a_step_whose_start_comes_after_the_release_ends() {
    let c = cluster(2);
    c.executors[0].release(LEASE);
    let e = c.call(&[1]).await.unwrap_err();
    // For the driver, the worker that gave up the lease is lost.
    assert_eq!(e.code, Code::PeerLost, "{e}");
    c.driver.quiesce().await;
    assert_eq!(c.executors[0].live_steps(), 0);
}

#[tokio::test]
async fn closing_the_driver_ends_calls_in_flight_and_waiting() {
    let c = cluster(1);
    let hold = occupy(&c, 0);
    let calls = futures::future::join(c.call(&[1]), c.call(&[2]));
    tokio::pin!(calls);
    tokio::select! { biased; _ = &mut calls => panic!("ended"), () = tokio::task::yield_now() => {} }
    c.driver.close();
    let (a, b) = calls.await;
    assert_eq!(a.unwrap_err().code, Code::LeaseRetired);
    assert_eq!(b.unwrap_err().code, Code::LeaseRetired);
    drop(hold);
}

#[tokio::test]
async fn an_error_before_the_start_is_not_forgotten() {
    let c = cluster(1);
    let error = Error::new(Code::OutOfMemory, "an early tensor did not fit");
    c.executors[0].abort(0, error, 0);
    let out = c
        .driver
        .call(vec![ids(&[1])], vec![1], Some(Duration::from_millis(200)));
    assert!(out.await.is_err());
    assert_eq!(c.call(&[1]).await.unwrap(), [12]);
    c.check_at_rest().await;
}

#[tokio::test]
async fn a_tensor_of_the_wrong_type_fails_its_step() {
    let c = cluster(1);
    let bound = Some(Duration::from_secs(10));
    for wrong in [Tensor::zeros(DType::F32, &[1]).unwrap(), ids(&[1, 1])] {
        let e = c
            .driver
            .call(vec![wrong], vec![1], bound)
            .await
            .unwrap_err();
        assert_eq!(e.code, Code::ProtocolViolation, "{e}");
    }
    let e = c.driver.call(vec![], vec![1], bound).await.unwrap_err();
    assert_eq!(e.code, Code::InvalidInput);
    assert_eq!(c.call(&[1]).await.unwrap(), [12]);
    c.check_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_races_results_and_errors() {
    let c = Arc::new(cluster(3));
    for i in 0..3000u64 {
        let own = c.clone();
        let call = tokio::spawn(async move { own.call(&[(i % 3) as i64]).await.map(drop) });
        // The call is cancelled at any time from before its step to after its result.
        for _ in 0..(i * 7919) % 400 {
            std::hint::spin_loop();
        }
        call.abort();
        drop(call.await);
    }
    c.check_at_rest().await;
    assert_eq!(c.call(&[1]).await.unwrap(), [12]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_does_not_stop_is_given_up() {
    let c = cluster(1);
    c.holds[0].set(true);
    let driver = c.driver.clone();
    let late = driver.call(vec![ids(&[1])], vec![1], Some(Duration::from_millis(1)));
    tokio::pin!(late);
    tokio::select! { biased; _ = &mut late => panic!("ended"), () = tokio::task::yield_now() => {} }
    c.holds[0].wait();
    assert_eq!(late.await.unwrap_err().code, Code::DeadlineExceeded);
    // No further call is made meanwhile.
    let quiesced = tokio::time::timeout(2 * QUIESCE_BOUND, c.driver.quiesce());
    quiesced.await.unwrap();
    assert_eq!(c.driver.broken().unwrap().code, Code::Wedged);
    let unusable = c.driver.unusable();
    assert_eq!(unusable.len(), 1);
    assert_eq!(unusable[0].name, "w0");
    let next = c.driver.call(vec![ids(&[1])], vec![1], None).await;
    assert_eq!(next.unwrap_err().code, Code::Wedged);
    c.holds[0].set(false);
}
