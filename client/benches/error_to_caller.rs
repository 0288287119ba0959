//! How soon a caller has the error of a node, beside a step of the same shape that succeeds, in turns in the same run.
//!
//! ```text
//! succeeds  caller -> client -> w0: Gather -> w1: Exp -> client -> caller
//! fails     caller -> client -> w0: Gather, whose index is out of range -> client -> caller
//!                               w1: waits for its operand, and is stopped
//! ```
//! A failing call is timed from its start to the error in the caller's hands, so that what is measured from the failure
//! on is less. Every party has a network thread of its own, every worker a compute thread.
//!
//! `cargo bench -p convoke --bench error_to_caller -- [--json] [--rounds N] [--check]`; with `--check` the exit code is 1
//! where a bound is not met.

#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod harness;

use std::time::{Duration, Instant};

use convoke::graph::Function;
use convoke::{Code, DType, HostTensor as Tensor, Model, TensorType};
use convoke_common::graph::{Attr, Attrs, Node, Part, ValueId};
use harness::{TURN, cluster, quantiles};

/// Elements of the tensor that is looked up in.
const SIZE: usize = 4;
/// In microseconds: what p50 and p99 must not exceed.
const BOUNDS: (f64, f64) = (500., 2000.);

fn node(name: &str, op: &str, attrs: Attrs, inputs: &[ValueId], output: ValueId) -> Node {
    Node {
        name: name.into(),
        op: op.into(),
        attrs,
        inputs: inputs.iter().map(|v| Some(*v)).collect(),
        outputs: vec![output],
        part: Part::Step,
    }
}

/// y = exp(x[index])
fn look_up() -> Function {
    let mut f = Function {
        name: "look_up".into(),
        ..Function::default()
    };
    let one = || TensorType::fixed(DType::F32, &[1]);
    let x = f.add_value("x", TensorType::fixed(DType::F32, &[SIZE]));
    let index = f.add_value("index", TensorType::fixed(DType::I64, &[1]));
    let (found, y) = (f.add_value("found", one()), f.add_value("y", one()));
    f.params = vec![x, index];
    let axis = Attrs::default().with("axis", Attr::Int(0));
    f.nodes = vec![
        node("first", "Gather", axis, &[x, index], found),
        node("second", "Exp", Attrs::default(), &[found], y),
    ];
    f.results = vec![("y".into(), y)];
    f
}

/// One call, and whether it succeeded.
async fn call(model: &Model, index: i64) -> (Duration, bool) {
    let x = Tensor::zeros(DType::F32, &[SIZE]).unwrap();
    let index = Tensor::from_slice(&[1], &[index]).unwrap();
    let start = Instant::now();
    let done = model.call([("x", x), ("index", index)]).await;
    let took = start.elapsed();
    let Err(e) = &done else { return (took, true) };
    let site = e.site.as_ref().unwrap();
    assert_eq!(
        (e.code, site.node.as_deref()),
        (Code::KernelFailed, Some("first")),
        "{e}"
    );
    assert_eq!(e.stopped, ["w1"], "{e}");
    (took, false)
}

/// One turn.
async fn turn(model: &Model, index: i64, succeeds: bool) -> Vec<Duration> {
    let mut times = Vec::with_capacity(TURN);
    for _ in 0..TURN {
        let (took, succeeded) = call(model, index).await;
        assert_eq!(succeeded, succeeds);
        times.push(took);
    }
    times
}

/// Times of failing calls and of others.
fn measure(rounds: usize) -> [Vec<Duration>; 2] {
    let (cluster, caller) = cluster();
    let load = cluster
        .load_function(look_up(), vec![])
        .workers(2)
        .pin("first", "w0")
        .pin("second", "w1")
        .in_flight(64);
    let model = caller.block_on(async { load.await.unwrap() });
    let mut all = [vec![], vec![]];
    let turns = rounds.div_ceil(TURN);
    // In turns, so that a drifting machine drifts for both; the first tenth warms up.
    for n in 0..turns + turns.div_ceil(10) {
        let mut new = [
            caller.block_on(turn(&model, SIZE as i64, false)),
            caller.block_on(turn(&model, 0, true)),
        ];
        if n >= turns.div_ceil(10) {
            all.iter_mut()
                .zip(&mut new)
                .for_each(|(all, new)| all.append(new));
        }
    }
    all
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let given = |flag: &str| arguments.iter().position(|a| a == flag);
    let rounds = given("--rounds").and_then(|at| arguments.get(at + 1)?.parse().ok());
    let times = measure(rounds.unwrap_or(5000));
    let n = times[0].len();
    let [failed, succeeded] = times.map(quantiles);
    if given("--json").is_some() {
        let json = |(p50, p99): (f64, f64)| serde_json::json!({ "p50": p50, "p99": p99 });
        let latency = serde_json::json!({ "error": json(failed), "result": json(succeeded) });
        println!("{}", serde_json::json!({ "n": n, "latency_us": latency }));
    } else {
        println!("| latency, n = {n} | p50 | p99 |\n|---|---|---|");
        for (name, (p50, p99)) in [
            ("error of a node, to the caller", failed),
            ("result of the same step", succeeded),
        ] {
            println!("| {name} | {p50:.0} µs | {p99:.0} µs |");
        }
    }
    let kept = failed.0 <= BOUNDS.0 && failed.1 <= BOUNDS.1;
    // Threads that never end hold the cluster.
    std::process::exit(i32::from(given("--check").is_some() && !kept));
}
