//! Who dials a worker: handshakes and connections, bounded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::identity::{Handshakes, RevocationList, Role, TokenId, peer_identity};
use convoke_common::rpc::close;
use convoke_common::world::quic::Connection;
use tokio_util::sync::CancellationToken;

use crate::node::Node;
use crate::service;

/// Handshakes at once; each costs a signature and a little memory.
const HANDSHAKES: usize = 128;
/// How long one may take.
const GREET_BOUND: Duration = Duration::from_secs(5);
/// Connections that peers have open at once, and of those one peer: one is enough, and a former one may not have ended.
const CONNECTIONS: usize = 1024;
const OF_ONE_PEER: usize = 16;

/// How many connections each peer has open.
#[derive(Debug, Default)]
pub struct Connections(Mutex<BTreeMap<String, usize>>);

/// One of them, over when dropped.
pub struct Connected {
    node: Arc<Node>,
    name: String,
}

/// The connections that are served, whoever dialled: a revocation ends those of its token.
#[derive(Default)]
pub struct Served(Mutex<BTreeMap<u64, (TokenId, Connection)>>);

/// One of them, until it is dropped.
pub struct Standing {
    node: Arc<Node>,
    number: u64,
}

impl Served {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, (TokenId, Connection)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends those whose token is revoked.
    pub fn end(&self, revoked: &RevocationList) {
        for (token, connection) in self.all().values() {
            if revoked.contains(token) {
                connection.close(close::REVOKED.into(), b"its token was revoked");
            }
        }
    }
}

impl Standing {
    /// Lists a connection. One whose token was revoked since the handshake is ended.
    pub fn enter(node: &Arc<Node>, connection: &Connection) -> Option<Standing> {
        let token = peer_identity(connection)?.token_id;
        let number = connection.stable_id() as u64;
        let entry = (token, connection.clone());
        node.served.all().insert(number, entry);
        node.served.end(&node.revoked);
        let node = node.clone();
        Some(Standing { node, number })
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.node.served.all().remove(&self.number);
    }
}

impl Connections {
    fn enter(&self, name: &str) -> bool {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        let of_peer = open.get(name).copied().unwrap_or(0);
        let room = all < CONNECTIONS && of_peer < OF_ONE_PEER;
        if room {
            open.insert(name.to_owned(), of_peer + 1);
        }
        room
    }

    fn leave(&self, name: &str) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                open.remove(name);
            }
        }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.node.connections.leave(&self.name);
    }
}

/// Takes connections until it is stopped.
pub async fn run(node: Arc<Node>, stop: CancellationToken) {
    let handshakes = Handshakes::new(HANDSHAKES, node.refused.clone());
    while let Some(Some(incoming)) = stop.run_until_cancelled(node.endpoint.accept()).await {
        let begun = stop.run_until_cancelled(handshakes.begin(incoming)).await;
        let Some(handshake) = begun.flatten() else {
            continue;
        };
        let node = node.clone();
        // It ends with its bound, or with the endpoint.
        node.world.clone().spawn(async move {
            let Some(greeted) = handshake.greet(GREET_BOUND).await else {
                return;
            };
            let connection = greeted.connection;
            let Some(peer) = greeted.identity.filter(|p| p.role != Role::Coordinator) else {
                node.refused.count("connection_wrong_role");
                connection.close(close::REFUSED.into(), b"a worker serves members only");
                return;
            };
            let name = peer.name.as_str().to_owned();
            if !node.connections.enter(&name) {
                node.refused.count("connection_too_many");
                connection.close(close::REFUSED.into(), b"too many connections");
                return;
            }
            let connected = Connected {
                node: node.clone(),
                name: name.clone(),
            };
            let watched = node.detector.watch(connection);
            service::serve_connection(&node, watched, peer.role, name, Some(connected));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_takes_no_more_than_its_share() {
        let open = Connections::default();
        assert!((0..OF_ONE_PEER).all(|_| open.enter("a")));
        assert!(!open.enter("a") && open.enter("b"));
        open.leave("a");
        assert!(open.enter("a"));
        let others = (0..CONNECTIONS).filter(|n| open.enter(&format!("c{n}")));
        assert_eq!(others.count(), CONNECTIONS - OF_ONE_PEER - 1);
        assert!(!open.enter("z"));
        open.leave("b");
        assert!(open.enter("z"));
    }
}
