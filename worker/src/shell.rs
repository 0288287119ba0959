//! The worker process: joins, registers, serves, and leaves.
//!
//! ```text
//! start: identity (state dir, or join by token) -> endpoint -> accept loop, coordinator loop
//! coordinator loop: dial -> register -> serve its streams until the connection ends -> dial again
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::{self, call, reach};
use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::{
    IdentityFiles, JoinToken, OwnIdentity, OwnKey, RevocationList, Role, TlsConfigs, greet,
};
use convoke_common::memory::{Account, Ledger};
use convoke_common::program::NUMERICS_PROFILE;
use convoke_common::rpc::{self, CoordinatorClient, Register, close};
use convoke_common::world::quic::{Connection, ConnectionError};
use convoke_common::world::{EndpointOptions, World};
use convoke_rendezvous::artifacts::ArtifactSource;
use convoke_rendezvous::{Hub, Peer};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cache::Cache;
use crate::compute::Threads;
use crate::executor::Engine;
use crate::node::{self, Node};
use crate::{measure, service};

/// How long a newcomer may take over TLS and greeting.
const GREET_BOUND: Duration = Duration::from_secs(5);
/// First and longest pause between dials of an absent coordinator.
const REDIAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What a deployment decides.
pub struct WorkerConfig {
    /// Asked for at join; the coordinator chooses when absent.
    pub name: Option<String>,
    /// `HOST:PORT` of the coordinator.
    pub join: String,
    pub token: JoinToken,
    /// Keeps the identity; without it the worker joins anew at each start.
    pub state_dir: Option<PathBuf>,
    /// Keeps chunks of weights.
    pub cache_dir: Option<PathBuf>,
    pub cache_bytes: u64,
    /// Where shared model files may be read.
    pub artifact_root: Option<PathBuf>,
    /// Bytes that the whole process may use.
    pub memory: u64,
    pub listen: SocketAddr,
    /// `HOST:PORT` that others reach it at; the address that the coordinator sees when absent.
    pub advertise: Option<String>,
    /// Name of the machine, for errors and status.
    pub host: String,
}

/// Starts workers.
pub struct Worker;

/// A worker that runs.
pub struct Running {
    node: Arc<Node>,
    stop: CancellationToken,
    tasks: TaskTracker,
    lost: watch::Receiver<Option<Error>>,
    expelled: watch::Receiver<Option<Error>>,
}

impl Worker {
    /// Joins and registers; returns once the coordinator knows the worker.
    pub async fn start(
        world: World,
        config: WorkerConfig,
        threads: Option<&Threads>,
    ) -> Result<Running> {
        let identity = identity(&world, &config).await?;
        let revoked = Arc::new(RevocationList::default());
        let tls = TlsConfigs::cluster(&identity, revoked.clone(), world.wall.clone())?;
        let options = EndpointOptions::default();
        let endpoint = world.net.endpoint(config.listen, &tls, &options).await?;
        let name = identity.peer().name.as_str().to_owned();
        let me = Peer {
            name: name.clone(),
            incarnation: node::incarnation(&world),
        };
        let cache = match &config.cache_dir {
            None => None,
            Some(dir) => {
                let cache = Cache::open(world.store.clone(), dir.clone(), config.cache_bytes);
                let failed = |e| Error::new(Code::Io, admission::chain(&e));
                Some(Arc::new(cache.map_err(failed)?))
            }
        };
        let engine = Arc::new(Engine {
            worker: name.clone(),
            host: config.host.clone(),
            compute: world.compute.clone(),
            threads: threads.map(Threads::pool),
            steps_done: Default::default(),
        });
        let speed = measure::measure(engine.threads.as_deref());
        let ledger = Ledger::new(&name, config.memory);
        let base = node::resident(&world).0;
        let base = ledger.reserve(Account::Base, base.min(config.memory))?;
        let node = Node::new(
            world.clone(),
            me,
            endpoint,
            engine,
            ledger,
            cache,
            config.artifact_root.clone(),
            revoked,
        );
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (registered, first) = oneshot::channel();
        let (tell_lost, lost) = watch::channel(None);
        let (tell_expelled, expelled) = watch::channel(None);
        let register = register(&node, &config, speed, base.bytes());
        let session = Session {
            node: node.clone(),
            join: config.join,
            register,
            identity,
            tls,
            files: config
                .state_dir
                .map(|d| IdentityFiles::new(world.store.clone(), d)),
        };
        let stopped = stop.clone();
        world.spawn(tasks.track_future(async move {
            // The base reservation lives as long as the worker.
            let _base = base;
            let _ = stopped
                .run_until_cancelled(session.run(registered, tell_lost, tell_expelled))
                .await;
        }));
        world.spawn(tasks.track_future(accept(node.clone(), stop.clone())));
        let running = Running {
            node,
            stop,
            tasks,
            lost,
            expelled,
        };
        match first.await {
            Ok(Ok(())) => Ok(running),
            Ok(Err(e)) => {
                running.shutdown(Duration::from_secs(1)).await;
                Err(e)
            }
            Err(_) => Err(Error::internal(
                "the worker's session ended before it registered",
            )),
        }
    }
}

async fn identity(world: &World, config: &WorkerConfig) -> Result<OwnIdentity> {
    let now = world.wall.unix_seconds();
    let files = config
        .state_dir
        .as_ref()
        .map(|d| IdentityFiles::new(world.store.clone(), d.clone()));
    if let Some(files) = &files
        && let Some(known) = files.load()?
        && !known.is_expired(now)
        && known.peer().token_id == config.token.id
        && config
            .name
            .as_ref()
            .is_none_or(|n| n == known.peer().name.as_str())
    {
        return Ok(known);
    }
    let name = config.name.clone().unwrap_or_default();
    let joined = admission::join(world, &config.join, &config.token, Role::Worker, &name).await?;
    if let Some(files) = &files {
        files.save(&joined)?;
    }
    Ok(joined)
}

fn register(node: &Node, config: &WorkerConfig, speed: (f64, f64), base: u64) -> Register {
    let port = node.endpoint.local_addr().port();
    Register {
        incarnation: node.me.incarnation,
        advertise: config
            .advertise
            .clone()
            .unwrap_or_else(|| format!(":{port}")),
        host: config.host.clone(),
        profile: NUMERICS_PROFILE.into(),
        threads: node
            .engine
            .threads
            .as_ref()
            .map_or(1, |t| t.current_num_threads()) as u32,
        memory: config.memory.saturating_sub(base),
        flops: speed.0,
        memory_bandwidth: speed.1,
    }
}

async fn accept(node: Arc<Node>, stop: CancellationToken) {
    while let Some(Some(incoming)) = stop.run_until_cancelled(node.endpoint.accept()).await {
        let node = node.clone();
        node.world.clone().spawn(async move {
            match greet(incoming, GREET_BOUND).await {
                Ok(greeted) => match greeted.identity {
                    Some(peer) if peer.role != Role::Coordinator => {
                        let name = peer.name.as_str().to_owned();
                        service::serve_connection(&node, greeted.connection, peer.role, name);
                    }
                    _ => greeted
                        .connection
                        .close(0u32.into(), b"a worker serves members only"),
                },
                Err(e) => tracing::debug!("a peer was not let in: {}", admission::chain(&e)),
            }
        });
    }
}

/// The coordinator's reason to end a connection, where dialling again cannot mend it.
fn expulsion(me: &str, why: &ConnectionError) -> Option<Error> {
    let ConnectionError::ApplicationClosed(closed) = why else {
        return None;
    };
    match u32::try_from(closed.error_code.into_inner()).ok()? {
        close::REPLACED => {
            let msg = format!("another process took the place of worker {me}");
            Some(
                Error::new(Code::Unauthorized, msg)
                    .advise("give each worker a --state-dir and a --name of its own"),
            )
        }
        close::REVOKED => {
            let msg = format!("the token of worker {me} was revoked");
            Some(
                Error::new(Code::Unauthorized, msg)
                    .advise("join anew with another token: convoke token create --role worker"),
            )
        }
        _ => None,
    }
}

/// The worker's side of its connection to the coordinator.
struct Session {
    node: Arc<Node>,
    join: String,
    register: Register,
    identity: OwnIdentity,
    tls: TlsConfigs,
    files: Option<IdentityFiles>,
}

impl Session {
    async fn run(
        mut self,
        registered: oneshot::Sender<Result<()>>,
        lost: watch::Sender<Option<Error>>,
        expelled: watch::Sender<Option<Error>>,
    ) {
        let mut first = Some(registered);
        let mut pause = REDIAL.0;
        loop {
            match self.connect().await {
                Ok((connection, client)) => {
                    pause = REDIAL.0;
                    lost.send_replace(None);
                    if let Some(tell) = first.take() {
                        drop(tell.send(Ok(())));
                    }
                    tracing::info!(
                        coordinator = self.join,
                        name = self.node.me.name,
                        "registered"
                    );
                    if let Some(e) = self.attend(&connection, &client).await {
                        // The coordinator's word is final: dialling again would only repeat it.
                        tracing::error!("{e}");
                        expelled.send_replace(Some(e));
                        return;
                    }
                    tracing::warn!(coordinator = self.join, "lost contact with the coordinator");
                }
                Err(e) => {
                    // Before the first success an error is the answer to `start`.
                    if let Some(tell) = first.take() {
                        drop(tell.send(Err(e)));
                        return;
                    }
                    tracing::debug!("cannot reach the coordinator: {e}");
                    lost.send_replace(Some(e));
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(REDIAL.1);
        }
    }

    async fn connect(&mut self) -> Result<(Connection, CoordinatorClient)> {
        let node = &self.node;
        let dialled = reach(&node.world, &node.endpoint, &self.join, Role::Coordinator).await?;
        let connection = dialled.connection;
        // The coordinator may call before it has answered: it probes links while it registers.
        service::serve_connection(
            node,
            connection.clone(),
            Role::Coordinator,
            "coordinator".into(),
        );
        let client = rpc::connect_coordinator(&node.world, &connection).await?;
        let answer = client.register(call(), self.register.clone()).await;
        let registered = rpc::answer("the coordinator", answer)?;
        node.revoked.extend(registered.revoked);
        Ok((connection, client))
    }

    /// Renews the certificate when due, until the connection ends. Answers why, where that is for good.
    async fn attend(
        &mut self,
        connection: &Connection,
        client: &CoordinatorClient,
    ) -> Option<Error> {
        loop {
            let now = self.node.world.wall.unix_seconds();
            let due = self.identity.renewal_at().saturating_sub(now).max(60);
            tokio::select! {
                biased;
                why = connection.closed() => return expulsion(&self.node.me.name, &why),
                () = tokio::time::sleep(Duration::from_secs(due)) => {
                    if let Err(e) = self.renew(client).await {
                        tracing::warn!("cannot renew the certificate: {e}");
                    }
                }
            }
        }
    }

    async fn renew(&mut self, client: &CoordinatorClient) -> Result<()> {
        let key = OwnKey::generate(self.node.world.rng.as_ref())?;
        let answer = client.renew(call(), key.csr()?).await;
        let joined = rpc::answer("the coordinator", answer)?;
        let ca = self.identity.ca().clone();
        let identity = OwnIdentity::new(key, joined.certificate.into(), ca)?;
        if let Some(files) = &self.files {
            files.save(&identity)?;
        }
        self.tls.renew(&identity)?;
        self.identity = identity;
        Ok(())
    }
}

impl Running {
    /// The worker's name in the cluster.
    pub fn name(&self) -> &str {
        &self.node.me.name
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.node.endpoint.local_addr()
    }

    /// Links a client of this process without the network.
    pub fn add_local_client(&self, client: &Arc<Hub>, source: Arc<dyn ArtifactSource>) {
        self.node.add_local_client(client, source);
    }

    /// Its name and incarnation.
    pub fn peer(&self) -> &Peer {
        &self.node.me
    }

    /// Why the coordinator cannot be reached at present.
    pub fn coordinator_lost(&self) -> Option<Error> {
        self.lost.borrow().clone()
    }

    /// Resolves when the coordinator has ended this worker's membership for good.
    pub async fn expelled(&self) -> Error {
        let mut expelled = self.expelled.clone();
        match expelled.wait_for(Option::is_some).await.map(|e| e.clone()) {
            Ok(Some(e)) => e,
            // The session's task ends without a word only when the worker itself stops.
            _ => std::future::pending().await,
        }
    }

    /// Ends every step with the cause "worker leaving", closes all connections and waits for the tasks, at
    /// most `bound`.
    pub async fn shutdown(self, bound: Duration) {
        let msg = format!("worker {} is leaving", self.node.me.name);
        self.node.release_all(&Error::new(Code::WorkerLeaving, msg));
        self.stop.cancel();
        self.tasks.close();
        self.node.endpoint.close(0u32.into(), b"worker leaving");
        let quiet = async {
            self.tasks.wait().await;
            self.node.endpoint.wait_idle().await;
        };
        if tokio::time::timeout(bound, quiet).await.is_err() {
            tracing::warn!("connections did not end within {bound:?}");
        }
    }
}
