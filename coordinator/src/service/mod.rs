//! The service: what peers may ask over QUIC, and the shell of the membership core.
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
//! 3. Handshakes, connections, streams, frames, waiting plans: all are bounded, and none may take for ever.
//! 4. No task outlives [`Tasks::stop`].

mod accept;
mod calls;
mod connections;
mod core;
mod installing;
mod joining;
mod members;
mod planning;
mod status;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use convoke_common::Result;
use convoke_common::identity::TokenId;
use convoke_common::program::NUMERICS_PROFILE;
use convoke_common::rpc::close;
use convoke_common::world::{Endpoint, World};
use tokio::sync::watch;
use tokio::time::Instant;

use self::core::Core;
use crate::authority::Authority;
use crate::membership::{Command, Fingerprint, Membership};
use crate::state::State;
use crate::tasks::{Tasks, blocking};
use connections::Connections;
use planning::Planning;

/// What all of the service shares.
pub struct Service {
    pub(crate) world: World,
    pub(crate) authority: Authority,
    tasks: Tasks,
    core: Core,
    connections: Connections,
    /// How many workers are alive.
    population: watch::Sender<u32>,
    planning: Planning,
    state: Option<Arc<State>>,
}

impl Service {
    /// Serves `endpoint` with tasks of its own.
    pub fn start(
        world: World,
        authority: Authority,
        tasks: Tasks,
        endpoint: Endpoint,
        state: Option<Arc<State>>,
        members: Vec<(String, Vec<Fingerprint>)>,
    ) -> Arc<Service> {
        let (handle, mailbox) = Core::new();
        let service = Arc::new(Service {
            world,
            authority,
            tasks: tasks.clone(),
            core: handle,
            connections: Connections::default(),
            population: watch::Sender::new(0),
            planning: Planning::default(),
            state,
        });
        let mut membership = Membership::new(NUMERICS_PROFILE);
        membership.restore(Instant::now(), members);
        tasks.spawn(self::core::run(service.clone(), membership, mailbox));
        tasks.spawn(accept::run(service.clone(), endpoint));
        service
    }

    /// Does what the core asks for. Only what is kept on disk is waited for, so that it is kept in order.
    async fn perform(self: &Arc<Self>, command: Command) {
        match command {
            Command::Close {
                connection,
                code,
                reason,
            } => self.connections.close(connection, code, reason),
            Command::Release { lease, at, lost } => {
                tracing::info!(%lease, workers = at.len(), "lease ends");
                for connection in at {
                    self.tasks
                        .spawn(self.clone().release_at(connection, lease, lost.clone()));
                }
            }
            Command::Probe { connection, peers } => {
                self.tasks.spawn(self.clone().probe(connection, peers))
            }
            Command::Keep { name, fingerprints } => {
                self.keep(move |state| state.put_member(&name, &fingerprints))
                    .await;
            }
            Command::Forget { name } => self.keep(move |state| state.remove_member(&name)).await,
            Command::Population(alive) => {
                self.population.send_replace(alive);
            }
        }
    }

    /// A name that could not be kept is a name that may be given twice after a restart: worth a line, not a stop.
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

    /// Revokes a token, tells the workers, and closes the connections of those it let in.
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
}
