//! Steps do not need the coordinator: a client that calls a model all the time does not notice while the coordinator is
//! away, provided that drivers and workers reach each other. It does not matter which of them is cut off from the
//! coordinator, or for how long.

mod away;
mod settled;

use std::time::Duration;

use convoke::CallOptions;
use convoke_common::error::{Code, Result};
use convoke_sims::cluster::{Cluster, Host};
use convoke_sims::faults::{Harm, Target};
use convoke_sims::run::{Report, run};
use convoke_sims::workload::inputs;

use away::{scenario, spec};
use settled::{end, settled};

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

fn load(cluster: &mut Cluster, dynamic: bool) -> convoke::Model {
    let function = spec(dynamic).build().function;
    let loading = cluster.on_client(0, move |c| async move {
        let load = c.load_function(function, vec![]).workers(3).exact(true);
        load.await
    });
    end(cluster, &loading).expect("no fault yet")
}

#[test]
fn a_lease_that_is_released_is_freed_where_the_coordinator_does_not_reach() {
    for cut_off in [Host::Worker(0), CLIENT] {
        let mut cluster = settled(22, 3);
        let model = load(&mut cluster, false);
        cluster.partition(cut_off, Host::Coordinator);
        cluster.run_for(Duration::from_secs(5));
        let programs = |c: &Cluster| -> usize {
            let held = (0..3).map(|i| c.worker(i).map_or(0, |w| w.status().programs.len()));
            held.sum()
        };
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
    let model = load(&mut cluster, true);
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
