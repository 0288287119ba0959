//! A sparse solution of a least-squares problem, by an op of our own (ISTA: a step down the gradient, then the threshold):
//! `cargo run --release -p convoke-custom-op --example sparse`
//!
//! On a cluster that runs: `... --example sparse -- HOST:PORT TOKEN_FILE`, whose workers are
//! `cargo run --release -p convoke-custom-op --bin custom-worker -- --join HOST:PORT --token-file FILE`.

#[allow(dead_code, reason = "other examples use all of it")]
#[path = "../../../../client/examples/common/mod.rs"]
mod common;
mod solve;

use convoke::Result;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    // Of a cluster of processes the workers have the kernel, and this program needs none.
    if std::env::args().len() == 1 {
        convoke_custom_op::register()?;
    }
    let cluster = common::cluster(2).await?;
    solve::run(&cluster).await?;
    cluster.shutdown().await;
    Ok(())
}
