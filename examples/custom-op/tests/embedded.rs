//! Runs the example on an embedded cluster, whose workers have the ops of this process.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

#[path = "../examples/sparse/solve.rs"]
mod solve;

#[tokio::test]
async fn the_example_runs() {
    convoke_custom_op::register().unwrap();
    let cluster = convoke::Embedded::new(2).threads(1).start().await.unwrap();
    solve::run(&cluster).await.unwrap();
    cluster.shutdown().await;
}
