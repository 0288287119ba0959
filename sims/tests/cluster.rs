//! The simulated cluster itself: production code runs in it, faults do what they promise, and a seed determines the
//! run.

use std::process::Command;
use std::time::Duration;

use convoke::{CallOptions, Retry};
use convoke_common::error::{Code, Error};
use convoke_common::identity::Role;
use convoke_common::rpc::{StreamKind, open_stream};
use convoke_graph::Tensor;
use convoke_sims::cluster::{Cluster, Host, Setup, Task};
use convoke_sims::draw::Draw;
use convoke_sims::oracle::{ExpectedOutcome, difference, expect};
use convoke_sims::scale;
use convoke_sims::workload::{Model, ModelSpec, inputs};
use convoke_sims::world::Wire;

const SETTLE: Duration = Duration::from_secs(20);
const CALL: Duration = Duration::from_secs(60);

/// Names the seed whose hash is to be printed, in a process that a test starts.
const PRINT_HASH_OF: &str = "CONVOKE_SIMS_HASH_OF";

fn setup(seed: u64) -> Setup {
    Setup {
        seed,
        workers: 3,
        ..Setup::default()
    }
}

fn settled(seed: u64) -> Cluster {
    let mut cluster = Cluster::new(setup(seed));
    assert!(cluster.settle(SETTLE), "{:?}", cluster.ends());
    cluster
}

fn spec(seed: u64) -> ModelSpec {
    ModelSpec {
        wide: seed.is_multiple_of(2),
        ..ModelSpec::narrow(seed, 16)
    }
}

type Outcome = Result<Vec<Tensor>, Error>;

/// Loads a model on all workers and makes its calls one after the other.
fn call(cluster: &Cluster, model: &Model, calls: u64) -> Task<Outcome> {
    let workers = u32::from(cluster.setup().workers);
    let (function, inputs) = (model.function.clone(), feeds(model, calls));
    cluster.on_client(0, move |c| async move {
        let model = c
            .load_function(function, vec![])
            .workers(workers)
            .numerics(convoke::Numerics::Exact)
            .await?;
        let mut last = vec![];
        for inputs in inputs {
            let outputs = model.call(inputs).await?;
            last = outputs.0.into_iter().map(|(_, t)| t).collect();
        }
        model.unload().await?;
        Ok(last)
    })
}

/// Loads a model on three workers.
fn load(cluster: &mut Cluster, model: &Model) -> convoke::Model {
    let function = model.function.clone();
    let loading = cluster.on_client(0, move |c| async move {
        c.load_function(function, vec![])
            .workers(3)
            .numerics(convoke::Numerics::Exact)
            .await
    });
    assert!(cluster.run_until(CALL, |_| loading.is_over()));
    loading.take().expect("the client lives").expect("loads")
}

fn feeds(model: &Model, calls: u64) -> Vec<Vec<(String, Tensor)>> {
    (0..calls).map(|i| inputs(model, i, 4, false)).collect()
}

fn check_result(model: &Model, calls: u64, outcome: Option<Outcome>) {
    let Some(last) = feeds(model, calls).pop() else {
        return;
    };
    let ExpectedOutcome::Results(want) = expect(model, &last) else {
        panic!("the model does not evaluate");
    };
    let got = outcome.expect("the client lives").expect("no fault");
    assert_eq!(difference(&want, &got), None);
}

/// Runs calls over bad wires with several kinds of faults, and returns the hash of the run.
fn run(seed: u64) -> u64 {
    let mut cluster = settled(seed);
    let mut draw = Draw::new(seed);
    cluster.wires(Wire {
        loss: draw.below(30_000) as u32,
        duplicate: draw.below(10_000) as u32,
        corrupt: draw.below(10_000) as u32,
        delay: (0, draw.below(8) as u16),
    });
    let model = spec(seed).build();
    let task = call(&cluster, &model, 3);
    assert!(cluster.run_until(CALL, |_| task.is_over()));
    check_result(&model, 3, task.take());

    // The faults decide the outcome of this call, but it has to end, and in the same way each time.
    let task = call(&cluster, &model, 5);
    cluster.run_for(Duration::from_millis(draw.range(50, 500)));
    cluster.kill(Host::Worker(1));
    cluster.knobs(Host::Worker(2)).panic_at("*", 1);
    cluster.run_for(Duration::from_millis(draw.range(100, 900)));
    cluster.start(Host::Worker(1));
    cluster.pause(Host::Worker(0));
    cluster.cut(Host::Client(0), Host::Worker(2));
    cluster.knobs(Host::Worker(2)).set_clock_off(-90_000);
    cluster.run_for(Duration::from_millis(draw.range(500, 4000)));
    cluster.heal();
    cluster.power_off(Host::Coordinator);
    cluster.run_for(Duration::from_millis(draw.range(10, 1000)));
    cluster.start(Host::Coordinator);
    assert!(cluster.run_until(CALL, |_| task.is_over()));
    drop(task.take());
    cluster.run_for(Duration::from_secs(1));
    assert!(cluster.panics().is_empty(), "{:?}", cluster.panics());
    assert!(cluster.trace().packets().sent > 1000);
    cluster.trace().hash()
}

#[test]
fn without_faults_a_model_on_three_workers_gives_the_evaluators_bits() {
    for seed in [1, 2, 3] {
        let mut cluster = settled(seed);
        let model = spec(seed).build();
        let task = call(&cluster, &model, 2);
        assert!(cluster.run_until(CALL, |_| task.is_over()));
        check_result(&model, 2, task.take());
        let workers = (0..3).filter_map(|i| cluster.worker(i)).count();
        assert_eq!((workers, cluster.ends().len()), (3, 0));
        assert!(cluster.panics().is_empty(), "{:?}", cluster.panics());
    }
}

#[test]
fn a_seed_is_a_run() {
    if let Ok(seed) = std::env::var(PRINT_HASH_OF) {
        println!("hash {:x} end", run(seed.parse().expect("a seed")));
        return;
    }
    let mut hashes = Vec::new();
    for seed in [11, 12] {
        let hash = run(seed);
        assert_eq!(run(seed), hash, "seed {seed} in one process");
        let other = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "cluster::a_seed_is_a_run", "--nocapture"])
            .env(PRINT_HASH_OF, seed.to_string())
            .output()
            .expect("started");
        let text = String::from_utf8_lossy(&other.stdout);
        let said = text
            .split("hash ")
            .nth(1)
            .and_then(|t| t.split(" end").next());
        assert_eq!(
            said,
            Some(&*format!("{hash:x}")),
            "seed {seed} in two processes"
        );
        hashes.push(hash);
    }
    hashes.dedup();
    assert_eq!(hashes.len(), 2);
}

/// Kills a worker in a step whose kernels take 50 ms each. Returns the outcome of the call, and how long after the kill
/// it came.
fn call_while_killing(seed: u64, retry: Retry) -> (Outcome, Duration) {
    let mut cluster = settled(seed);
    let model = spec(seed).build();
    for i in 0..3 {
        cluster.knobs(Host::Worker(i)).set_job_ms(50, 50);
    }
    let loaded = load(&mut cluster, &model);
    let feed = feeds(&model, 1).remove(0);
    let task = cluster.on_client(0, move |_| async move {
        let options = CallOptions {
            retry,
            ..CallOptions::default()
        };
        let outputs = loaded.call_with(feed, options).await?;
        Ok(outputs.0.into_iter().map(|(_, t)| t).collect())
    });
    cluster.run_for(Duration::from_millis(80));
    assert!(!task.is_over(), "the step should still run");
    cluster.kill(Host::Worker(1));
    let killed = cluster.elapsed();
    assert!(cluster.run_until(CALL, |_| task.is_over()));
    let after = cluster.elapsed() - killed;
    // A supervisor, or a person, starts the worker again: a new incarnation under its old name.
    cluster.start(Host::Worker(1));
    assert!(cluster.settle(SETTLE), "{:?}", cluster.ends());
    assert_eq!(cluster.boots(Host::Worker(1)), 2);
    assert!(cluster.panics().is_empty(), "{:?}", cluster.panics());
    (task.take().expect("the client lives"), after)
}

#[test]
fn a_worker_killed_in_a_step_ends_it_in_time() {
    let (outcome, after) = call_while_killing(5, Retry::Off);
    let error = outcome.expect_err("a lost worker");
    assert_eq!(error.code, Code::PeerLost, "{error}");
    assert!(after < Duration::from_secs(3), "{after:?}");
}

#[test]
fn a_step_that_lost_a_worker_is_run_again_with_the_same_bits() {
    let (outcome, _) = call_while_killing(5, Retry::On);
    check_result(&spec(5).build(), 1, Some(outcome));
}

#[test]
fn a_coordinator_without_power_comes_back_with_its_state() {
    let mut cluster = settled(6);
    let hash = cluster.coordinator().map(|c| c.ca_hash());
    let created = cluster.on_coordinator(|c| async move {
        c.create_token(convoke_common::identity::Role::Worker, None)
            .await
    });
    assert!(cluster.run_until(CALL, |_| created.is_over()));
    let token = created.take().expect("lives").expect("created");
    cluster.power_off(Host::Coordinator);
    cluster.run_for(Duration::from_secs(1));
    cluster.start(Host::Coordinator);
    assert!(cluster.settle(SETTLE), "{:?}", cluster.ends());
    assert_eq!(cluster.coordinator().map(|c| c.ca_hash()), hash);
    let revoked = cluster.on_coordinator(move |c| async move { c.revoke_token(&token.id).await });
    assert!(cluster.run_until(CALL, |_| revoked.is_over()));
    revoked
        .take()
        .expect("lives")
        .expect("what it said it had kept is there");
}

#[test]
fn a_coordinator_whose_disk_was_full_keeps_what_it_is_told_once_there_is_room() {
    use convoke_common::identity::Role;
    let mut cluster = settled(9);
    let token = cluster.on_coordinator(|c| async move { c.create_token(Role::Worker, None).await });
    assert!(cluster.run_until(CALL, |_| token.is_over()));
    let id = token.take().expect("lives").expect("created").id;
    // The audit log is written after the answer.
    cluster.run_for(Duration::from_millis(100));
    cluster.knobs(Host::Coordinator).set_disk_full(true);
    let revoke = |cluster: &mut Cluster| {
        let id = id.clone();
        let revoked = cluster.on_coordinator(move |c| async move { c.revoke_token(&id).await });
        assert!(cluster.run_until(CALL, |_| revoked.is_over()));
        revoked.take().expect("lives")
    };
    let health = |cluster: &mut Cluster| {
        let health = cluster.on_coordinator(|c| async move { c.health().await });
        assert!(cluster.run_until(CALL, |_| health.is_over()));
        health.take().expect("lives")
    };
    // As `convoke status --health` is told of it.
    let state_failure = |cluster: &mut Cluster| {
        let status = cluster.on_client(0, |c| async move { c.status().await });
        assert!(cluster.run_until(CALL, |_| status.is_over()));
        status.take().expect("lives").expect("told").state_failure
    };
    assert!(health(&mut cluster).is_ok(), "nothing was to be kept yet");
    assert_eq!(state_failure(&mut cluster), None);
    // A worker that comes while nothing can be kept is served all the same.
    cluster.kill(Host::Worker(0));
    cluster.run_for(Duration::from_secs(5));
    for _ in 0..3 {
        let error = revoke(&mut cluster).expect_err("the disk is full");
        assert_eq!(error.code, Code::Io, "{error}");
        assert!(error.to_string().contains("full"), "{error}");
        let wrong = health(&mut cluster).expect_err("the disk is full");
        assert_eq!(state_failure(&mut cluster), Some(wrong.to_string()));
    }
    cluster.start(Host::Worker(0));
    cluster.knobs(Host::Coordinator).set_disk_full(false);
    cluster.run_for(Duration::from_secs(10));
    health(&mut cluster).expect("it found by itself that there is room");
    assert_eq!(state_failure(&mut cluster), None);
    revoke(&mut cluster).expect("there is room");
    cluster.power_off(Host::Coordinator);
    cluster.run_for(Duration::from_secs(1));
    cluster.start(Host::Coordinator);
    assert!(cluster.settle(SETTLE), "{:?}", cluster.ends());
    let tokens = cluster.on_coordinator(|c| async move { c.tokens().await });
    assert!(cluster.run_until(CALL, |_| tokens.is_over()));
    let tokens = tokens.take().expect("lives");
    assert!(tokens.iter().any(|t| t.id == id && t.revoked), "{tokens:?}");
    assert!(cluster.panics().is_empty(), "{:?}", cluster.panics());
}

#[test]
fn power_that_fails_in_any_write_leaves_a_state_that_opens() {
    for n in 0..24 {
        let mut cluster = Cluster::new(setup(100 + u64::from(n)));
        cluster.knobs(Host::Coordinator).cut_power_after(n);
        assert!(cluster.settle(SETTLE), "write {n}: {:?}", cluster.ends());
        assert_eq!(cluster.boots(Host::Coordinator), 2, "write {n}");
    }
}

#[test]
fn a_paused_worker_goes_on_where_it_was() {
    let mut cluster = settled(7);
    let model = spec(7).build();
    let task = call(&cluster, &model, 2);
    cluster.run_for(Duration::from_millis(100));
    cluster.pause(Host::Worker(0));
    cluster.run_for(Duration::from_millis(500));
    assert!(!cluster.is_running(Host::Worker(0)));
    cluster.resume(Host::Worker(0));
    assert!(cluster.run_until(CALL, |_| task.is_over()));
    check_result(&model, 2, task.take());
    assert_eq!(cluster.boots(Host::Worker(0)), 1);
}

#[test]
fn an_injected_panic_is_the_steps_error_and_nobody_elses() {
    let mut cluster = settled(8);
    let model = spec(8).build();
    let loaded = load(&mut cluster, &model);
    cluster.knobs(Host::Worker(2)).panic_at("*", 1);
    let feed = feeds(&model, 1).remove(0);
    let task = cluster.on_client(0, move |_| async move {
        let first = loaded.call(feed.clone()).await.map(|_| ());
        (first, loaded.call(feed).await.map(|_| ()))
    });
    assert!(cluster.run_until(CALL, |_| task.is_over()));
    let (first, second) = task.take().expect("lives");
    let error = first.expect_err("a panic");
    assert_eq!(error.code, Code::KernelPanicked, "{error}");
    let site = error.site.as_ref().and_then(|s| s.worker.clone());
    assert_eq!(site.as_deref(), Some("w2"), "{error}");
    second.expect("the worker lives");
    assert!(cluster.panics().is_empty(), "{:?}", cluster.panics());
}

#[test]
fn a_client_counts_the_streams_that_it_refuses() {
    let mut cluster = settled(9);
    let model = spec(9).build();
    let _loaded = load(&mut cluster, &model);
    let opened = cluster.on_worker(0, move |worker| async move {
        let links = worker.hub().links();
        let mut clients = links.iter().filter(|l| l.peer().role == Role::Client);
        let link = clients.next().expect("a link to the client");
        let connection = link.connection().expect("over the network");
        for kind in [StreamKind::Worker, StreamKind::Probe] {
            let (_send, mut recv) = open_stream(connection, kind).await.expect("open");
            recv.read_to_end(1).await.expect_err("it is reset");
        }
    });
    assert!(cluster.run_until(CALL, |_| opened.is_over()));
    opened.take().expect("the worker lives");
    let counted = cluster.on_client(0, move |c| async move { c.refused() });
    assert!(cluster.run_until(CALL, |_| counted.is_over()));
    let counted = counted.take().expect("the client lives");
    assert_eq!(counted, [("stream_forbidden".to_owned(), 2)].into());
}

#[test]
fn what_clusters_cost_is_measured() {
    let [small, large] = [2, 6].map(|workers| scale::measure(workers).unwrap());
    for (what, small, large) in [
        ("join", small.join, large.join),
        ("rest", small.rest, large.rest),
        ("load", small.load, large.load),
        ("step", small.step, large.step),
    ] {
        assert!(
            0. < small.packets && small.packets < large.packets,
            "{what}: {small:?}, {large:?}"
        );
        assert!(small.simulated > 0. && small.real > 0., "{what}: {small:?}");
    }
    // The cost of rest is that of one second.
    assert_eq!(small.rest.simulated, 1000.);
}
