//! Who dials: the handshake, then its streams.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::detection::CLOSE_LOST;
use convoke_common::identity::{Handshakes, MEMBERSHIP_OVER, PeerIdentity, Role, membership_over};
use convoke_common::memory::Ledger;
use convoke_common::places::Places;
use convoke_common::rpc::{Coordinator, Joining, StreamKind, close};
use convoke_common::rpc_transport::{MAX_FRAME, serve_charged, serve_stream};
use convoke_common::world::Endpoint;
use convoke_common::world::quic::{Connection, ConnectionError, RecvStream, SendStream};
use convoke_common::{Code, Error};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::Service;
use super::connections::Peer;
use super::joining::Newcomer;
use super::members::{Caller, Member};
use crate::audit::{Entry, Event};
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

/// How long a newcomer may take to end its connection once it is answered.
const FAREWELL: Duration = Duration::from_secs(1);

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
                    let why = "this is the coordinator";
                    let error = Error::new(Code::Unauthorized, why);
                    inside.connection_refused(&identity, seen(&connection), error);
                    connection.close(close::REFUSED.into(), why.as_bytes());
                }
                Some(identity) => attend(inside, connection, identity).await,
                None => {
                    let (place, _) = newcomers.take();
                    let refused = inside.refused.clone();
                    let attended = attend_newcomer(inside, connection.clone());
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

/// Where we see a peer.
fn seen(connection: &Connection) -> SocketAddr {
    let remote = connection.remote_address();
    SocketAddr::new(remote.ip().to_canonical(), remote.port())
}

impl Service {
    /// Notes that a member's connection was refused.
    fn connection_refused(&self, identity: &PeerIdentity, remote: SocketAddr, error: Error) {
        if let Some(others) = self.refused_connections.admit(Instant::now()) {
            let entry = Entry::of(Event::ConnectionRefused).member(identity, remote);
            self.audit.record(entry.refused(&error, others));
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

/// Serves a newcomer: one join, whose answer ends the connection.
async fn attend_newcomer(service: Arc<Service>, connection: Connection) {
    let peer = Peer {
        connection: connection.clone(),
        identity: None,
        watched: None,
    };
    let _entered = Entered {
        service: service.clone(),
        id: service.connections.enter(peer),
    };
    let newcomer = Newcomer::new(service.clone(), seen(&connection));
    let answered = newcomer.answered();
    let served = async {
        while let Ok((mut send, mut recv)) = connection.accept_bi().await {
            match kind(&mut recv).await {
                Ok(StreamKind::Join) => {
                    serve_stream(send, recv, newcomer.clone().serve(), JOIN_FRAME).await;
                }
                other => refuse(&service, other, None, &mut send, &mut recv),
            }
        }
    };
    let farewell = async {
        answered.cancelled().await;
        tokio::time::sleep(FAREWELL).await;
    };
    tokio::select! {
        biased;
        () = served => {}
        () = farewell => connection.close(close::REFUSED.into(), b"one join for each connection"),
    }
}

/// Serves one member's connection until it ends.
async fn attend(service: Arc<Service>, connection: Connection, identity: PeerIdentity) {
    // Given back at the end. No account is charged for windows here, so that none is refused.
    let entered = service.members.enter(&identity, &connection, None);
    let entered = entered.map(|place| place.carry().map(|()| place));
    let _place = match entered {
        Ok(Ok(place)) => place,
        Ok(Err(error)) => {
            connection.close(close::REFUSED.into(), error.message.as_bytes());
            return;
        }
        Err(why) => {
            service.refused.count("connection_too_many");
            let error = Error::new(Code::Busy, why.to_string());
            service.connection_refused(&identity, seen(&connection), error);
            connection.close(close::REFUSED.into(), why.to_string().as_bytes());
            return;
        }
    };
    let (watched, monitor) = service.detector.monitor(connection.clone());
    service.tasks.spawn(monitor);
    let peer = Peer {
        connection: connection.clone(),
        identity: Some(identity.clone()),
        watched: Some(watched.clone()),
    };
    let id = service.connections.enter(peer);
    let _entered = Entered {
        service: service.clone(),
        id,
    };
    let account = service.account_of(&identity);
    let remote = seen(&connection);
    let caller = Arc::new(Caller {
        id,
        identity,
        remote,
    });
    // The token may have been revoked between the handshake and the entry above, which is what revocation closes.
    let revoked = service.authority.revoked();
    if revoked.contains(&caller.identity.token_id) {
        let why = "the token was revoked";
        let error = Error::new(Code::Unauthorized, why);
        service.connection_refused(&caller.identity, remote, error);
        connection.close(close::REVOKED.into(), why.as_bytes());
        return;
    }
    let ended = membership_over(service.world.wall.as_ref(), &caller.identity);
    let places = Arc::new(Semaphore::new(STREAMS));
    let served = async {
        while let Ok(place) = places.clone().acquire_owned().await {
            let Ok((send, recv)) = connection.accept_bi().await else {
                break;
            };
            let (inside, caller, account) = (service.clone(), caller.clone(), account.clone());
            // The stream, and with it this task, ends with the connection.
            service.tasks.spawn(async move {
                let _place = place;
                stream(inside, caller, account, send, recv).await;
            });
        }
    };
    // A member that has all its streams in use does not outstay its time either.
    tokio::select! {
        biased;
        () = ended => {
            let entry = Entry::of(Event::MembershipEnded).member(&caller.identity, remote);
            service.audit.record_of(&caller.identity, entry);
            connection.close(close::MEMBERSHIP_OVER.into(), MEMBERSHIP_OVER);
        }
        () = served => {}
    }
    let why = watched.ended();
    tracing::info!(name = %caller.identity.name, role = %caller.identity.role, why, "connection ended");
    // One that takes this coordinator for lost closes the connection too, and comes back.
    let closed = match connection.close_reason() {
        Some(ConnectionError::ApplicationClosed(close)) => Some(close.error_code),
        _ => None,
    };
    // Fails only when the coordinator stops, which ends nobody's lease.
    let _ = service
        .core
        .call(move |core, now| match closed {
            Some(code) if code != CLOSE_LOST => core.left(now, id),
            _ => core.closed(now, id),
        })
        .await;
}

/// What a new stream is; else what its refusal is counted as.
async fn kind(recv: &mut RecvStream) -> std::result::Result<StreamKind, &'static str> {
    let mut first = [0u8; 1];
    match timeout(KIND_BOUND, recv.read_exact(&mut first)).await {
        Ok(Ok(())) => StreamKind::from_byte(first[0]).ok_or("stream_unknown"),
        _ => Err("stream_silent"),
    }
}

/// Resets a stream that the peer may not open.
fn refuse(
    service: &Service,
    kind: std::result::Result<StreamKind, &'static str>,
    name: Option<&str>,
    send: &mut SendStream,
    recv: &mut RecvStream,
) {
    service.refused.count(match kind {
        Err(reason) => reason,
        Ok(_) => "stream_forbidden",
    });
    tracing::debug!(?kind, name, "a peer opened a stream that it may not");
    // Both fail only where the peer has ended the stream itself.
    let _ = send.reset(close::REFUSED.into());
    let _ = recv.stop(close::REFUSED.into());
}

/// Serves one stream, if the member may open such a one.
async fn stream(
    service: Arc<Service>,
    caller: Arc<Caller>,
    account: Ledger,
    mut send: SendStream,
    mut recv: RecvStream,
) {
    match kind(&mut recv).await {
        Ok(StreamKind::Coordinator) => {
            let frame = if caller.identity.role == Role::Client {
                MAX_FRAME
            } else {
                WORKER_FRAME
            };
            let serve = Member { service, caller }.serve();
            serve_charged(send, recv, serve, frame, Some(account)).await;
        }
        Ok(StreamKind::Tripwire) => {
            // Gone with the connection, where that ended meanwhile.
            let watched = service.connections.get(caller.id).and_then(|p| p.watched);
            if let Some(watched) = watched {
                service.detector.expect_tripwire(&watched, send, recv).await;
            }
        }
        kind => {
            let name = caller.identity.name.as_str();
            refuse(&service, kind, Some(name), &mut send, &mut recv);
        }
    }
}
