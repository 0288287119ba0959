//! The worker process: joins, registers, serves, and leaves.
//!
//! ```text
//! start: identity (state dir, or join by token) -> endpoint -> accept loop, coordinator session, wedge watch
//! drain: no new work -> running steps finish, or are cancelled after a bound -> peers have all that was sent -> end
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission;
use convoke_common::credentials::Credentials;
use convoke_common::detection::Detector;
use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::device_spec::DeviceId;
use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::{JoinToken, RevocationList, Role};
use convoke_common::memory::{Ledger, Purpose};
use convoke_common::mutant;
use convoke_common::rpc::{MemoryReport, Registration, Speed, WorkerKernels};
use convoke_common::tasks::Tasks;
use convoke_common::world::{Share, World};
use convoke_graph::program::NUMERICS_PROFILE;
use convoke_rendezvous::artifacts::ArtifactSource;
use convoke_rendezvous::{Hub, Peer};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::compute::Threads;
use crate::cpu;
use crate::device;
use crate::executor::Engine;
use crate::health::blackbox::BlackBox;
use crate::health::drain::ServiceState;
use crate::node::coordinator_link::{AbsenceNotice, CoordinatorLink, LinkSignals};
use crate::node::holdings::{self, Holdings};
use crate::node::{accept, connections};
use crate::weights::cache::Cache;
use crate::weights::load_buffer::LoadBuffer;

/// Bytes that serving takes on top of the memory that the process has when its worker registers, whatever it runs: code
/// that links and kernels touch first, and the buffers of connections. Measured.
const SERVING: u64 = 6 << 20;

/// How long a worker may take to end once its work has ended: kernels notice that they are cancelled, peers read the
/// last frames, connections close.
pub const END_BOUND: Duration = Duration::from_millis(1500);

/// How often the compute threads are checked for one that stands still.
const STUCK_PERIOD: Duration = Duration::from_millis(500);

/// The settings that a deployment decides.
pub struct WorkerConfig {
    /// Name to ask for at the join; without one the coordinator chooses.
    pub name: Option<String>,
    /// `HOST:PORT` of the coordinator.
    pub join: String,
    pub token: JoinToken,
    /// Folder that keeps the identity; without it the worker joins anew at each start.
    pub state_dir: Option<PathBuf>,
    /// Folder of the socket over which workers of this host share memory; without it their tensors take the network.
    pub run_dir: Option<PathBuf>,
    /// Folder that keeps chunks of weights. Workers of one user may share it.
    pub cache_dir: Option<PathBuf>,
    pub cache_bytes: u64,
    /// Folder beneath which shared model files may be read.
    pub artifact_root: Option<PathBuf>,
    /// The worker's device.
    pub device: DeviceId,
    /// Bytes of the memory of a device that is not the host itself.
    pub device_memory: u64,
    /// Bytes that the worker may use. They bound the whole process where the worker is alone in it.
    pub memory: u64,
    /// Number of workers in this process, which share its base footprint in equal parts; 1 for a process of its own.
    pub sharers: u32,
    pub listen: SocketAddr,
    /// `HOST:PORT` at which others reach the worker; without it, the address that the coordinator sees.
    pub advertise: Option<String>,
    /// Name of the machine, for errors and status.
    pub host: String,
    /// The black box that notes running kernels, for a worker in a process of its own, which dies with them.
    pub black_box: Option<BlackBox>,
}

/// Starts workers.
pub struct Worker;

/// A running worker. Dropped without [`RunningWorker::shutdown`] it ends at once, even before it has registered.
pub struct RunningWorker {
    holdings: Arc<Holdings>,
    tasks: Tasks,
    lost: watch::Receiver<Option<Error>>,
    expelled: watch::Receiver<Option<Error>>,
    informed: watch::Receiver<bool>,
}

impl Worker {
    /// Joins and registers a worker; returns once the coordinator knows it.
    pub async fn start(
        world: World,
        mut config: WorkerConfig,
        threads: Option<&Threads>,
    ) -> Result<RunningWorker> {
        let revoked = Arc::new(RevocationList::default());
        let credentials = Credentials::obtain(
            &world,
            &config.join,
            &config.token,
            Role::Worker,
            config.name.as_deref(),
            config.state_dir.clone(),
            revoked.clone(),
        );
        let credentials = credentials.await?;
        let options = connections::endpoint_options(config.memory);
        let (endpoint, detector, listen) =
            Detector::listening(&world, config.listen, credentials.tls(), &options).await?;
        let name = credentials.identity().peer().name.as_str().to_owned();
        let me = Peer {
            role: Role::Worker,
            name: name.clone(),
            incarnation: holdings::incarnation(&world),
        };
        let cache = match &config.cache_dir {
            None => None,
            Some(dir) => {
                let cache = Cache::open(world.store.clone(), dir.clone(), config.cache_bytes);
                let failed = |e| Error::new(Code::Io, admission::chain(&e));
                Some(Arc::new(cache.map_err(failed)?))
            }
        };
        let black_box = config.black_box.take();
        let blamed = [&*name, "w0"][usize::from(mutant!("wrong-worker-blamed"))];
        let engine = Engine::new(blamed, &config.host, world.compute.clone(), black_box);
        let device = device::open(&config.device, &name, &world.compute, config.device_memory)?;
        let engine = Arc::new(engine.with_device(&config.device, device));
        let ledger = Ledger::new(&name, config.memory).keeping();
        // The speed is measured before the base is taken: that touches code and scratch memory that every program uses.
        let (flops, memory_bandwidth) = engine.compute.speed();
        let host = Speed {
            flops,
            memory_bandwidth,
        };
        let speeds = match &engine.device {
            None => [host, host],
            Some(owned) => [host, device::speed(owned, host).await],
        };
        let _ = engine.device_speed.set(speeds[1]);
        let process = holdings::resident(&world).0.saturating_add(SERVING);
        let base = process / u64::from(config.sharers.max(1));
        let base = ledger.reserve(Purpose::Base, base.min(config.memory))?;
        let holdings = Holdings::new(
            world.clone(),
            me,
            endpoint,
            detector,
            engine,
            ledger,
            cache,
            config.artifact_root.clone(),
            revoked,
        );
        let tasks = Tasks::new(world.clone());
        if let (Some(memory), Some(folder)) = (&world.shared, &config.run_dir) {
            match memory.listen(folder) {
                Ok(met) => tasks.spawn(met),
                Err(e) => tracing::warn!(
                    "tensors for workers of this host take the network: cannot listen in {}: {e}",
                    folder.display()
                ),
            }
        }
        let (registered, first) = oneshot::channel();
        let (tell_lost, lost) = watch::channel(None);
        let (tell_expelled, expelled) = watch::channel(None);
        let (tell_informed, informed) = watch::channel(false);
        let told = LinkSignals {
            registered: Some(registered),
            lost: tell_lost,
            expelled: tell_expelled,
            informed: tell_informed,
        };
        let register = register(&holdings, &config, speeds, base.bytes());
        let session = CoordinatorLink {
            holdings: holdings.clone(),
            join: config.join,
            register,
            credentials,
            away: AbsenceNotice::default(),
        };
        tasks.spawn(async move {
            // The base reservation lives as long as the worker.
            let _base = base;
            session.run(told).await;
        });
        tasks.spawn(accept::run(holdings.clone()));
        let ledger = holdings.ledger.clone();
        tasks.spawn(async move { ledger.release_idle().await });
        let watching = holdings.clone();
        tasks.spawn(async move {
            let error = watching.engine.watch.wedged().await;
            watching.wedge(&error);
        });
        let sessions = holdings.eager.clone();
        tasks.spawn(async move { sessions.keep_time().await });
        if let Some(threads) = threads.cloned() {
            let watching = holdings.clone();
            tasks.spawn(async move {
                let (thread, share) = stuck(&threads).await;
                watching.stands_still(&thread, &share);
            });
        }
        tasks.spawn(listen);
        let running = RunningWorker {
            holdings,
            tasks,
            lost,
            expelled,
            informed,
        };
        match first.await {
            Ok(Ok(())) => {
                running.note_kernels();
                Ok(running)
            }
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

/// Returns once a compute thread has stopped for good: its name, and the share that it worked for.
async fn stuck(threads: &Threads) -> (String, Share) {
    loop {
        tokio::time::sleep(STUCK_PERIOD).await;
        if let Some(stuck) = threads.stuck() {
            return stuck;
        }
    }
}

fn register(
    holdings: &Holdings,
    config: &WorkerConfig,
    [host_speed, device_speed]: [Speed; 2],
    base: u64,
) -> Registration {
    let compute = &holdings.engine.compute;
    let load_buffer = LoadBuffer::bytes(config.memory);
    let device = holdings.engine.device.as_ref();
    let memory = config.memory.saturating_sub(base + load_buffer);
    let port = holdings.endpoint.local_addr().port();
    Registration {
        incarnation: holdings.me.incarnation,
        advertise: config
            .advertise
            .clone()
            .unwrap_or_else(|| format!(":{port}")),
        host: config.host.clone(),
        version: convoke_common::VERSION.into(),
        profile: NUMERICS_PROFILE.into(),
        device: config.device.clone(),
        device_profile: holdings.engine.profile().to_owned(),
        threads: compute.threads() as u32,
        memory,
        device_memory: device.map_or(memory, |owned| owned.memory.limit()),
        device_blocks: device
            .map(|owned| owned.device.shared_blocks())
            .unwrap_or_default(),
        load_buffer,
        host_speed,
        device_speed,
        leases: vec![],
        ops: crate::ops::registered(),
        kernels: WorkerKernels {
            host: cpu::kernels(),
            device: device.map_or_else(cpu::kernels, |owned| owned.device.kernels()),
        },
        deaths: holdings
            .engine
            .black_box
            .as_ref()
            .map(|b| b.deaths().to_vec())
            .unwrap_or_default(),
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        self.tasks.cancel();
        self.holdings.endpoint.close(0u32.into(), b"worker gone");
    }
}

impl RunningWorker {
    /// The worker's name in the cluster.
    pub fn name(&self) -> &str {
        &self.holdings.me.name
    }

    /// The address that the worker listens on.
    pub fn addr(&self) -> SocketAddr {
        self.holdings.endpoint.local_addr()
    }

    /// Links a client of this process without the network.
    pub fn add_local_client(&self, client: &Arc<Hub>, source: Arc<dyn ArtifactSource>) {
        self.holdings.add_local_client(client, source);
    }

    /// Begins to note running kernels in the black box, since the death of the former process has been reported by now.
    fn note_kernels(&self) {
        let engine = &self.holdings.engine;
        let begun = engine
            .black_box
            .as_ref()
            .map(|b| b.begin(self.holdings.me.incarnation));
        if let Some(Err(e)) = begun {
            tracing::warn!("a node that kills this worker will not be found out: {e}");
        }
    }

    /// The worker's name and incarnation.
    pub fn peer(&self) -> &Peer {
        &self.holdings.me
    }

    /// The worker's end of the rendezvous: leases, links, and counts of refused frames.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.holdings.hub
    }

    /// The ledger of the worker's memory.
    pub fn ledger(&self) -> &Ledger {
        &self.holdings.ledger
    }

    /// How much of the memory of the worker's host and device is in use, and by whom.
    pub fn memory(&self) -> MemoryReport {
        self.holdings.memory()
    }

    /// The worker's status, as `convoke status` shows it.
    pub fn status(&self) -> convoke_common::rpc::WorkerStatus {
        self.holdings.status()
    }

    /// Number of things held for clients beyond what [`RunningWorker::status`] counts, by table. Between calls only sessions
    /// are left, and once the clients are gone nothing is.
    pub fn tables(&self) -> Vec<(&'static str, usize)> {
        self.holdings.tables()
    }

    /// Why the coordinator cannot be reached at present, if it cannot.
    pub fn coordinator_lost(&self) -> Option<Error> {
        self.lost.borrow().clone()
    }

    /// Resolves when the coordinator has ended this worker's membership for good.
    pub async fn expelled(&self) -> Error {
        let mut expelled = self.expelled.clone();
        match expelled.wait_for(Option::is_some).await.map(|e| e.clone()) {
            Ok(Some(e)) => e,
            // The session's task ends without an expulsion only when the worker itself stops.
            _ => std::future::pending().await,
        }
    }

    /// Resolves when the coordinator has asked this worker to end; the caller then calls [`RunningWorker::drain`].
    pub async fn told_to_leave(&self) {
        self.stands(|s| *s == ServiceState::Leaving).await;
    }

    /// Resolves when a kernel of this worker does not stop. The worker refuses work from then on, and only another
    /// process can serve under its name again: the caller ends this one.
    pub async fn wedged(&self) -> Error {
        match self.stands(|s| matches!(s, ServiceState::Wedged(_))).await {
            ServiceState::Wedged(error) => error,
            _ => std::future::pending().await,
        }
    }

    async fn stands(&self, wanted: impl Fn(&ServiceState) -> bool) -> ServiceState {
        let mut state = self.holdings.engine.gate.service_state();
        match state.wait_for(wanted).await.map(|s| s.clone()) {
            Ok(stands) => stands,
            // The engine, which sends the state, outlives this receiver.
            Err(_) => std::future::pending().await,
        }
    }

    /// Leaves: takes no new work, lets running steps finish for `bound`, cancels the rest, and ends like
    /// [`RunningWorker::shutdown`] within [`END_BOUND`]. Returns the error of a kernel that does not stop, if there is one;
    /// such a kernel is not waited for once it is known.
    pub async fn drain(&self, bound: Duration) -> Option<Error> {
        let holdings = &self.holdings;
        holdings.engine.gate.leave(&holdings.me.name);
        let due = Instant::now().checked_add(bound);
        let timer = due.map(|due| Timer::arm(TimerKind::Drain, due));
        if tokio::time::timeout(bound, holdings.engine.gate.finished())
            .await
            .is_err()
        {
            tracing::warn!("steps did not finish within {bound:?} and are cancelled");
        }
        drop(timer);
        self.shutdown(END_BOUND).await;
        holdings.engine.gate.unfinished(&holdings.me.name)
    }

    /// Ends every step with the cause "worker leaving", lets the peers read all that was sent, closes all connections
    /// and waits for the tasks, for at most `bound`.
    pub async fn shutdown(&self, bound: Duration) {
        let all = async {
            self.stop(bound).await;
            self.holdings.endpoint.wait_idle().await;
        };
        if tokio::time::timeout(bound, all).await.is_err() {
            tracing::warn!("connections did not end within {bound:?}");
        }
    }

    /// Like [`RunningWorker::shutdown`], except that it does not wait until the peers know that the connections are closed.
    pub async fn stop(&self, bound: Duration) {
        let holdings = &self.holdings;
        let all = async {
            let stands = holdings.engine.gate.service_state().borrow().clone();
            if stands != ServiceState::Serving && self.lost.borrow().is_none() {
                // Waiting for the coordinator to know is worth a moment: others then plan without this worker at once.
                let mut informed = self.informed.clone();
                let told = informed.wait_for(|informed| *informed);
                let _ = tokio::time::timeout(bound / 4, told).await;
            }
            let error = match &*holdings.engine.gate.service_state().borrow() {
                ServiceState::Wedged(error) => error.clone(),
                _ => Error::leaving(&holdings.me.name).at(holdings.engine.place()),
            };
            holdings.end(&error, bound / 2).await;
            self.tasks.cancel();
            holdings.endpoint.close(0u32.into(), b"worker leaving");
            self.tasks.stop().await;
        };
        if tokio::time::timeout(bound, all).await.is_err() {
            tracing::warn!("the worker did not end within {bound:?}");
            holdings.endpoint.close(0u32.into(), b"worker leaving");
        }
        if let Some(black_box) = &holdings.engine.black_box {
            black_box.remove();
        }
    }
}
