//! Measures ops on handles and a function of one op on an embedded worker, beside the same additions in this thread.

use std::hint::black_box;

use convoke::{Cluster, PreparedOp, Tensor};
use convoke_common::error::{Error, Result};
use ndarray::Array0;
use tokio::time::Instant;

use crate::bench::report::Baseline;
use crate::bench::turns::{Samples, alone, beside, micros, nanos_each};

/// Additions that are issued without waiting: far fewer than a session allows to be unresolved.
pub const CHAIN: usize = 10_000;
/// Calls of the function in a turn.
const CALLS: usize = 500;

/// The floor of additions: the same chain with arrays of ndarray.
pub const FLOOR: Baseline = Baseline {
    name: "ndarray",
    usual: None,
};

/// Issues a chain of dependent additions to `x`, which is 1, and waits for the last value. Returns nanoseconds per
/// addition.
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

/// Runs the additions of [`chain`] in this thread, with an allocation for each result. Returns nanoseconds per
/// addition.
pub fn arrays() -> f64 {
    let one = black_box(Array0::from_elem((), 1f32));
    let start = Instant::now();
    let mut y = one.clone();
    for _ in 0..CHAIN {
        y = black_box(&y + &one);
    }
    nanos_each(start.elapsed(), CHAIN)
}

/// Measures additions on handles, in nanoseconds per addition.
pub async fn adds(x: &Tensor, rounds: u32) -> Result<(Samples, Samples)> {
    let work = async || Ok(vec![chain(x, |y, one| y.add(one)).await?]);
    beside(rounds, work, async || Ok(vec![arrays()])).await
}

/// Measures the same additions as [`adds`] with a prepared op.
pub async fn prepared(x: &Tensor, rounds: u32) -> Result<(Samples, Samples)> {
    let none = || Error::internal("a handle without a device");
    let device = x.device().ok_or_else(none)?;
    let add: PreparedOp = device.prepare(&[x, x], |t| t[0].add(&t[1]))?;
    let work = async || Ok(vec![chain(x, |y, one| add.issue(&[y, one])).await?]);
    beside(rounds, work, async || Ok(vec![arrays()])).await
}

/// Measures calls of a function of one op, with handles as operands and results, in microseconds.
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
