//! The open connections by number, and the traffic of all connections so far.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use convoke_common::detection::WatchedConnection;
use convoke_common::identity::{CaHash, PeerIdentity, TokenId};
use convoke_common::members::{Bounds, Windows};
use convoke_common::world::quic::Connection;

use crate::membership::ConnectionId;

/// Why a connection ends whose certificate the authority that is left did not sign.
pub const RETIRED: &str = "the authority that signed this certificate was retired";

/// The bounds on the connections of members. Newcomers have places of their own.
pub const BOUNDS: Bounds = Bounds {
    all: 4096,
    for_workers: 1024,
    of_member: 64,
    of_token: 512,
    // A plan has at most a few MiB; no larger message is received or sent here.
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

/// Bytes of UDP payload, received and sent.
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

/// The other end of an open connection.
#[derive(Debug, Clone)]
pub struct Peer {
    pub connection: Connection,
    /// The identity that its certificate proved; absent for a newcomer.
    pub identity: Option<PeerIdentity>,
    /// The handle of the connection's monitor; newcomers are not monitored.
    pub watched: Option<WatchedConnection>,
    /// The authority that signed the certificate which the peer was given over this connection; it shows that one from the next
    /// handshake on.
    pub renewed_by: Option<CaHash>,
}

#[derive(Debug, Default)]
struct Book {
    last: u64,
    open: BTreeMap<ConnectionId, Peer>,
    closed: Traffic,
}

/// The registry of connections.
#[derive(Debug, Default)]
pub struct Connections(Mutex<Book>);

impl Connections {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a connection that was given a place, and returns its number.
    pub fn enter(&self, peer: Peer) -> ConnectionId {
        let mut book = self.book();
        book.last += 1;
        let id = ConnectionId(book.last);
        book.open.insert(id, peer);
        id
    }

    /// Removes a connection that ended.
    pub fn leave(&self, id: ConnectionId) {
        let mut book = self.book();
        if let Some(peer) = book.open.remove(&id) {
            book.closed.add(&peer.connection);
        }
    }

    /// Returns the peer of a connection if the connection is open.
    pub fn get(&self, id: ConnectionId) -> Option<Peer> {
        self.book().open.get(&id).cloned()
    }

    /// Notes that the peer was given a certificate over this connection.
    pub fn renewed(&self, id: ConnectionId, by: CaHash) {
        if let Some(peer) = self.book().open.get_mut(&id) {
            peer.renewed_by = Some(by);
        }
    }

    /// Returns whether a tripwire to the peer is open.
    pub fn tripwire(&self, id: ConnectionId) -> bool {
        let watched = self.get(id).and_then(|peer| peer.watched);
        watched.is_some_and(|w| w.tripwire())
    }

    /// Closes a connection; the task that serves it then removes it from the registry.
    pub fn close(&self, id: ConnectionId, code: u32, reason: &str) {
        if let Some(peer) = self.get(id) {
            peer.connection.close(code.into(), reason.as_bytes());
        }
    }

    /// Returns the connections of members whose certificates were issued for a token.
    pub fn of_token(&self, token: &TokenId) -> Vec<ConnectionId> {
        let book = self.book();
        let of = |peer: &Peer| peer.identity.as_ref().is_some_and(|i| i.token_id == *token);
        book.open
            .iter()
            .filter(|(_, peer)| of(peer))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Returns the connections of all members.
    pub fn of_members(&self) -> Vec<(ConnectionId, Peer)> {
        let book = self.book();
        let members = book.open.iter().filter(|(_, peer)| peer.identity.is_some());
        members.map(|(id, peer)| (*id, peer.clone())).collect()
    }

    /// Returns the traffic of all connections so far.
    pub fn traffic(&self) -> Traffic {
        let book = self.book();
        let mut all = book.closed;
        book.open
            .values()
            .for_each(|peer| all.add(&peer.connection));
        all
    }
}
