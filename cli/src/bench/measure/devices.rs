//! Measures how fast a device multiplies matrices.

use std::time::Duration;

use convoke::{DType, Device, Tensor};
use convoke_common::error::Result;
use tokio::time::Instant;

use crate::bench::turns::{Samples, alone, bounded};

/// Rows and columns of the matrices.
const SIDE: usize = 1024;
/// A turn's products take about this time together, and are at most this many.
const ROW: (Duration, usize) = (Duration::from_millis(80), 64);

/// Issues products of which each depends on the one before, and returns the time until the last one is ready.
async fn row(x: &Tensor, by: &Tensor, products: usize) -> Result<Duration> {
    let start = Instant::now();
    let mut y = x.clone();
    for _ in 0..products {
        y = y.matmul(by)?;
    }
    y.ready().await?;
    Ok(start.elapsed())
}

/// Measures products of f32 matrices in 10⁹ operations per second. The cost of waiting for a result is subtracted.
pub async fn products(device: &Device, rounds: u32) -> Result<Samples> {
    let shape = [SIDE; 2];
    let x = device.random_normal(shape, DType::F32, 1)?;
    // The scale keeps a product's elements as large as those of its operand.
    let small = 1. / (SIDE as f32).sqrt();
    let by = device.random_normal(shape, DType::F32, 2)?.mul(small)?;
    bounded(row(&x, &by, 1)).await?;
    let once = bounded(row(&x, &by, 1)).await?;
    let fit = ROW.0.as_secs_f64() / once.as_secs_f64();
    let products = (fit as usize).clamp(1, ROW.1);
    let work = 2. * (SIDE as f64).powi(3) * products as f64 / 1e9;
    alone(rounds, async || {
        let asking = row(&x, &by, 0).await?;
        let all = row(&x, &by, products).await?;
        let took = all.saturating_sub(asking).max(Duration::from_nanos(1));
        Ok(vec![work / took.as_secs_f64()])
    })
    .await
}
