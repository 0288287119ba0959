//! Whoever waits for a member that is lost gets an answer within the promised bounds, whatever the wait is for.

use crate::settled;

use std::time::Duration;

use convoke::{CallOptions, Device, Operand, Retry, Tensor, issue, with_device};
use convoke_common::detection::bounds::{LOST, PROCESS_KILLED};
use convoke_common::error::{Code, Error, Result};
use convoke_common::rpc::RETURN_BOUND;
use convoke_rendezvous::driver::core::LOSS_GRACE;
use convoke_sims::cluster::{Cluster, Host, HostState, Task};
use convoke_sims::workload::{Model, ModelSpec, inputs};
use settled::{NEVER, end, settled};

/// How much later than its bound an answer may come: the error of a loss waits for the losses of others, the news has to
/// travel, and time advances in milliseconds.
const SLACK: Duration = LOSS_GRACE.saturating_add(Duration::from_millis(50));

/// The worker that is lost.
const LOSER: Host = Host::Worker(1);
const CLIENT: Host = Host::Client(0);

fn model() -> Model {
    ModelSpec::narrow(5, 16).build()
}

/// Makes kernels take forever from now on.
fn stall(cluster: &Cluster) {
    for i in 0..3 {
        let ms = NEVER.as_millis() as u64;
        cluster.knobs(Host::Worker(i)).set_job_ms(ms, ms);
    }
}

/// Loads a model on three workers.
fn load(cluster: &Cluster) -> Task<Result<convoke::Model>> {
    let function = model().function;
    cluster.on_client(0, move |c| async move {
        let load = c
            .load_function(function, vec![])
            .workers(3)
            .numerics(convoke::Numerics::Exact);
        load.await
    })
}

/// Calls a model on three workers, without retries.
fn call(cluster: &mut Cluster) -> Task<Result<()>> {
    let loading = load(cluster);
    let loaded = end(cluster, &loading).expect("no fault yet");
    let feed = inputs(&model(), 1, 4, false);
    stall(cluster);
    cluster.on_client(0, move |_| async move {
        let once = CallOptions {
            retry: Retry::Off,
            ..CallOptions::default()
        };
        loaded.call_with(feed, once).await.map(|_| ())
    })
}

/// Runs an op on the worker that will be lost, and fetches its result.
fn handle(cluster: &mut Cluster) -> Task<Result<()>> {
    let finding = cluster.on_client(0, |c| async move { c.devices().await });
    let devices: Vec<Device> = end(cluster, &finding).expect("no fault yet");
    let device = devices.into_iter().find(|d| d.worker() == LOSER.name());
    let device = device.expect("it has a device");
    stall(cluster);
    cluster.on_client(0, move |_| async move {
        let x: Tensor = device.put([1f32, 2.])?;
        let run = || issue("Neg", Default::default(), &[Operand::Tensor(&x)], 1);
        let y = with_device(&device, run)?.remove(0);
        y.fetch::<Vec<f32>>().await.map(|_| ())
    })
}

type Begin = fn(&mut Cluster) -> Task<Result<()>>;
type Strike = fn(&mut Cluster);

/// Checks that everything in `waiting` ends with a loss that names one of `workers`, within `bound` of the strike.
fn check(what: &str, waiting: &[Begin], strike: Strike, bound: Duration, workers: &[&str]) {
    let mut cluster = settled(21, 3);
    let waiting: Vec<_> = waiting.iter().map(|begin| begin(&mut cluster)).collect();
    // This is longer than it takes until a link is watched in every way.
    cluster.run_for(Duration::from_millis(1500));
    assert!(
        !waiting.iter().any(Task::is_over),
        "{what}: it does not wait"
    );
    strike(&mut cluster);
    cluster.run_for(bound + SLACK);
    for task in waiting {
        assert!(task.is_over(), "{what}: it still waits after {bound:?}");
        let error: Error = task.take().expect("lives").expect_err("a loss");
        let site = error.site.as_ref().and_then(|s| s.worker.as_deref());
        assert!(
            site.is_some_and(|s| workers.contains(&s)),
            "{what}: {error}"
        );
        let lost = matches!(error.code, Code::PeerLost | Code::StateLost);
        assert!(lost, "{what}: {error}");
    }
    assert!(
        cluster.panics().is_empty(),
        "{what}: {:?}",
        cluster.panics()
    );
}

fn cut_off(cluster: &mut Cluster) {
    for host in cluster.hosts() {
        if host != LOSER {
            cluster.partition(LOSER, host);
        }
    }
}

#[test]
fn calls_and_handles_end_in_time_whatever_happens_to_their_worker() {
    let strikes: [(&str, Strike, Duration); 7] = [
        ("killed", |c| c.kill(LOSER), PROCESS_KILLED),
        ("powered off", |c| c.power_off(LOSER), LOST),
        ("stopped", |c| c.pause(LOSER), LOST),
        ("cut off", cut_off, LOST),
        (
            "cut off from the client",
            |c| c.partition(LOSER, CLIENT),
            LOST,
        ),
        ("not heard", |c| c.cut(LOSER, CLIENT), LOST),
        ("not hearing", |c| c.cut(CLIENT, LOSER), LOST),
    ];
    for (what, strike, bound) in strikes {
        check(what, &[call, handle], strike, bound, &["w1"]);
    }
}

#[test]
fn workers_that_die_at_once_are_told_in_one_error() {
    let mut cluster = settled(21, 3);
    let waiting = call(&mut cluster);
    cluster.run_for(Duration::from_millis(1500));
    let dead = [LOSER, Host::Worker(2)];
    dead.iter().for_each(|host| cluster.kill(*host));
    cluster.run_for(PROCESS_KILLED + SLACK);
    assert!(waiting.is_over(), "the call still waits");
    let error: Error = waiting.take().expect("lives").expect_err("a loss");
    let told = [&error].into_iter().chain(&error.attached);
    let mut named: Vec<String> = told
        .filter(|e| e.code == Code::PeerLost)
        .filter_map(|e| e.site.as_ref()?.worker.clone())
        .collect();
    named.sort();
    assert_eq!(named, dead.map(|host| host.name()), "{error:?}");
}

#[test]
fn a_call_ends_in_time_when_its_workers_lose_each_other() {
    let strikes: [(&str, Strike); 2] = [
        ("both ways", |c| {
            c.partition(LOSER, Host::Worker(0));
            c.partition(LOSER, Host::Worker(2));
        }),
        ("one way", |c| {
            c.cut(LOSER, Host::Worker(0));
            c.cut(LOSER, Host::Worker(2));
        }),
    ];
    for (what, strike) in strikes {
        check(what, &[call], strike, LOST, &["w0", "w1", "w2"]);
    }
}

#[test]
fn workers_let_go_in_time_of_a_client_that_is_lost() {
    let strikes: [(&str, Strike, Duration); 4] = [
        ("killed", |c| c.kill(CLIENT), PROCESS_KILLED),
        ("powered off", |c| c.power_off(CLIENT), LOST),
        ("stopped", |c| c.pause(CLIENT), LOST),
        (
            "cut off",
            |c| (0..3).for_each(|i| c.partition(CLIENT, Host::Worker(i))),
            LOST,
        ),
    ];
    for (what, strike, bound) in strikes {
        let mut cluster = settled(21, 3);
        let waits = call(&mut cluster);
        cluster.run_for(Duration::from_millis(1500));
        assert!(!waits.is_over(), "{what}: it does not wait");
        let live = |c: &Cluster, i: u16| c.worker(i).map_or(0, |w| w.status().live_steps);
        assert!(live(&cluster, 0) + live(&cluster, 2) > 0, "{what}");
        strike(&mut cluster);
        cluster.run_for(bound + SLACK);
        for i in [0, 2] {
            assert_eq!(live(&cluster, i), 0, "{what}: w{i} goes on");
        }
    }
}

#[test]
fn what_needs_an_absent_coordinator_fails_after_one_bound() {
    let strikes: [(&str, Strike, Duration); 5] = [
        ("killed", |c| c.kill(Host::Coordinator), PROCESS_KILLED),
        ("powered off", |c| c.power_off(Host::Coordinator), LOST),
        ("stopped", |c| c.pause(Host::Coordinator), LOST),
        ("cut off", |c| c.partition(CLIENT, Host::Coordinator), LOST),
        ("not heard", |c| c.cut(Host::Coordinator, CLIENT), LOST),
    ];
    for (what, strike, noticed) in strikes {
        let mut cluster = settled(21, 3);
        cluster.run_for(Duration::from_millis(1500));
        strike(&mut cluster);
        let struck = cluster.elapsed();
        let loading = load(&cluster);
        let error = end(&mut cluster, &loading).err().expect("nobody plans");
        let took = cluster.elapsed() - struck;
        assert_eq!(error.code, Code::Unreachable, "{what}: {error}");
        assert!(took <= noticed + RETURN_BOUND + SLACK, "{what}: {took:?}");
    }
}

#[test]
fn a_worker_whose_kernel_hangs_while_it_leaves_ends_with_its_wedge() {
    let mut cluster = settled(21, 3);
    let waiting = call(&mut cluster);
    cluster.run_for(Duration::from_millis(500));
    // The kernel of the lost worker does not return. The client stops, and one second later the worker is told to stop.
    drop(waiting);
    cluster.stop(CLIENT);
    cluster.run_for(Duration::from_secs(1));
    cluster.stop(LOSER);
    let begun = cluster.elapsed();
    let down = |c: &Cluster| c.state(LOSER) == HostState::Down;
    assert!(cluster.run_until(NEVER, down), "it hangs");
    let took = cluster.elapsed() - begun;
    assert!(took < Duration::from_secs(5), "it ended after {took:?}");
    assert!(
        cluster.stragglers().is_empty(),
        "{:?}",
        cluster.stragglers()
    );
}
