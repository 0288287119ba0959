//! A load recovers as a call does: from a worker that is restarted meanwhile, and from one that cannot be reached.

use crate::settled;

use std::time::Duration;

use convoke::Retry;
use convoke_common::error::{Code, Result};
use convoke_sims::cluster::{Cluster, Host, Task};
use convoke_sims::run::run;
use convoke_sims::scenario::Scenario;
use convoke_sims::workload::{Model, ModelSpec, inputs};
use settled::{SETTLE, end, settled};

/// Milliseconds from the death of a worker to the start of its next process. A supervisor waits 100 ms by default.
const PAUSES_MS: [u64; 5] = [0, 50, 100, 250, 500];

/// Milliseconds from the begin of a load until a fault strikes: while it is planned, linked and installed.
const STRUCK_MS: [u64; 6] = [0, 1, 2, 4, 8, 16];

const LOSER: Host = Host::Worker(0);
const CLIENT: Host = Host::Client(0);

fn model() -> Model {
    ModelSpec::narrow(5, 16).build()
}

/// Loads the model over this many workers, with a node pinned to the worker that is struck, and calls it.
fn load(cluster: &Cluster, workers: u16, retry: Retry) -> Task<Result<()>> {
    let Model {
        function, steps, ..
    } = model();
    let feed = inputs(&model(), 1, 4, false);
    cluster.on_client(0, move |c| async move {
        let load = c.load_function(function, vec![]);
        let load = load
            .workers(workers.into())
            .numerics(convoke::Numerics::Exact)
            .retry(retry);
        let loaded = load.pin(steps[0].clone(), LOSER.name()).await?;
        loaded.call(feed).await?;
        loaded.unload().await
    })
}

#[test]
fn a_load_outlives_a_restart_of_a_worker_that_it_needs() {
    let strikes: [(&str, fn(&mut Cluster)); 2] = [
        ("killed", |c| c.kill(LOSER)),
        ("powered off", |c| c.power_off(LOSER)),
    ];
    for (what, strike) in strikes {
        for workers in [1, 3] {
            let mut cluster = settled(18, workers);
            for (struck, pause) in STRUCK_MS
                .into_iter()
                .flat_map(|struck| PAUSES_MS.map(|pause| (struck, pause)))
            {
                let loading = load(&cluster, workers, Retry::On);
                cluster.run_for(Duration::from_millis(struck));
                strike(&mut cluster);
                cluster.run_for(Duration::from_millis(pause));
                cluster.start(LOSER);
                let loaded = end(&mut cluster, &loading);
                assert!(
                    loaded.is_ok(),
                    "one of {workers} {what} after {struck} ms and back after {pause} ms: {loaded:?}"
                );
                assert!(cluster.settle(SETTLE), "{:?}", cluster.ends());
            }
        }
    }
}

#[test]
fn without_retries_a_load_fails_with_the_loss() {
    let mut cluster = settled(18, 1);
    let loading = load(&cluster, 1, Retry::Off);
    cluster.run_for(Duration::from_millis(6));
    cluster.kill(LOSER);
    cluster.run_for(Duration::from_millis(100));
    cluster.start(LOSER);
    let error = end(&mut cluster, &loading).expect_err("a loss");
    let about = error.site.as_ref().and_then(|s| s.worker.as_deref());
    assert_eq!(about, Some("w0"), "{error}");
    let lost = matches!(error.code, Code::PeerLost | Code::Unreachable);
    assert!(lost, "{error}");
}

#[test]
fn a_load_does_without_a_worker_that_the_client_cannot_reach() {
    let mut cluster = settled(18, 3);
    cluster.partition(LOSER, CLIENT);
    let function = model().function;
    let loading = cluster.on_client(0, move |c| async move {
        let load = c.load_function(function, vec![]).workers(3);
        let loaded = load.await?;
        Ok::<_, convoke::Error>(loaded.plan().await.map(|p| p.parts.len()))
    });
    assert_eq!(end(&mut cluster, &loading), Ok(Some(2)));
}

/// Before loads recovered, each of these seeds failed with `unreachable` that named nobody, or only the worker that
/// reported it.
#[test]
fn seeds_in_which_loads_failed_pass() {
    pass(&[61_085, 8_010_043_136, 77_310_026_038, 77_310_027_239]);
}

/// In this seed a worker runs out of memory, and then refuses the connection of a client for lack of it. The client
/// once took the worker to be out of reach.
#[test]
fn a_worker_without_memory_for_a_connection_is_not_taken_to_be_out_of_reach() {
    pass(&[277]);
}

fn pass(seeds: &[u64]) {
    for seed in seeds {
        let report = run(&Scenario::draw(*seed), None);
        let violations = &report.violations;
        assert!(violations.is_empty(), "{seed}: {violations:?}");
    }
}
