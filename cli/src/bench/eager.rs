//! Ops on handles, and a function of one op, on an embedded worker: beside the same additions in this thread.

use std::hint::black_box;

use convoke::{Cluster, PreparedOp, Tensor};
use convoke_common::error::{Error, Result};
use ndarray::Array0;
use tokio::time::Instant;

use super::report::Beside;
use super::turns::{Samples, alone, beside, micros, nanos_each};

/// Additions that are issued in one go, far below the window of unresolved ops.
pub const CHAIN: usize = 10_000;
/// Calls a turn.
const CALLS: usize = 500;

/// The same chain with arrays of ndarray.
pub const FLOOR: Beside = Beside {
    name: "ndarray",
    usual: None,
};

/// Dependent additions of 1 to 1, issued in one go, until the last one has its value: nanoseconds each.
pub async fn chain(x: &Tensor, add: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<f64> {
    let start = Instant::now();
    let mut y = x.clone();
    for _ in 0..CHAIN {
        y = add(&y, x)?;
    }
    let last: f32 = y.fetch().await?;
    let took = start.elapsed();
    match last == (CHAIN + 1) as f32 {
        true => Ok(nanos_each(took, CHAIN)),
        false => Err(Error::internal("a chain of additions gave another value")),
    }
}

/// As [`chain`], in this thread, with an allocation for each result.
pub fn arrays() -> f64 {
    let one = black_box(Array0::from_elem((), 1f32));
    let start = Instant::now();
    let mut y = one.clone();
    for _ in 0..CHAIN {
        y = black_box(&y + &one);
    }
    nanos_each(start.elapsed(), CHAIN)
}

/// Additions on handles.
pub async fn adds(x: &Tensor, rounds: u32) -> Result<(Samples, Samples)> {
    let work = async || Ok(vec![chain(x, |y, one| y.add(one)).await?]);
    beside(rounds, work, async || Ok(vec![arrays()])).await
}

/// As [`adds`], of an op that was resolved before.
pub async fn prepared(x: &Tensor, rounds: u32) -> Result<(Samples, Samples)> {
    let none = || Error::internal("a handle without a device");
    let device = x.device().ok_or_else(none)?;
    let add: PreparedOp = device.prepare(&[x, x], |t| t[0].add(&t[1]))?;
    let work = async || Ok(vec![chain(x, |y, one| add.issue(&[y, one])).await?]);
    beside(rounds, work, async || Ok(vec![arrays()])).await
}

/// Calls of a function of one op, handles in and handles out: microseconds.
pub async fn calls(cluster: &Cluster, x: &Tensor, rounds: u32) -> Result<Samples> {
    let function = cluster.function(|t| Ok(vec![t[0].add(1.0)?]));
    let operands = std::slice::from_ref(x);
    alone(rounds, async || {
        let mut times = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let start = Instant::now();
            let made = function.call(operands).await?;
            times.push(micros(start.elapsed()));
            drop(made);
        }
        Ok(times)
    })
    .await
}
