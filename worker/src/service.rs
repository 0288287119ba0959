//! Serving the streams of a connection, by the role of the peer and the first byte of a stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use convoke_common::detection::WatchedConnection;
use convoke_common::error::Result;
use convoke_common::grant::{Grant, Participant};
use convoke_common::identity::{MEMBERSHIP_OVER, Role, TokenId, membership_over, peer_identity};
use convoke_common::ids::{LeaseId, PlanId};
use convoke_common::members::MemberConnection;
use convoke_common::mutant;
use convoke_common::rpc::{
    InstallAnswer, LinkReport, MemoryUse, Progress, StreamKind, Worker, WorkerStatus, close,
};
use convoke_common::rpc_transport::{MAX_FRAME, serve_stream};
use convoke_common::world::quic::{RecvStream, SendStream};
use convoke_graph::program::Program;
use convoke_rendezvous::{probe, remote};
use tarpc::context::Context;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::accept::ServedConnection;
use crate::holdings::Holdings;

/// How long a peer may take to send the first byte of a new stream, which states its kind.
const FIRST_BYTE_BOUND: Duration = Duration::from_secs(5);
/// Streams of one peer that are served at once, lanes and tensors not counted; further ones wait.
const STREAMS: usize = 16;
/// Streams of the coordinator that are served at once: installs take long, and must not hold up a release.
const COORDINATOR_STREAMS: usize = 1024;

/// Serves the streams that a peer of this role and name opens, until the connection ends. `entered`, the place of a peer that
/// dialled, is dropped then.
pub fn serve_connection(
    holdings: &Arc<Holdings>,
    watched: WatchedConnection,
    role: Role,
    name: String,
    entered: Option<MemberConnection>,
) {
    let world = holdings.world.clone();
    let holdings = holdings.clone();
    let places = Arc::new(Semaphore::new(match role {
        Role::Coordinator => COORDINATOR_STREAMS,
        Role::Worker | Role::Client => STREAMS,
    }));
    let peer = Arc::new(ServedPeer {
        watched,
        role,
        name,
        entered,
        has_lane: AtomicBool::new(false),
    });
    let standing = ServedConnection::enter(&holdings, peer.watched.connection());
    world.spawn(async move {
        let _standing = standing;
        let connection = peer.watched.connection();
        let identity = peer_identity(connection);
        let over = async {
            match &identity {
                Some(identity) => membership_over(holdings.world.wall.as_ref(), identity).await,
                None => std::future::pending().await,
            }
        };
        let served = async {
            while let Ok(place) = places.clone().acquire_owned().await {
                let Ok((send, recv)) = connection.accept_bi().await else {
                    return;
                };
                // The task ends with the stream, and so with the connection.
                let stream = serve_stream_of(holdings.clone(), peer.clone(), place, send, recv);
                holdings.world.spawn(stream);
            }
        };
        tokio::select! {
            biased;
            () = over => connection.close(close::MEMBERSHIP_OVER.into(), MEMBERSHIP_OVER),
            () = served => {}
        }
    });
}

/// Serves a stream that a peer opened, or refuses it where the peer may not open one of its kind.
async fn serve_stream_of(
    holdings: Arc<Holdings>,
    peer: Arc<ServedPeer>,
    _place: OwnedSemaphorePermit,
    mut send: SendStream,
    mut recv: RecvStream,
) {
    let refused = match peer.kind(&mut recv).await {
        Ok(kind) => {
            serve_one(holdings, &peer, kind, send, recv).await;
            if mutant!("served-stream-stays") {
                std::future::pending::<()>().await;
            }
            return;
        }
        Err(refused) => refused,
    };
    tracing::debug!(peer = peer.name, "{refused}");
    holdings.refused.count(refused);
    // Both calls fail only where the peer has ended the stream itself.
    let _ = send.reset(close::REFUSED.into());
    let _ = recv.stop(close::REFUSED.into());
}

/// A peer whose streams are served.
struct ServedPeer {
    watched: WatchedConnection,
    role: Role,
    name: String,
    /// The place of the connection, where the peer dialled.
    entered: Option<MemberConnection>,
    /// A connection has one lane for its life: a link that ends closes it.
    has_lane: AtomicBool,
}

impl ServedPeer {
    /// The kind of a new stream, if the peer may open such a stream; else the name that the refusal is counted under.
    async fn kind(&self, recv: &mut RecvStream) -> Result<StreamKind, &'static str> {
        let mut first = [0];
        let read = tokio::time::timeout(FIRST_BYTE_BOUND, recv.read_exact(&mut first)).await;
        if !matches!(read, Ok(Ok(()))) {
            return Err("stream_silent");
        }
        let kind = StreamKind::from_byte(first[0]).ok_or("stream_unknown")?;
        match (kind, self.role) {
            (StreamKind::Worker, Role::Coordinator) => Ok(kind),
            (StreamKind::Lane, Role::Worker | Role::Client) => {
                match self.has_lane.swap(true, Ordering::Relaxed) {
                    false => Ok(kind),
                    true => Err("stream_second_lane"),
                }
            }
            (StreamKind::Tripwire | StreamKind::Probe, _) => Ok(kind),
            _ => Err("stream_forbidden"),
        }
    }
}

async fn serve_one(
    holdings: Arc<Holdings>,
    peer: &ServedPeer,
    kind: StreamKind,
    send: SendStream,
    recv: RecvStream,
) {
    match kind {
        StreamKind::Worker => {
            serve_stream(send, recv, Service { holdings }.serve(), MAX_FRAME).await;
        }
        StreamKind::Lane => {
            if let Some(Err(why)) = peer.entered.as_ref().map(MemberConnection::carry) {
                holdings.refused.count("lane_no_memory");
                let connection = peer.watched.connection();
                connection.close(close::NO_MEMORY.into(), why.message.as_bytes());
                return;
            }
            let watched = peer.watched.clone();
            let (world, role, name) = (holdings.world.clone(), peer.role, &*peer.name);
            let linked =
                remote::accept_lane(&world, &holdings.hub, watched, role, name, send, recv);
            if let Err(e) = linked.await {
                tracing::warn!(peer = name, "no link: {e}");
                holdings.refused.count("lane_greeting");
                // A connection is of no use without a lane.
                let connection = peer.watched.connection();
                connection.close(close::REFUSED.into(), b"no lane");
            }
        }
        StreamKind::Tripwire => {
            holdings
                .detector
                .expect_tripwire(&peer.watched, send, recv)
                .await
        }
        StreamKind::Probe => {
            // The semaphore is never closed.
            if let Ok(_place) = holdings.probes.acquire().await {
                probe::serve(send, recv).await;
            }
        }
        StreamKind::Join | StreamKind::Coordinator | StreamKind::Artifact => {}
    }
}

#[derive(Clone)]
struct Service {
    holdings: Arc<Holdings>,
}

impl Worker for Service {
    async fn install(
        self,
        _: Context,
        grant: Grant,
        program: Option<Arc<Program>>,
    ) -> Result<InstallAnswer> {
        self.holdings.install(grant, program).await
    }

    async fn progress(self, _: Context, plan: PlanId) -> Result<Progress> {
        Ok(self.holdings.progress(plan))
    }

    async fn release(self, _: Context, lease: LeaseId) -> Result<()> {
        self.holdings.release(lease);
        Ok(())
    }

    async fn probe(self, _: Context, peers: Vec<Participant>) -> Result<Vec<LinkReport>> {
        Ok(self.holdings.probe(peers).await)
    }

    async fn revoke(self, _: Context, token_ids: Vec<TokenId>) -> Result<()> {
        self.holdings.revoke(token_ids);
        Ok(())
    }

    async fn drain(self, _: Context) -> Result<()> {
        tracing::info!("told to take no new work and to end");
        self.holdings.engine.gate.leave(&self.holdings.me.name);
        Ok(())
    }

    async fn status(self, _: Context) -> Result<WorkerStatus> {
        Ok(self.holdings.status())
    }

    async fn memory(self, _: Context) -> Result<MemoryUse> {
        Ok(self.holdings.memory())
    }
}
