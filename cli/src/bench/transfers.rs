//! Tensors from worker to worker and back: moves that depend on each other, less what asking for the end costs.

use std::time::Duration;

use convoke::{DType, Device, HostTensor, Tensor};
use convoke_common::error::Result;
use tokio::time::Instant;

use super::floor::Tcp;
use super::report::Beside;
use super::turns::{Samples, beside};

/// How one size is measured.
pub struct Size {
    bytes: usize,
    /// Moves in a row, and rows a turn.
    moves: usize,
    rows: usize,
    /// Of the unit in a second.
    scale: f64,
    pub floor: Beside,
}

const FLOOR: Beside = Beside {
    name: "TCP",
    usual: None,
};

/// In microseconds.
pub const SMALL: Size = Size {
    bytes: 4 << 10,
    moves: 100,
    rows: 5,
    scale: 1e6,
    floor: FLOOR,
};

/// In milliseconds.
pub const LARGE: Size = Size {
    bytes: 64 << 20,
    moves: 4,
    rows: 1,
    scale: 1e3,
    floor: Beside {
        // At 2.2 GB/s.
        usual: Some(30.5),
        ..FLOOR
    },
};

/// From one device to the other and back, and the first element of what is there then.
async fn row(x: &Tensor, [here, there]: [&Device; 2], moves: usize) -> Result<Duration> {
    let start = Instant::now();
    let mut y = x.clone();
    for i in 0..moves {
        y = y.to(if i % 2 == 0 { there } else { here })?;
    }
    y.ready().await?;
    Ok(start.elapsed())
}

/// What a move takes.
pub async fn moves(
    size: &Size,
    devices: [&Device; 2],
    floor: Option<&mut Tcp>,
    rounds: u32,
) -> Result<(Samples, Samples)> {
    let zeros = HostTensor::zeros(DType::F32, &[size.bytes / 4])?;
    let x = devices[0].put(zeros)?;
    let work = async || {
        let mut each = Vec::with_capacity(size.rows);
        for _ in 0..size.rows {
            let asking = row(&x, devices, 0).await?;
            let moving = row(&x, devices, size.moves).await?;
            let all = moving.saturating_sub(asking).as_secs_f64();
            each.push(all / size.moves as f64 * size.scale);
        }
        Ok(each)
    };
    let mut floor = floor;
    let tcp = async || match &mut floor {
        Some(tcp) => {
            let seconds = tcp.thrown(size.bytes, size.moves * size.rows).await?;
            Ok(seconds.into_iter().map(|s| s * size.scale).collect())
        }
        None => Ok(vec![]),
    };
    beside(rounds, work, tcp).await
}
