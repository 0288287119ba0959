//! Accepting the connections of peers that dial a worker: handshakes and connections are bounded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::identity::{Handshakes, RevocationList, Role, TokenId, peer_identity};
use convoke_common::members::{Bounds, NoPlace, Windows};
use convoke_common::mutant;
use convoke_common::rpc::close;
use convoke_common::world::EndpointOptions;
use convoke_common::world::quic::Connection;

use crate::node::holdings::Holdings;
use crate::node::records::account_of_member;
use crate::node::service;

/// Handshakes that run at once; each costs a signature and a little memory.
const HANDSHAKES: usize = 128;
/// How long a handshake may take.
const GREET_BOUND: Duration = Duration::from_secs(5);
/// Bytes that the connections of a client's token may send ahead of their readers without being charged for them: a
/// sixteenth of the worker's memory, up to this much, and no more than a tenth of the token's own.
const CLIENT_WINDOWS: u64 = 128 << 20;
/// The same bound for workers, of which one token lets in many: a quarter of the memory, up to this much.
const WORKER_WINDOWS: u64 = 1 << 30;

/// Bytes that one stream may send ahead of its reader: this part of the worker's memory, and at least this much.
const STREAM_PART: u64 = 512;
const LEAST_STREAM: u64 = 1 << 20;

/// Bytes that one connection that carries tensors may send ahead at most, on top of those of one stream. So a tensor
/// that nobody reads yet does not hold up the lane that announces it.
const BESIDE_STREAM: u32 = 4 << 20;

/// The transport of a worker that may use `memory`.
pub fn endpoint_options(memory: u64) -> EndpointOptions {
    let options = EndpointOptions::default();
    let part = (memory / STREAM_PART).max(LEAST_STREAM);
    let stream_window = u32::try_from(part).unwrap_or(u32::MAX);
    EndpointOptions {
        stream_window: stream_window.min(options.stream_window),
        ..options
    }
}

/// The bounds on connections of a worker that may use `memory`.
pub fn bounds(memory: u64) -> Bounds {
    let options = endpoint_options(memory);
    let windows = |of_token: u64| Windows {
        of_token: u32::try_from(of_token).unwrap_or(u32::MAX),
        most: options.connection_window,
        least: options.stream_window + options.stream_window.min(BESIDE_STREAM),
    };
    Bounds {
        all: 1024,
        for_workers: 512,
        of_member: 16,
        of_token: 128,
        clients: windows((memory / 16).min(CLIENT_WINDOWS)),
        workers: windows((memory / 4).min(WORKER_WINDOWS)),
    }
}

/// The connections that are served, dialled by either side: a revocation ends those of its tokens.
#[derive(Default)]
pub struct ServedConnections(Mutex<BTreeMap<u64, (TokenId, Connection)>>);

/// Lists a served connection until it is dropped.
pub struct ServedConnection {
    holdings: Arc<Holdings>,
    number: u64,
}

impl ServedConnections {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, (TokenId, Connection)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connections whose token is revoked.
    pub fn end(&self, revoked: &RevocationList) {
        for (token, connection) in self.all().values() {
            if revoked.contains(token) && !mutant!("revoked-stay") {
                connection.close(close::REVOKED.into(), b"its token was revoked");
            }
        }
    }
}

impl ServedConnection {
    /// Lists a connection, or ends it where its token was revoked since the handshake.
    pub fn enter(holdings: &Arc<Holdings>, connection: &Connection) -> Option<ServedConnection> {
        let token = peer_identity(connection)?.token_id;
        let number = connection.stable_id() as u64;
        let entry = (token, connection.clone());
        holdings.served.all().insert(number, entry);
        holdings.served.end(&holdings.revoked);
        let holdings = holdings.clone();
        Some(ServedConnection { holdings, number })
    }
}

impl Drop for ServedConnection {
    fn drop(&mut self) {
        self.holdings.served.all().remove(&self.number);
    }
}

/// Accepts connections until the endpoint closes.
pub async fn run(holdings: Arc<Holdings>) {
    let handshakes = Handshakes::new(HANDSHAKES, holdings.refused.clone());
    while let Some(incoming) = holdings.endpoint.accept().await {
        let Some(handshake) = handshakes.begin(incoming).await else {
            continue;
        };
        let holdings = holdings.clone();
        // The task ends with its bound, or with the endpoint.
        holdings.world.clone().spawn(async move {
            let Some(greeted) = handshake.greet(GREET_BOUND).await else {
                return;
            };
            let connection = greeted.connection;
            let Some(peer) = greeted.identity.filter(|p| p.role != Role::Coordinator) else {
                holdings.refused.count("connection_wrong_role");
                connection.close(close::REFUSED.into(), b"a certificate is needed");
                return;
            };
            let charged =
                (peer.role == Role::Client).then(|| account_of_member(&holdings.ledger, &peer));
            let entered = match holdings.members.enter(&peer, &connection, charged) {
                Ok(entered) => entered,
                Err(why) => {
                    holdings.refused.count("connection_too_many");
                    let code = match why {
                        NoPlace::Memory(_) => close::NO_MEMORY,
                        _ => close::REFUSED,
                    };
                    connection.close(code.into(), why.to_string().as_bytes());
                    return;
                }
            };
            let name = peer.name.as_str().to_owned();
            let watched = holdings.detector.watch(connection);
            service::serve_connection(&holdings, watched, peer.role, name, Some(entered));
        });
    }
}
