//! Who dials: the handshake, then its streams.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::chain;
use convoke_common::identity::{PeerIdentity, Role, greet};
use convoke_common::rpc::{Coordinator, Joining, StreamKind, close};
use convoke_common::rpc_transport::{MAX_FRAME, serve_stream};
use convoke_common::world::quic::{Connection, RecvStream, SendStream};
use convoke_common::world::{Endpoint, Incoming};
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

/// Newcomers at once.
const NEWCOMERS: usize = 64;

/// Streams of one peer served at once; further ones wait.
const STREAMS: usize = 16;

/// A token, a name and a signing request.
const JOIN_FRAME: usize = 16 << 10;

/// All that a worker sends: the largest is a report of all its links.
const WORKER_FRAME: usize = 1 << 20;

/// Takes connections until the endpoint closes.
pub async fn run(service: Arc<Service>, endpoint: Endpoint) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    let newcomers = Arc::new(Semaphore::new(NEWCOMERS));
    while let Some(incoming) = endpoint.accept().await {
        let Ok(handshake) = handshakes.clone().try_acquire_owned() else {
            incoming.refuse();
            continue;
        };
        let (inside, newcomers) = (service.clone(), newcomers.clone());
        service.tasks.spawn(async move {
            let greeted = greeted(incoming).await;
            drop(handshake);
            let Some((connection, identity)) = greeted else {
                return;
            };
            match identity {
                Some(identity) if identity.role == Role::Coordinator => {
                    connection.close(close::REFUSED.into(), b"this is the coordinator");
                }
                Some(identity) => attend(inside, connection, Some(identity)).await,
                None => {
                    let Ok(_place) = newcomers.try_acquire() else {
                        connection
                            .close(close::REFUSED.into(), b"too many join at once: try again");
                        return;
                    };
                    let bounded = timeout(NEWCOMER_BOUND, attend(inside, connection.clone(), None));
                    if bounded.await.is_err() {
                        connection.close(close::REFUSED.into(), b"joining took too long");
                    }
                }
            }
        });
    }
}

async fn greeted(incoming: Incoming) -> Option<(Connection, Option<PeerIdentity>)> {
    match greet(incoming, GREET_BOUND).await {
        Ok(greeted) => Some((greeted.connection, greeted.identity)),
        Err(error) => {
            tracing::debug!("a peer was not let in: {}", chain(&error));
            None
        }
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
    let peer = Peer {
        connection: connection.clone(),
        identity: identity.clone(),
    };
    let Some(id) = service.connections.enter(peer) else {
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
        tracing::info!(name = %caller.identity.name, role = %caller.identity.role, "connection ended");
        // Fails only when the coordinator stops, which ends nobody's lease.
        let _ = service
            .core
            .call(move |core, now| core.closed(now, id))
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
    let kind = match timeout(KIND_BOUND, recv.read_exact(&mut first)).await {
        Ok(Ok(())) => StreamKind::from_byte(first[0]),
        _ => None,
    };
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
        (kind, caller) => {
            let name = caller.as_ref().map(|c| c.identity.name.as_str());
            tracing::debug!(?kind, name, "a peer opened a stream that it may not");
            // Both fail only where the peer has ended the stream itself.
            let _ = send.reset(close::REFUSED.into());
            let _ = recv.stop(close::REFUSED.into());
        }
    }
}
