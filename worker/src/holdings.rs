//! What a worker holds: leases, links to peers, and its status.

mod links;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use convoke_common::counters::Counters;
use convoke_common::detection::Detector;
use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::{Grant, Participant};
use convoke_common::identity::{RevocationList, Role, TokenId};
use convoke_common::ids::{Incarnation, LeaseId, PlanId, StepKey};
use convoke_common::members::Members;
use convoke_common::memory::{Ledger, Pool, Purpose, Reservation};
use convoke_common::mutant;
use convoke_common::rpc::{
    DeviceMemory, HeldLease, InstallAnswer, MemoryUse, ProgramStatus, Progress, WorkerStatus,
};
use convoke_common::world::{Endpoint, Share, World};
use convoke_graph::program::{HashedProgram, NUMERICS_PROFILE, Program, model_name};
use convoke_rendezvous::artifacts::ArtifactSource;
use convoke_rendezvous::eager::EagerService;
use convoke_rendezvous::remote::Dialler;
use convoke_rendezvous::{Hub, Lease, Link, Peer, RecvSpec, StepHandler, step_event};
use futures::future::join_all;
use tokio::sync::{Notify, Semaphore};

use crate::accept::{self, ServedConnections};
use crate::cache::{Cache, Pins};
use crate::device::{OwnedDevice, copy_constants};
use crate::eager::Sessions;
use crate::executor::{Engine, Executor};
use crate::install::{self, Counter};
use crate::load_buffer::LoadBuffer;
use crate::loader::{ClientSource, LoadedBytes, Loader};
use crate::programs::{ProgramPayment, ProgramStore};
use crate::records::{Records, account_of, share_of};
use crate::weights::WeightStore;
use links::{gone, lends};

/// How long an install waits for the memory of released leases: kernels notice their end within milliseconds.
const SETTLE_BOUND: Duration = Duration::from_secs(1);

/// Bytes that the lowered form of a program, which each lease has of its own, takes in memory for each byte that the
/// program takes on the wire.
const LOWERED: u64 = 1;

/// Probes that are answered at once.
const PROBES: usize = 4;

/// An installed lease, with everything that is freed with it.
struct InstalledLease {
    lease: Arc<Lease>,
    executor: Arc<Executor>,
    name: String,
    weights_bytes: u64,
    _weights: Pool,
    _code: Reservation,
    _program: ProgramPayment,
    _pins: Option<Pins>,
}

/// An install that is under way.
struct RunningInstall {
    plan: PlanId,
    counter: Arc<Counter>,
    /// Whether the lease was released while its install runs.
    released: AtomicBool,
}

/// The latest leases that were released before their install came: each call has a stream of its own, and one may
/// overtake another.
#[derive(Default)]
struct EarlyReleases(VecDeque<LeaseId>);

impl EarlyReleases {
    const MOST: usize = 256;

    fn note(&mut self, lease: LeaseId) {
        if self.0.len() == Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back(lease);
    }
}

/// Leases that this worker dropped and has yet to report to the coordinator.
#[derive(Default)]
pub struct DroppedLeases {
    untold: Mutex<BTreeSet<LeaseId>>,
    more: Notify,
}

impl DroppedLeases {
    fn untold(&self) -> MutexGuard<'_, BTreeSet<LeaseId>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, lease: LeaseId) {
        self.untold().insert(lease);
        self.more.notify_one();
    }

    /// Takes the leases that the coordinator has yet to hear of; the caller reports them.
    pub fn take(&self) -> Vec<LeaseId> {
        std::mem::take(&mut *self.untold()).into_iter().collect()
    }

    /// Returns when there may be further dropped leases to report.
    pub async fn more(&self) {
        self.more.notified().await;
    }
}

/// Lists an install as under way until it is dropped.
struct InstallListing<'a>(&'a Holdings, StepKey);

impl Drop for InstallListing<'_> {
    fn drop(&mut self) {
        step_event!("installed", self.1);
        self.0.installing().remove(&self.1.lease);
        // Another install may wait for the memory that this one has freed.
        self.0.ledger.freed().notify_waiters();
    }
}

/// The state of a worker: its leases and installs, sessions, links, memory and counts.
pub struct Holdings {
    pub world: World,
    pub me: Peer,
    pub hub: Arc<Hub>,
    pub endpoint: Endpoint,
    pub detector: Detector,
    dialler: Arc<Dialler>,
    pub engine: Arc<Engine>,
    pub ledger: Ledger,
    /// The memory for what is remembered besides tensors.
    pub records: Records,
    pub cache: Option<Arc<Cache>>,
    pub root: Option<PathBuf>,
    pub revoked: Arc<RevocationList>,
    /// Counts of refused handshakes, connections and streams, by reason.
    pub refused: Arc<Counters>,
    /// The connections that peers have open.
    pub members: Members,
    /// The sessions of clients that issue ops one by one.
    pub eager: Arc<Sessions>,
    /// The connections that are served, with their tokens.
    pub served: ServedConnections,
    /// Permits for probes that are answered at once: each holds a buffer.
    pub probes: Semaphore,
    loaded: Arc<LoadedBytes>,
    load_buffer: Arc<LoadBuffer>,
    weights: Arc<WeightStore>,
    programs: Arc<ProgramStore>,
    held: Mutex<BTreeMap<LeaseId, InstalledLease>>,
    /// Released leases whose memory a kernel may still use.
    ending: Mutex<Vec<(Weak<Lease>, Weak<Executor>)>>,
    installing: Mutex<BTreeMap<LeaseId, Arc<RunningInstall>>>,
    forgone: Mutex<EarlyReleases>,
    /// Leases that this worker dropped by itself, to be reported to the coordinator.
    pub dropped: DroppedLeases,
    local_clients: Mutex<BTreeMap<String, Arc<dyn ArtifactSource>>>,
}

impl Holdings {
    /// A worker that holds nothing yet.
    pub fn new(
        world: World,
        me: Peer,
        endpoint: Endpoint,
        detector: Detector,
        engine: Arc<Engine>,
        ledger: Ledger,
        cache: Option<Arc<Cache>>,
        root: Option<PathBuf>,
        revoked: Arc<RevocationList>,
    ) -> Arc<Holdings> {
        let load_buffer = LoadBuffer::reserve(&ledger);
        let weights = WeightStore::new(&ledger);
        let records = Records::new(&me.name, &ledger);
        let programs = ProgramStore::new(&records);
        let members = Members::new(accept::bounds(ledger.limit()));
        let eager = Sessions::new(engine.clone(), ledger.clone());
        let hub = Hub::new(me.clone());
        let served: Arc<dyn EagerService> = eager.clone();
        hub.serve_eager(Arc::downgrade(&served));
        let (own, from) = (hub.clone(), endpoint.clone());
        let node = Arc::new(Holdings {
            dialler: Dialler::new(world.clone(), own, from, detector.clone()),
            hub,
            eager,
            world,
            me,
            endpoint,
            detector,
            engine,
            records,
            ledger,
            cache,
            root,
            revoked,
            refused: Arc::default(),
            members,
            served: ServedConnections::default(),
            probes: Semaphore::new(PROBES),
            loaded: Arc::default(),
            load_buffer: Arc::new(load_buffer),
            weights,
            programs,
            held: Mutex::default(),
            ending: Mutex::default(),
            installing: Mutex::default(),
            forgone: Mutex::default(),
            dropped: DroppedLeases::default(),
            local_clients: Mutex::default(),
        });
        node.eager.attach(&node);
        node
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<LeaseId, InstalledLease>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Links a client of this process, whose artifacts are read by calling `source`.
    pub fn add_local_client(&self, client: &Arc<Hub>, source: Arc<dyn ArtifactSource>) {
        let mut local = self
            .local_clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        local.insert(client.me.name.clone(), source);
        Link::join_local(&self.hub, client);
    }

    /// Revokes tokens: their handshakes are refused from now on, and their open connections end.
    pub fn revoke(&self, token_ids: Vec<TokenId>) {
        self.revoked.extend(token_ids);
        self.served.end(&self.revoked);
    }

    /// Installs this worker's part of a lease. Where the worker neither has the program of the grant nor was sent it,
    /// nothing is done, and the answer says so.
    pub async fn install(
        self: &Arc<Self>,
        grant: Grant,
        sent: Option<Arc<Program>>,
    ) -> Result<InstallAnswer> {
        if let Some(refusal) = self.engine.gate.refusal() {
            return Err(refusal.clone());
        }
        let Some(program) = self.programs.find(&grant.program, sent)? else {
            return Ok(InstallAnswer::NeedsProgram);
        };
        let underway = Arc::new(RunningInstall {
            plan: grant.plan,
            counter: Arc::default(),
            released: AtomicBool::new(false),
        });
        self.installing().insert(grant.lease, underway.clone());
        // The install belongs to no step: the step number of the key has no meaning.
        let key = StepKey {
            lease: grant.lease,
            n: 0,
        };
        step_event!("install", key);
        // The drop ends the listing when the install is cancelled, too.
        let _listed = InstallListing(self, key);
        let installed = self.install_counted(grant, &program, &underway).await;
        installed.map(|()| InstallAnswer::Installed)
    }

    fn forgone(&self) -> MutexGuard<'_, EarlyReleases> {
        self.forgone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn installing(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Arc<RunningInstall>>> {
        self.installing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once released leases have freed their memory, or have had [`SETTLE_BOUND`] to: kernels that run for them
    /// must notice first. Leases that were released during their install count as well.
    async fn settled(&self) {
        let settle = async {
            loop {
                let freed = self.ledger.freed().notified();
                tokio::pin!(freed);
                // The waiter registers before it looks, so that it does not miss memory that is freed in between.
                freed.as_mut().enable();
                if self.has_settled() {
                    return;
                }
                freed.await;
            }
        };
        if tokio::time::timeout(SETTLE_BOUND, settle).await.is_err() {
            tracing::warn!("a lease that was released still holds its memory");
        }
    }

    fn has_settled(&self) -> bool {
        self.settling() == 0
    }

    /// Number of released leases whose memory is still in use.
    fn settling(&self) -> usize {
        let installing = self.installing();
        let released = installing.values();
        let released = released.filter(|u| u.released.load(Ordering::Relaxed));
        let released = released.count();
        drop(installing);
        let mut ending = self.ending();
        ending.retain(|(l, e)| l.strong_count() + e.strong_count() > 0);
        ending.len() + released
    }

    /// Number of things held for clients, by table.
    pub fn tables(&self) -> Vec<(&'static str, usize)> {
        // These locks are taken before the list is built: a lock taken within the list is held until its end.
        let (programs, installs) = (self.held().len(), self.installing().len());
        vec![
            ("programs", programs),
            ("installs", installs),
            ("releases", self.settling()),
            ("sessions", self.eager.count()),
        ]
    }

    fn ending(&self) -> MutexGuard<'_, Vec<(Weak<Lease>, Weak<Executor>)>> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn install_counted(
        self: &Arc<Self>,
        grant: Grant,
        hashed: &HashedProgram,
        underway: &RunningInstall,
    ) -> Result<()> {
        if self.forgone().0.contains(&grant.lease) {
            return Err(released_early(grant.lease));
        }
        let violation = |why: &str| Err(Error::new(Code::ProtocolViolation, why));
        let program = hashed.program().clone();
        grant.check(&program)?;
        if program.profile != NUMERICS_PROFILE {
            let msg = format!(
                "worker {} computes under profile {NUMERICS_PROFILE}, the plan under {}",
                self.me.name, program.profile
            );
            return Err(Error::new(Code::VersionMismatch, msg));
        }
        let mine = grant.participants.get(usize::from(grant.me));
        if !mine.is_some_and(|p| p.name == self.me.name && p.incarnation == self.me.incarnation) {
            return violation("the grant is for another worker");
        }
        let links = self.links(&grant, &program).await?;
        self.settled().await;
        if underway.released.load(Ordering::Relaxed) {
            return Err(released_early(grant.lease));
        }
        let needed: Vec<Arc<Link>> = links.iter().flatten().cloned().collect();
        let driver = &grant.participants[grant.participants.len() - 1];
        let ledger = account_of(&self.ledger, links.last().and_then(Option::as_ref));
        let records = self.records.of(links.last().and_then(Option::as_ref));
        let code = records.reserve(hashed.encoded_bytes().saturating_mul(LOWERED))?;
        let paid = self.programs.keep(hashed, &records)?;
        let weights = Pool::new(&ledger, Purpose::Weights, 0)?;
        let client = self.client_source(driver, &links);
        let loader = Loader::new(
            self.world.clone(),
            self.root.clone(),
            self.cache.clone(),
            client,
            self.loaded.clone(),
            self.load_buffer.clone(),
        );
        let name = model_name(&program.name);
        let driver_link = links.last().and_then(Option::as_ref);
        let share = share_of(driver_link, &driver.name, grant.lease);
        let mut ready = install::prepare(
            &self.engine,
            &share,
            program.clone(),
            Arc::new(loader),
            weights,
            &self.weights,
            &underway.counter,
        )
        .await?;
        let device = self.engine.device.clone().map(|owned| OwnedDevice {
            memory: account_of(&owned.memory, links.last().and_then(Option::as_ref)),
            ..owned
        });
        if let Some(owned) = &device {
            copy_constants(&mut ready.installed, owned, &share)
                .await
                .map_err(|e| e.at(self.engine.place()))?;
        }
        // The memory of steps is reserved only now: the plan counts on loading and steps needing memory one after the
        // other.
        let step_bytes = grant.step_bytes.saturating_mul(u64::from(grant.in_flight));
        let pool = match lends(&program, &grant.axes, &links).await {
            true => Pool::shared(&ledger, Purpose::Leases, step_bytes)?,
            false => Pool::new(&ledger, Purpose::Leases, step_bytes)?,
        };
        let device = device.filter(|_| ready.installed.code.uses_device());
        let queue = device.map(|owned| {
            let memory = &owned.memory;
            let opened = owned
                .device
                .open(&share, memory, Purpose::Leases, step_bytes);
            opened.map_err(|e| e.at(self.engine.place()))
        });
        let queue = queue.transpose()?;
        let (me, id) = (Arc::downgrade(self), grant.lease);
        let driver_gone = Box::new(move || {
            if let Some(me) = me.upgrade() {
                me.drop_lease(id);
            }
        });
        let executor = Executor::new(
            self.engine.clone(),
            Arc::new(ready.installed),
            share,
            pool.clone(),
            links,
            grant.in_flight,
            driver_gone,
        );
        let recvs = program
            .recvs
            .iter()
            .map(|r| RecvSpec {
                from: r.from,
                ty: program.values[r.value as usize].ty.clone(),
            })
            .collect();
        let handler: Arc<dyn StepHandler> = executor.clone();
        let lease = Arc::new(Lease::new(
            grant.lease,
            grant.me,
            grant.participants,
            grant.axes,
            grant.in_flight,
            recvs,
            pool,
            handler,
        ));
        executor.attach(&lease);
        if let Some(queue) = queue {
            executor.use_device(queue);
        }
        executor.serve_handles(self.eager.clone());
        let held = InstalledLease {
            lease: lease.clone(),
            executor,
            name,
            weights_bytes: ready.weights_bytes,
            _weights: ready.weights,
            _code: code,
            _program: paid,
            _pins: ready.pins,
        };
        self.held().insert(lease.id, held);
        self.hub.add_lease(lease.clone());
        if underway.released.load(Ordering::Relaxed) {
            self.release(lease.id);
            return Err(released_early(lease.id));
        }
        // A link that ended before the hub knew the lease has reported its end to no one.
        if let Some(l) = needed.iter().find(|l| l.is_closed()) {
            self.release(lease.id);
            let msg = format!(
                "worker {} lost contact with {} while it installed {}",
                self.me.name,
                l.peer().name,
                program.name
            );
            return Err(gone(&l.peer().name, msg));
        }
        tracing::info!(lease = %lease.id, model = program.name, "installed");
        Ok(())
    }

    fn client_source(
        &self,
        driver: &Participant,
        links: &[Option<Arc<Link>>],
    ) -> Option<ClientSource> {
        let local = self
            .local_clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = local.get(&driver.name) {
            return Some(ClientSource::Local(source.clone()));
        }
        let link = links.last()?.as_ref()?;
        link.connection().map(|c| ClientSource::Remote(c.clone()))
    }

    /// Frees a lease because its driver is done with it or lost. The coordinator is told once it can be reached.
    fn drop_lease(&self, id: LeaseId) {
        self.release(id);
        self.dropped.note(id);
    }

    /// Frees a lease; its steps in flight end.
    pub fn release(&self, id: LeaseId) {
        let installing = self.installing().get(&id).cloned();
        if let Some(underway) = &installing {
            underway.released.store(true, Ordering::Relaxed);
        }
        let Some(held) = self.held().remove(&id) else {
            if installing.is_none() {
                self.forgone().note(id);
            }
            return;
        };
        let error = Error::new(Code::LeaseRetired, format!("{id} was released"));
        if mutant!("release-keeps-memory") {
            std::mem::forget(held.lease.clone());
        }
        let ending = (Arc::downgrade(&held.lease), Arc::downgrade(&held.executor));
        self.has_settled();
        self.ending().push(ending);
        held.executor.abort_all(&error);
        drop(self.hub.remove_lease(id));
        tracing::info!(lease = %id, "released");
    }

    /// The executor of a lease, if this client is its driver.
    pub(crate) fn executor_of(&self, lease: LeaseId, client: &Peer) -> Option<Arc<Executor>> {
        let held = self.held();
        let held = held.get(&lease)?;
        let driver = held.lease.participants.last()?;
        (Peer::of(driver, Role::Client) == *client).then(|| held.executor.clone())
    }

    fn executors(&self) -> Vec<Arc<Executor>> {
        let held = self.held();
        held.values().map(|h| h.executor.clone()).collect()
    }

    /// Marks the worker as wedged by a kernel: it takes no new work and ends its steps. The memory that it holds stays
    /// taken.
    pub fn wedge(&self, error: &Error) {
        tracing::error!("{}", error.message);
        self.engine.gate.wedge(error);
        self.executors().iter().for_each(|e| e.wedge(error));
    }

    /// Marks the worker as wedged by a compute thread that has stopped for good while it worked for this share.
    pub fn stands_still(&self, thread: &str, share: &Share) {
        let held = self.held();
        let executor = held.get(&share.lease()).map(|h| h.executor.clone());
        drop(held);
        let node = executor.and_then(|e| e.node_at_work());
        let doing = node.unwrap_or_else(|| share.lease().to_string());
        let (worker, client) = (&self.me.name, share.member());
        let msg = format!(
            "worker {worker} is wedged: compute thread {thread} stands still, at work on {doing} for {client}"
        );
        let error = Error::new(Code::Wedged, msg)
            .advise("its process ends and returns by itself where a supervisor runs it; else restart it")
            .at(self.engine.place());
        self.wedge(&error);
    }

    /// Ends every step in flight with `error`, lets the peers read all that was sent to them, and frees all leases.
    /// Takes at most `bound`.
    pub async fn end(&self, error: &Error, bound: Duration) {
        self.executors().iter().for_each(|e| e.abort_all(error));
        self.eager.stop();
        // Running kernels must notice that they are cancelled; only then is the outcome of their steps sent.
        let idle = tokio::time::timeout(bound / 2, self.engine.gate.idle()).await;
        if idle.is_err() {
            tracing::warn!("a kernel goes on while its worker ends");
        }
        let links = self.hub.links();
        let finished = join_all(links.iter().map(|l| l.finish()));
        if tokio::time::timeout(bound / 2, finished).await.is_err() {
            tracing::warn!("not all peers have read what was sent to them");
        }
        self.eager.end();
        let all = std::mem::take(&mut *self.held());
        all.keys().for_each(|id| drop(self.hub.remove_lease(*id)));
    }

    /// The leases that are held, as the coordinator is told of them.
    pub fn leases(&self) -> Vec<HeldLease> {
        let held = self.held();
        let of = |h: &InstalledLease| {
            let driver = h.lease.participants.last()?;
            Some(HeldLease {
                lease: h.lease.id,
                model: h.name.clone(),
                driver: (driver.name.clone(), driver.incarnation),
            })
        };
        held.values().filter_map(of).collect()
    }

    /// How far the install of a plan has got.
    pub fn progress(&self, plan: PlanId) -> Progress {
        let installing = self.installing();
        let underway = installing.values().find(|u| u.plan == plan);
        underway.map_or(Progress::default(), |u| Progress {
            done: u.counter.done.load(Ordering::Relaxed),
            total: u.counter.total.load(Ordering::Relaxed),
        })
    }

    /// The memory of the worker's device, where it is not the host itself.
    fn device_memory(&self) -> Option<DeviceMemory> {
        let owned = self.engine.device.as_ref()?;
        Some(DeviceMemory {
            budget: owned.memory.limit(),
            used: owned.memory.used(),
            peak: owned.memory.total_and_peak().1,
        })
    }

    /// How much of the worker's memory is in use, and by whom.
    pub fn memory(&self) -> MemoryUse {
        let mut used = self.ledger.used();
        // What a program needs may lie on the host or on the device, so that the scarcer of the two counts.
        for (purpose, bytes) in self.device_memory().into_iter().flat_map(|m| m.used) {
            let most = used.entry(purpose).or_default();
            *most = bytes.max(*most);
        }
        MemoryUse {
            used,
            holdings: self.ledger.holdings(),
        }
    }

    /// The worker's status.
    pub fn status(&self) -> WorkerStatus {
        let (resident, resident_peak) = resident(&self.world);
        let held = self.held();
        let programs = held
            .values()
            .map(|h| ProgramStatus {
                lease: h.lease.id,
                name: h.name.clone(),
                driver: h.lease.name_of(h.lease.driver()).to_owned(),
                nodes: h.executor.nodes(),
                weights_bytes: h.weights_bytes,
                shared_weights_bytes: h.executor.shared_bytes(),
            })
            .collect();
        let live_steps = held.values().map(|h| h.executor.live_steps()).sum();
        drop(held);
        let (live_handles, handle_bytes) = self.eager.live();
        let refused = self.hub.refused().into_iter();
        let refused = refused.chain(self.detector.refused());
        let refused = refused.chain(self.refused.counted());
        WorkerStatus {
            incarnation: self.me.incarnation,
            memory_budget: self.ledger.limit(),
            memory_used: self.ledger.used(),
            memory_peak: self.ledger.total_and_peak().1,
            device_memory: self.device_memory(),
            resident,
            resident_peak,
            programs,
            live_steps,
            steps_done: self.engine.steps_done.load(Ordering::Relaxed),
            steps_failed: self.engine.failures.counted(),
            live_handles,
            handle_bytes,
            links: self.hub.links().iter().map(|l| l.status()).collect(),
            refused: refused.collect(),
            cache_bytes: self.cache.as_ref().map_or(0, |c| c.bytes()),
            loaded: self.loaded.get(),
            weights: self.weights.status(),
            program_store: self.programs.status(),
            holdings: self.records.holdings(),
            connections: self.members.open(),
            compute: self.engine.compute.turns(),
        }
    }
}

fn released_early(lease: LeaseId) -> Error {
    let msg = format!("{lease} was released while it was installed");
    Error::new(Code::LeaseRetired, msg)
}

/// Resident and peak resident bytes of this process, VmRSS and VmHWM; zeros where the system does not tell.
pub fn resident(world: &World) -> (u64, u64) {
    let path = std::path::Path::new("/proc/self/status");
    let text = world.store.read(path, 1 << 16).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let field = |name: &str| {
        let line = text.lines().find(|l| l.starts_with(name))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib * 1024)
    };
    (field("VmRSS:").unwrap_or(0), field("VmHWM:").unwrap_or(0))
}

/// A random incarnation for a new process.
pub fn incarnation(world: &World) -> Incarnation {
    Incarnation(u64::from_le_bytes(world.rng.bytes()))
}
