//! Real worker processes that leave, hang or die of a node: what their callers get, what `status` shows, and what their
//! supervisor does.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::cluster::{ANYWHERE, Processes};
use common::functions::{SQUARE, square};
use common::kernels::{freeze, in_kernel};
use common::waits::{await_member, await_status, await_that};
use common::{BOUND, Daemon, Finished, Scratch, run};
use convoke::{
    CallOptions, Cluster, Code, DType, HostTensor as Tensor, Model, Outputs, Retry, Token,
};
use convoke_common::rpc::{ClusterStatus, MemberState, MemberStatus};
use convoke_worker::END_BOUND;
use rustix::process::Signal;

/// A running `convoke up`, with one compute thread in each worker.
struct Up {
    scratch: Scratch,
    daemon: Daemon,
    ready: serde_json::Value,
}

impl Up {
    fn start(name: &str, workers: u32, drain_bound: &str) -> Up {
        let scratch = Scratch::new(name);
        let daemon = Daemon::start([
            "up",
            "--workers",
            &workers.to_string(),
            "--listen",
            "127.0.0.1:0",
            "--threads",
            "1",
            "--memory",
            "1GiB",
            "--drain-bound",
            drain_bound,
            "--run-dir",
            scratch.path("run").to_str().unwrap(),
            "--json",
            "--log",
            "error",
        ]);
        let ready = serde_json::from_str(&daemon.line()).unwrap();
        Up {
            scratch,
            daemon,
            ready,
        }
    }

    fn text(&self, field: &str) -> &str {
        self.ready[field].as_str().unwrap()
    }

    fn folder(&self, worker: &str) -> PathBuf {
        self.scratch.path("run").join(worker)
    }

    async fn connect(&self) -> Cluster {
        let token = Token::from_file(self.text("client_token_file")).unwrap();
        convoke::connect(self.text("connect"), token).await.unwrap()
    }

    /// Runs an admin command on the coordinator's socket.
    fn admin(&self, args: &[&str]) -> Finished {
        let state = ["--state-dir", self.text("state_dir")];
        run(args.iter().chain(&state))
    }

    /// The process id of a worker, if it runs.
    fn pid(&self, worker: &str) -> Option<i32> {
        let folder = format!("{} ", self.folder(worker).display());
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let found = all.filter_map(|f| {
            let line = std::fs::read(f.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let is = line.contains(" worker ") && line.contains(&folder);
            is.then(|| f.file_name().to_str()?.parse().ok())?
        });
        found.last()
    }

    fn kill(&self, worker: &str, signal: Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid(worker).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    async fn in_kernel(&self, worker: &str) {
        in_kernel(&self.folder(worker)).await;
    }
}

type Call = tokio::task::JoinHandle<convoke::Result<Outputs>>;

/// Begins a call that is not run again.
fn call(model: &std::sync::Arc<Model>) -> Call {
    let model = model.clone();
    let x = Tensor::zeros(DType::F32, &[SQUARE, SQUARE]).unwrap();
    let options = CallOptions {
        retry: Retry::Off,
        ..CallOptions::default()
    };
    tokio::spawn(async move { model.call_with([("x", x)], options).await })
}

async fn ended(call: Call) -> convoke::Result<Outputs> {
    tokio::time::timeout(BOUND, call).await.unwrap().unwrap()
}

async fn load(cluster: &Cluster) -> convoke::Result<std::sync::Arc<Model>> {
    Ok(std::sync::Arc::new(
        cluster.load_function(square(), vec![]).await?,
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_kills_two_workers_is_refused_by_name() {
    let up = Up::start("deadly", 1, "8s");
    let cluster = up.connect().await;
    for n in 1..=2u32 {
        let model = load(&cluster).await.unwrap();
        let dying = call(&model);
        up.in_kernel("w0").await;
        let before = cluster.status().await.unwrap().members[0].incarnation;
        up.kill("w0", Signal::SEGV);
        let error = ended(dying).await.unwrap_err();
        assert_eq!(error.code, Code::PeerLost, "{error}");
        // `up` restarts the worker, which reports what its former process died of.
        let back = |m: &MemberStatus| m.state == MemberState::Alive && m.incarnation != before;
        let status = await_member(&cluster, "w0", back).await;
        let remark = &status.members[0].remark;
        assert_eq!(
            remark,
            "its former process died of SIGSEGV in node 'square'"
        );
        let q = &status.quarantine[0];
        assert_eq!(
            (q.node.as_str(), q.deaths.len() as u32, q.refused),
            ("square", n, n == 2)
        );
    }
    let error = load(&cluster).await.map(drop).unwrap_err();
    assert_eq!(error.code, Code::Quarantined);
    println!("{error}");
    assert!(
        error
            .message
            .starts_with("node 'square' is quarantined: it killed worker 'w0' (SIGSEGV, ")
    );
    let (address, token) = (up.text("connect"), up.text("client_token_file"));
    let text = run(["status", "--connect", address, "--token-file", token])
        .expect(0)
        .stdout;
    println!("{text}");
    assert!(
        text.contains("nodes in which workers died") && text.contains("refused"),
        "{text}"
    );

    // Now the worker is killed from outside, which must not be blamed on a node.
    up.admin(&["quarantine", "lift", "square"]).expect(0);
    let model = load(&cluster).await.unwrap();
    let killed = call(&model);
    up.in_kernel("w0").await;
    up.kill("w0", Signal::KILL);
    assert_eq!(ended(killed).await.unwrap_err().code, Code::PeerLost);
    let status = await_member(&cluster, "w0", |m| m.state == MemberState::Alive).await;
    assert!(status.quarantine.is_empty());
    assert_eq!(up.daemon.interrupt(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernel_that_hangs_wedges_its_worker_which_returns() {
    let up = Up::start("wedged", 1, "8s");
    let cluster = up.connect().await;
    let model = load(&cluster).await.unwrap();
    let first = call(&model);
    up.in_kernel("w0").await;
    freeze(up.pid("w0").unwrap());
    let before = cluster.status().await.unwrap().members[0].incarnation;
    let second = call(&model);
    await_member(&cluster, "w0", |m| {
        m.status.as_ref().is_some_and(|w| w.live_steps == 2)
    })
    .await;
    let given_up = Instant::now();
    first.abort();
    let error = ended(second).await.unwrap_err();
    println!("after {:?}: {error}", given_up.elapsed());
    assert_eq!(error.code, Code::Wedged);
    let told = "worker w0 is wedged: node 'square' of squares did not stop within 5s after its step had ended";
    assert_eq!(error.message, told);
    let back = |m: &MemberStatus| m.state == MemberState::Alive && m.incarnation != before;
    let status = await_member(&cluster, "w0", back).await;
    println!("back after {:?}", given_up.elapsed());
    let remark = &status.members[0].remark;
    assert_eq!(*remark, format!("its former process was wedged: {told}"));
    assert!(
        status.quarantine.is_empty(),
        "a hung process did not die of a signal"
    );
    ended(call(&model)).await.unwrap();
    assert_eq!(up.daemon.interrupt(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernel_that_hangs_while_its_worker_leaves_does_not_hold_it_up() {
    let mut processes = Processes::prepare("leaving-wedged", "1GiB");
    processes.drain_bound("100s");
    processes.start_coordinator();
    processes.add_worker();
    let cluster = processes.connect().await;
    let model = load(&cluster).await.unwrap();
    let running = call(&model);
    in_kernel(&processes.scratch.path("w0")).await;
    freeze(processes.worker(0).pid() as i32);
    processes.worker(0).signal(Signal::TERM);
    await_member(&cluster, "w0", |m| m.state == MemberState::Leaving).await;
    let given_up = Instant::now();
    running.abort();
    let worker = processes.workers[0].take().unwrap();
    assert_eq!(worker.wait(), Some(1));
    let took = given_up.elapsed();
    println!("the worker ended {took:?} after its step");
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_worker_finishes_ends_and_stays_away() {
    let up = Up::start("drained", 2, "100s");
    let cluster = up.connect().await;
    let pinned = cluster.load_function(square(), vec![]).pin("*", "w1");
    let model = std::sync::Arc::new(pinned.await.unwrap());
    let running = call(&model);
    up.in_kernel("w1").await;
    let told = up.admin(&["drain", "w1"]).expect(0).stdout;
    assert_eq!(
        told,
        "worker w1 finishes its steps and ends; `convoke undrain w1` lets it serve again\n"
    );
    let refused = ended(call(&model)).await.unwrap_err();
    println!("{refused}");
    assert_eq!(refused.code, Code::WorkerLeaving, "{refused}");
    ended(running).await.unwrap();
    await_member(&cluster, "w1", |m| {
        m.state == MemberState::Drained && m.status.is_none()
    })
    .await;
    await_that("it ends", || std::future::ready(up.pid("w1").is_none())).await;
    check_files(&up.folder("w1"));
    // Plans use the other worker.
    let other = load(&cluster).await.unwrap();
    assert_eq!(other.plan().await.unwrap().parts[0].name, "w0");

    // A drained worker that is started again stays out of service until `undrain`.
    let args = [
        "worker",
        "--join",
        up.text("connect"),
        "--token-file",
        up.text("worker_token_file"),
        "--name",
        "w1",
        "--state-dir",
        up.folder("w1").to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--cache",
        "0",
        "--json",
        "--log",
        "error",
    ]
    .map(str::to_owned);
    let again = Daemon::start(args);
    again.line();
    await_member(&cluster, "w1", |m| {
        m.state == MemberState::Drained && m.status.is_some()
    })
    .await;
    assert_eq!(
        up.admin(&["undrain", "w1"]).expect(0).stdout,
        "worker w1 serves again\n"
    );
    await_member(&cluster, "w1", |m| m.state == MemberState::Alive).await;
    let nobody = up.admin(&["drain", "w7", "--json"]).expect(1).json();
    assert_eq!(nobody["error"]["code"], "not_found", "{nobody}");
    // A worker that gets Ctrl-C, or SIGTERM, leaves and is not lost.
    assert_eq!(again.interrupt(), Some(0));
    let names = |s: &ClusterStatus| s.members.iter().map(|m| m.name.clone()).collect::<Vec<_>>();
    await_status(&cluster, "w1 is gone", |s| names(s) == ["w0"]).await;
    // The coordinator remembers a worker that died until `forget` says that it will not return.
    let alive = up.admin(&["forget", "w0", "--json"]).expect(1).json();
    assert_eq!(alive["error"]["code"], "invalid_argument", "{alive}");
    let pid = up.pid("w0").unwrap();
    assert_eq!(
        up.admin(&["forget", "w1"]).expect(0).stdout,
        "worker w1 is forgotten\n"
    );
    let nobody = up.admin(&["forget", "w1", "--json"]).expect(1).json();
    assert_eq!(nobody["error"]["code"], "not_found", "{nobody} {pid}");
    assert_eq!(up.daemon.interrupt(), Some(0));
}

/// Checks that a worker that has ended leaves none of the files that only a running one has.
#[track_caller]
fn check_files(folder: &Path) {
    for left in ["black-box", "worker.sock"] {
        assert!(!folder.join(left).exists(), "{left}");
    }
}

/// Checks that the only worker, which was told to end at time `told`, ends by itself in time after its steps, which
/// took `steps`, and leaves nothing.
#[track_caller]
fn check_ended(processes: &mut Processes, told: Instant, steps: Duration) {
    let worker = processes.workers[0].take().unwrap();
    assert_eq!(worker.wait(), Some(0));
    let took = told.elapsed();
    println!("the worker ended after {took:?}, of which its steps had {steps:?}");
    assert!(took < steps + END_BOUND * 10, "{took:?}");
    check_files(&processes.scratch.path("w0"));
}

/// Ends a worker while a step runs that may go on for `bound`; returns the outcome of the step.
async fn check_leave(name: &str, bound: Duration) -> convoke::Result<Outputs> {
    let mut processes = Processes::prepare(name, "1GiB");
    processes.drain_bound(&format!("{bound:?}"));
    processes.start_coordinator();
    processes.add_worker();
    let cluster = processes.connect().await;
    let model = load(&cluster).await.unwrap();
    let running = call(&model);
    in_kernel(&processes.scratch.path("w0")).await;
    let told = Instant::now();
    processes.worker(0).signal(Signal::TERM);
    let outcome = ended(running).await;
    check_ended(&mut processes, told, told.elapsed().min(bound));
    outcome
}

/// Ends a cluster while a step runs that may go on for `bound`; returns the outcome of the step.
async fn check_end(name: &str, bound: Duration) -> convoke::Result<Outputs> {
    let up = Up::start(name, 1, &format!("{bound:?}"));
    let cluster = up.connect().await;
    let model = load(&cluster).await.unwrap();
    let running = call(&model);
    up.in_kernel("w0").await;
    up.daemon.signal(Signal::TERM);
    let outcome = ended(running).await;
    let worker = up.pid("w0");
    let Up {
        scratch, daemon, ..
    } = up;
    assert_eq!(daemon.wait(), Some(0));
    assert!(!scratch.path("run").exists());
    assert!(worker.is_none_or(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_told_to_end_lets_steps_finish_for_a_bound() {
    let (long, brief) = (Duration::from_secs(100), Duration::from_millis(100));
    check_leave("patient", long).await.unwrap();
    check_end("patient-up", long).await.unwrap();
    let hasty = check_leave("hasty", brief).await;
    for ended in [hasty, check_end("hasty-up", brief).await] {
        let error = ended.unwrap_err();
        assert_eq!(
            (error.code, &*error.message),
            (Code::WorkerLeaving, "worker w0 is leaving")
        );
    }
}

/// A worker without steps to finish and peers to tell ends at once, but not before the coordinator knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_that_is_told_to_end_is_not_lost() {
    let mut processes = Processes::start("idle", 1, "256MiB");
    let cluster = processes.connect().await;
    let told = Instant::now();
    processes.worker(0).signal(Signal::TERM);
    check_ended(&mut processes, told, Duration::ZERO);
    let ended = |s: &ClusterStatus| s.members.iter().all(|m| m.state == MemberState::Lost);
    let status = await_status(&cluster, "its connection ended", ended).await;
    assert!(status.members.is_empty(), "{:?}", status.members);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_go_on_while_a_coordinator_stops() {
    let mut processes = Processes::start("stops", 1, "1GiB");
    let cluster = processes.connect().await;
    let model = load(&cluster).await.unwrap();
    let running = call(&model);
    let asked = Instant::now();
    let coordinator = processes.coordinator.take().unwrap();
    coordinator.signal(Signal::TERM);
    assert_eq!(coordinator.wait(), Some(0));
    println!("the coordinator stopped in {:?}", asked.elapsed());
    ended(running).await.unwrap();
    // The lease goes on, and no coordinator is there that the worker could tell.
    ended(call(&model)).await.unwrap();
    let told = Instant::now();
    processes.worker(0).signal(Signal::TERM);
    check_ended(&mut processes, told, Duration::ZERO);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_without_its_state_is_refused_and_restored_from_a_backup() {
    let mut processes = Processes::prepare("backup", "256MiB");
    processes.start_coordinator();
    let (state, file) = (processes.path("coordinator"), processes.path("backup"));
    let admin = |args: &[&str]| run(args.iter().chain(&["--state-dir", &state]));
    let revoked = Token::from_file(processes.client_token()).unwrap();
    let tokens = admin(&["token", "list", "--json"]).expect(0).json();
    let mut tokens = tokens["tokens"].as_array().unwrap().iter();
    let client = tokens.find(|t| t["role"] == "client").unwrap();
    admin(&["token", "revoke", client["id"].as_str().unwrap()]).expect(0);
    admin(&["ca", "rotate"]).expect(0);
    let early = admin(&["ca", "retire", "--json"]).expect(1).json();
    assert_eq!(early["error"]["code"], "busy", "{early}");
    admin(&["backup", &file]).expect(0);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it holds a private key");
    admin(&["status", "--health"]).expect(0);
    assert_eq!(processes.coordinator.take().unwrap().interrupt(), Some(0));

    std::fs::remove_file(Path::new(&state).join("coordinator.redb")).unwrap();
    let refused = admin(&["coordinator", "--listen", ANYWHERE]).expect(1);
    assert!(refused.stderr.contains("convoke restore"), "{refused:#?}");
    let taken = admin(&["restore", &file]).expect(1);
    assert!(taken.stderr.contains("already"), "{taken:#?}");
    std::fs::rename(&state, processes.path("half")).unwrap();
    admin(&["restore", &file]).expect(0);
    processes.start_coordinator();
    let error = convoke::connect(&processes.address, revoked)
        .await
        .err()
        .unwrap();
    assert_eq!(error.code, Code::Unauthorized, "{error}");
    assert!(error.message.contains("revoked"), "{error}");
    processes.connect().await.shutdown().await;
}
