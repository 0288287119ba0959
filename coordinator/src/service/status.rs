//! The cluster's status: what the coordinator knows, and what each worker reports about itself.

use std::collections::BTreeSet;
use std::time::Duration;

use convoke_common::Result;
use convoke_common::rpc::{ClusterStatus, LeaseStatus, MemberStatus};
use convoke_graph::program::NUMERICS_PROFILE;

use super::Service;

/// How long a worker may take to report its status; a person waits for the answer.
const ACCOUNT_BOUND: Duration = Duration::from_secs(1);

impl Service {
    /// Returns members and leases as the core knows them, without asking the workers.
    pub async fn known(&self) -> Result<(Vec<MemberStatus>, Vec<LeaseStatus>)> {
        let known = self
            .core
            .query(|core, now| (core.status(now), core.leases()));
        known.await
    }

    /// Returns the size of each table that is kept for clients.
    pub async fn tables(&self) -> Result<Vec<(&'static str, usize)>> {
        let mut tables = self.core.query(|core, _| core.tables()).await?;
        tables.push(("plans being made", self.planning.len()));
        tables.push(("loads that wait", self.queue.len()));
        tables.push(("releases", self.releases.len()));
        Ok(tables)
    }

    /// Returns the current status of the whole cluster.
    pub async fn status(&self) -> Result<ClusterStatus> {
        let workers = self.core.query(|core, _| core.connections()).await?;
        let armed: BTreeSet<String> = workers
            .iter()
            .filter(|(_, connection)| self.connections.tripwire(*connection))
            .map(|(name, _)| name.clone())
            .collect();
        let asked = workers.into_iter().map(async |(name, connection)| {
            Some((name, self.account(connection, ACCOUNT_BOUND).await.ok()?))
        });
        let accounts: Vec<_> = futures::future::join_all(asked).await;
        let at = self.world.wall.unix_seconds();
        let known = self
            .core
            .query(move |core, now| {
                (
                    core.status(now),
                    core.links(),
                    core.leases(),
                    core.quarantine(at),
                )
            })
            .await?;
        let (mut members, links, leases, quarantine) = known;
        for (name, account) in accounts.into_iter().flatten() {
            let member = members.iter_mut().find(|m| m.name == name);
            if let Some(member) = member.filter(|m| m.incarnation == account.incarnation) {
                member.status = Some(account);
            }
        }
        for member in &mut members {
            member.tripwire = armed.contains(&member.name);
        }
        let refused = self.refused.counted().into_iter();
        let refused = refused.chain(self.detector.refused());
        let traffic = self.connections.traffic();
        Ok(ClusterStatus {
            version: convoke_common::VERSION.to_owned(),
            profile: NUMERICS_PROFILE.to_owned(),
            state_failure: self.health().await.err().map(|e| e.to_string()),
            members,
            links,
            leases,
            quarantine,
            refused: refused.collect(),
            // No call carries weights: clients hand them to workers directly.
            weight_bytes_relayed: 0,
            bytes_received: traffic.received,
            bytes_sent: traffic.sent,
            holdings: self.ledger.holdings(),
            connections: self.members.open(),
        })
    }
}
