//! Accepts connections: the handshake, then the streams of each connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::detection::CLOSE_LOST;
use convoke_common::identity::{Handshakes, MEMBERSHIP_OVER, PeerIdentity, Role, membership_over};
use convoke_common::memory::Ledger;
use convoke_common::places::Places;
use convoke_common::rpc::transport::{MAX_FRAME, serve_charged, serve_stream};
use convoke_common::rpc::{
    Coordinator, FORBIDDEN, Joining, StreamKind, StreamService, close, serve_stream_of,
    serve_streams,
};
use convoke_common::world::Endpoint;
use convoke_common::world::quic::{Connection, ConnectionError, RecvStream, SendStream};
use convoke_common::{Code, Error};
use tokio::time::{Instant, timeout};

use super::joining::JoiningPeer;
use super::members::{Caller, Member};
use crate::audit::{Entry, Event};
use crate::membership::{ConnectionId, events};
use crate::service::Service;
use crate::service::connections::{Peer, RETIRED};

/// How many handshakes run at once; each costs a signature and a little memory.
const HANDSHAKES: usize = 128;

/// How long a handshake may take.
const GREET_BOUND: Duration = Duration::from_secs(5);

/// How long a newcomer may stay: for a join, and for its wait for a name.
const NEWCOMER_BOUND: Duration = Duration::from_secs(20);

/// How many newcomers are served at once. A join takes a few round trips, so a slow newcomer loses its place to the
/// next.
const NEWCOMERS: usize = 64;

/// How long a newcomer may take to close its connection after the answer, and a connection to end when the coordinator stops.
const FAREWELL: Duration = Duration::from_secs(1);

/// How many streams of one peer are served at once; further ones wait.
const STREAMS: usize = 16;

/// Largest frame of a newcomer, in bytes: a token, a name and a signing request.
const JOIN_FRAME: usize = 16 << 10;

/// Largest frame of a worker, in bytes: a report of all its links.
const WORKER_FRAME: usize = 1 << 20;

/// Accepts connections until the endpoint closes.
pub async fn accept_connections(service: Arc<Service>, endpoint: Endpoint) {
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

/// Returns the address of a peer as the coordinator sees it.
fn seen(connection: &Connection) -> SocketAddr {
    let remote = connection.remote_address();
    SocketAddr::new(remote.ip().to_canonical(), remote.port())
}

impl Service {
    /// Records that a member's connection was refused.
    fn connection_refused(&self, identity: &PeerIdentity, remote: SocketAddr, error: Error) {
        if let Some(others) = self.refused_connections.admit(Instant::now()) {
            let entry = Entry::of(Event::ConnectionRefused).member(identity, remote);
            self.audit.record(entry.refused(&error, others));
        }
    }
}

/// Removes a connection from the registry when it is dropped, however the serving ends.
struct ConnectionEntry {
    service: Arc<Service>,
    id: ConnectionId,
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        self.service.connections.leave(self.id);
    }
}

/// Serves one join of a newcomer; the connection ends after the answer.
async fn attend_newcomer(service: Arc<Service>, connection: Connection) {
    let peer = Peer {
        connection: connection.clone(),
        identity: None,
        watched: None,
        renewed_by: None,
    };
    let _entered = ConnectionEntry {
        service: service.clone(),
        id: service.connections.enter(peer),
    };
    let newcomer = JoiningPeer::new(service.clone(), seen(&connection));
    let answered = newcomer.answered();
    let streams = Arc::new(NewcomerStreams { newcomer });
    let served = async {
        // A newcomer's streams are served one after the other.
        while let Ok((send, recv)) = connection.accept_bi().await {
            serve_stream_of(streams.clone(), &service.refused, send, recv).await;
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
    // It tells the peer, where packets may not pass, that this process closes the connection and does not die.
    let closing = connection.clone();
    service.tasks.spawn_to_end(|stop| async move {
        tokio::pin!(monitor);
        tokio::select! {
            biased;
            () = &mut monitor => return,
            () = stop.cancelled() => {}
        }
        closing.close(close::STOPPING.into(), b"the coordinator stops");
        drop(tokio::time::timeout(FAREWELL, monitor).await);
    });
    let peer = Peer {
        connection: connection.clone(),
        identity: Some(identity.clone()),
        watched: Some(watched.clone()),
        renewed_by: None,
    };
    let id = service.connections.enter(peer);
    let _entered = ConnectionEntry {
        service: service.clone(),
        id,
    };
    let account = service.account_of(&identity);
    let remote = seen(&connection);
    let caller = Arc::new(Caller::new(id, identity, remote));
    // A revocation closes the entered connections of its token, and the end of an authority those of its certificates.
    // Check here for one that came between the handshake and the entry above.
    let revoked = service.authority.revoked();
    let refusal = if revoked.contains(&caller.identity.token_id) {
        Some((close::REVOKED, "the token was revoked"))
    } else if !service.authority.vouches_for(&connection, None) {
        Some((close::REFUSED, RETIRED))
    } else {
        None
    };
    if let Some((code, why)) = refusal {
        let error = Error::new(Code::Unauthorized, why);
        service.connection_refused(&caller.identity, remote, error);
        connection.close(code.into(), why.as_bytes());
        return;
    }
    let ended = membership_over(service.world.wall.as_ref(), &caller.identity);
    let streams = Arc::new(MemberStreams {
        service: service.clone(),
        caller: caller.clone(),
        account,
    });
    let spawn = |stream| service.tasks.spawn(stream);
    let served = serve_streams(&connection, STREAMS, spawn, &service.refused, streams);
    // The end of its membership also ends a member that has all of its streams in use.
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
    // A member that takes this coordinator for lost also closes the connection, but returns: it has not left.
    let closed = match connection.close_reason() {
        Some(ConnectionError::ApplicationClosed(close)) => Some(close.error_code),
        _ => None,
    };
    // This call fails only if the coordinator stops, which ends no lease.
    let core = &service.core;
    let _ = match closed {
        Some(code) if code != CLOSE_LOST => core.apply(events::Goodbye { connection: id }).await,
        _ => core.apply(events::Disconnection { connection: id }).await,
    };
}

/// The streams of a newcomer, which may only join.
struct NewcomerStreams {
    newcomer: JoiningPeer,
}

impl StreamService for NewcomerStreams {
    fn admit(&self, kind: StreamKind) -> std::result::Result<(), &'static str> {
        match kind {
            StreamKind::Join => Ok(()),
            _ => Err(FORBIDDEN),
        }
    }

    async fn serve(self: Arc<Self>, _: StreamKind, send: SendStream, recv: RecvStream) {
        serve_stream(send, recv, self.newcomer.clone().serve(), JOIN_FRAME).await;
    }
}

/// The streams of a member.
struct MemberStreams {
    service: Arc<Service>,
    caller: Arc<Caller>,
    /// The account that is charged for its requests.
    account: Ledger,
}

impl StreamService for MemberStreams {
    fn admit(&self, kind: StreamKind) -> std::result::Result<(), &'static str> {
        match kind {
            StreamKind::Coordinator | StreamKind::Tripwire => Ok(()),
            _ => Err(FORBIDDEN),
        }
    }

    async fn serve(self: Arc<Self>, kind: StreamKind, send: SendStream, recv: RecvStream) {
        let (service, caller) = (self.service.clone(), self.caller.clone());
        if kind == StreamKind::Tripwire {
            // The entry is gone if the connection ended meanwhile.
            let watched = service.connections.get(caller.id).and_then(|p| p.watched);
            if let Some(watched) = watched {
                service.detector.expect_tripwire(&watched, send, recv).await;
            }
            return;
        }
        let frame = if caller.identity.role == Role::Client {
            MAX_FRAME
        } else {
            WORKER_FRAME
        };
        let serve = Member { service, caller }.serve();
        serve_charged(send, recv, serve, frame, Some(self.account.clone())).await;
    }
}
