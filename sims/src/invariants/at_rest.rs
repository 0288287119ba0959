//! When everything has come to rest nothing is left: no lease at anybody, no live step, no program, no byte of memory
//! but the process's own, no queue.

use std::time::Duration;

use convoke_common::memory::Account;
use convoke_common::rpc::WorkerStatus;

use super::{Found, Invariant, View};
use crate::cluster::{Cluster, Host, Task};

pub(super) struct AtRest;

/// Everything that is still there; of the coordinator, see [`coordinators_leases`].
pub fn left_over(cluster: &Cluster) -> Vec<String> {
    let mut left = Vec::new();
    for host in cluster.hosts() {
        if let Host::Worker(i) = host
            && let Some(worker) = cluster.worker(i)
        {
            of_worker(host, &worker.status(), &mut left);
        }
        let Some(hub) = cluster.hub(host) else {
            continue;
        };
        for lease in hub.leases() {
            left.push(format!("{host}: {}", lease.id));
        }
        for link in hub.links() {
            let waits = link.status().queued_bytes;
            if waits > 0 {
                let peer = &link.peer().name;
                left.push(format!("{host}: {waits} bytes wait for {peer}"));
            }
        }
    }
    left
}

fn of_worker(host: Host, status: &WorkerStatus, left: &mut Vec<String>) {
    for p in &status.programs {
        left.push(format!(
            "{host}: program {} of {} under {}",
            p.name, p.driver, p.lease
        ));
    }
    if status.live_steps > 0 {
        left.push(format!("{host}: {} live steps", status.live_steps));
    }
    if status.live_handles > 0 {
        left.push(format!("{host}: {} live handles", status.live_handles));
    }
    for (account, bytes) in &status.memory_used {
        // Both are held for the worker's life.
        let lasting = matches!(account, Account::Base | Account::Windows);
        if *bytes > 0 && !lasting {
            left.push(format!("{host}: {bytes} bytes of {account:?}"));
        }
    }
}

/// Asks the coordinator for the leases that it knows.
pub fn coordinators_leases(cluster: &Cluster) -> Task<Vec<String>> {
    cluster.on_coordinator(|c| async move {
        match c.known().await {
            Ok((_, leases)) => leases
                .iter()
                .map(|l| format!("coordinator: {}", l.lease))
                .collect(),
            Err(e) => vec![format!("coordinator: {e}")],
        }
    })
}

impl Invariant for AtRest {
    fn name(&self) -> &'static str {
        "nothing is left at rest"
    }

    fn rest(&mut self, view: &View<'_>, found: &mut Found) {
        let known = view.coordinators_leases.iter().cloned();
        for what in left_over(view.cluster).into_iter().chain(known) {
            found.say(what);
        }
        for ((lease, n), step) in view.steps.live() {
            let begun = step.begun.first().map_or(0, Duration::as_millis);
            found.say(format!(
                "step {lease:x}#{n}, begun at {begun} ms, has not retired"
            ));
        }
    }
}
