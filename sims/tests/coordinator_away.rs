//! Steps do not need the coordinator: a client that calls a model all the time notices nothing of it while drivers and
//! workers reach each other, whoever of them is cut off from the coordinator, and for however long. What the coordinator
//! decides meanwhile reaches whoever was cut off when packets pass again.

use crate::away;
use crate::settled;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use convoke::{CallOptions, Model, Retry};
use convoke_common::error::{Code, Result};
use convoke_common::identity::Budget;
use convoke_sims::cluster::{Cluster, Host, HostState, Setup};
use convoke_sims::faults::{Harm, Target};
use convoke_sims::run::{Report, run};
use convoke_sims::workload::inputs;

use away::{scenario, spec};
use settled::{SETTLE, end, settled};

#[track_caller]
fn check(target: Target, harm: Harm, at: u32, lasts: &[u32]) {
    for lasts in lasts {
        let scenario = scenario(target, harm, at, *lasts);
        let Report {
            violations, calls, ..
        } = run(&scenario, None);
        let what = format!("{target:?} {harm:?} from {at} ms for {lasts} ms");
        assert!(violations.is_empty(), "{what}: {violations:?}");
        let all = scenario.calls() as u64;
        assert_eq!(calls.get("ok"), Some(&all), "{what}: {calls:?}");
    }
}

/// Milliseconds that the coordinator is away, from within the bounds of detection to far beyond them. A debug build
/// takes only some of them, since it simulates slowly.
const AWAY: &[u32] = match cfg!(debug_assertions) {
    true => &[1_600, 2_500, 10_000],
    false => &[1_000, 1_600, 2_500, 4_000, 10_000, 60_000],
};

#[test]
fn the_coordinator_is_cut_off_from_everybody() {
    let coordinator = Target::Coordinator;
    check(coordinator, Harm::Cut { from: coordinator }, 300, AWAY);
}

#[test]
fn the_coordinator_is_stopped() {
    check(Target::Coordinator, Harm::Pause, 480, AWAY);
    check(Target::Coordinator, Harm::Pause, 480, &[2_300]);
}

#[test]
fn the_coordinator_is_killed_and_started_again() {
    check(Target::Coordinator, Harm::Crash, 300, AWAY);
}

#[test]
fn a_worker_is_cut_off_from_the_coordinator() {
    let from = Target::Coordinator;
    check(Target::Worker(0), Harm::Cut { from }, 300, AWAY);
    check(Target::Worker(2), Harm::OneWay { to: from }, 300, AWAY);
}

#[test]
fn a_client_is_cut_off_from_the_coordinator() {
    let from = Target::Coordinator;
    check(Target::Client(0), Harm::Cut { from }, 300, AWAY);
    check(Target::Client(0), Harm::Cut { from }, 300, &[7_000]);
    check(Target::Client(0), Harm::OneWay { to: from }, 300, AWAY);
}

const CLIENT: Host = Host::Client(0);

fn load(cluster: &mut Cluster, dynamic: bool, workers: u32) -> Model {
    let function = spec(dynamic).build().function;
    let loading = cluster.on_client(0, move |c| async move {
        let load = c.load_function(function, vec![]).workers(workers);
        let load = load.numerics(convoke::Numerics::Exact);
        load.await
    });
    end(cluster, &loading).expect("no fault yet")
}

/// How many programs are installed on a worker.
fn programs(cluster: &Cluster, worker: u16) -> usize {
    let worker = cluster.worker(worker);
    worker.map_or(0, |w| w.status().programs.len())
}

#[test]
fn a_lease_that_is_released_is_freed_where_the_coordinator_does_not_reach() {
    for cut_off in [Host::Worker(0), CLIENT] {
        let mut cluster = settled(22, 3);
        let model = load(&mut cluster, false, 3);
        cluster.partition(cut_off, Host::Coordinator);
        cluster.run_for(Duration::from_secs(5));
        let programs = |c: &Cluster| -> usize { (0..3).map(|i| programs(c, i)).sum() };
        assert_eq!(programs(&cluster), 3, "{cut_off} is out of reach");
        let unloading = cluster.on_client(0, move |_| async move { model.unload().await });
        let freed = cluster.run_until(Duration::from_secs(1), |c| programs(c) == 0);
        assert!(freed, "{cut_off} is out of reach");
        drop(end(&mut cluster, &unloading));
        cluster.heal();
        cluster.run_for(Duration::from_secs(10));
        let tables = cluster.on_coordinator(|c| async move { c.tables().await });
        let tables = end(&mut cluster, &tables).expect("it is there");
        let leases = tables.iter().find(|(name, _)| *name == "leases");
        assert_eq!(leases, Some(&("leases", 0)), "{cut_off} was out of reach");
    }
}

/// Makes the first call of a model, which is planned only then, while the coordinator is stopped for six seconds.
fn first_call(deadline: Option<Duration>) -> Result<()> {
    let mut cluster = settled(22, 3);
    let model = load(&mut cluster, true, 3);
    let feed = inputs(&spec(true).build(), 1, 4, false);
    cluster.pause(Host::Coordinator);
    let calling = cluster.on_client(0, move |_| async move {
        let options = CallOptions {
            deadline,
            ..CallOptions::default()
        };
        model.call_with(feed, options).await.map(|_| ())
    });
    cluster.run_for(Duration::from_secs(6));
    cluster.resume(Host::Coordinator);
    end(&mut cluster, &calling)
}

#[test]
fn new_work_waits_for_the_coordinator_until_its_deadline() {
    assert_eq!(first_call(Some(Duration::from_secs(20))), Ok(()));
    let unbounded = first_call(None).expect_err("nobody plans");
    assert_eq!(unbounded.code, Code::Unreachable, "{unbounded}");
    let late = first_call(Some(Duration::from_secs(4))).expect_err("nobody plans");
    let codes = [Code::Unreachable, Code::DeadlineExceeded];
    assert!(codes.contains(&late.code), "{late}");
}

const W0: Host = Host::Worker(0);

/// From when packets pass again until a worker has heard what it missed, by `docs/SECURITY.md`.
const TOLD: Duration = Duration::from_secs(10);

/// After this time both ends know that nothing passes between them.
const KNOWN: Duration = Duration::from_secs(5);

/// One call of a model that is installed.
fn call(cluster: &mut Cluster, model: &Arc<Model>) -> Result<()> {
    let (model, feed) = (model.clone(), inputs(&spec(false).build(), 1, 4, false));
    let calling = cluster.on_client(0, move |_| async move {
        let options = CallOptions {
            retry: Retry::Off,
            ..CallOptions::default()
        };
        model.call_with(feed, options).await.map(|_| ())
    });
    end(cluster, &calling)
}

/// A client with a token of its own, whose model is on a worker that the coordinator does not reach.
fn behind_a_partition() -> (Cluster, Arc<Model>) {
    let mut cluster = Cluster::new(Setup {
        seed: 23,
        workers: 1,
        own: BTreeMap::from([(CLIENT, Budget::default())]),
        ..Setup::default()
    });
    assert!(cluster.settle(SETTLE), "{:?}", cluster.ends());
    let model = Arc::new(load(&mut cluster, false, 1));
    cluster.partition(W0, Host::Coordinator);
    cluster.run_for(KNOWN);
    (cluster, model)
}

#[test]
fn a_revocation_reaches_a_worker_that_was_cut_off() {
    let (mut cluster, model) = behind_a_partition();
    let revoking = cluster.revoke(cluster.own_token(CLIENT).expect("it has its own"));
    assert_eq!(end(&mut cluster, &revoking), Ok(()));
    cluster.run_for(KNOWN);
    assert_eq!(
        call(&mut cluster, &model),
        Ok(()),
        "nobody has told the worker"
    );
    let client = cluster.hub(CLIENT).expect("it lives").me.name.clone();
    let is_linked = |c: &Cluster| {
        let links = c.hub(W0).expect("it lives").links();
        links.iter().any(|l| l.peer().name == client)
    };
    assert!(is_linked(&cluster));
    cluster.heal();
    assert!(
        cluster.run_until(TOLD, |c| !is_linked(c)),
        "it goes on serving"
    );
    let refused = call(&mut cluster, &model).expect_err("its token is revoked");
    // The coordinator has told the client as well, and either may be the first that the call meets.
    assert!(refused.message.contains("was revoked"), "{refused}");
    assert!(!is_linked(&cluster), "it is served again");
    assert_eq!(programs(&cluster, 0), 0);
}

#[test]
fn a_drain_reaches_a_worker_that_was_cut_off() {
    let (mut cluster, model) = behind_a_partition();
    let draining = cluster.on_coordinator(|c| async move { c.drain("w0").await });
    assert_eq!(end(&mut cluster, &draining), Ok(false), "it is not there");
    cluster.run_for(KNOWN);
    assert_eq!(
        call(&mut cluster, &model),
        Ok(()),
        "nobody has told the worker"
    );
    cluster.heal();
    // It has no step to finish, and ends as soon as it is told to.
    let ended = |c: &Cluster| c.state(W0) == HostState::Down;
    assert!(cluster.run_until(TOLD, ended), "it goes on serving");
}

/// The identity of a worker that the coordinator does not reach is used by another process, which only the coordinator knows:
/// the client, which could tell the worker as well, does not reach the coordinator either.
#[test]
fn a_superseded_process_ends_with_its_leases_once_it_learns_of_it() {
    let mut cluster = settled(24, 2);
    let elsewhere = Host::Worker(1);
    cluster.kill(elsewhere);
    cluster.run_for(KNOWN);
    let model = Arc::new(load(&mut cluster, false, 1));
    for cut_off in [W0, CLIENT] {
        cluster.partition(cut_off, Host::Coordinator);
    }
    cluster.run_for(KNOWN);
    cluster.copy_identity(W0, elsewhere);
    cluster.start(elsewhere);
    let started = |c: &Cluster| c.worker(1).is_some_and(|w| w.name() == "w0");
    assert!(cluster.run_until(SETTLE, started), "{:?}", cluster.ends());
    assert_eq!(
        call(&mut cluster, &model),
        Ok(()),
        "nobody has told the worker"
    );
    for (from, to) in [(W0, Host::Coordinator), (Host::Coordinator, W0)] {
        cluster.repair(from, to);
    }
    let ended = |c: &Cluster| c.ends().iter().any(|(_, host, _)| *host == W0);
    assert!(cluster.run_until(TOLD, ended), "it goes on serving");
    let (_, _, why) = cluster.ends().last().expect("it ended");
    assert!(
        why.starts_with("another process took the place of worker w0"),
        "{why}"
    );
    assert_eq!((programs(&cluster, 0), programs(&cluster, 1)), (0, 0));
    assert!(call(&mut cluster, &model).is_err(), "its lease is gone");
}
