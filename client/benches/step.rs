//! A step across two workers, a scalar in and a scalar back, beside a relay of 4-byte messages over plain
//! quinn with the same hops, threads, endpoints and certificates, in turns in the same run.
//!
//! ```text
//! ours   caller -> client -> w0: Sqrt -> w1: Exp -> client -> caller
//! relay  caller -> driver -> A -> B -> driver -> caller
//! ```
//! Every party has a network thread of its own, every worker a compute thread. The relay is timed twice:
//! by a caller on another thread, as ours, and on the driver's own thread.
//!
//! `cargo bench -p convoke --bench step -- [--json] [--rounds N]`

#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod harness;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use convoke::{DType, Embedded, HostTensor as Tensor, Model};
use harness::relay::Relay;
use harness::{TURN, cluster, quantiles};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures/bench")
        .join(name)
}

async fn call(model: &Model) -> Duration {
    let start = Instant::now();
    let out = model.call([("x", Tensor::scalar(4f32))]).await.unwrap();
    let took = start.elapsed();
    assert_eq!(out["y"].dtype(), DType::F32);
    took
}

/// Steps per second with `width` calls in flight.
async fn throughput(model: &Model, width: usize, steps: usize) -> f64 {
    let start = Instant::now();
    let lines = (0..width).map(|_| async {
        for _ in 0..steps / width {
            call(model).await;
        }
    });
    futures::future::join_all(lines).await;
    (steps / width * width) as f64 / start.elapsed().as_secs_f64()
}

struct Results {
    rows: Vec<(&'static str, Vec<Duration>)>,
    rates: Vec<(&'static str, f64)>,
}

fn measure(rounds: usize) -> Results {
    let (cluster, caller) = cluster();
    let load = cluster
        .load(fixture("two_ops.onnx"))
        .workers(2)
        .pin("first", "w0")
        .pin("second", "w1")
        .in_flight(64);
    let two = caller.block_on(async { load.await.unwrap() });
    let relay = Relay::start(&["a", "b"]);
    let own = caller
        .block_on(Embedded::new(1).threads(1).start())
        .unwrap();
    let load = own.load(fixture("one_op.onnx")).workers(1).in_flight(64);
    let one = caller.block_on(async { load.await.unwrap() });

    let mut rows = ["step", "called", "relay", "local"].map(|_| Vec::new());
    let turns = rounds.div_ceil(TURN);
    // In turns, so that a drifting machine drifts for all; the first tenth warms up.
    for turn in 0..turns + turns.div_ceil(10) {
        let mut turn_rows = [
            caller.block_on(async {
                let mut times = Vec::new();
                for _ in 0..TURN {
                    times.push(call(&two).await);
                }
                times
            }),
            (0..TURN).map(|_| relay.called()).collect(),
            relay.ask(TURN),
            caller.block_on(async {
                let mut times = Vec::new();
                for _ in 0..TURN {
                    times.push(call(&one).await);
                }
                times
            }),
        ];
        if turn >= turns.div_ceil(10) {
            rows.iter_mut()
                .zip(&mut turn_rows)
                .for_each(|(all, new)| all.append(new));
        }
    }
    let rate = |model, width| caller.block_on(throughput(model, width, rounds));
    let rates = vec![
        ("two workers, 8 in flight", rate(&two, 8)),
        ("two workers, 64 in flight", rate(&two, 64)),
        ("one embedded worker, 64 in flight", rate(&one, 64)),
    ];
    let names = [
        "step across two workers",
        "quinn relay, called from another thread",
        "quinn relay, on the driver's thread",
        "one op on one embedded worker",
    ];
    Results {
        rows: names.into_iter().zip(rows).collect(),
        rates,
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        let at = arguments.iter().position(|a| a == flag)?;
        arguments.get(at + 1)?.parse().ok()
    };
    let results = measure(after("--rounds").unwrap_or(5000));
    let rows: Vec<_> = results
        .rows
        .into_iter()
        .map(|(n, t)| (n, quantiles(t)))
        .collect();
    let (ours, floors) = (rows[0].1.0, [rows[1].1.0, rows[2].1.0]);
    if arguments.iter().any(|a| a == "--json") {
        let json = serde_json::json!({
            "latency_us": rows.iter().map(|(n, (p50, p99))| (*n, serde_json::json!({"p50": p50, "p99": p99})))
                .collect::<std::collections::BTreeMap<_, _>>(),
            "ratio_to_called_relay": ours / floors[0],
            "ratio_to_relay": ours / floors[1],
            "per_second": results.rates.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
        });
        println!("{json}");
    } else {
        println!("| latency | p50 | p99 | step / this |\n|---|---|---|---|");
        for (name, (p50, p99)) in &rows {
            println!("| {name} | {p50:.0} µs | {p99:.0} µs | {:.2} |", ours / p50);
        }
        println!("\n| throughput | steps/s |\n|---|---|");
        for (name, rate) in &results.rates {
            println!("| {name} | {rate:.0} |");
        }
    }
    // Threads that never end hold the cluster.
    std::process::exit(0);
}
