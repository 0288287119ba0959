//! Releases leases: workers are told that a lease ended, and a caller that needs the freed memory waits until they did
//! so.

use std::sync::Arc;

use convoke_common::Result;
use convoke_common::admission::call;
use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::ids::LeaseId;
use convoke_common::mutant;
use convoke_common::rpc::{RETURN_BOUND, answer};
use tokio::time::{Instant, timeout_at};

use super::open_releases::ReleaseGuard;
use crate::membership::{ConnectionId, events};
use crate::service::Service;

impl Service {
    /// Tells a worker that a lease ended, until it confirms that it dropped the lease or its connection ends. In the
    /// latter case it is told when it returns. The release is over then.
    pub(in crate::service) async fn tell_end(
        self: Arc<Self>,
        lease: LeaseId,
        connection: ConnectionId,
        _release: ReleaseGuard,
    ) {
        let Some(peer) = self.connections.get(connection) else {
            return;
        };
        tokio::select! {
            biased;
            // The end of the connection also ends a call under way and the pause before the next one.
            _ = peer.connection.closed() => {}
            () = self.until_told(lease, connection) => {}
        }
    }

    async fn until_told(&self, lease: LeaseId, connection: ConnectionId) {
        loop {
            let told: Result<()> = async {
                let name = self.name_of(connection);
                let worker = self.worker(&name, connection).await?;
                answer(Some(&name), worker.release(call(), lease).await)
            }
            .await;
            match told {
                Ok(()) if mutant!("release-unconfirmed") => return,
                Ok(()) => {
                    let leases = vec![lease];
                    let confirmed = events::LeaseDrop { connection, leases };
                    // This call fails only if the coordinator stops.
                    let _ = self.core.apply(confirmed).await;
                    return;
                }
                Err(error) => {
                    tracing::debug!(%lease, %error, "a worker could not be told that a lease ended");
                }
            }
            tokio::time::sleep(RETURN_BOUND).await;
        }
    }

    /// Ends a lease for its driver. Returns once the workers have freed it; a worker that does not answer in time is
    /// not waited for any longer.
    pub(in crate::service) async fn release(
        &self,
        driver: ConnectionId,
        lease: LeaseId,
    ) -> Result<()> {
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
