//! Serving the streams of a connection, by the role of the peer and the first byte of a stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use convoke_common::detection::WatchedConnection;
use convoke_common::error::Result;
use convoke_common::grant::{Grant, Participant};
use convoke_common::identity::{MEMBERSHIP_OVER, Role, TokenId, membership_over, peer_identity};
use convoke_common::ids::{LeaseId, PlanId};
use convoke_common::members::MemberConnection;
use convoke_common::mutant;
use convoke_common::rpc::transport::{MAX_FRAME, serve_stream};
use convoke_common::rpc::{
    FORBIDDEN, InstallAnswer, LinkReport, MemoryReport, Progress, StreamKind, StreamService,
    Worker, WorkerStatus, close, serve_streams,
};
use convoke_common::world::quic::{RecvStream, SendStream};
use convoke_graph::program::Program;
use convoke_rendezvous::{probe, remote};
use tarpc::context::Context;

use crate::node::holdings::Holdings;

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
    let most = match role {
        Role::Coordinator => COORDINATOR_STREAMS,
        Role::Worker | Role::Client => STREAMS,
    };
    let peer = Arc::new(ServedPeer {
        holdings: holdings.clone(),
        watched,
        role,
        name,
        entered,
        has_lane: AtomicBool::new(false),
    });
    let standing = holdings
        .served
        .enter(peer.watched.connection(), &holdings.revoked);
    world.clone().spawn(async move {
        let _standing = standing;
        let connection = peer.watched.connection();
        let identity = peer_identity(connection);
        let over = async {
            match &identity {
                Some(identity) => membership_over(world.wall.as_ref(), identity).await,
                None => std::future::pending().await,
            }
        };
        let spawn = |stream| drop(world.spawn(stream));
        let refused = &peer.holdings.refused;
        let served = serve_streams(connection, most, spawn, refused, peer.clone());
        tokio::select! {
            biased;
            () = over => connection.close(close::MEMBERSHIP_OVER.into(), MEMBERSHIP_OVER),
            () = served => {}
        }
    });
}

/// A peer whose streams are served.
struct ServedPeer {
    holdings: Arc<Holdings>,
    watched: WatchedConnection,
    role: Role,
    name: String,
    /// The place of the connection, where the peer dialled.
    entered: Option<MemberConnection>,
    /// A connection has one lane for its life: a link that ends closes it.
    has_lane: AtomicBool,
}

impl StreamService for ServedPeer {
    fn admit(&self, kind: StreamKind) -> std::result::Result<(), &'static str> {
        match (kind, self.role) {
            (StreamKind::Worker, Role::Coordinator) => Ok(()),
            (StreamKind::Lane, Role::Worker | Role::Client) => {
                match self.has_lane.swap(true, Ordering::Relaxed) {
                    false => Ok(()),
                    true => Err("stream_second_lane"),
                }
            }
            // The coordinator asks workers alone to measure their links.
            (StreamKind::Probe, Role::Worker) | (StreamKind::Tripwire, _) => Ok(()),
            _ => Err(FORBIDDEN),
        }
    }

    async fn serve(self: Arc<Self>, kind: StreamKind, send: SendStream, recv: RecvStream) {
        self.serve_one(kind, send, recv).await;
        if mutant!("served-stream-stays") {
            std::future::pending::<()>().await;
        }
    }
}

impl ServedPeer {
    async fn serve_one(&self, kind: StreamKind, send: SendStream, recv: RecvStream) {
        let holdings = &self.holdings;
        match kind {
            StreamKind::Worker => {
                let holdings = holdings.clone();
                serve_stream(send, recv, Service { holdings }.serve(), MAX_FRAME).await;
            }
            StreamKind::Lane => self.serve_lane(send, recv).await,
            StreamKind::Tripwire => {
                let detector = &holdings.detector;
                detector.expect_tripwire(&self.watched, send, recv).await;
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

    /// Makes a link of the connection. Without a lane a connection is of no use, and is closed.
    async fn serve_lane(&self, send: SendStream, recv: RecvStream) {
        let (holdings, connection) = (&self.holdings, self.watched.connection());
        if let Some(Err(why)) = self.entered.as_ref().map(MemberConnection::carry) {
            holdings.refused.count("lane_no_memory");
            connection.close(close::NO_MEMORY.into(), why.message.as_bytes());
            return;
        }
        let (world, hub, watched) = (&holdings.world, &holdings.hub, self.watched.clone());
        let linked =
            remote::accept_lane(world, hub, watched, self.role, &self.name, send, recv).await;
        if let Err(e) = linked {
            // A peer that cannot reach this worker at all says so itself.
            tracing::info!(peer = self.name, "no link: {e}");
            holdings.refused.count("lane_greeting");
            connection.close(close::REFUSED.into(), b"no lane");
        }
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
        programs: Vec<Arc<Program>>,
    ) -> Result<InstallAnswer> {
        self.holdings.install(grant, programs).await
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

    async fn memory(self, _: Context) -> Result<MemoryReport> {
        Ok(self.holdings.memory())
    }
}
