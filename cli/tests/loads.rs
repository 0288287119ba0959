//! Real processes that are killed and restarted while weights load: the load goes on, as a call does.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use std::time::Duration;

use common::functions::ROOM_FOR_ONE;
use common::restarts::Rig;
use convoke::{Code, Retry};

/// Milliseconds from the death of a worker to the start of its next process. systemd waits 100 ms by default.
const PAUSES_MS: [u64; 5] = [0, 50, 100, 250, 500];

/// Restarts a worker during one load for each pause, and checks that every load and call succeeds.
async fn check(mut rig: Rig) {
    let mut failures = vec![];
    for ms in PAUSES_MS {
        match rig.round(Duration::from_millis(ms), Retry::On).await {
            Ok(round) => println!("back after {ms} ms: {:?}", round.took),
            Err(e) => failures.push(format!("back after {ms} ms: {}: {e}", e.code.name())),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    rig.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_goes_on_when_the_only_worker_is_restarted() {
    check(Rig::start("load-one", 1, "1GiB", 2).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_needs_all_workers_goes_on_when_one_is_restarted() {
    check(Rig::start("load-all", 3, ROOM_FOR_ONE, 3).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_goes_on_when_one_of_several_workers_is_restarted() {
    check(Rig::start("load-some", 3, "1GiB", 3).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_retries_a_load_fails_with_the_loss() {
    let mut rig = Rig::start("load-off", 1, "1GiB", 2).await;
    let round = rig.round(Duration::from_millis(100), Retry::Off).await;
    let e = round.unwrap_err();
    assert_eq!(e.code, Code::PeerLost, "{e}");
    assert_eq!(e.site.unwrap().worker.as_deref(), Some("w0"));
    rig.cluster.shutdown().await;
}
