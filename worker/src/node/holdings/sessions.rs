//! What a worker does for its eager sessions: links to other workers, and the functions of leases.

use std::sync::Arc;

use convoke_common::grant::Participant;
use convoke_common::identity::Role;
use convoke_common::ids::LeaseId;
use convoke_rendezvous::eager::direct::DirectFunction;
use convoke_rendezvous::{Hub, Peer};

use super::Holdings;
use crate::eager::{LinkCallback, Session, SessionWorker};
use crate::node::records::Records;

impl SessionWorker for Holdings {
    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn records(&self) -> &Records {
        &self.records
    }

    fn link(self: Arc<Self>, to: Participant, then: LinkCallback) {
        // The task ends with the bounds of dialling.
        self.world.clone().spawn(async move {
            then(self.link_to(&to, Role::Worker, true).await);
        });
    }

    fn function(&self, lease: LeaseId, session: &Arc<Session>) -> Option<Arc<dyn DirectFunction>> {
        let held = self.held_lease(lease)?;
        let driver = held.lease.participants.last()?;
        let drives = Peer::of(driver, Role::Client) == session.owner;
        drives.then(|| held.executor.direct(session))
    }
}
