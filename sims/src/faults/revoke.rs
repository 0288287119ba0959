//! The fault that revokes a token and later replaces it by another.

use convoke_common::error::Result;

use crate::cluster::{Cluster, Host, HostState, Task};

/// A revocation under way: the requests to the coordinator, and their answers.
pub(super) struct PendingRevocation {
    host: Host,
    /// The last request.
    asked: Task<Result<()>>,
    /// Whether the coordinator has confirmed the revocation.
    revoked: bool,
    /// Whether the new token was requested.
    renewing: bool,
}

impl PendingRevocation {
    /// Requests the revocation of a host's own token. Returns `None` if the host has none.
    pub fn begin(cluster: &Cluster, host: Host) -> Option<PendingRevocation> {
        let asked = cluster.revoke(cluster.own_token(host)?);
        Some(PendingRevocation {
            host,
            asked,
            revoked: false,
            renewing: false,
        })
    }

    /// Repeats the request if the coordinator failed it. Returns whether the coordinator confirmed the revocation just
    /// now.
    pub fn look(&mut self, cluster: &Cluster) -> bool {
        if self.revoked || !self.asked.is_over() {
            return false;
        }
        self.revoked = matches!(self.asked.take(), Some(Ok(())));
        if !self.revoked
            && let Some(token) = cluster.own_token(self.host)
        {
            self.asked = cluster.revoke(token);
        }
        self.revoked
    }

    /// Requests a new token for the host and restarts the host's process with it. Returns whether that is complete.
    pub fn end(&mut self, cluster: &mut Cluster) -> bool {
        let answered = self.asked.is_over().then(|| self.asked.take());
        match answered {
            Some(Some(Ok(()))) if self.renewing => {
                restart(cluster, self.host);
                true
            }
            None if self.renewing => false,
            _ => {
                self.renewing = true;
                self.asked = cluster.renew_token(self.host, None);
                false
            }
        }
    }
}

/// Restarts a host's process with its latest token. If the host is down, that is left to the fault that took it down.
pub(super) fn restart(cluster: &mut Cluster, host: Host) {
    if cluster.state(host) != HostState::Down {
        cluster.kill(host);
        cluster.start(host);
    }
}
