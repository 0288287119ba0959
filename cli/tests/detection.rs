//! Real worker processes are killed or stopped while steps run: which error the caller gets, and how soon. Times are
//! printed, and asserted to be within ten times the bound.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use common::cluster::Processes;
use common::functions::tanh_chain;
use common::waits::await_member;
use common::{BOUND, run};
use convoke::{CallOptions, Cluster, Code, Error, HostTensor as Tensor, Model, Retry};
use convoke_common::detection::bounds::{LOST, PROCESS_KILLED};
use convoke_common::rpc::{LinkStatus, MemberStatus, WorkerStatus};
use rustix::process::Signal;

/// The number of elements of the tensor that steps pass on.
const SIZE: usize = 64;

/// Loads a chain of nodes, some on each worker.
async fn load(cluster: &Cluster) -> Model {
    let f = tanh_chain(&[SIZE], 12);
    cluster.load_function(f, vec![]).workers(3).await.unwrap()
}

/// Calls the model until a call fails; returns the error, and when it came.
async fn until_error(model: &Model) -> (Error, Instant) {
    let x = Tensor::from_slice(&[SIZE], &[0.5f32; SIZE]).unwrap();
    loop {
        let options = CallOptions {
            retry: Retry::Off,
            ..CallOptions::default()
        };
        if let Err(e) = model.call_with([("x", x.clone())], options).await {
            return (e, Instant::now());
        }
    }
}

/// The number of peers that a worker is linked with. Two workers that dial each other at the same time have two links.
fn peers(s: &WorkerStatus) -> usize {
    let names: BTreeSet<&str> = s.links.iter().map(|l| l.peer.as_str()).collect();
    names.len()
}

/// Sends `signal` to w1 in the middle of many steps, and checks the error that ends them, and how soon it comes.
async fn check(what: &str, signal: Signal, cause: &str, bound: Duration) {
    let processes = Processes::start(what, 3, "1GiB");
    let cluster = processes.connect().await;
    let model = load(&cluster).await;
    let calls = tokio::spawn(async move { until_error(&model).await });
    // w1 has links with w0, w2 and the driver.
    let ready = |m: &MemberStatus| {
        let all = |s: &WorkerStatus| peers(s) == 3 && s.links.iter().all(|l| l.tripwire);
        m.tripwire
            && m.status
                .as_ref()
                .is_some_and(|s| s.steps_done > 0 && all(s))
    };
    await_member(&cluster, "w1", ready).await;
    let from = Instant::now();
    processes.worker(1).signal(signal);
    let ended = tokio::time::timeout(BOUND, calls).await;
    let (e, at) = ended.expect("an error").unwrap();
    let took = at - from;
    println!("{what}: {e}, after {took:?}");
    assert_eq!(e.code, Code::PeerLost, "{e}");
    // The member that notices first, which may be another worker or the coordinator, gives the cause.
    let why = format!("lost contact with w1: {cause}");
    assert!(e.message.ends_with(&why), "{e}");
    assert!(took < bound * 10, "{took:?}");
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_killed_worker_is_noticed_at_once() {
    check("killed", Signal::KILL, "its process ended", PROCESS_KILLED).await;
}

#[tokio::test]
async fn a_stopped_worker_is_noticed_in_time() {
    check("stopped", Signal::STOP, "no answer for 2s", LOST).await;
}

#[tokio::test]
async fn status_says_where_tcp_does_not_pass() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let mut processes = Processes::prepare("blocked", "1GiB");
    processes.start_coordinator();
    processes.add_worker();
    processes.add_worker_at(&listen);
    processes.add_worker();
    let cluster = processes.connect().await;
    load(&cluster).await;
    // w1 dialled the coordinator and w0, and was dialled by w2 and the driver.
    let dialled = |m: &MemberStatus| {
        let to_w0 = |l: &LinkStatus| l.peer == "w0" && l.tripwire;
        let links = |s: &WorkerStatus| peers(s) == 3 && s.links.iter().any(to_w0);
        m.tripwire && m.status.as_ref().is_some_and(links)
    };
    await_member(&cluster, "w1", dialled).await;
    let (address, token) = (processes.address.as_str(), processes.client_token());
    let status = run(["status", "--connect", address, "--token-file", &token]);
    let text = status.expect(0).stdout;
    let links: Vec<&str> = text
        .lines()
        .filter(|l| l.trim_start().starts_with("w1 "))
        .collect();
    let blocked = |peer: &str| {
        let named = |l: &&&str| {
            l.split_whitespace()
                .nth(1)
                .is_some_and(|p| p.starts_with(peer))
        };
        let line = links.iter().find(named).unwrap_or_else(|| panic!("{text}"));
        line.contains(", tcp blocked")
    };
    assert!(
        !blocked("w0") && blocked("w2") && blocked("client-"),
        "{text}"
    );
    cluster.shutdown().await;
}
