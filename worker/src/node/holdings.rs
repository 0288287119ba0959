//! The holdings of a worker: leases, links to peers, and its status.

mod bodies;
mod core;
mod installing;
mod links;
mod sessions;
mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use convoke_common::actor::SharedCore;
use convoke_common::counters::Counters;
use convoke_common::detection::Detector;
use convoke_common::error::{Code, Error};
use convoke_common::identity::{RevocationList, TokenId};
use convoke_common::ids::{Incarnation, LeaseId};
use convoke_common::members::Members;
use convoke_common::memory::{Ledger, Pool, Reservation};
use convoke_common::mutant;
use convoke_common::world::{Endpoint, Share, World};
use convoke_rendezvous::artifacts::ArtifactSource;
use convoke_rendezvous::eager::EagerService;
use convoke_rendezvous::remote::Dialler;
use convoke_rendezvous::{Hub, Lease, Link, Peer};
use futures::future::join_all;
use tokio::sync::{Notify, Semaphore};

use crate::device::DeviceQueue;
use crate::eager::Sessions;
use crate::executor::{Engine, Executor};
use crate::health::wedge::RETURNS;
use crate::node::connections::{self, ServedConnections};
use crate::node::records::Records;
use crate::program::store::{ProgramPayment, ProgramStore};
use crate::weights::cache::{Cache, Pins};
use crate::weights::load_buffer::LoadBuffer;
use crate::weights::loader::LoadedBytes;
use crate::weights::store::WeightStore;
pub use status::resident;

use self::core::{Command, Core};

/// How long an install waits for the memory of released leases: kernels notice their end within milliseconds.
const SETTLE_BOUND: Duration = Duration::from_secs(1);

/// Bytes that the lowered form of a program, which each lease has of its own, takes in memory for each byte that the
/// program takes on the wire.
const LOWERED: u64 = 1;

/// Likewise the bytes of a program that is divided between the host and a device with memory of its own.
const DIVIDED: u64 = 3;

/// Probes that are answered at once.
const PROBES: usize = 4;

/// An installed lease, with everything that is freed with it.
struct InstalledLease {
    lease: Arc<Lease>,
    executor: Arc<Executor>,
    name: String,
    weights_bytes: u64,
    /// The parts of partitioned bodies, which are leases of their own.
    bodies: Vec<InstalledLease>,
    _weights: Pool,
    _code: Reservation,
    _program: ProgramPayment,
    _pins: Option<Pins>,
}

impl InstalledLease {
    /// The lease itself, then those of its bodies.
    fn each(&self) -> impl Iterator<Item = &InstalledLease> {
        std::iter::once(self).chain(&self.bodies)
    }

    /// Returns weak references that tell, once the lease was released, whether anything of it is still in use.
    fn remains(&self) -> Vec<EndingLease> {
        let remains = self.each().map(|part| EndingLease {
            lease: Arc::downgrade(&part.lease),
            executor: Arc::downgrade(&part.executor),
            queue: part.executor.queue().map(Arc::downgrade),
        });
        remains.collect()
    }
}

/// A lease that was released. Its memory is free once nothing holds any of its parts.
struct EndingLease {
    lease: Weak<Lease>,
    executor: Weak<Executor>,
    /// The lease's queue at the worker's device, which holds the device memory of its steps.
    queue: Option<Weak<dyn DeviceQueue>>,
}

impl EndingLease {
    fn is_held(&self) -> bool {
        let queue = self.queue.as_ref().map_or(0, Weak::strong_count);
        self.lease.strong_count() + self.executor.strong_count() + queue > 0
    }
}

type LeaseCore = Core<Arc<InstalledLease>, Vec<EndingLease>>;

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
    /// The memory for records, which are everything besides tensors that is remembered.
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
    /// The leases. No kernel runs, no peer is called and no lease is destroyed under its lock.
    leases: SharedCore<LeaseCore>,
    /// The sources of artifacts of the clients in this process, by name.
    local_clients: Mutex<BTreeMap<String, Arc<dyn ArtifactSource>>>,
    /// Told of each lease that this worker dropped by itself, which the coordinator is to hear of.
    dropped: Notify,
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
        let members = Members::new(connections::bounds(ledger.limit()));
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
            leases: SharedCore::default(),
            local_clients: Mutex::default(),
            dropped: Notify::new(),
        });
        let worker = Arc::downgrade(&node);
        node.eager.attach(worker);
        node
    }

    fn local_clients(&self) -> MutexGuard<'_, BTreeMap<String, Arc<dyn ArtifactSource>>> {
        let all = self.local_clients.lock();
        all.unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_leases<R>(&self, event: impl FnOnce(&mut LeaseCore) -> R) -> R {
        self.leases.tell(event, |command| self.perform(command))
    }

    fn perform(&self, command: Command<Arc<InstalledLease>>) {
        match command {
            Command::Retire(lease) => self.retire(&lease),
            Command::Unlist(lease) => self.unlist(&lease),
            Command::Report => self.dropped.notify_one(),
            Command::Wake => self.ledger.freed().notify_waiters(),
        }
    }

    /// The leases that are held. They may have been released by the time the caller looks at them.
    fn held(&self) -> Vec<Arc<InstalledLease>> {
        self.leases
            .look(|leases| leases.all_held().cloned().collect())
    }

    fn held_lease(&self, id: LeaseId) -> Option<Arc<InstalledLease>> {
        self.leases.look(|leases| leases.held(id).cloned())
    }

    /// Links a client of this process, whose artifacts are read by calling `source`.
    pub fn add_local_client(&self, client: &Arc<Hub>, source: Arc<dyn ArtifactSource>) {
        let name = client.me.name.clone();
        let former = self.local_clients().insert(name, source);
        drop(former);
        Link::join_local(&self.hub, client);
    }

    /// Revokes tokens: their handshakes are refused from now on, and their open connections end.
    pub fn revoke(&self, token_ids: Vec<TokenId>) {
        self.revoked.extend(token_ids);
        self.served.end(&self.revoked);
    }

    /// Frees a lease because its driver is done with it or lost. The coordinator is told once it can be reached.
    fn drop_lease(&self, id: LeaseId) {
        self.tell_leases(|leases| leases.driver_gone(id));
        self.settling();
    }

    /// Returns when there may be further dropped leases to report.
    pub async fn more_dropped(&self) {
        self.dropped.notified().await;
    }

    /// Takes the leases that this worker dropped and that the coordinator has yet to hear of; the caller reports them.
    pub fn take_dropped(&self) -> Vec<LeaseId> {
        self.tell_leases(LeaseCore::take_dropped)
    }

    /// Frees a lease; its steps in flight end.
    pub fn release(&self, id: LeaseId) {
        self.tell_leases(|leases| leases.release(id));
        self.settling();
    }

    /// Number of released leases whose memory is still in use. Those of which nothing is left are let go of.
    fn settling(&self) -> usize {
        let in_use = |parts: &Vec<EndingLease>| parts.iter().any(EndingLease::is_held);
        let settle = |leases: &mut LeaseCore| (leases.settle(in_use), leases.settling());
        self.tell_leases(settle).1
    }

    /// Ends the steps of a lease that was released, and has its frames refused from now on.
    fn retire(&self, lease: &InstalledLease) {
        let id = lease.lease.id;
        if mutant!("release-keeps-memory") {
            std::mem::forget(lease.lease.clone());
        }
        for part in lease.each() {
            part.executor.release(id);
        }
        self.unlist(lease);
        tracing::info!(lease = %id, "released");
    }

    fn unlist(&self, lease: &InstalledLease) {
        for part in lease.each() {
            drop(self.hub.remove_lease(part.lease.id));
        }
    }

    fn executors(&self) -> Vec<Arc<Executor>> {
        let held = self.held();
        let all = held.iter().flat_map(|h| h.each());
        all.map(|h| h.executor.clone()).collect()
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
        let held = self.held_lease(share.lease());
        let mut parts = held.iter().flat_map(|h| h.each());
        let node = parts.find_map(|h| h.executor.node_at_work());
        let doing = node.unwrap_or_else(|| share.lease().to_string());
        let (worker, client) = (&self.me.name, share.member());
        let msg = format!(
            "worker {worker} is wedged: compute thread {thread} stands still, at work on {doing} for {client}"
        );
        let error = Error::new(Code::Wedged, msg)
            .advise(RETURNS)
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
        self.tell_leases(LeaseCore::end);
    }
}

/// A random incarnation for a new process.
pub fn incarnation(world: &World) -> Incarnation {
    Incarnation(u64::from_le_bytes(world.rng.bytes()))
}
