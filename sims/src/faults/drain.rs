//! The operation that takes a worker out of service, as `convoke drain` does, and later asks it back.

use convoke_common::error::{Code, Result};

use crate::cluster::{Cluster, Host, HostState, Task};

/// A worker that is out of service, or about to be: the requests to the coordinator, and their answers.
pub(super) struct PendingDrain {
    host: Host,
    /// The last request.
    asked: Task<Result<bool>>,
    /// Whether the coordinator has confirmed that the worker is out of service.
    drained: bool,
    /// Whether the worker was asked back.
    ending: bool,
}

impl PendingDrain {
    /// Asks the coordinator to take a worker out of service.
    pub fn begin(cluster: &Cluster, host: Host) -> PendingDrain {
        PendingDrain {
            host,
            asked: cluster.drain(host),
            drained: false,
            ending: false,
        }
    }

    /// Repeats the request if the coordinator failed it.
    pub fn look(&mut self, cluster: &Cluster) {
        if self.drained || !self.asked.is_over() {
            return;
        }
        self.drained = matches!(self.asked.take(), Some(Ok(_)));
        if !self.drained {
            self.asked = cluster.drain(self.host);
        }
    }

    /// Asks the worker back until plans use it again, and starts its process once that has ended. Returns whether that is
    /// complete.
    pub fn end(&mut self, cluster: &mut Cluster) -> bool {
        let answered = self.asked.is_over().then(|| self.asked.take());
        let down = cluster.state(self.host) == HostState::Down;
        match answered {
            None if self.ending => return false,
            Some(Some(Ok(serves))) if self.ending && (serves || down) => {
                if down && self.drained {
                    cluster.start(self.host);
                }
                return true;
            }
            // It has not joined yet, so it was never taken out of service.
            Some(Some(Err(e))) if self.ending && e.code == Code::NotFound => return true,
            _ => {}
        }
        self.ending = true;
        self.asked = cluster.undrain(self.host);
        false
    }
}
