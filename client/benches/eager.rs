//! Ops on handles, in turns in one run, beside a ping-pong of 4-byte messages over plain quinn with the same threads,
//! endpoints and certificates.
//!
//! ```text
//! local     caller = client = worker: ops on the caller's thread        x = x + 1, and again
//! remote    caller -> client -> w0: Add -> client -> caller             value of one add
//! relay     caller -> driver -> A -> driver -> caller
//! ```
//!
//! `cargo bench -p convoke --bench eager -- [--json] [--rounds N]`

#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod harness;

use std::time::{Duration, Instant};

use convoke::{Embedded, Function, PreparedOp, Tensor};
use harness::relay::Relay;
use harness::{TURN, cluster, quantiles};

/// Adds that are issued in one go, far below the window of unresolved ops.
const CHAIN: usize = 10_000;

/// The value of an add.
async fn add_and_fetch(x: &Tensor, one: &Tensor) -> Duration {
    let start = Instant::now();
    let y: f32 = x.add(one).unwrap().fetch().await.unwrap();
    let took = start.elapsed();
    assert_eq!(y, 2.0);
    took
}

/// Dependent adds, until the last one has its value; per add.
async fn chain(x: &Tensor, one: &Tensor) -> Duration {
    let start = Instant::now();
    let mut y = x.clone();
    for _ in 0..CHAIN {
        y = y.add(one).unwrap();
    }
    let last: f32 = y.fetch().await.unwrap();
    let took = start.elapsed();
    assert_eq!(last, (CHAIN + 1) as f32);
    took / CHAIN as u32
}

/// As [`chain`], of an op that was resolved before.
async fn prepared_chain(add: &PreparedOp, x: &Tensor, one: &Tensor) -> Duration {
    let start = Instant::now();
    let mut y = x.clone();
    for _ in 0..CHAIN {
        y = add.issue(&[&y, one]).unwrap();
    }
    let last: f32 = y.fetch().await.unwrap();
    let took = start.elapsed();
    assert_eq!(last, (CHAIN + 1) as f32);
    took / CHAIN as u32
}

async fn call(function: &Function, x: &Tensor) -> Duration {
    let start = Instant::now();
    let made = function.call(std::slice::from_ref(x)).await.unwrap();
    let took = start.elapsed();
    drop(made);
    took
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        let at = arguments.iter().position(|a| a == flag)?;
        arguments.get(at + 1)?.parse().ok()
    };
    let rounds: usize = after("--rounds").unwrap_or(5000);

    let (cluster, caller) = cluster();
    let relay = Relay::start(&["a"]);
    let own = Embedded::new(1).threads(1).start();
    let own = caller.block_on(own).unwrap();
    let scalar = |device: convoke::Device| device.put(1f32).unwrap();
    let there = scalar(cluster.device("w0").unwrap());
    let here = scalar(own.device("w0").unwrap());
    let function = own.function(|t| Ok(vec![t[0].add(1.0)?]));
    let prepare = |x: &Tensor| {
        let device = x.device().unwrap();
        device.prepare(&[x, x], |t| t[0].add(&t[1])).unwrap()
    };
    let (add_here, add_there) = (prepare(&here), prepare(&there));

    let names = [
        "an add on an embedded worker, of a chain",
        "the same, prepared",
        "value of an add, embedded worker",
        "function of one add, embedded worker",
        "an add on a remote worker, of a chain",
        "the same, prepared, remote",
        "value of an add, remote worker",
        "quinn ping-pong, called from another thread",
        "quinn ping-pong, on the driver's thread",
    ];
    let mut rows = names.map(|_| Vec::new());
    let turns = rounds.div_ceil(TURN);
    // In turns, so that a drifting machine drifts for all; the first tenth warms up.
    for turn in 0..turns + turns.div_ceil(10) {
        let new = caller.block_on(async {
            let (mut value, mut called, mut fetched) = (vec![], vec![], vec![]);
            let local = vec![chain(&here, &here).await];
            let prepared = vec![prepared_chain(&add_here, &here, &here).await];
            let remote = vec![chain(&there, &there).await];
            let both = vec![prepared_chain(&add_there, &there, &there).await];
            for _ in 0..TURN {
                value.push(add_and_fetch(&here, &here).await);
            }
            for _ in 0..TURN {
                called.push(call(&function, &here).await);
            }
            for _ in 0..TURN {
                fetched.push(add_and_fetch(&there, &there).await);
            }
            [local, prepared, value, called, remote, both, fetched]
        });
        let floors = [(0..TURN).map(|_| relay.called()).collect(), relay.ask(TURN)];
        if turn >= turns.div_ceil(10) {
            let new = new.into_iter().chain(floors);
            rows.iter_mut()
                .zip(new)
                .for_each(|(all, mut new)| all.append(&mut new));
        }
    }
    let rows: Vec<_> = names.into_iter().zip(rows.map(quantiles)).collect();
    let (fetched, floors) = (rows[6].1.0, [rows[7].1.0, rows[8].1.0]);
    if arguments.iter().any(|a| a == "--json") {
        let times = rows
            .iter()
            .map(|(n, (p50, p99))| (*n, serde_json::json!({"p50": p50, "p99": p99})));
        let json = serde_json::json!({
            "latency_us": times.collect::<std::collections::BTreeMap<_, _>>(),
            "ratio_to_called_ping_pong": fetched / floors[0],
            "ratio_to_ping_pong": fetched / floors[1],
        });
        println!("{json}");
    } else {
        println!("| what | p50 | p99 |\n|---|---|---|");
        for (name, (p50, p99)) in &rows {
            println!("| {name} | {p50:.2} µs | {p99:.2} µs |");
        }
        println!(
            "\nvalue of a remote add: {:.2} and {:.2} times the ping-pong",
            fetched / floors[0],
            fetched / floors[1]
        );
    }
    // Threads that never end hold the cluster.
    std::process::exit(0);
}
