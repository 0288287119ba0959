//! Tensors on two workers, op by op: `cargo run --release -p convoke --example eager`
//!
//! To use a running cluster, such as one that `convoke up` has started: `... --example eager -- HOST:PORT TOKEN_FILE`

mod common;

use convoke::{Cluster, DType, Result};
use ndarray::{Array2, array};

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<()> {
    let cluster = common::cluster(2).await?;
    run(&cluster).await?;
    cluster.shutdown().await;
    Ok(())
}

pub async fn run(cluster: &Cluster) -> Result<()> {
    let devices = common::devices(cluster, 2).await?;
    let (a, b) = (&devices[0], &devices[1]);

    // A value of this program goes to one worker; the other makes its own. Neither call waits.
    let x = a.put(array![[1f32, 2., 3.], [4., 5., 6.]])?;
    let w = b.random_normal([3, 4], DType::F32, 7)?;

    // x moves from worker to worker. The ops that follow run where most bytes of their operands are.
    let y = (x.to(b)?.matmul(&w)?.relu()? * 2.0)?;
    println!("{}", y.explain());
    println!("{}", y.preview().await?);
    let here: Array2<f32> = y.fetch().await?;
    assert_eq!(here.dim(), (2, 4));

    // An error that dtypes and shapes tell is returned at once.
    let early = x.matmul(&x).expect_err("2 by 3 times 2 by 3");
    println!("\nat the call: {early}");

    // An error that only values tell comes with the value, and names the line that issued the op.
    let row = x.gather(&a.put([9i64])?, 0)?;
    let late = (row + 1)?.fetch::<Array2<f32>>().await;
    println!("\nwith the value: {}", late.expect_err("x has two rows"));

    println!();
    for held in cluster.memory().await? {
        println!("{:4} B on {} from {}", held.bytes, held.device, held.origin);
    }
    drop((x, y, w));
    assert_eq!(cluster.memory().await?, []);
    Ok(())
}
