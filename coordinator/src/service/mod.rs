//! The service: the requests of peers over QUIC, and the shell of the membership core.
//!
//! ```text
//! accept -> greet -> newcomer: Joining only
//!                 -> member:   Coordinator ----> Core (one task owns Membership) -> commands -> perform
//!                              ^ worker's own connection: we open Worker streams on it
//! ```
//!
//! Invariants
//! 1. A peer without a certificate can reach nothing but [`Joining`](convoke_common::rpc::Joining).
//! 2. The caller of every call is the identity that its connection proved.
//! 3. Handshakes, connections, streams, frames and waiting plans are bounded, in number or by the budget of a token,
//!    and in time.
//! 4. No task outlives [`Tasks::stop`].

mod accept;
mod calls;
mod connections;
mod core;
mod draining;
mod installing;
mod joining;
mod keeping;
mod members;
pub(crate) mod planning;
mod releasing;
mod status;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use convoke_common::Result;
use convoke_common::counters::Counters;
use convoke_common::detection::Detector;
use convoke_common::identity::{Budget, PeerIdentity, Role, TokenId};
use convoke_common::members::Members;
use convoke_common::memory::{Ledger, Owner};
use convoke_common::rpc::close;
use convoke_common::telemetry::LineLimit;
use convoke_common::world::{Endpoint, World};
use convoke_graph::program::NUMERICS_PROFILE;
use tokio::sync::watch;

use self::core::Core;
use crate::audit::Audit;
use crate::authority::Authority;
use crate::blocking::blocking;
use crate::membership::{Command, ConnectionId, Membership, Moment, events};
use crate::state::{State, StoredState};
use connections::{Connections, Peer};
use convoke_common::tasks::Tasks;
use joining::Joins;
use planning::PlanningLimits;
use planning::queue::LoadQueue;
use releasing::{ReleaseGuard, Releases};

/// Bytes that the requests and the kept plans of all members together may take.
const REQUESTS: u64 = 512 << 20;

/// Why a connection ends whose certificate the authority that is left did not sign.
const RETIRED: &str = "the authority that signed this certificate was retired";

/// The state that all parts of the service share.
pub struct Service {
    pub(crate) world: World,
    pub(crate) authority: Authority,
    tasks: Tasks,
    core: Core,
    detector: Detector,
    connections: Connections,
    /// The places of members' connections.
    members: Members,
    /// Memory of requests while they are served, and of kept plans, by token.
    ledger: Ledger,
    joins: Joins,
    /// Limits of the log lines about refusals, failed steps and links that could not be measured.
    refused_joins: LineLimit,
    refused_registrations: LineLimit,
    refused_connections: LineLimit,
    failed_steps: LineLimit,
    unmeasured_links: LineLimit,
    /// How many workers take new work.
    population: watch::Sender<u32>,
    planning: PlanningLimits,
    /// The requests for plans that wait for memory.
    queue: Arc<LoadQueue>,
    /// Changes whenever a lease, and with it memory, may have become free at a worker.
    freed: watch::Sender<u64>,
    releases: Releases,
    /// Held while a name is taken out of service or put back.
    draining: tokio::sync::Mutex<()>,
    state: Option<Arc<State>>,
    audit: Audit,
    /// The number of refusals, by reason.
    refused: Arc<Counters>,
}

impl Service {
    /// Serves `endpoint`, in tasks of its own.
    pub fn start(
        world: World,
        authority: Authority,
        tasks: Tasks,
        endpoint: Endpoint,
        detector: Detector,
        state: Option<Arc<State>>,
        kept: StoredState,
        audit: Audit,
    ) -> Arc<Service> {
        let (handle, mailbox) = Core::new();
        let service = Arc::new(Service {
            world,
            authority,
            tasks: tasks.clone(),
            core: handle,
            detector,
            connections: Connections::default(),
            members: Members::new(connections::BOUNDS),
            ledger: Ledger::new("the coordinator", REQUESTS),
            joins: Joins::default(),
            refused_joins: LineLimit::default(),
            refused_registrations: LineLimit::default(),
            refused_connections: LineLimit::default(),
            failed_steps: LineLimit::default(),
            unmeasured_links: LineLimit::default(),
            population: watch::Sender::new(0),
            planning: PlanningLimits::default(),
            queue: Arc::default(),
            freed: watch::Sender::new(0),
            releases: Releases::default(),
            draining: tokio::sync::Mutex::default(),
            state,
            audit,
            refused: Arc::default(),
        });
        let mut membership = Membership::new(NUMERICS_PROFILE);
        let restoration = events::Restoration {
            members: kept.members,
            drained: kept.drained,
            deaths: kept.deaths,
        };
        membership.apply(Moment::START, restoration);
        tasks.spawn(self::core::run(service.clone(), membership, mailbox));
        if service.state.is_some() {
            tasks.spawn(service.clone().mend_state());
        }
        tasks.spawn(accept::run(service.clone(), endpoint));
        service
    }

    /// Performs a command of the core. It waits only for writes to disk, so that they are made in order.
    async fn perform(self: &Arc<Self>, command: Command) {
        match command {
            Command::Close {
                connection,
                code,
                reason,
            } => self.connections.close(connection, code, reason),
            Command::Release { lease, at } => {
                tracing::info!(%lease, workers = at.len(), "lease ends");
                for connection in at {
                    let releasing = ReleaseGuard::begin(self, lease);
                    self.tasks.spawn(releasing.tell(connection));
                }
            }
            Command::Probe { connection, peers } => {
                self.tasks.spawn(self.clone().probe(connection, peers))
            }
            Command::Keep { name, fingerprints } => {
                self.keep(move |state| state.put_member(&name, &fingerprints))
                    .await;
            }
            Command::Gone { name, left } => {
                let at = self.world.wall.unix_seconds();
                self.keep(move |state| state.put_gone(&name, at, left))
                    .await;
            }
            Command::Forget { name } => self.keep(move |state| state.remove_member(&name)).await,
            Command::Drain { connection } => {
                self.tasks.spawn(self.clone().drain_at(connection));
            }
            Command::KeepDeaths(record) => self.keep(move |state| state.put_deaths(&record)).await,
            Command::ForgetDeaths { function, node } => {
                self.keep(move |state| state.remove_deaths(&function, &node))
                    .await;
            }
            Command::Population(serving) => {
                self.population.send_replace(serving);
            }
        }
    }

    /// Writes to the state. A failure is logged and does not stop the coordinator, although a restart forgets what
    /// could not be written, so that a name may be given twice, for instance. Once the disk works again, the names of
    /// living workers are written, see [`keeping`].
    async fn keep<E: Into<convoke_common::Error> + Send + 'static>(
        &self,
        work: impl FnOnce(&State) -> std::result::Result<(), E> + Send + 'static,
    ) {
        let Some(state) = self.state.clone() else {
            return;
        };
        let kept = blocking(&self.world, move || work(&state).map_err(Into::into)).await;
        if let Err(error) | Ok(Err(error)) = kept {
            tracing::error!(%error, "cannot keep who the members are");
        }
    }

    /// Returns the ledger account that a member's requests are charged to.
    fn account_of(&self, identity: &PeerIdentity) -> Ledger {
        let all = self.ledger.limit();
        let limit = match identity.role {
            _ if identity.token_id == TokenId::direct() => all,
            Role::Client => identity.budget.requests.unwrap_or(Budget::REQUESTS).of(all),
            // Usually one token admits all workers.
            Role::Worker | Role::Coordinator => all / 2,
        };
        self.ledger.of(Owner {
            token: identity.token_id.clone(),
            member: identity.name.to_string(),
            limit,
        })
    }

    /// Revokes a token, informs the workers, and closes the connections of the members that it admitted.
    pub async fn revoke(self: &Arc<Self>, id: &TokenId) -> Result<()> {
        self.authority.revoke(id).await?;
        let revoked = self.connections.of_token(id);
        tracing::info!(token = %id, connections = revoked.len(), "token revoked");
        for connection in revoked {
            self.connections
                .close(connection, close::REVOKED, "the token was revoked");
        }
        self.push_revoked(id.clone()).await
    }

    /// Retires the former authority, and closes the connections of members that have no certificate but of it.
    pub async fn retire_ca(self: &Arc<Self>, at_once: bool) -> Result<()> {
        let retired = self.authority.retire(at_once).await;
        // This also follows an error, since the former authority may be gone nevertheless.
        let inside = self.clone();
        let closed = blocking(&self.world, move || {
            let members = inside.connections.of_members().into_iter();
            let is_current = |p: &Peer| inside.authority.vouches_for(&p.connection, p.renewed_by);
            let former = members.filter(|(_, peer)| !is_current(peer));
            let former: Vec<ConnectionId> = former.map(|(id, _)| id).collect();
            for id in &former {
                inside.connections.close(*id, close::REFUSED, RETIRED);
            }
            former.len()
        });
        let connections = closed.await?;
        retired?;
        tracing::info!(connections, "the former certificate authority is retired");
        Ok(())
    }
}
