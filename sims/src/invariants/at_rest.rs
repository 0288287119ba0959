//! When everything has come to rest nothing is left: no lease, no live step, no program, no byte of memory but the
//! process's own, no queue.

use convoke_common::memory::Account;

use super::{Found, Invariant, View};
use crate::cluster::{Cluster, Host};

pub(super) struct AtRest;

/// Everything that is still there.
pub fn left_over(cluster: &Cluster) -> Vec<String> {
    let mut left = Vec::new();
    for host in cluster.hosts() {
        let Host::Worker(i) = host else { continue };
        let Some(worker) = cluster.worker(i) else {
            continue;
        };
        let status = worker.status();
        for p in &status.programs {
            left.push(format!(
                "{host}: program {} of {} under {}",
                p.name, p.driver, p.lease
            ));
        }
        if status.live_steps > 0 {
            left.push(format!("{host}: {} live steps", status.live_steps));
        }
        for (account, bytes) in &status.memory_used {
            // Both are held for the worker's life.
            let lasting = matches!(account, Account::Base | Account::Windows);
            if *bytes > 0 && !lasting {
                left.push(format!("{host}: {bytes} bytes of {account:?}"));
            }
        }
        for link in &status.links {
            if link.queued_bytes > 0 {
                left.push(format!(
                    "{host}: {} bytes wait for {}",
                    link.queued_bytes, link.peer
                ));
            }
        }
    }
    left
}

impl Invariant for AtRest {
    fn name(&self) -> &'static str {
        "nothing is left at rest"
    }

    fn rest(&mut self, view: &View<'_>, found: &mut Found) {
        for what in left_over(view.cluster) {
            found.say(what);
        }
        for ((lease, n), step) in view.steps.live() {
            let begun = step.begun.unwrap_or_default().as_millis();
            found.say(format!(
                "step {lease:x}#{n}, begun at {begun} ms, has not retired"
            ));
        }
    }
}
