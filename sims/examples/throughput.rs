//! How many seconds of a cluster are simulated in one: idle, and with a client that calls without a pause.
//!
//! `cargo run --release -p convoke-sims --example throughput`

#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::time::{Duration, Instant};

use convoke_sims::cluster::{Cluster, Setup};
use convoke_sims::workload::{ModelSpec, inputs};

const SIMULATED: Duration = Duration::from_secs(30);

/// Prints what `SIMULATED` took, and with how many packets.
fn measure(what: &str, cluster: &mut Cluster) {
    let before = (cluster.trace().packets(), cluster.trace().len());
    let start = Instant::now();
    cluster.run_for(SIMULATED);
    let real = start.elapsed();
    let (packets, events) = (cluster.trace().packets(), cluster.trace().len());
    println!(
        "{what}: {:.0} simulated seconds per second; per simulated second {} packets of {} KiB in all, {} step events",
        SIMULATED.as_secs_f64() / real.as_secs_f64(),
        (packets.sent - before.0.sent) / SIMULATED.as_secs(),
        ((packets.bytes - before.0.bytes) >> 10) / SIMULATED.as_secs(),
        (events - before.1) as u64 / SIMULATED.as_secs(),
    );
}

fn main() {
    let setup = Setup {
        seed: 1,
        workers: 3,
        clients: 2,
        ..Setup::default()
    };
    let mut cluster = Cluster::new(setup);
    assert!(
        cluster.settle(Duration::from_secs(10)),
        "{:?}",
        cluster.ends()
    );
    // Workers measure their links first.
    cluster.run_for(Duration::from_secs(5));
    measure("idle", &mut cluster);
    for client in 0..2 {
        let spec = ModelSpec {
            seed: u64::from(client),
            nodes: 16,
            wide: false,
            dynamic: false,
            trap: None,
        };
        let model = spec.build();
        let calls = cluster.on_client(client, move |c| async move {
            let loaded = c
                .load_function(model.function.clone(), vec![])
                .workers(3)
                .await?;
            for call in 0.. {
                loaded.call(inputs(&model, call, 4, false)).await?;
            }
            Ok::<(), convoke::Error>(())
        });
        cluster.run_for(Duration::from_secs(1));
        assert!(!calls.is_over(), "{:?}", calls.take());
    }
    measure("two clients that call", &mut cluster);
}
