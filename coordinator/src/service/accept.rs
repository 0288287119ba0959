//! Who dials: the handshake, then its streams.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::detection::CLOSE_LOST;
use convoke_common::identity::{Handshakes, PeerIdentity, Role};
use convoke_common::places::Places;
use convoke_common::rpc::{Coordinator, Joining, StreamKind, close};
use convoke_common::rpc_transport::{MAX_FRAME, serve_stream};
use convoke_common::world::Endpoint;
use convoke_common::world::quic::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::Service;
use super::connections::Peer;
use super::joining::Newcomer;
use super::members::{Caller, Member};
use crate::membership::ConnectionId;

/// Handshakes at once; each costs a signature and a little memory.
const HANDSHAKES: usize = 128;

/// How long one may take.
const GREET_BOUND: Duration = Duration::from_secs(5);

/// How long a peer may take to say what a stream is.
const KIND_BOUND: Duration = Duration::from_secs(5);

/// How long a newcomer may stay: a join, and its wait for a name.
const NEWCOMER_BOUND: Duration = Duration::from_secs(20);

/// Newcomers at once: a join takes some round trips, so that one that takes its time loses its place to the next.
const NEWCOMERS: usize = 64;

/// Streams of one peer served at once; further ones wait.
const STREAMS: usize = 16;

/// A token, a name and a signing request.
const JOIN_FRAME: usize = 16 << 10;

/// All that a worker sends: the largest is a report of all its links.
const WORKER_FRAME: usize = 1 << 20;

/// Takes connections until the endpoint closes.
pub async fn run(service: Arc<Service>, endpoint: Endpoint) {
    let handshakes = Handshakes::new(HANDSHAKES, service.refused.clone());
    let newcomers = Places::new(NEWCOMERS);
    while let Some(incoming) = endpoint.accept().await {
        let Some(handshake) = handshakes.begin(incoming).await else {
            continue;
        };
        let (inside, newcomers) = (service.clone(), newcomers.clone());
        service.tasks.spawn(async move {
            let Some(greeted) = handshake.greet(GREET_BOUND).await else {
                return;
            };
            let connection = greeted.connection;
            match greeted.identity {
                Some(identity) if identity.role == Role::Coordinator => {
                    inside.refused.count("connection_wrong_role");
                    connection.close(close::REFUSED.into(), b"this is the coordinator");
                }
                Some(identity) => attend(inside, connection, Some(identity)).await,
                None => {
                    let (place, _) = newcomers.take();
                    let refused = inside.refused.clone();
                    let attended = attend(inside, connection.clone(), None);
                    let bounded = timeout(NEWCOMER_BOUND, place.hold(attended));
                    if !matches!(bounded.await, Ok(Some(()))) {
                        refused.count("newcomer_too_slow");
                        connection.close(close::REFUSED.into(), b"joining took too long");
                    }
                }
            }
        });
    }
}

/// Takes a connection out of the books however its serving ends.
struct Entered {
    service: Arc<Service>,
    id: ConnectionId,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.service.connections.leave(self.id);
    }
}

/// Serves one connection until it ends.
async fn attend(service: Arc<Service>, connection: Connection, identity: Option<PeerIdentity>) {
    let watched = identity.as_ref().map(|_| {
        let (watched, monitor) = service.detector.monitor(connection.clone());
        service.tasks.spawn(monitor);
        watched
    });
    let peer = Peer {
        connection: connection.clone(),
        identity: identity.clone(),
        watched: watched.clone(),
    };
    let Some(id) = service.connections.enter(peer) else {
        service.refused.count("connection_too_many");
        connection.close(close::REFUSED.into(), b"too many connections");
        return;
    };
    let _entered = Entered {
        service: service.clone(),
        id,
    };
    let caller = identity.map(|identity| {
        let remote = connection.remote_address().ip().to_canonical();
        Arc::new(Caller {
            id,
            identity,
            remote,
        })
    });
    // The token may have been revoked between the handshake and the entry above, which is what revocation closes.
    let revoked = caller
        .as_ref()
        .is_some_and(|c| service.authority.revoked().contains(&c.identity.token_id));
    if revoked {
        connection.close(close::REVOKED.into(), b"the token was revoked");
        return;
    }
    let places = Arc::new(Semaphore::new(STREAMS));
    while let Ok(place) = places.clone().acquire_owned().await {
        let Ok((send, recv)) = connection.accept_bi().await else {
            break;
        };
        let (inside, caller) = (service.clone(), caller.clone());
        // The stream, and with it this task, ends with the connection.
        service.tasks.spawn(async move {
            let _place = place;
            stream(inside, caller, send, recv).await;
        });
    }
    if let Some(caller) = caller {
        let why = watched.and_then(|w| w.ended());
        tracing::info!(name = %caller.identity.name, role = %caller.identity.role, why, "connection ended");
        // One that takes this coordinator for lost closes the connection too, and comes back.
        let closed = match connection.close_reason() {
            Some(ConnectionError::ApplicationClosed(close)) => Some(close.error_code),
            _ => None,
        };
        let why = why.unwrap_or_else(|| "the coordinator ended its connection".to_owned());
        // Fails only when the coordinator stops, which ends nobody's lease.
        let _ = service
            .core
            .call(move |core, now| match closed {
                Some(CLOSE_LOST) => core.parted(now, id, &why),
                Some(_) => core.left(now, id, &why),
                None => core.closed(now, id, &why),
            })
            .await;
    }
}

/// Serves one stream, if the peer may open such a one.
async fn stream(
    service: Arc<Service>,
    caller: Option<Arc<Caller>>,
    mut send: SendStream,
    mut recv: RecvStream,
) {
    let mut first = [0u8; 1];
    let read = timeout(KIND_BOUND, recv.read_exact(&mut first)).await;
    let read = matches!(read, Ok(Ok(())));
    let kind = StreamKind::from_byte(first[0]).filter(|_| read);
    match (kind, caller) {
        (Some(StreamKind::Join), None) => {
            serve_stream(send, recv, Newcomer { service }.serve(), JOIN_FRAME).await;
        }
        (Some(StreamKind::Coordinator), Some(caller)) => {
            let frame = if caller.identity.role == Role::Client {
                MAX_FRAME
            } else {
                WORKER_FRAME
            };
            serve_stream(send, recv, Member { service, caller }.serve(), frame).await;
        }
        (Some(StreamKind::Tripwire), Some(caller)) => {
            // Gone with the connection, where that ended meanwhile.
            let watched = service.connections.get(caller.id).and_then(|p| p.watched);
            if let Some(watched) = watched {
                service.detector.expect_tripwire(&watched, send, recv).await;
            }
        }
        (kind, caller) => {
            let name = caller.as_ref().map(|c| c.identity.name.as_str());
            service.refused.count(match (read, kind) {
                (false, _) => "stream_silent",
                (true, None) => "stream_unknown",
                (true, Some(_)) => "stream_forbidden",
            });
            tracing::debug!(?kind, name, "a peer opened a stream that it may not");
            // Both fail only where the peer has ended the stream itself.
            let _ = send.reset(close::REFUSED.into());
            let _ = recv.stop(close::REFUSED.into());
        }
    }
}
