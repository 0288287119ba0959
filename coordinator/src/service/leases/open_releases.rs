//! The releases of leases that some worker has yet to acknowledge.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::actor;
use convoke_common::ids::LeaseId;
use tokio::sync::Notify;

/// For each lease the number of workers that have yet to acknowledge its end.
#[derive(Debug, Default)]
pub struct Releases {
    open: Mutex<BTreeMap<LeaseId, usize>>,
    acknowledged: Notify,
}

/// The release of a lease at one worker, which is over when this is dropped.
pub struct ReleaseGuard {
    releases: Arc<Releases>,
    lease: LeaseId,
}

impl Releases {
    /// Returns the number of ended leases that some worker has yet to acknowledge.
    pub fn len(&self) -> usize {
        self.open().len()
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<LeaseId, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all workers have acknowledged that this lease ended.
    pub async fn over(&self, lease: LeaseId) {
        let over = || (!self.open().contains_key(&lease)).then_some(());
        actor::found(&self.acknowledged, over).await;
    }
}

impl ReleaseGuard {
    /// Counts one worker of the release until the returned value is dropped.
    pub fn begin(releases: &Arc<Releases>, lease: LeaseId) -> ReleaseGuard {
        *releases.open().entry(lease).or_insert(0) += 1;
        ReleaseGuard {
            releases: releases.clone(),
            lease,
        }
    }
}

impl Drop for ReleaseGuard {
    fn drop(&mut self) {
        let mut open = self.releases.open();
        if let Some(left) = open.get_mut(&self.lease) {
            *left -= 1;
            if *left == 0 {
                open.remove(&self.lease);
            }
        }
        drop(open);
        self.releases.acknowledged.notify_waiters();
    }
}
