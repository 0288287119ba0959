//! Waits for something that a cluster tells of, each at most [`BOUND`].

use std::time::{Duration, Instant};

use convoke::{Cluster, ClusterStatus};
use convoke_common::memory::Account;
use convoke_common::rpc::MemberStatus;

use super::BOUND;

/// Waits until it is so.
pub async fn await_that<F: Future<Output = bool>>(what: &str, mut is: impl FnMut() -> F) {
    let end = Instant::now() + BOUND;
    while !is().await {
        assert!(Instant::now() < end, "not in {BOUND:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until the status is as wanted, and answers it.
pub async fn await_status(
    cluster: &Cluster,
    what: &str,
    wanted: impl Fn(&ClusterStatus) -> bool,
) -> ClusterStatus {
    let end = Instant::now() + BOUND;
    loop {
        // It may be asked for while the coordinator is away.
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

/// Waits until the worker is as wanted; the status then.
pub async fn await_member(
    cluster: &Cluster,
    name: &str,
    wanted: impl Fn(&MemberStatus) -> bool,
) -> ClusterStatus {
    let is = |s: &ClusterStatus| s.members.iter().any(|m| m.name == name && wanted(m));
    await_status(cluster, name, is).await
}

/// Steps that a worker has not ended.
pub fn live_steps(m: &MemberStatus) -> u64 {
    m.status.as_ref().map_or(0, |s| s.live_steps)
}

/// Whether no program is installed, nothing runs, and no memory is kept for steps.
pub fn is_free(m: &MemberStatus) -> bool {
    m.status.as_ref().is_some_and(|s| {
        let leases = s.memory_used.get(&Account::Leases);
        s.live_steps == 0 && s.programs.is_empty() && leases.is_none_or(|bytes| *bytes == 0)
    })
}
