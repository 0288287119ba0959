//! Waits for states of a cluster, each at most [`BOUND`].

use std::time::{Duration, Instant};

use convoke::{Cluster, ClusterStatus};
use convoke_common::memory::Purpose;
use convoke_common::rpc::MemberStatus;

use super::BOUND;

/// Waits until `is` returns true.
pub async fn await_that<F: Future<Output = bool>>(what: &str, mut is: impl FnMut() -> F) {
    let end = Instant::now() + BOUND;
    while !is().await {
        assert!(Instant::now() < end, "not in {BOUND:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until the status is as wanted, and returns it.
pub async fn await_status(
    cluster: &Cluster,
    what: &str,
    wanted: impl Fn(&ClusterStatus) -> bool,
) -> ClusterStatus {
    let end = Instant::now() + BOUND;
    loop {
        // The coordinator may be away, so an error is no failure yet.
        let status = cluster.status().await;
        match status {
            Ok(status) if wanted(&status) => return status,
            status => assert!(
                Instant::now() < end,
                "not in {BOUND:?}: {what}: {status:#?}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the worker is as wanted, and returns the status.
pub async fn await_member(
    cluster: &Cluster,
    name: &str,
    wanted: impl Fn(&MemberStatus) -> bool,
) -> ClusterStatus {
    let is = |s: &ClusterStatus| s.members.iter().any(|m| m.name == name && wanted(m));
    await_status(cluster, name, is).await
}

/// The number of steps that a worker has not ended.
pub fn live_steps(m: &MemberStatus) -> u64 {
    m.status.as_ref().map_or(0, |s| s.live_steps)
}

/// Whether a worker has no program installed, runs no step and keeps no memory for leases.
pub fn is_free(m: &MemberStatus) -> bool {
    m.status.as_ref().is_some_and(|s| {
        let leases = s.memory_used.get(&Purpose::Leases);
        s.live_steps == 0 && s.programs.is_empty() && leases.is_none_or(|bytes| *bytes == 0)
    })
}
