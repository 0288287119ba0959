//! The worker around its sessions, as far as they use it.

use std::sync::Arc;

use convoke_common::error::Result;
use convoke_common::grant::Participant;
use convoke_common::ids::LeaseId;
use convoke_rendezvous::eager::direct::DirectFunction;
use convoke_rendezvous::{Hub, Link};

use super::session::Session;
use crate::node::records::Records;

/// Called with the link to a peer, or with the reason why there is none.
pub(crate) type LinkCallback = Box<dyn FnOnce(Result<Arc<Link>>) + Send>;

/// What the sessions of a worker use of it: its links, its memory for records, and the leases of their clients.
pub(crate) trait SessionWorker: Send + Sync {
    /// The worker's hub.
    fn hub(&self) -> &Hub;

    /// The worker's memory for records.
    fn records(&self) -> &Records;

    /// Calls `then` with the link to another worker, which is made where there is none, within the bounds of dialling.
    fn link(self: Arc<Self>, to: Participant, then: LinkCallback);

    /// The function of a lease, for steps on the threads of the session's client; `None` unless that client drives the
    /// lease.
    fn function(&self, lease: LeaseId, session: &Arc<Session>) -> Option<Arc<dyn DirectFunction>>;
}
