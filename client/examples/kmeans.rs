//! k-means over all workers: each has points of its own, and only centroids and partial sums move: `cargo run --release
//! -p convoke --example kmeans`
//!
//! To use a running cluster, such as one that `convoke up` has started: `... --example kmeans -- HOST:PORT TOKEN_FILE`

mod common;

use convoke::{Cluster, DType, Device, Index, Result, Tensor};

/// The number of points of each worker.
const POINTS: i64 = 2000;
/// The number of clusters.
const K: i64 = 5;

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<()> {
    let cluster = common::cluster(3).await?;
    run(&cluster).await?;
    cluster.shutdown().await;
    Ok(())
}

/// Random points around `hearts`, with another draw for each worker.
fn points(device: &Device, worker: u64, hearts: &Tensor) -> Result<Tensor> {
    let heart = (device.arange(POINTS)? % K)?;
    let noise = device.random_normal([POINTS as usize, 2], DType::F64, (1, worker))?;
    hearts.to(device)?.gather(&heart, 0)? + noise
}

/// Assigns each point to its nearest centroid. Returns, by centroid, the sum of its points, [K, 2], and their number,
/// [K, 1]; and the sum of all squared distances.
fn partial(points: &Tensor, centroids: &Tensor) -> Result<[Tensor; 3]> {
    let apart = (points.i((.., Index::NewAxis, ..))? - centroids)?;
    let squares = (&apart * &apart)?.sum(-1)?;
    let member = squares.argmin(1)?.one_hot(K, DType::F64)?.t()?;
    let count = member.sum(1)?.i((.., Index::NewAxis))?;
    Ok([member.matmul(points)?, count, squares.min(1)?.sum(None)?])
}

pub async fn run(cluster: &Cluster) -> Result<()> {
    let devices = common::devices(cluster, 1).await?;
    let first = &devices[0];
    let hearts = (first.random_normal([K as usize, 2], DType::F64, 2)? * 8)?;
    let all = devices.iter().zip(0..);
    let all: Result<Vec<Tensor>> = all.map(|(d, i)| points(d, i, &hearts)).collect();
    let all = all?;

    let mut centroids = first.random_normal([K as usize, 2], DType::F64, 3)?;
    let mut last = f64::INFINITY;
    for iteration in 1..=20 {
        let mut total = partial(&all[0], &centroids)?;
        for (device, points) in devices.iter().zip(&all).skip(1) {
            let own = partial(points, &centroids.to(device)?)?;
            for (sum, own) in total.iter_mut().zip(&own) {
                *sum = (&*sum + &own.to(first)?)?;
            }
        }
        let [sums, count, inertia] = total;
        // A centroid without points stays where it is.
        let occupied = count.greater(0)?;
        centroids = occupied.where_(&(&sums / count.maximum(1)?)?, &centroids)?;
        let inertia: f64 = inertia.fetch().await?;
        println!("{iteration:2}: inertia {inertia:.3}");
        // The inertia never grows, except by the rounding of sums.
        assert!(inertia <= last * (1. + 1e-12), "{inertia} after {last}");
        if inertia == last {
            break;
        }
        last = inertia;
    }
    println!("{}", centroids.preview().await?);
    Ok(())
}
