//! Releases leases: workers are told that a lease ended, and a caller that needs the freed memory waits until they did
//! so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::Result;
use convoke_common::actor;
use convoke_common::admission::call;
use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::ids::LeaseId;
use convoke_common::mutant;
use convoke_common::rpc::{RETURN_BOUND, answer};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::Service;
use crate::membership::{ConnectionId, events};

/// For each lease the number of workers that have yet to acknowledge its end.
#[derive(Debug, Default)]
pub struct Releases {
    open: Mutex<BTreeMap<LeaseId, usize>>,
    acknowledged: Notify,
}

/// The release of a lease at one worker, which is over when this is dropped.
pub struct ReleaseGuard {
    service: Arc<Service>,
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
    async fn over(&self, lease: LeaseId) {
        let over = || (!self.open().contains_key(&lease)).then_some(());
        actor::found(&self.acknowledged, over).await;
    }
}

impl ReleaseGuard {
    /// Counts one worker of the release until the returned value is dropped.
    pub fn begin(service: &Arc<Service>, lease: LeaseId) -> ReleaseGuard {
        *service.releases.open().entry(lease).or_insert(0) += 1;
        ReleaseGuard {
            service: service.clone(),
            lease,
        }
    }

    /// Tells a worker that the lease ended, until it confirms that it dropped the lease or its connection ends. In the
    /// latter case it is told when it returns.
    pub async fn tell(self, connection: ConnectionId) {
        let Some(peer) = self.service.connections.get(connection) else {
            return;
        };
        tokio::select! {
            biased;
            // The end of the connection also ends a call under way and the pause before the next one.
            _ = peer.connection.closed() => {}
            () = self.until_told(connection) => {}
        }
    }

    async fn until_told(&self, connection: ConnectionId) {
        let (service, lease) = (&self.service, self.lease);
        loop {
            let told: Result<()> = async {
                let name = service.name_of(connection);
                let worker = service.worker(&name, connection).await?;
                answer(Some(&name), worker.release(call(), lease).await)
            }
            .await;
            match told {
                Ok(()) if mutant!("release-unconfirmed") => return,
                Ok(()) => {
                    let leases = vec![lease];
                    let confirmed = events::LeaseDrop { connection, leases };
                    // This call fails only if the coordinator stops.
                    let _ = service.core.apply(confirmed).await;
                    return;
                }
                Err(error) => {
                    tracing::debug!(%lease, %error, "a worker could not be told that a lease ended");
                }
            }
            tokio::time::sleep(RETURN_BOUND).await;
        }
    }
}

impl Drop for ReleaseGuard {
    fn drop(&mut self) {
        let releases = &self.service.releases;
        let mut open = releases.open();
        if let Some(left) = open.get_mut(&self.lease) {
            *left -= 1;
            if *left == 0 {
                open.remove(&self.lease);
            }
        }
        drop(open);
        releases.acknowledged.notify_waiters();
    }
}

impl Service {
    /// Ends a lease for its driver. Returns once the workers have freed it; a worker that does not answer in time is
    /// not waited for any longer.
    pub(super) async fn release(&self, driver: ConnectionId, lease: LeaseId) -> Result<()> {
        // After a restart, workers may still have to report that they hold the lease.
        self.returned().await?;
        if !mutant!("release-unheeded") {
            self.core
                .apply(events::LeaseRelease { driver, lease })
                .await??;
        }
        // The core takes this query only after the release's commands have begun, even if the lease had ended before.
        self.core.query(|_, _| ()).await?;
        let timer = Timer::arm(TimerKind::Return, Instant::now() + RETURN_BOUND);
        let freed = timeout_at(timer.due(), self.releases.over(lease));
        if freed.await.is_err() {
            tracing::warn!(%lease, "a worker does not say that it freed a lease");
        }
        Ok(())
    }
}
