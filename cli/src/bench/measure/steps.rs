//! Measures steps of functions over two workers, both those that succeed and those that fail.
//!
//! ```text
//! succeeds  caller -> client -> first: Sqrt -> second: Exp -> client -> caller
//! relay     caller -> driver -> a -> b -> driver -> caller
//! fails     caller -> client -> first: Gather, whose index is out of range -> client -> caller
//!                               second: waits for its operand, and is stopped
//! ```
//! A failing call is timed from its start to the error in the caller's hands.

use convoke::graph::{Function, Node, RunsAt, ValueId};
use convoke::{Attr, Attrs, Cluster, Code, DType, HostTensor, Model, TensorType};
use convoke_common::error::{Error, Result};
use futures::future::join_all;
use tokio::time::Instant;

use crate::bench::floor::Relay;
use crate::bench::report::Baseline;
use crate::bench::turns::{Samples, alone, beside, bounded, micros};

/// Calls in a turn.
const CALLS: usize = 200;
/// The number of concurrent callers, and the calls of each in a turn.
const IN_FLIGHT: (u32, usize) = (64, 20);
/// The number of elements of the tensor in which the failing step looks up.
const SIZE: usize = 4;

/// The floor of a step: messages of 4 bytes along the same hops.
pub const RELAY: Baseline = Baseline {
    name: "quinn relay",
    // This is the slower end of its usual range.
    usual: Some(173.),
};

/// Makes a node that runs in each step.
pub fn node(name: &str, op: &str, attrs: Attrs, inputs: &[ValueId], output: ValueId) -> Node {
    Node {
        name: name.into(),
        op: op.into(),
        attrs,
        inputs: inputs.iter().map(|v| Some(*v)).collect(),
        outputs: vec![output],
        runs_at: RunsAt::Step,
    }
}

/// y = exp(sqrt(x))
fn two_ops() -> Function {
    let mut f = Function {
        name: "two ops".into(),
        ..Function::default()
    };
    let [x, root, y] =
        ["x", "root", "y"].map(|name| f.add_value(name, TensorType::fixed(DType::F32, &[])));
    f.params = vec![x];
    f.nodes = vec![
        node("first", "Sqrt", Attrs::default(), &[x], root),
        node("second", "Exp", Attrs::default(), &[root], y),
    ];
    f.results = vec![("y".into(), y)];
    f
}

/// y = exp(x[index])
fn look_up() -> Function {
    let mut f = Function {
        name: "look up".into(),
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

/// Loads a function whose nodes `first` and `second` run on these workers.
pub async fn load(cluster: &Cluster, f: Function, workers: [&str; 2]) -> Result<Model> {
    let model = cluster
        .load_function(f, vec![])
        .workers(if workers[0] == workers[1] { 1 } else { 2 })
        .pin("first", workers[0])
        .pin("second", workers[1])
        .in_flight(IN_FLIGHT.0);
    bounded(async { model.await }).await
}

/// Calls a model with one scalar and takes one scalar back; returns microseconds.
pub async fn call(model: &Model) -> Result<f64> {
    let start = Instant::now();
    let out = model.call([("x", HostTensor::scalar(4f32))]).await?;
    let took = micros(start.elapsed());
    match out.get("y").map(HostTensor::dtype) {
        Some(DType::F32) => Ok(took),
        _ => Err(Error::internal("a step gave another result")),
    }
}

/// Measures steps one after the other, in microseconds.
pub async fn steps(
    cluster: &Cluster,
    workers: [&str; 2],
    floor: Option<&Relay>,
    rounds: u32,
) -> Result<(Samples, Samples)> {
    let model = load(cluster, two_ops(), workers).await?;
    let work = async || {
        let mut times = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            times.push(call(&model).await?);
        }
        Ok(times)
    };
    let both = beside(rounds, work, async || Relay::times(floor, CALLS).await).await?;
    bounded(model.unload()).await?;
    Ok(both)
}

/// Measures many steps in flight, in steps per second.
pub async fn in_flight(cluster: &Cluster, workers: [&str; 2], rounds: u32) -> Result<Samples> {
    let model = load(cluster, two_ops(), workers).await?;
    let (width, each) = IN_FLIGHT;
    let rates = alone(rounds, async || {
        let start = Instant::now();
        let lines = (0..width).map(|_| async {
            for _ in 0..each {
                call(&model).await?;
            }
            Ok::<_, Error>(())
        });
        let done: Result<Vec<()>> = join_all(lines).await.into_iter().collect();
        let steps = done?.len() * each;
        Ok(vec![steps as f64 / start.elapsed().as_secs_f64()])
    });
    let rates = rates.await?;
    bounded(model.unload()).await?;
    Ok(rates)
}

/// Measures the time from the start of a call that fails to its error, in microseconds.
pub async fn errors(cluster: &Cluster, workers: [&str; 2], rounds: u32) -> Result<Samples> {
    let model = load(cluster, look_up(), workers).await?;
    let times = alone(rounds, async || {
        let mut times = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            times.push(fail(&model).await?);
        }
        Ok(times)
    });
    let times = times.await?;
    bounded(model.unload()).await?;
    Ok(times)
}

/// Makes a call whose index is out of range; returns the microseconds until its error.
async fn fail(model: &Model) -> Result<f64> {
    let x = HostTensor::zeros(DType::F32, &[SIZE])?;
    let index = HostTensor::from_slice(&[1], &[SIZE as i64])?;
    let start = Instant::now();
    let done = model.call([("x", x), ("index", index)]).await;
    let took = micros(start.elapsed());
    let Err(e) = done else {
        return Err(Error::internal("an index out of range was found"));
    };
    let node = e.site.as_ref().and_then(|s| s.node.as_deref());
    match (e.code, node) {
        (Code::KernelFailed, Some("first")) => Ok(took),
        _ => Err(e),
    }
}
