//! A token that is revoked, and later replaced by another.

use convoke_common::error::Result;

use crate::cluster::{Cluster, Host, State, Task};

/// The answers that its owner waits for.
pub(super) struct Revoking {
    host: Host,
    /// What was asked last.
    asked: Task<Result<()>>,
    /// Whether it was answered that the token is revoked.
    revoked: bool,
    /// Whether another token was asked for.
    renewing: bool,
}

impl Revoking {
    /// Begins with a host that has a token of its own.
    pub fn begin(cluster: &Cluster, host: Host) -> Option<Revoking> {
        let asked = cluster.revoke(cluster.own_token(host)?);
        Some(Revoking {
            host,
            asked,
            revoked: false,
            renewing: false,
        })
    }

    /// Asks again where the coordinator did not do it; whether it has answered, just now, that the token is revoked.
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

    /// Has another token made; whether the host has it, and a process that starts with it.
    pub fn end(&mut self, cluster: &mut Cluster) -> bool {
        let answered = self.asked.is_over().then(|| self.asked.take());
        match answered {
            Some(Some(Ok(()))) if self.renewing => {
                // One that is down is somebody else's to start.
                if cluster.state(self.host) != State::Down {
                    cluster.kill(self.host);
                    cluster.start(self.host);
                }
                true
            }
            None if self.renewing => false,
            _ => {
                self.renewing = true;
                self.asked = cluster.renew_token(self.host);
                false
            }
        }
    }
}
