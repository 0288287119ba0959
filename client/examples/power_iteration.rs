//! Computes the largest eigenvalue of a matrix. Two workers hold half of it each, and the vector moves between them:
//! `cargo run --release -p convoke --example power_iteration`
//!
//! To use a running cluster, such as one that `convoke up` has started: `... --example power_iteration -- HOST:PORT
//! TOKEN_FILE`

mod common;

use convoke::{Cluster, DType, Index, Result, Tensor};

/// The number of rows.
const N: i64 = 64;
/// The largest eigenvalue. Each further eigenvalue is 0.7 times the one before.
const LARGEST: f64 = 10.;

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<()> {
    let cluster = common::cluster(2).await?;
    run(&cluster).await?;
    cluster.shutdown().await;
    Ok(())
}

fn unit(v: &Tensor) -> Result<Tensor> {
    v / &(v * v)?.sum(None)?.sqrt()?
}

pub async fn run(cluster: &Cluster) -> Result<()> {
    let devices = common::devices(cluster, 2).await?;
    let (a, b) = (&devices[0], &devices[1]);

    // Q diag(eigenvalues) Q, where Q = I - 2 v v' for a unit vector v is symmetric and its own inverse.
    let v = unit(&a.random_normal([N as usize], DType::F64, 1)?)?;
    let outer = (v.i((.., Index::NewAxis))? * &v)?;
    let q = (a.eye(N as usize, DType::F64)? - (outer * 2)?)?;
    let powers = a.arange(N)?.cast(DType::F64)?;
    let eigenvalues = (a.full([1], 0.7, DType::F64)?.pow(&powers)? * LARGEST)?;
    let matrix = (&q * &eigenvalues)?.matmul(&q)?;

    let (top, bottom) = (matrix.i(..N / 2)?, matrix.i(N / 2..)?.to(b)?);
    let mut x = unit(&a.random_normal([N as usize], DType::F64, 2)?)?;
    let mut estimate = 0.;
    for iteration in 1.. {
        let (upper, lower) = (top.matmul(&x)?, bottom.matmul(&x.to(b)?)?);
        let y = Tensor::concat(&[&upper, &lower.to(a)?], 0)?;
        let last = estimate;
        estimate = (&x * &y)?.sum(None)?.fetch::<f64>().await?;
        x = unit(&y)?;
        println!("{iteration:3}: {estimate:.12}");
        if (estimate - last).abs() < 1e-12 || iteration == 100 {
            break;
        }
    }
    assert!((estimate - LARGEST).abs() < 1e-9, "{estimate}");
    Ok(())
}
