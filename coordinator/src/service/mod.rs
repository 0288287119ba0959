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

mod calls;
mod connections;
mod core;
mod draining;
mod keeping;
mod leases;
mod peers;
mod performing;
pub(crate) mod planning;
mod shared_state;
mod status;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use convoke_common::Result;
use convoke_common::detection::Detector;
use convoke_common::identity::TokenId;
use convoke_common::rpc::close;
use convoke_common::tasks::Tasks;
use convoke_common::world::{Endpoint, World};
use convoke_graph::program::NUMERICS_PROFILE;

use self::core::Core;
use crate::audit::Audit;
use crate::authority::Authority;
use crate::blocking::blocking;
use crate::membership::{ConnectionId, Membership, Moment, events};
use crate::state::{State, StoredState};
use connections::{Peer, RETIRED};
pub use shared_state::Service;

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
        let service = Arc::new(Service::new(
            world,
            authority,
            tasks.clone(),
            handle,
            detector,
            state,
            audit,
        ));
        let mut membership = Membership::new(NUMERICS_PROFILE);
        let restoration = events::Restoration {
            members: kept.members,
            drained: kept.drained,
            deaths: kept.deaths,
        };
        membership.apply(Moment::START, restoration);
        tasks.spawn(performing::run(service.clone(), membership, mailbox));
        if service.state.is_some() {
            tasks.spawn(service.clone().mend_state());
        }
        tasks.spawn(peers::accept_connections(service.clone(), endpoint));
        service
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
