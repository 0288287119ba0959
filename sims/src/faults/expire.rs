//! The fault by which a token expires whose holder is at work, and is later replaced by one that lasts.

use std::time::Duration;

use convoke_common::error::Result;

use super::revoke::restart;
use crate::cluster::{Cluster, Host, Task};

/// How long the token is good for, and by how many seconds calendars then advance.
const GOOD_FOR: Duration = Duration::from_secs(3600);
pub(super) const PASSED: i64 = 7200;

/// What happens of a token that expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Waits,
    /// The holder's process is started with the token.
    Restarts,
    Expires,
}

/// A token that expires: the requests to the coordinator, and their answers.
pub(super) struct PendingExpiry {
    host: Host,
    /// The last request.
    asked: Task<Result<()>>,
    /// Whether the host's process was started with the token that expires.
    restarted: bool,
    /// Whether the token has expired.
    expired: bool,
    /// Whether a token that lasts was requested.
    renewing: bool,
}

impl PendingExpiry {
    /// Requests a token that expires soon. Returns `None` if the host has no token of its own.
    pub fn begin(cluster: &Cluster, host: Host) -> Option<PendingExpiry> {
        cluster.own_token(host)?;
        Some(PendingExpiry {
            host,
            asked: cluster.renew_token(host, Some(GOOD_FOR)),
            restarted: false,
            expired: false,
            renewing: false,
        })
    }

    /// Starts the host's process with the token, and has it expire once the host is a member with it. Returns what happens
    /// now.
    pub fn look(&mut self, cluster: &mut Cluster) -> Progress {
        if self.restarted && !self.expired && cluster.is_ready(self.host) {
            self.expired = true;
            return Progress::Expires;
        }
        if self.restarted || !self.asked.is_over() {
            return Progress::Waits;
        }
        self.restarted = matches!(self.asked.take(), Some(Ok(())));
        if self.restarted {
            restart(cluster, self.host);
            return Progress::Restarts;
        }
        self.asked = cluster.renew_token(self.host, Some(GOOD_FOR));
        Progress::Waits
    }

    /// Requests a token that lasts, and restarts the host's process with it. Returns whether that is complete.
    pub fn end(&mut self, cluster: &mut Cluster) -> bool {
        let answered = self.asked.is_over().then(|| self.asked.take());
        match answered {
            None if self.renewing => return false,
            Some(Some(Ok(()))) if self.renewing => {
                restart(cluster, self.host);
                return true;
            }
            _ => {}
        }
        self.renewing = true;
        self.asked = cluster.renew_token(self.host, None);
        false
    }
}
