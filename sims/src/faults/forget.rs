//! The operation that forgets a worker whose process was killed, as `convoke forget` does.

use convoke_common::error::Result;

use crate::cluster::{Cluster, Host, Task};

/// Pause in milliseconds before a request that was refused is repeated: the coordinator may not have missed the worker yet.
const AGAIN: u128 = 100;

/// A worker that is down and about to be forgotten: the request to the coordinator, and its answer.
pub(super) struct PendingForget {
    host: Host,
    /// The last request.
    asked: Task<Result<()>>,
    forgotten: bool,
}

impl PendingForget {
    /// Asks the coordinator to forget a worker.
    pub fn begin(cluster: &Cluster, host: Host) -> PendingForget {
        PendingForget {
            host,
            asked: cluster.forget(host),
            forgotten: false,
        }
    }

    /// Repeats the request if the coordinator refused it.
    pub fn look(&mut self, cluster: &Cluster) {
        if self.forgotten
            || !self.asked.is_over()
            || !cluster.elapsed().as_millis().is_multiple_of(AGAIN)
        {
            return;
        }
        self.forgotten = matches!(self.asked.take(), Some(Ok(())));
        if !self.forgotten {
            self.asked = cluster.forget(self.host);
        }
    }

    /// Starts the worker's process again, once no request is under way. Returns whether that is complete.
    pub fn end(&self, cluster: &mut Cluster) -> bool {
        let answered = self.forgotten || self.asked.is_over();
        if answered {
            cluster.start(self.host);
        }
        answered
    }
}
