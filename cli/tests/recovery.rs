//! Real processes are killed while steps run: the step runs again with the same bits, or its error says why not.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::clients::{client, told_cluster};
use common::cluster::Processes;
use common::functions::{ROOM_FOR_ONE, loop_over_tables, product_chain, with_tables};
use common::waits::{await_member, await_status, is_free, live_steps};
use common::{BOUND, fixture, run};
use convoke::graph::Function;
use convoke::{
    CallOptions, Code, Error, HostTensor as Tensor, Model, Outputs, Phase, Rerun, Retry,
};
use convoke_common::detection::bounds::PROCESS_KILLED;
use convoke_common::rpc::{MemberState, MemberStatus, RETURN_BOUND};

const SIZE: usize = 256;
/// The number of nodes of a step that takes some seconds.
const LONG: usize = 300;
/// The number of iterations of a loop over several workers that takes some seconds.
const ITERATIONS: i64 = 1500;

fn chain(nodes: usize) -> Function {
    product_chain(SIZE, nodes)
}

fn input() -> Tensor {
    let values: Vec<f32> = (0..SIZE * SIZE)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) / 500.0)
        .collect();
    Tensor::from_slice(&[SIZE, SIZE], &values).unwrap()
}

/// The steps that were run again.
#[derive(Clone, Default)]
struct Reruns(Arc<Mutex<Vec<Rerun>>>);

impl Reruns {
    fn told(&self) -> impl Fn(Phase) + Send + Sync + 'static {
        let reruns = self.0.clone();
        move |phase| {
            if let Phase::Rerun(rerun) = phase {
                reruns.lock().unwrap().push(rerun);
            }
        }
    }

    fn all(&self) -> Vec<Rerun> {
        self.0.lock().unwrap().clone()
    }
}

async fn load(cluster: &convoke::Cluster, f: &Function, reruns: &Reruns) -> Model {
    let builder = cluster.load_function(f.clone(), vec![]).workers(3);
    builder.on_progress(reruns.told()).await.unwrap()
}

fn inputs(f: &Function) -> Vec<(String, Tensor)> {
    let value = |name: &str| match name {
        "x" => input(),
        _ => Tensor::from_slice(&[1], &[7i64]).unwrap(),
    };
    let names = f.params.iter().map(|p| f.value(*p).name.to_string());
    names.map(|n| (n.clone(), value(&n))).collect()
}

/// Calls the model, and does `then` once its step runs on that many workers; `then` is told the first of them.
async fn call_and(
    cluster: &convoke::Cluster,
    model: &Model,
    f: &Function,
    retry: Retry,
    on: usize,
    then: impl AsyncFnOnce(usize),
) -> Result<Outputs, Error> {
    let (model, inputs) = (model.clone(), inputs(f));
    let options = CallOptions {
        retry,
        ..CallOptions::default()
    };
    let call = tokio::spawn(async move { model.call_with(inputs, options).await });
    let begun = async {
        loop {
            let status = cluster.status().await.unwrap();
            let busy: Vec<usize> = (0..)
                .zip(&status.members)
                .filter(|(_, m)| live_steps(m) > 0)
                .map(|(i, _)| i)
                .collect();
            if busy.len() >= on {
                return busy[0];
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::pin!(call);
    let busy = tokio::select! {
        biased;
        ended = &mut call => panic!("the call ended too early: {:?}", ended.unwrap().err()),
        begun = tokio::time::timeout(BOUND, begun) => begun.expect("a step"),
    };
    then(busy).await;
    tokio::time::timeout(BOUND, call)
        .await
        .expect("the end of the call")
        .unwrap()
}

#[tokio::test]
async fn a_step_whose_worker_is_killed_runs_again_with_the_same_bits() {
    let mut processes = Processes::start("rerun", 3, "1GiB");
    let cluster = processes.connect().await;
    let (f, reruns) = (chain(LONG), Reruns::default());
    let model = load(&cluster, &f, &reruns).await;
    let whole = model.call(inputs(&f)).await.unwrap();
    let again = call_and(&cluster, &model, &f, Retry::On, 3, async |_| {
        processes.kill_worker(1)
    })
    .await;
    assert!(again.unwrap() == whole);
    let reruns = reruns.all();
    assert_eq!(reruns.len(), 1, "{reruns:#?}");
    assert_eq!(
        reruns[0].to_string(),
        "lost contact with w1: its process ended; running again on w0, w2 (attempt 2 of 3)"
    );
    // The next call uses the same two workers.
    assert!(model.call(inputs(&f)).await.unwrap() == whole);
    cluster.shutdown().await;
}

#[tokio::test]
async fn without_retries_the_loss_is_the_error() {
    let mut processes = Processes::start("off", 3, "1GiB");
    let cluster = processes.connect().await;
    let (f, reruns) = (chain(LONG), Reruns::default());
    let model = load(&cluster, &f, &reruns).await;
    let failed = call_and(&cluster, &model, &f, Retry::Off, 3, async |_| {
        processes.kill_worker(1)
    })
    .await;
    let e = failed.unwrap_err();
    assert_eq!(e.code, Code::PeerLost, "{e}");
    assert_eq!(e.message, "lost contact with w1: its process ended");
    let site = e.site.unwrap();
    assert_eq!(site.worker.as_deref(), Some("w1"));
    assert!(
        site.host
            .is_some_and(|h| h.starts_with(&format!("{}:", processes.host)))
    );
    assert_eq!(e.stopped, ["w0", "w2"]);
    assert!(reruns.all().is_empty());
    // The next call is no retry, and makes a plan of its own.
    model.call(inputs(&f)).await.unwrap();
    cluster.shutdown().await;
}

#[tokio::test]
async fn survivors_that_cannot_hold_the_model_are_said_to() {
    let mut processes = Processes::start("small", 3, ROOM_FOR_ONE);
    let cluster = processes.connect().await;
    let (f, sources) = with_tables(chain(LONG), &processes.scratch.path("tables"), SIZE, 3, 0);
    let builder = cluster.load_function(f.clone(), sources).workers(3);
    let model = builder.await.unwrap();
    let mut killed = None;
    let failed = call_and(&cluster, &model, &f, Retry::On, 1, async |i| {
        processes.kill_worker(i);
        killed = Some(i);
    });
    let e = failed.await.unwrap_err();
    assert_eq!(e.code, Code::PeerLost, "{e}");
    let text = format!(
        "lost contact with w{}: its process ended; the survivors cannot hold the model: the model needs ",
        killed.unwrap()
    );
    println!("{e}");
    assert!(e.message.starts_with(&text), "{e}");
    assert!(e.advice.starts_with("what would fit: "), "{e}");
    assert_eq!(e.attached[0].code, Code::ClusterTooSmall);
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_retry_waits_one_bound_for_an_absent_coordinator() {
    let mut processes = Processes::start("absent", 3, "1GiB");
    let cluster = processes.connect().await;
    let (f, reruns) = (chain(LONG), Reruns::default());
    let model = load(&cluster, &f, &reruns).await;
    let mut killed = Instant::now();
    let failed = call_and(&cluster, &model, &f, Retry::On, 3, async |_| {
        processes.kill_coordinator();
        processes.kill_worker(1);
        killed = Instant::now();
    });
    let e = failed.await.unwrap_err();
    let took = killed.elapsed();
    println!("worker and coordinator were killed: the error came after {took:?}");
    // Ten times the bound, as for all times of real machines.
    assert!(took < RETURN_BOUND * 10, "{took:?}");
    assert_eq!(e.code, Code::PeerLost, "{e}");
    let text = format!(
        "lost contact with w1: its process ended; it cannot run again: the coordinator at {} cannot be reached, \
         waited 3s: ",
        processes.address
    );
    println!("{e}");
    assert!(e.message.starts_with(&text), "{e}");
    assert!(reruns.all().is_empty());
    cluster.shutdown().await;
}

#[tokio::test]
async fn steps_go_on_without_the_coordinator_and_plans_once_it_is_back() {
    let mut processes = Processes::start("restart", 3, "1GiB");
    let cluster = processes.connect().await;
    let (f, reruns) = (chain(LONG), Reruns::default());
    let model = load(&cluster, &f, &reruns).await;
    // The coordinator is killed in the middle of a step, and is away during whole steps.
    let whole = call_and(&cluster, &model, &f, Retry::On, 3, async |_| {
        processes.kill_coordinator()
    });
    let whole = whole.await.unwrap();
    assert!(model.call(inputs(&f)).await.unwrap() == whole);
    processes.start_coordinator();
    let back = cluster.await_workers(3, BOUND, |_| {}).await;
    assert_eq!(back, Ok(3));
    assert!(model.call(inputs(&f)).await.unwrap() == whole);
    assert!(reruns.all().is_empty());
    let again = call_and(&cluster, &model, &f, Retry::On, 3, async |_| {
        processes.kill_worker(0)
    })
    .await;
    assert!(again.unwrap() == whole);
    assert_eq!(reruns.all()[0].workers, ["w1", "w2"]);
    // The coordinator learned of the former lease from its workers, and made them release it.
    let status = cluster.status().await.unwrap();
    assert_eq!(status.leases.len(), 1, "{:#?}", status.leases);
    let living = status.members.iter().filter_map(|m| m.status.as_ref());
    let programs: Vec<usize> = living.map(|s| s.programs.len()).collect();
    assert_eq!(programs, [1, 1]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_started_again_at_its_address_at_once_is_another() {
    let mut processes = Processes::start("again", 3, "1GiB");
    let cluster = processes.connect().await;
    let (f, reruns) = (chain(LONG), Reruns::default());
    let model = load(&cluster, &f, &reruns).await;
    let whole = model.call(inputs(&f)).await.unwrap();
    let before = cluster.status().await.unwrap().members[1].clone();
    let again = call_and(&cluster, &model, &f, Retry::On, 3, async |_| {
        processes.kill_worker(1);
        processes.start_worker(1);
    })
    .await;
    assert!(again.unwrap() == whole);
    let reruns = reruns.all();
    assert_eq!(reruns.len(), 1, "{reruns:#?}");
    let lost = "lost contact with w1: its process ended";
    assert_eq!(reruns[0].cause.message, lost);
    let is_back =
        |m: &MemberStatus| m.state == MemberState::Alive && m.incarnation != before.incarnation;
    let status = await_member(&cluster, "w1", is_back).await;
    assert_eq!(status.members[1].address, before.address);
    // The next plan uses the new process, which gives the same bits.
    let next = load(&cluster, &f, &Reruns::default()).await;
    assert!(next.call(inputs(&f)).await.unwrap() == whole);
    let planned = next.plan().await.unwrap().parts;
    assert!(planned.iter().any(|p| p.name == "w1"), "{planned:?}");
    cluster.shutdown().await;
}

/// The client of the test below, which runs one step after the other.
async fn step_on(cluster: convoke::Cluster, f: &Function) {
    let model = load(&cluster, f, &Reruns::default()).await;
    loop {
        model.call(inputs(f)).await.unwrap();
    }
}

/// Calls the model again and again, each time once, until the sender is used or gone. Returns the results of all calls.
async fn step_until(
    mut end: tokio::sync::oneshot::Receiver<()>,
    model: Model,
    inputs: Vec<(String, Tensor)>,
) -> Vec<Result<Outputs, Error>> {
    let mut results = Vec::new();
    while end.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) {
        let options = CallOptions {
            retry: Retry::Off,
            ..CallOptions::default()
        };
        results.push(model.call_with(inputs.clone(), options).await);
    }
    results
}

#[tokio::test]
async fn a_client_killed_over_its_steps_leaves_nothing_and_stops_nobody() {
    if let Some(cluster) = told_cluster().await {
        return step_on(cluster, &chain(LONG)).await;
    }
    // This client's step outlasts some of the other client's.
    let f = chain(3 * LONG);
    let processes = Processes::start("gone", 3, "1GiB");
    let cluster = processes.connect().await;
    let model = load(&cluster, &f, &Reruns::default()).await;
    let whole = model.call(inputs(&f)).await.unwrap();
    let test = "recovery::a_client_killed_over_its_steps_leaves_nothing_and_stops_nobody";
    let mut client = client(&processes, test);
    let everywhere = async |what: &str, is: &dyn Fn(&MemberStatus, usize) -> bool| {
        let programs = |m: &MemberStatus| m.status.as_ref().map_or(0, |s| s.programs.len());
        let is = |m: &MemberStatus| is(m, programs(m));
        await_status(&cluster, what, |s| s.members.iter().all(is)).await
    };
    // With all tripwires standing, the client's end is noticed at once.
    let armed = |m: &MemberStatus, programs: usize| {
        let links = m.status.iter().flat_map(|s| &s.links);
        programs == 2 && links.clone().count() == 4 && links.clone().all(|l| l.tripwire)
    };
    everywhere("a program of each client", &armed).await;
    // Steps of this client follow each other until all of this has been seen.
    let (seen, unseen) = tokio::sync::oneshot::channel::<()>();
    let calls = tokio::spawn(step_until(unseen, model.clone(), inputs(&f)));
    everywhere("a step of each client", &|m, _| live_steps(m) == 2).await;
    client.kill().unwrap();
    let killed = Instant::now();
    let left = |m: &MemberStatus, programs| programs == 1 && live_steps(m) <= 1;
    everywhere("what is left is another's", &left).await;
    let took = killed.elapsed();
    println!("a client was killed: workers had freed all of it after {took:?}");
    assert!(took < PROCESS_KILLED * 10, "{took:?}");
    await_status(&cluster, "its lease is gone", |s| s.leases.len() == 1).await;
    let took = killed.elapsed();
    println!("its lease was gone after {took:?}");
    assert!(took < (PROCESS_KILLED + RETURN_BOUND) * 10, "{took:?}");
    seen.send(()).unwrap();
    client.wait().unwrap();
    let results = calls.await.unwrap();
    assert!(results.into_iter().all(|held| held.unwrap() == whole));
    assert!(model.call(inputs(&f)).await.unwrap() == whole);
    model.unload().await.unwrap();
    let free = |s: &convoke::ClusterStatus| s.leases.is_empty() && s.members.iter().all(is_free);
    await_status(&cluster, "nothing is left", free).await;
    cluster.shutdown().await;
}

/// Runs `convoke run` with many small steps, during which w1 is killed.
fn run_and_kill(name: &str, retry: &str) -> common::Finished {
    let mut processes = Processes::start(name, 3, "1GiB");
    let (model, arrays) = (fixture("digits/model.onnx"), fixture("digits/test.npz"));
    let (address, token) = (processes.address.clone(), processes.client_token());
    let running = common::convoke([
        "run",
        model.to_str().unwrap(),
        "--inputs",
        arrays.to_str().unwrap(),
        "--connect",
        &address,
        "--token-file",
        &token,
        "--workers",
        "3",
        "--steps",
        "500",
        "--retry",
        retry,
        "--json",
    ])
    .spawn()
    .unwrap();
    let deadline = Instant::now() + BOUND;
    loop {
        let status = run([
            "status",
            "--connect",
            &address,
            "--token-file",
            &token,
            "--json",
        ])
        .expect(0)
        .json();
        let members = status["members"].as_array().unwrap();
        let done = |m: &serde_json::Value| m["status"]["steps_done"].as_u64() > Some(10);
        if members.iter().all(done) {
            break;
        }
        assert!(Instant::now() < deadline, "no steps: {status}");
    }
    processes.kill_worker(1);
    common::finish(running)
}

#[test]
fn run_says_what_ran_again() {
    let done = run_and_kill("run-on", "on").expect(0);
    let line =
        "lost contact with w1: its process ended; running again on w0, w2 (attempt 2 of 3)\n";
    assert!(done.stderr.contains(line), "{done:#?}");
    let r = done.json();
    assert_eq!(r["steps"], 500, "{r}");
    let attempts = r["attempts"].as_array().unwrap();
    assert!(!attempts.is_empty(), "{r}");
    for a in attempts {
        assert_eq!((&a["attempt"], &a["of"]), (&2.into(), &3.into()), "{r}");
        assert_eq!(a["workers"], serde_json::json!(["w0", "w2"]));
        assert_eq!(a["cause"]["code"], "peer_lost", "{r}");
        assert_eq!(a["cause"]["site"]["worker"], "w1", "{r}");
    }
    // The report describes the plan that ran last, not the one that was loaded first.
    let ran = r["workers"].as_array().unwrap().iter();
    let mut ran: Vec<&str> = ran.map(|w| w["name"].as_str().unwrap()).collect();
    ran.sort_unstable();
    assert_eq!(ran, ["w0", "w2"], "{r}");
}

#[test]
fn run_without_retries_fails_with_the_loss() {
    let done = run_and_kill("run-off", "off").expect(1);
    let r = done.json();
    assert_eq!(r["error"]["code"], "peer_lost", "{r}");
    assert_eq!(
        r["error"]["message"],
        "lost contact with w1: its process ended"
    );
    assert_eq!(r["error"]["stopped"], serde_json::json!(["w0", "w2"]));
    assert!(
        done.stderr
            .contains("error: lost contact with w1: its process ended [worker w1, host 127."),
        "{done:#?}"
    );
}

#[tokio::test]
async fn a_loop_over_several_workers_outlives_one_of_them() {
    // Each worker has room for one table; the loop has three.
    let mut processes = Processes::start("loop", 4, ROOM_FOR_ONE);
    let cluster = processes.connect().await;
    let (f, sources) = loop_over_tables(&processes.scratch.path("tables"), SIZE, 3, 0);
    let reruns = Reruns::default();
    let load = cluster.load_function(f, sources).on_progress(reruns.told());
    let model = load.await.unwrap();
    let plan = model.plan().await.unwrap();
    let [body] = &plan.bodies[..] else {
        panic!("{plan:?}");
    };
    assert_eq!(body.parts.len(), 3, "{plan:?}");
    let given = |count: i64| {
        let x: Vec<f32> = (0..SIZE).map(|i| i as f32 / SIZE as f32).collect();
        [
            ("count", Tensor::scalar(count)),
            ("row", Tensor::from_slice(&[1], &[0i64]).unwrap()),
            ("x", Tensor::from_slice(&[1, SIZE], &x).unwrap()),
        ]
    };
    // Calls the loop, and kills a worker once it runs.
    let mut lose = async |iterations, victim: &str| {
        let (model, given) = (model.clone(), given(iterations));
        let call = tokio::spawn(async move { model.call(given).await });
        await_status(&cluster, "a step", |s| {
            s.members.iter().any(|m| live_steps(m) > 0)
        })
        .await;
        let i: usize = victim.strip_prefix('w').unwrap().parse().unwrap();
        processes.kill_worker(i);
        tokio::time::timeout(BOUND, call).await.unwrap().unwrap()
    };
    let whole = model.call(given(ITERATIONS)).await.unwrap();
    let mut driven = body.parts.iter().filter(|p| p.worker != body.owner);
    let victim = &driven.next_back().unwrap().worker;

    assert!(lose(ITERATIONS, victim).await.unwrap() == whole);
    let told = reruns.all();
    assert_eq!(told.len(), 1, "{told:#?}");
    // The client or the body's owner, whoever notices first, tells of the loss.
    let text = format!("lost contact with {victim}: its process ended; running again on ");
    assert!(told[0].to_string().contains(&text), "{}", told[0]);

    // A loop without end is told of the loss, too. The workers that are left cannot hold the loop.
    let plan = model.plan().await.unwrap();
    let body = &plan.bodies[0];
    let driven = body.parts.iter().find(|p| p.worker != body.owner);
    let victim = &driven.unwrap().worker;
    let e = lose(i64::MAX, victim).await.unwrap_err();
    assert_eq!(e.code, Code::PeerLost, "{e}");
    let text = format!("lost contact with {victim}: its process ended; the survivors cannot hold");
    assert!(e.message.contains(&text), "{e}");
    cluster.shutdown().await;
}
