//! The operation that lifts the quarantine of a node, as `convoke quarantine lift` does.

use std::time::Duration;

use convoke_common::error::{Code, Result};

use crate::cluster::{Cluster, Host, HostState, Task};

/// How long the workers that a node ended are waited for: what they died of counts only once they have told it.
const RETURNED: Duration = Duration::from_secs(10);

/// A node that ends the processes that run it, until its quarantine is lifted.
#[derive(Default)]
pub(super) struct PendingLift {
    /// The node, once one is known.
    node: Option<String>,
    died: Vec<Host>,
    /// When the fault ended.
    since: Option<Duration>,
    asked: Option<Task<Result<u32>>>,
}

impl PendingLift {
    /// Notes that the node ended a worker's process.
    pub fn died(&mut self, host: Host, node: &str) {
        self.node.get_or_insert_with(|| node.to_owned());
        self.died.push(host);
    }

    /// Lifts the quarantine once the workers are back. Returns whether that is complete.
    pub fn end(&mut self, cluster: &Cluster) -> bool {
        let Some(node) = &self.node else { return true };
        let since = *self.since.get_or_insert(cluster.elapsed());
        let back = |h: &Host| cluster.is_ready(*h) || cluster.state(*h) == HostState::Down;
        if cluster.elapsed() < since + RETURNED && !self.died.iter().all(back) {
            return false;
        }
        let answer = match &self.asked {
            Some(asked) if asked.is_over() => asked.take(),
            Some(_) => return false,
            None => None,
        };
        match answer {
            Some(Ok(_)) => return true,
            // It was not quarantined: a single process died.
            Some(Err(e)) if e.code == Code::NotFound => return true,
            _ => self.asked = Some(cluster.lift(node)),
        }
        false
    }
}
