//! The connections of a worker: how much each may send ahead, and which are served.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::identity::{RevocationList, TokenId, peer_identity};
use convoke_common::members::{Bounds, Windows};
use convoke_common::mutant;
use convoke_common::rpc::close;
use convoke_common::world::EndpointOptions;
use convoke_common::world::quic::Connection;

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
#[derive(Clone, Default)]
pub struct ServedConnections(Arc<Mutex<BTreeMap<u64, (TokenId, Connection)>>>);

/// Lists a served connection until it is dropped.
pub struct ServedConnection {
    listed: ServedConnections,
    number: u64,
}

impl ServedConnections {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, (TokenId, Connection)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a connection, or ends it where its token was revoked since the handshake.
    pub fn enter(
        &self,
        connection: &Connection,
        revoked: &RevocationList,
    ) -> Option<ServedConnection> {
        let token = peer_identity(connection)?.token_id;
        let number = connection.stable_id() as u64;
        self.all().insert(number, (token, connection.clone()));
        self.end(revoked);
        let listed = self.clone();
        Some(ServedConnection { listed, number })
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

impl Drop for ServedConnection {
    fn drop(&mut self) {
        self.listed.all().remove(&self.number);
    }
}
