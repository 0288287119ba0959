//! Measures ops on handles of a worker in another process.

use convoke::Tensor;
use convoke_common::error::{Error, Result};
use tokio::time::Instant;

use super::eager::chain;
use super::floor::Relay;
use super::report::Baseline;
use super::turns::{Samples, alone, beside, micros};

/// Values that are fetched in a turn.
const FETCHES: usize = 200;

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
