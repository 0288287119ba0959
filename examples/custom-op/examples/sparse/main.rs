//! Solves a sparse least-squares problem with a custom op, by ISTA: each iteration is a step down the gradient, then
//! the threshold. Run it with
//! `cargo run --release -p convoke-custom-op --example sparse`
//!
//! To use a running cluster, add `-- HOST:PORT TOKEN_FILE`. Its workers are started with
//! `cargo run --release -p convoke-custom-op --bin custom-worker -- --join HOST:PORT --token-file FILE`.

#[allow(dead_code, reason = "other examples use all of it")]
#[path = "../../../../client/examples/common/mod.rs"]
mod common;
mod solve;

use convoke::Result;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    // In a cluster of processes only the workers need the kernel, so this program does not register it.
    if std::env::args().len() == 1 {
        convoke_custom_op::register()?;
    }
    let cluster = common::cluster(2).await?;
    solve::run(&cluster).await?;
    cluster.shutdown().await;
    Ok(())
}
