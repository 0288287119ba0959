//! Partial steps over two executors and a driver: a node's failure reaches the results that depend on it, and no
//! others.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::time::Duration;

use convoke_common::ids::StepKey;
use convoke_common::{Code, Error, Result};
use convoke_graph::dim::Dim;
use convoke_graph::graph::{Literal, Value};
use convoke_graph::program::{
    DriverProgram, DriverSlot, Feed, Fetch, FetchFrom, Program, RecvSlot, SendEdge,
};
use convoke_graph::{DType, Tensor};
use convoke_rendezvous::frame::Frame;
use harness::{Cluster, LEASE, ids, joined, node, of_programs, program, value};

const BOUND: Duration = Duration::from_secs(60);
/// The driver's participant index.
const DRIVER: u16 = 2;

fn i64s(name: &str) -> Value {
    value(name, DType::I64, &[Dim::sym("n")])
}

/// Adds a constant of 24 as value `at`.
fn twenty_four(program: &mut Program, at: u32) {
    program.values[at as usize] = value("c", DType::I64, &[Dim::Const(1)]);
    program.literals = vec![(at, Literal::Inline(ids(&[24])))];
}

fn send(value: u32, to: u16, slot: u32) -> SendEdge {
    SendEdge {
        value,
        to,
        slot,
        priority: 1,
    }
}

/// Two workers that compute from `x`, which is i64[n]:
/// ```text
/// w0: minus = -x    quotient = 24 / x    doubled = x + x    behind = quotient + quotient
/// w1: far = -quotient    near = -doubled    last = 24 / far    both = far + near
/// ```
/// All values except `doubled` are results, in this order.
fn cluster(in_flight: u32) -> Cluster {
    let names = ["x", "minus", "c", "quotient", "doubled", "behind"];
    let mut first = program(
        names.into_iter().map(i64s).collect(),
        vec![
            node("quotient", "Div", &[2, 0], 3),
            node("behind", "Add", &[3, 3], 5),
            node("minus", "Neg", &[0], 1),
            node("doubled", "Add", &[0, 0], 4),
        ],
    );
    twenty_four(&mut first, 2);
    let recv = |value, from| RecvSlot { value, from };
    first.recvs = vec![recv(0, DRIVER)];
    first.sends = vec![
        send(1, DRIVER, 0),
        send(3, DRIVER, 1),
        send(5, DRIVER, 2),
        send(3, 1, 0),
        send(4, 1, 1),
    ];
    let names = ["quotient", "doubled", "c", "far", "near", "last", "both"];
    let mut second = program(
        names.into_iter().map(i64s).collect(),
        vec![
            node("far", "Neg", &[0], 3),
            node("near", "Neg", &[1], 4),
            node("last", "Div", &[2, 3], 5),
            node("both", "Add", &[3, 4], 6),
        ],
    );
    twenty_four(&mut second, 2);
    second.recvs = vec![recv(0, 0), recv(1, 0)];
    second.sends = (3..7).map(|v| send(v, DRIVER, v)).collect();
    let results = ["minus", "quotient", "behind", "far", "near", "last", "both"];
    let of = |slot: u32| u16::from(slot >= 3);
    let ty = i64s("").ty;
    let slots = || (0..).zip(results);
    let driver = DriverProgram {
        feeds: vec![Feed {
            name: "x".into(),
            ty: ty.clone(),
            to: vec![(0, 0)],
        }],
        fetches: slots()
            .map(|(slot, name)| Fetch {
                name: name.into(),
                ty: ty.clone(),
                from: FetchFrom::Worker {
                    from: of(slot),
                    slot,
                },
            })
            .collect(),
        slots: slots()
            .map(|(slot, _)| DriverSlot {
                from: of(slot),
                ty: ty.clone(),
            })
            .collect(),
    };
    of_programs(joined(), in_flight, [first, second], driver)
}

async fn call(c: &Cluster, x: &[i64]) -> Result<Vec<Result<Tensor>>> {
    let call = c
        .driver
        .call_partial(vec![ids(x)], vec![x.len() as i64], Some(BOUND));
    call.await
}

/// By result, its values, or the node and the worker that failed.
fn told(results: Vec<Result<Tensor>>) -> Vec<Result<Vec<i64>, (String, String)>> {
    let one = |r: Result<Tensor>| match r {
        Ok(t) => Ok(t.as_slice::<i64>().unwrap().to_vec()),
        Err(e) => {
            assert_eq!(e.code, Code::KernelFailed, "{e}");
            let site = e.site.unwrap();
            Err((site.node.unwrap(), site.worker.unwrap()))
        }
    };
    results.into_iter().map(one).collect()
}

fn lost(node: &str, worker: &str) -> Result<Vec<i64>, (String, String)> {
    Err((node.into(), worker.into()))
}

#[tokio::test]
async fn a_failure_reaches_what_depends_on_it_and_nothing_else() {
    let c = cluster(2);
    for _ in 0..20 {
        let all = told(call(&c, &[2]).await.unwrap());
        let want = [-2, 12, 24, -12, -4, -2, -16].map(|v| Ok(vec![v]));
        assert_eq!(all, want);
        // Nodes fail on the first worker and, as a consequence, on the second.
        let some = told(call(&c, &[0, 1]).await.unwrap());
        let of_first = || lost("quotient", "w0");
        let want = [
            Ok(vec![0, -1]),
            of_first(),
            of_first(),
            of_first(),
            Ok(vec![0, -2]),
            of_first(),
            of_first(),
        ];
        assert_eq!(some, want);
        // A node fails on the second worker alone: 24 / 48 is 0.
        let some = told(call(&c, &[48]).await.unwrap());
        let values = [-48, 0, 0, 0, -96, 0, -96].map(|v| Ok(vec![v]));
        let mut want = Vec::from(values);
        want[5] = lost("last", "w1");
        assert_eq!(some, want);
    }
    c.check_at_rest().await;
    assert!(c.hubs.iter().all(|h| h.refused().is_empty()));
    // Each step with a failed node is counted at the worker of that node.
    for engine in &c.engines {
        let counted = engine.failures.counted();
        assert_eq!(counted, [("kernel_failed".to_owned(), 20)].into());
    }
}

#[tokio::test]
async fn a_step_that_is_not_partial_ends_as_before() {
    let c = cluster(2);
    let whole = c.driver.call(vec![ids(&[0])], vec![1], Some(BOUND));
    let e = whole.await.unwrap_err();
    assert_eq!(
        (e.code, e.stopped),
        (Code::KernelFailed, vec!["w1".to_owned()])
    );
    assert!(call(&c, &[0]).await.unwrap()[0].is_ok());
    c.check_at_rest().await;
}

#[tokio::test]
async fn what_is_not_of_a_node_ends_the_call() {
    let c = cluster(2);
    // The call's deadline passes.
    c.holds[1].set(true);
    let bound = Some(Duration::from_millis(50));
    let late = c.driver.call_partial(vec![ids(&[0])], vec![1], bound);
    assert_eq!(late.await.unwrap_err().code, Code::DeadlineExceeded);
    // The call is cancelled.
    let driver = c.driver.clone();
    let mut dropped = Box::pin(driver.call_partial(vec![ids(&[0])], vec![1], None));
    tokio::select! { biased; _ = &mut dropped => panic!("ended"), () = tokio::task::yield_now() => {} }
    drop(dropped);
    c.holds[1].set(false);
    c.driver.quiesce().await;
    // A worker is lost.
    c.holds[1].set(true);
    let mut waiting = Box::pin(driver.call_partial(vec![ids(&[0])], vec![1], None));
    tokio::select! { biased; _ = &mut waiting => panic!("ended"), () = tokio::task::yield_now() => {} }
    c.holds[1].wait();
    let link = c.hubs[2].link(&c.hubs[1].me).unwrap();
    link.close("test");
    c.hubs[2].link_lost(&link, "killed");
    assert_eq!(waiting.await.unwrap_err().code, Code::PeerLost);
    c.holds[1].set(false);
}

#[tokio::test]
async fn an_error_in_the_place_of_a_tensor_ends_a_step_that_is_not_partial() {
    let c = cluster(1);
    let failed = |n, slot| Frame::Failed {
        key: StepKey { lease: LEASE, n },
        slots: vec![slot],
        error: Error::new(Code::KernelFailed, "elsewhere").into(),
    };
    // The failure comes before the step starts at the other worker, while it runs there, and at the driver.
    c.hubs[1].frame(&c.hubs[0].me, failed(0, 0));
    let call = |n: i64| c.driver.call(vec![ids(&[n])], vec![1], Some(BOUND));
    assert_eq!(call(1).await.unwrap_err().message, "elsewhere");
    for (at, from, slot) in [(1, 0, 0), (2, 1, 4)] {
        c.holds[0].set(true);
        let n = at as u64;
        let mut waiting = Box::pin(call(1));
        tokio::select! { biased; _ = &mut waiting => panic!("ended"), () = tokio::task::yield_now() => {} }
        c.holds[0].wait();
        c.hubs[at].frame(&c.hubs[from].me, failed(n, slot));
        assert_eq!(waiting.await.unwrap_err().message, "elsewhere");
        c.holds[0].set(false);
        c.driver.quiesce().await;
    }
    assert!(call(1).await.is_ok());
    c.check_at_rest().await;
}
