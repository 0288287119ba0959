//! Real worker processes that are killed or stopped while steps run: what the caller is told, and how soon. Times are
//! printed; what is asserted of them is ten times the bound.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

mod common;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use common::{BOUND, Daemon, Scratch, run};
use convoke::{CallOptions, Cluster, Code, DType, Error, Model, Retry, Tensor, Token};
use convoke_common::detection::bounds::{LOST, PROCESS_KILLED};
use convoke_common::graph::{Function, Node, Part, TensorType};
use convoke_common::rpc::{LinkStatus, MemberStatus, WorkerStatus};
use rustix::process::Signal;

/// Elements of the tensor that steps pass on.
const SIZE: usize = 64;

/// A coordinator and workers w0, w1 and w2.
struct Processes {
    scratch: Scratch,
    _coordinator: Daemon,
    address: String,
    workers: Vec<Daemon>,
}

impl Processes {
    /// `listen`: where w1 listens.
    fn start(name: &str, listen: &str) -> Processes {
        let scratch = Scratch::new(name);
        let path = |name: &str| scratch.path(name).display().to_string();
        let (state, tokens) = (path("coordinator"), path("tokens"));
        let coordinator = Daemon::start([
            "coordinator",
            "--listen",
            "127.0.0.1:0",
            "--state-dir",
            &state,
            "--token-dir",
            &tokens,
            "--json",
            "--log",
            "error",
        ]);
        let ready: serde_json::Value = serde_json::from_str(&coordinator.line()).unwrap();
        let address = ready["listen"].as_str().unwrap().to_owned();
        let worker = |i: usize| {
            let worker = Daemon::start([
                "worker",
                "--join",
                &address,
                "--token-file",
                &path("tokens/worker/token"),
                "--name",
                &format!("w{i}"),
                "--listen",
                if i == 1 { listen } else { "127.0.0.1:0" },
                "--threads",
                "1",
                "--memory",
                "1GiB",
                "--state-dir",
                &path(&format!("w{i}")),
                "--cache",
                "0",
                "--json",
                "--log",
                "error",
            ]);
            worker.line();
            worker
        };
        let workers = (0..3).map(worker).collect();
        Processes {
            scratch,
            _coordinator: coordinator,
            address,
            workers,
        }
    }

    fn client_token(&self) -> String {
        self.scratch
            .path("tokens/client/token")
            .display()
            .to_string()
    }

    async fn connect(&self) -> Cluster {
        let token = Token::from_file(self.client_token()).unwrap();
        convoke::connect(&self.address, token).await.unwrap()
    }
}

/// A chain of nodes, some on each worker.
async fn load(cluster: &Cluster) -> Model {
    let ty = TensorType::fixed(DType::F32, &[SIZE]);
    let mut f = Function {
        name: "chain".into(),
        ..Function::default()
    };
    let mut last = f.add_value("x", ty.clone());
    f.params.push(last);
    for i in 0..12 {
        let next = f.add_value(format!("t{i}"), ty.clone());
        f.nodes.push(Node {
            name: format!("tanh{i}").into(),
            op: "Tanh".into(),
            attrs: Default::default(),
            inputs: vec![Some(last)],
            outputs: vec![next],
            part: Part::Step,
        });
        last = next;
    }
    f.results.push(("y".into(), last));
    cluster.load_function(f, vec![]).workers(3).await.unwrap()
}

/// Calls the model for ever: the first error, and when it came.
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

/// Waits until w1 is as wanted.
async fn until(
    cluster: &Cluster,
    what: &str,
    wanted: impl Fn(&MemberStatus, &WorkerStatus) -> bool,
) {
    let waited = tokio::time::timeout(BOUND, async {
        loop {
            let status = cluster.status().await.unwrap();
            let w1 = status.members.iter().find(|m| m.name == "w1").unwrap();
            if w1.status.as_ref().is_some_and(|s| wanted(w1, s)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what}"));
}

/// Sends `signal` to w1 in the middle of many steps: what ends them, and how soon.
async fn check(what: &str, signal: Signal, cause: &str, bound: Duration) {
    let processes = Processes::start(what, "127.0.0.1:0");
    let cluster = processes.connect().await;
    let model = load(&cluster).await;
    let calls = tokio::spawn(async move { until_error(&model).await });
    // From w0, w2 and the driver.
    until(&cluster, "steps, and tripwires to all", |m, s| {
        s.steps_done > 0 && m.tripwire && s.links.len() == 3 && s.links.iter().all(|l| l.tripwire)
    })
    .await;
    let from = Instant::now();
    processes.workers[1].signal(signal);
    let ended = tokio::time::timeout(BOUND, calls).await;
    let (e, at) = ended.expect("an error").unwrap();
    let took = at - from;
    println!("{what}: {e}, after {took:?}");
    assert_eq!(e.code, Code::PeerLost, "{e}");
    // On a machine that is busy elsewhere the coordinator may be the first to notice.
    let causes = [cause, "the coordinator says that it is gone"];
    let says = |cause| {
        e.message
            .ends_with(&format!("lost contact with w1: {cause}"))
    };
    assert!(causes.into_iter().any(says), "{e}");
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
    let processes = Processes::start("blocked", &listen);
    let cluster = processes.connect().await;
    load(&cluster).await;
    // w1 dialled the coordinator and w0, and was dialled by w2 and the driver.
    until(&cluster, "tripwires that w1 dialled", |m, s| {
        let to_w0 = |l: &LinkStatus| l.peer == "w0" && l.tripwire;
        m.tripwire && s.links.len() == 3 && s.links.iter().any(to_w0)
    })
    .await;
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
        line.contains("quic, tcp blocked")
    };
    assert!(
        !blocked("w0") && blocked("w2") && blocked("client-"),
        "{text}"
    );
    cluster.shutdown().await;
}
