//! A coordinator that is cut off or stopped ends no step: real processes, without retries.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use std::time::Duration;

use common::partitions::{Cut, Rig};

/// The lengths of the cuts in milliseconds. `.ci/long partitions` makes longer cuts, and more of each length.
const CUTS_MS: [u64; 4] = [1000, 2500, 4000, 10_000];

async fn check(name: &str, cut: Cut) {
    let mut rig = Rig::start(name).await;
    let mut failed = vec![];
    for ms in CUTS_MS {
        let round = rig.round(cut, Duration::from_millis(ms)).await;
        println!(
            "{cut:?}, {ms} ms: {} steps, {} failed",
            round.steps,
            round.failed.len()
        );
        assert!(round.steps > 0, "no steps ran");
        failed.extend(round.failed.iter().map(|f| format!("{ms} ms: {f}")));
    }
    assert!(failed.is_empty(), "{cut:?}: {failed:#?}");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_go_on_when_the_coordinator_is_cut_off_from_everybody() {
    check("cut-everybody", Cut::Everybody).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_go_on_when_the_coordinator_is_stopped() {
    check("cut-stopped", Cut::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_go_on_when_their_client_is_cut_off_from_the_coordinator() {
    check("cut-client", Cut::Client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_go_on_when_a_worker_is_cut_off_from_the_coordinator() {
    check("cut-worker", Cut::Worker).await;
}
