//! Measures transfers of handles from worker to worker and back: moves that depend on each other, minus the cost of
//! waiting for the end. Also measures what a tensor in shared memory that crosses to another worker of this host adds
//! to a step: the step on two workers, minus the same step on one.

use std::time::Duration;

use convoke::graph::{Function, Literal};
use convoke::{Attr, Attrs, Cluster, DType, Device, HostTensor, Tensor, TensorType};
use convoke_common::error::Result;
use tokio::time::Instant;

use super::steps::{self, node};
use crate::bench::floor::Tcp;
use crate::bench::report::Baseline;
use crate::bench::turns::{Samples, beside, bounded, millis};

/// The size of a tensor, and how its transfers are measured.
pub struct Size {
    bytes: usize,
    /// The number of dependent moves in a row; `rows` is the number of rows in a turn.
    moves: usize,
    rows: usize,
    /// The factor from seconds to the measurement's unit.
    scale: f64,
    pub floor: Baseline,
}

const FLOOR: Baseline = Baseline {
    name: "TCP",
    usual: None,
};

/// Transfers of 4 KiB, in microseconds.
pub const SMALL: Size = Size {
    bytes: 4 << 10,
    moves: 100,
    rows: 5,
    scale: 1e6,
    floor: FLOOR,
};

/// Transfers of 64 MiB, in milliseconds.
pub const LARGE: Size = Size {
    bytes: 64 << 20,
    moves: 4,
    rows: 1,
    scale: 1e3,
    floor: Baseline {
        // This corresponds to 2.2 GB/s.
        usual: Some(30.5),
        ..FLOOR
    },
};

/// Moves a tensor to and fro between the devices `moves` times; returns the time until the last copy is ready.
async fn row(x: &Tensor, [here, there]: [&Device; 2], moves: usize) -> Result<Duration> {
    let start = Instant::now();
    let mut y = x.clone();
    for i in 0..moves {
        y = y.to(if i % 2 == 0 { there } else { here })?;
    }
    y.ready().await?;
    Ok(start.elapsed())
}

/// Measures the time of a move, in the unit of `size`.
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

/// The floor of a crossing in shared memory: a copy of the tensor within a process.
pub const COPY: Baseline = Baseline {
    name: "memcpy",
    usual: None,
};

/// Calls of each model in a turn.
const CALLS: usize = 5;

/// Makes a function that expands a scalar to a large tensor, on `first`, and takes its first element, on `second`.
fn spread() -> Result<Function> {
    let mut f = Function {
        name: "spread".into(),
        ..Function::default()
    };
    let len = LARGE.bytes / 4;
    let mut add =
        |name: &str, dtype, shape: &[usize]| f.add_value(name, TensorType::fixed(dtype, shape));
    let [x, y] = [("x", DType::F32), ("y", DType::F32)].map(|(name, dtype)| add(name, dtype, &[]));
    let (shape, index) = (
        add("shape", DType::I64, &[1]),
        add("index", DType::I64, &[]),
    );
    let wide = add("wide", DType::F32, &[len]);
    let inline = |v, t| (v, Literal::Inline(t));
    f.literals = vec![
        inline(shape, HostTensor::from_slice(&[1], &[len as i64])?),
        inline(index, HostTensor::scalar(0i64)),
    ];
    let axis = Attrs::default().with("axis", Attr::Int(0));
    f.params = vec![x];
    f.nodes = vec![
        node("first", "Expand", Attrs::default(), &[x, shape], wide),
        node("second", "Gather", axis, &[wide, index], y),
    ];
    f.results = vec![("y".into(), y)];
    Ok(f)
}

/// Measures crossings of 64 MiB in shared memory, in milliseconds, beside copies of as many bytes.
pub async fn lent(
    cluster: &Cluster,
    [here, there]: [&str; 2],
    rounds: u32,
) -> Result<(Samples, Samples)> {
    let apart = steps::load(cluster, spread()?, [here, there]).await?;
    let together = steps::load(cluster, spread()?, [here, here]).await?;
    let work = async || {
        let mut each = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let (crossing, staying) = (steps::call(&apart).await?, steps::call(&together).await?);
            each.push((crossing - staying).max(0.) / 1e3);
        }
        Ok(each)
    };
    let (from, mut to) = (vec![1u8; LARGE.bytes], vec![0u8; LARGE.bytes]);
    let copy = async || {
        let mut each = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let start = Instant::now();
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
            each.push(millis(start.elapsed()));
        }
        Ok(each)
    };
    let both = beside(rounds, work, copy).await?;
    for model in [apart, together] {
        bounded(model.unload()).await?;
    }
    Ok(both)
}
