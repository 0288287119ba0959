//! The links of a hub, by the peer's name.
//!
//! Invariants
//! 1. A link takes the place of another one only where both have the same role, name and token.
//! 2. Whoever awaits a link to a peer finds each one that is added.
//! 3. The end of a link removes that link alone, also while another one to the same peer is added.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use crate::lease::Peer;
use crate::link::Link;
use crate::primitives::{Mutex, MutexGuard, Notify};

/// The links of a hub.
pub(super) struct Links {
    /// The links by the peer's name, the newest last: if both sides dialled, there are two.
    by_name: Mutex<HashMap<String, Vec<Arc<Link>>>>,
    added: Notify,
}

impl Links {
    pub(super) fn new() -> Links {
        Links {
            by_name: Mutex::default(),
            added: Notify::new(),
        }
    }

    fn by_name(&self) -> MutexGuard<'_, HashMap<String, Vec<Arc<Link>>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a link, and closes those to former incarnations of the peer. Returns `false` if this very incarnation is
    /// linked with a certificate of another token.
    pub(super) fn add(&self, link: Arc<Link>) -> bool {
        let peer = link.peer();
        let former: Vec<_> = {
            let mut all = self.by_name();
            let links = all.entry(peer.name.clone()).or_default();
            let other = |l: &Arc<Link>| l.token() != link.token();
            let held = |l: &Arc<Link>| l.peer() == peer && other(l) && !l.is_closed();
            if links.iter().any(held) {
                return false;
            }
            let former =
                |l: &mut Arc<Link>| l.peer() != peer && l.peer().role == peer.role && !other(l);
            let former = links.extract_if(.., former).collect();
            links.push(link.clone());
            former
        };
        for old in former {
            old.close("replaced by a newer incarnation");
        }
        self.added.notify_waiters();
        true
    }

    /// The newest open link to this very incarnation of `peer`.
    pub(super) fn newest(&self, peer: &Peer) -> Option<Arc<Link>> {
        let all = self.by_name();
        let up = |l: &&Arc<Link>| l.peer() == peer && !l.is_closed();
        all.get(&peer.name)?.iter().rev().find(up).cloned()
    }

    /// Waits until there is a link to `peer`.
    pub(super) async fn awaited(&self, peer: &Peer) -> Arc<Link> {
        loop {
            let added = self.added.notified();
            tokio::pin!(added);
            // The waiter is registered before the lookup, so that a link that is added in between is not missed.
            added.as_mut().enable();
            if let Some(link) = self.newest(peer) {
                return link;
            }
            added.await;
        }
    }

    /// All links, sorted by the peer's name.
    pub(super) fn all(&self) -> Vec<Arc<Link>> {
        let mut all: Vec<_> = self.by_name().values().flatten().cloned().collect();
        all.sort_by(|a, b| a.peer().name.cmp(&b.peer().name));
        all
    }

    /// Removes a link that has ended.
    pub(super) fn remove(&self, link: &Arc<Link>) {
        let mut all = self.by_name();
        if let Some(links) = all.get_mut(&link.peer().name) {
            links.retain(|l| !Arc::ptr_eq(l, link));
            if links.is_empty() {
                all.remove(&link.peer().name);
            }
        }
    }
}
