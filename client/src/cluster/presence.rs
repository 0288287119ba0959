//! A client's place in the cluster: its identity, its connection to the coordinator, its links to workers,
//! and the artifacts that it serves.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::{bind_towards, lookup};
use convoke_common::counters::Counters;
use convoke_common::credentials::Credentials;
use convoke_common::detection::{Detector, WatchedConnection};
use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_common::identity::{JoinToken, Role};
use convoke_common::ids::Incarnation;
use convoke_common::memory::Ledger;
use convoke_common::rpc::transport::call_context;
use convoke_common::rpc::{self, StreamKind, StreamService, close};
use convoke_common::world::quic::{Connection, RecvStream, SendStream};
use convoke_common::world::{Endpoint, EndpointOptions, World};
use convoke_rendezvous::artifacts;
use convoke_rendezvous::remote::Dialler;
use convoke_rendezvous::{Hub, Link, Peer};
use tokio::time::Instant;

use crate::cluster::coordinator::{CoordinatorLink, CoordinatorRoute};
use crate::cluster::sources::Sources;

/// Streams of one worker that are served at once; each answers one request for chunks of an artifact.
const STREAMS: usize = 64;
/// How often a wait for workers asks how many have joined.
const WAIT_PERIOD: Duration = Duration::from_millis(500);
/// How long a client that leaves answers peers that have not heard so. The first packets leave at once, and a peer that
/// is gone would be waited for in vain: its connection ends by itself only after several of its timeouts.
const GOODBYE: Duration = Duration::from_millis(150);

/// Serves what a client offers to a worker: its artifacts.
struct ArtifactService {
    world: World,
    sources: Arc<Sources>,
}

impl StreamService for ArtifactService {
    fn admit(&self, kind: StreamKind) -> std::result::Result<(), &'static str> {
        match kind {
            StreamKind::Artifact => Ok(()),
            _ => Err(rpc::FORBIDDEN),
        }
    }

    async fn serve(self: Arc<Self>, _: StreamKind, send: SendStream, recv: RecvStream) {
        artifacts::serve(self.world.clone(), self.sources.clone(), send, recv).await;
    }
}

/// A client that has joined a cluster, with its connections and the artifacts that it serves.
pub(crate) struct ClusterPresence {
    pub(crate) world: World,
    pub(crate) hub: Arc<Hub>,
    pub(crate) sources: Arc<Sources>,
    pub(crate) ledger: Ledger,
    pub(crate) coordinator: CoordinatorLink,
    pub(crate) endpoint: Endpoint,
    /// How many streams of workers were refused, by reason.
    pub(crate) refused: Arc<Counters>,
    dialler: Arc<Dialler>,
}

impl ClusterPresence {
    /// Joins with a token (or the identity kept in `state_dir`) and connects to the coordinator.
    pub(crate) async fn connect(
        world: World,
        address: &str,
        token: &JoinToken,
        state_dir: Option<PathBuf>,
    ) -> Result<Arc<ClusterPresence>> {
        if token.role != Role::Client {
            let msg = format!("the token is for a {}, not for a client", token.role);
            return Err(Error::new(Code::Unauthorized, msg)
                .advise("make one with `convoke token create --role client`"));
        }
        let credentials = Credentials::obtain(
            &world,
            address,
            token,
            Role::Client,
            None,
            state_dir,
            Arc::default(),
        );
        let credentials = credentials.await?;
        let addrs = lookup(&world, address).await?;
        let first = addrs.first().copied();
        let first =
            first.ok_or_else(|| Error::unreachable(None, format!("'{address}' has no address")))?;
        // Workers may be on other hosts: loopback, which reaches only this host, is bound only for a coordinator there.
        let mut bind = bind_towards(first);
        if !first.ip().is_loopback() {
            bind.set_port(0);
        }
        let options = EndpointOptions::default();
        let endpoint = world
            .net
            .endpoint(bind, credentials.tls(), &options)
            .await?;
        let me = Peer {
            role: Role::Client,
            name: credentials.identity().peer().name.as_str().to_owned(),
            incarnation: Incarnation(u64::from_le_bytes(world.rng.bytes())),
        };
        let detector = Detector::dialling(world.clone());
        let way = CoordinatorRoute {
            world: world.clone(),
            endpoint: endpoint.clone(),
            detector: detector.clone(),
            address: address.to_owned(),
            driver: me.incarnation,
            credentials,
        };
        let coordinator = way.connect().await?;
        let hub = Hub::new(me);
        // A client's memory is its owner's business; the ledger only counts.
        let ledger = Ledger::new("client", u64::MAX >> 1).keeping();
        let releasing = ledger.clone();
        let release = async move { releasing.release_idle().await };
        coordinator.tasks().spawn(release);
        Ok(Arc::new(ClusterPresence {
            dialler: Dialler::new(world.clone(), hub.clone(), endpoint.clone(), detector),
            hub,
            sources: Arc::default(),
            ledger,
            coordinator,
            endpoint,
            refused: Arc::default(),
            world,
        }))
    }

    /// Waits until `count` workers have joined, at most `bound`, and calls `tell` with their number whenever it
    /// changes.
    pub(crate) async fn await_workers(
        &self,
        count: u32,
        bound: Duration,
        tell: &mut (dyn FnMut(u32) + Send),
    ) -> Result<u32> {
        // A bound beyond the range of the clock is no bound.
        let end = Instant::now().checked_add(bound);
        let mut told = None;
        loop {
            // The wait is split into short calls, so that progress shows.
            let left = end.map_or(Duration::MAX, |end| {
                end.saturating_duration_since(Instant::now())
            });
            let wait = left.min(WAIT_PERIOD);
            let answer = self.coordinator.ask(|client| async move {
                let context = call_context(wait + rpc::CALL_BOUND);
                let answer = client.await_workers(context, count, wait.as_millis() as u64);
                rpc::answer(None, answer.await)
            });
            let have = answer.await?;
            if told.replace(have) != Some(have) {
                tell(have);
            }
            if have >= count {
                return Ok(have);
            }
            if left.is_zero() {
                let msg = format!("{have} of {count} workers joined within {bound:?}");
                return Err(Error::new(Code::NoWorkers, msg).advise(
                    "start more with `convoke worker --join HOST:PORT --token-file FILE`, \
                     or ask for fewer with --workers",
                ));
            }
        }
    }

    /// Returns a link to each of these workers, in their order, after dialling those that have none.
    pub(crate) async fn links(self: &Arc<Self>, workers: &[Participant]) -> Result<Vec<Arc<Link>>> {
        let mut links = Vec::new();
        for worker in workers {
            let me = self.clone();
            let serve = move |watched: WatchedConnection, _| me.serve(watched.connection().clone());
            links.push(self.dialler.link(worker, serve).await?);
        }
        Ok(links)
    }

    /// Serves the artifact streams that a worker opens.
    fn serve(&self, connection: Connection) {
        let (world, refused) = (self.world.clone(), self.refused.clone());
        let service = Arc::new(ArtifactService {
            world: self.world.clone(),
            sources: self.sources.clone(),
        });
        self.world.spawn(async move {
            let spawn = |stream| drop(world.spawn(stream));
            rpc::serve_streams(&connection, STREAMS, spawn, &refused, service).await;
        });
    }

    /// Closes every connection. [`ClusterPresence::wait_closed`] waits until the peers have been told.
    pub(crate) fn close(&self) {
        self.coordinator.close();
        self.endpoint
            .close(0u32.into(), close::CLIENT_LEAVING.as_bytes());
    }

    /// Waits at most [`GOODBYE`] until closed connections have told their peers. A peer that is not told notices by its
    /// idle timeout.
    pub(crate) async fn wait_closed(&self) {
        let idle = self.endpoint.wait_idle();
        tokio::time::timeout(GOODBYE, idle).await.ok();
    }
}

impl Drop for ClusterPresence {
    fn drop(&mut self) {
        self.close();
    }
}
