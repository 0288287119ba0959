//! Measures ops on handles of a worker in another process, and calls of functions of its handles.

use convoke::{Cluster, DType, Device, HostTensor, Tensor};
use convoke_common::error::{Error, Result};
use futures::future::try_join_all;
use tokio::time::Instant;

use super::eager::chain;
use crate::bench::floor::Relay;
use crate::bench::report::Baseline;
use crate::bench::turns::{Samples, alone, beside, micros};

/// Values that are fetched in a turn.
const FETCHES: usize = 200;

/// Callers at once.
const CALLERS: usize = 8;
/// Calls of all callers in a turn.
const CALLS: usize = 160;
/// The dependent products of a call, and the rows and columns of their operands: no product is large enough to be split
/// over threads.
const PRODUCTS: usize = 64;
const SIDE: usize = 32;

/// The floor of calls at once: as many calls, one after the other.
pub const ONE_BY_ONE: Baseline = Baseline {
    name: "one by one",
    usual: None,
};

/// The floor of a fetch: a message of 4 bytes to another process and back.
pub const PING_PONG: Baseline = Baseline {
    name: "quinn ping-pong",
    usual: Some(85.),
};

/// Measures an addition and the fetch of its value, in microseconds.
pub async fn fetches(x: &Tensor, floor: Option<&Relay>, rounds: u32) -> Result<(Samples, Samples)> {
    let work = async || {
        let mut times = Vec::with_capacity(FETCHES);
        for _ in 0..FETCHES {
            let start = Instant::now();
            let y: f32 = x.add(x)?.fetch().await?;
            times.push(micros(start.elapsed()));
            if y != 2. {
                return Err(Error::internal("1 + 1 gave another value"));
            }
        }
        Ok(times)
    };
    beside(rounds, work, async || Relay::times(floor, FETCHES).await).await
}

/// Measures dependent additions that are issued without waiting, in additions per second.
pub async fn pipelined(x: &Tensor, rounds: u32) -> Result<Samples> {
    alone(rounds, async || {
        let each = chain(x, |y, one| y.add(one)).await?;
        Ok(vec![1e9 / each])
    })
    .await
}

/// Measures calls of a function whose ops are too small for several threads, by several callers at once and by one, in
/// calls per second.
pub async fn calls_at_once(
    cluster: &Cluster,
    device: &Device,
    rounds: u32,
) -> Result<(Samples, Samples)> {
    let x = device.put(HostTensor::zeros(DType::F32, &[SIDE, SIDE])?)?;
    let function = cluster.function(|t| {
        let mut y = t[0].clone();
        for _ in 0..PRODUCTS {
            y = y.matmul(&t[0])?;
        }
        Ok(vec![y])
    });
    let operands = std::slice::from_ref(&x);
    let rate = async |callers: usize| {
        let start = Instant::now();
        let line = async || {
            for _ in 0..CALLS / callers {
                function.call(operands).await?;
            }
            Ok::<_, Error>(())
        };
        try_join_all((0..callers).map(|_| line())).await?;
        Ok(vec![CALLS as f64 / start.elapsed().as_secs_f64()])
    };
    beside(rounds, async || rate(CALLERS).await, async || rate(1).await).await
}
