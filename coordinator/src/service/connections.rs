//! The open connections, by number, and the bytes of all there ever were.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use convoke_common::detection::Watched;
use convoke_common::identity::{PeerIdentity, TokenId};
use convoke_common::members::{Bounds, Windows};
use convoke_common::world::quic::Connection;

use crate::membership::ConnectionId;

/// The bounds on the connections of members. Newcomers have places of their own.
pub const BOUNDS: Bounds = Bounds {
    all: 4096,
    for_workers: 1024,
    of_member: 64,
    of_token: 512,
    // A plan is at most a few MiB; nothing larger is received here, or sent.
    clients: Windows {
        of_token: 8 << 20,
        most: 2 << 20,
        least: 16 << 10,
    },
    workers: Windows {
        of_token: 128 << 20,
        most: 2 << 20,
        least: 64 << 10,
    },
};

/// Bytes on the wire, UDP payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub received: u64,
    pub sent: u64,
}

impl Traffic {
    fn add(&mut self, connection: &Connection) {
        let stats = connection.stats();
        self.received += stats.udp_rx.bytes;
        self.sent += stats.udp_tx.bytes;
    }
}

/// One peer.
#[derive(Debug, Clone)]
pub struct Peer {
    pub connection: Connection,
    /// Absent for a newcomer.
    pub identity: Option<PeerIdentity>,
    /// Its monitor's handle; a newcomer is not monitored.
    pub watched: Option<Watched>,
}

#[derive(Debug, Default)]
struct Book {
    last: u64,
    open: BTreeMap<ConnectionId, Peer>,
    closed: Traffic,
}

/// The registry.
#[derive(Debug, Default)]
pub struct Connections(Mutex<Book>);

impl Connections {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a connection that has a place.
    pub fn enter(&self, peer: Peer) -> ConnectionId {
        let mut book = self.book();
        book.last += 1;
        let id = ConnectionId(book.last);
        book.open.insert(id, peer);
        id
    }

    /// Takes a connection out that ended.
    pub fn leave(&self, id: ConnectionId) {
        let mut book = self.book();
        if let Some(peer) = book.open.remove(&id) {
            book.closed.add(&peer.connection);
        }
    }

    /// The peer on a connection that is open.
    pub fn get(&self, id: ConnectionId) -> Option<Peer> {
        self.book().open.get(&id).cloned()
    }

    /// Whether a tripwire stands to the peer.
    pub fn tripwire(&self, id: ConnectionId) -> bool {
        let watched = self.get(id).and_then(|peer| peer.watched);
        watched.is_some_and(|w| w.tripwire())
    }

    /// Closes a connection; whoever serves it then takes it out.
    pub fn close(&self, id: ConnectionId, code: u32, reason: &str) {
        if let Some(peer) = self.get(id) {
            peer.connection.close(code.into(), reason.as_bytes());
        }
    }

    /// The connections whose certificate a token brought.
    pub fn of_token(&self, token: &TokenId) -> Vec<ConnectionId> {
        let book = self.book();
        let of = |peer: &Peer| peer.identity.as_ref().is_some_and(|i| i.token_id == *token);
        book.open
            .iter()
            .filter(|(_, peer)| of(peer))
            .map(|(id, _)| *id)
            .collect()
    }

    /// All bytes so far.
    pub fn traffic(&self) -> Traffic {
        let book = self.book();
        let mut all = book.closed;
        book.open
            .values()
            .for_each(|peer| all.add(&peer.connection));
        all
    }
}
