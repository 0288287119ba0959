//! What a worker holds: leases, links to peers, and the account of both.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::admission::reach;
use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::{RevocationList, Role};
use convoke_common::ids::{Incarnation, LeaseId, ParticipantIx, PlanId};
use convoke_common::memory::{Account, Ledger, Pool};
use convoke_common::program::{Grant, NUMERICS_PROFILE, Participant};
use convoke_common::rpc::{LinkReport, ProgramStatus, Progress, WorkerStatus};
use convoke_common::world::{Endpoint, World};
use convoke_rendezvous::artifacts::ArtifactSource;
use convoke_rendezvous::{Hub, Lease, Link, Peer, RecvSpec, StepHandler, probe, remote};

use crate::cache::{Cache, Pins};
use crate::executor::{Engine, Executor};
use crate::install::{self, Counter};
use crate::loader::{ClientSource, Loaded, Loader};

/// How long a peer of a new lease may take to link itself: it installs the same lease right now.
const LINK_BOUND: Duration = Duration::from_secs(10);

/// A lease, and everything that is freed with it.
struct Held {
    lease: Arc<Lease>,
    executor: Arc<Executor>,
    name: String,
    weights_bytes: u64,
    _weights: Pool,
    _pins: Option<Pins>,
}

/// An install that runs.
struct Listed<'a>(&'a Node, PlanId);

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.0.installing().remove(&self.1);
    }
}

/// See the module.
pub struct Node {
    pub world: World,
    pub me: Peer,
    pub hub: Arc<Hub>,
    pub endpoint: Endpoint,
    pub engine: Arc<Engine>,
    pub ledger: Ledger,
    pub cache: Option<Arc<Cache>>,
    pub root: Option<PathBuf>,
    pub revoked: Arc<RevocationList>,
    loaded: Arc<Loaded>,
    held: Mutex<BTreeMap<LeaseId, Held>>,
    installing: Mutex<BTreeMap<PlanId, Arc<Counter>>>,
    local_clients: Mutex<BTreeMap<String, Arc<dyn ArtifactSource>>>,
}

impl Node {
    /// A worker that holds nothing yet.
    pub fn new(
        world: World,
        me: Peer,
        endpoint: Endpoint,
        engine: Arc<Engine>,
        ledger: Ledger,
        cache: Option<Arc<Cache>>,
        root: Option<PathBuf>,
        revoked: Arc<RevocationList>,
    ) -> Arc<Node> {
        Arc::new(Node {
            hub: Hub::new(me.clone()),
            world,
            me,
            endpoint,
            engine,
            ledger,
            cache,
            root,
            revoked,
            loaded: Arc::default(),
            held: Mutex::default(),
            installing: Mutex::default(),
            local_clients: Mutex::default(),
        })
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Links a client of this process, whose artifacts are read by a call.
    pub fn add_local_client(&self, client: &Arc<Hub>, source: Arc<dyn ArtifactSource>) {
        let mut local = self
            .local_clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        local.insert(client.me.name.clone(), source);
        Link::join_local(&self.hub, client);
    }

    /// Installs this worker's part of a lease.
    pub async fn install(self: &Arc<Self>, grant: Grant) -> Result<()> {
        let counter = Arc::new(Counter::default());
        let plan = grant.plan;
        self.installing().insert(plan, counter.clone());
        // Also when the install is cancelled.
        let _listed = Listed(self, plan);
        self.install_counted(grant, &counter).await
    }

    fn installing(&self) -> MutexGuard<'_, BTreeMap<PlanId, Arc<Counter>>> {
        self.installing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn install_counted(self: &Arc<Self>, grant: Grant, counter: &Counter) -> Result<()> {
        let violation = |why: &str| Err(Error::new(Code::ProtocolViolation, why));
        let program = grant.program.clone();
        program.check()?;
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
        let others = grant.participants.len();
        let known = |ix: ParticipantIx| usize::from(ix) < others && ix != grant.me;
        let sources = program.recvs.iter().map(|r| r.from);
        if !sources.chain(program.sends.iter().map(|s| s.to)).all(known) || grant.in_flight == 0 {
            return violation("the grant names participants that do not exist");
        }
        let links = self.links(&grant).await?;
        let needed: Vec<Arc<Link>> = links.iter().flatten().cloned().collect();
        let step_bytes = grant.step_bytes.saturating_mul(u64::from(grant.in_flight));
        let pool = Pool::new(&self.ledger, Account::Leases, step_bytes)?;
        let weights = Pool::new(&self.ledger, Account::Weights, 0)?;
        let driver = &grant.participants[others - 1];
        let client = self.client_source(driver, &links);
        let loader = Loader::new(
            self.world.clone(),
            self.root.clone(),
            self.cache.clone(),
            client,
            self.loaded.clone(),
        );
        let name = program.name.clone();
        let ready = install::prepare(
            &self.engine,
            program.clone(),
            Arc::new(loader),
            weights,
            counter,
        )
        .await?;
        let (me, id) = (Arc::downgrade(self), grant.lease);
        let driver_lost = Box::new(move || {
            if let Some(me) = me.upgrade() {
                me.release(id, None);
            }
        });
        let executor = Executor::new(
            self.engine.clone(),
            ready.installed,
            pool.clone(),
            links,
            grant.in_flight,
            driver_lost,
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
        let held = Held {
            lease: lease.clone(),
            executor,
            name,
            weights_bytes: ready.weights_bytes,
            _weights: ready.weights,
            _pins: ready.pins,
        };
        self.held().insert(lease.id, held);
        self.hub.add_lease(lease.clone());
        // A link that ended before the lease was in the hub told nobody.
        if let Some(l) = needed.iter().find(|l| l.is_closed()) {
            self.release(lease.id, None);
            let msg = format!(
                "worker {} lost contact with {} while it installed {}",
                self.me.name,
                l.peer().name,
                program.name
            );
            return Err(Error::new(Code::PeerLost, msg));
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

    /// The links that a grant needs: to the driver, and to workers with a common edge. Of two workers the
    /// one whose name sorts first dials, the other waits to be dialled.
    async fn links(self: &Arc<Self>, grant: &Grant) -> Result<Vec<Option<Arc<Link>>>> {
        let driver = grant.participants.len() - 1;
        let mut links = Vec::new();
        for (i, p) in grant.participants.iter().enumerate() {
            let ix = i as ParticipantIx;
            let needed = i == driver
                || grant.program.recvs.iter().any(|r| r.from == ix)
                || grant.program.sends.iter().any(|s| s.to == ix);
            if ix == grant.me || !needed {
                links.push(None);
                continue;
            }
            let dial = i != driver && self.me.name < p.name;
            links.push(Some(self.link_to(p, dial).await?));
        }
        Ok(links)
    }

    async fn link_to(self: &Arc<Self>, p: &Participant, dial: bool) -> Result<Arc<Link>> {
        let peer = Peer {
            name: p.name.clone(),
            incarnation: p.incarnation,
        };
        if let Some(link) = self.hub.link(&peer) {
            return Ok(link);
        }
        if dial {
            let link = self.dial(p).await?;
            if link.peer() != &peer {
                let msg = format!("{} was restarted since the plan was made", p.name);
                return Err(Error::new(Code::PeerLost, msg));
            }
            return Ok(link);
        }
        self.hub.await_link(&peer, LINK_BOUND).await.ok_or_else(|| {
            let msg = format!("{} did not connect to worker {}", p.name, self.me.name);
            Error::new(Code::Unreachable, msg).advise(
                "start the worker with --advertise HOST:PORT, an address that the others can reach",
            )
        })
    }

    async fn dial(self: &Arc<Self>, p: &Participant) -> Result<Arc<Link>> {
        let unreachable = |e: Error| {
            let msg = format!(
                "worker {} cannot reach {} at {}: {}",
                self.me.name, p.name, p.address, e.message
            );
            Error::new(Code::Unreachable, msg).advise(format!(
                "start {} with --advertise HOST:PORT, an address that the others can reach",
                p.name
            ))
        };
        let dialled = reach(&self.world, &self.endpoint, &p.address, Role::Worker).await;
        let dialled = dialled.map_err(unreachable)?;
        let name = dialled.identity.name.as_str().to_owned();
        if name != p.name {
            return Err(Error::new(
                Code::Unreachable,
                format!("{} is answered by worker {name}, not {}", p.address, p.name),
            ));
        }
        crate::service::serve_connection(
            self,
            dialled.connection.clone(),
            Role::Worker,
            name.clone(),
        );
        remote::dial_lane(&self.world, &self.hub, dialled.connection, name).await
    }

    /// Frees a lease; its steps in flight end, because of the loss of the worker `lost` or of their driver.
    pub fn release(&self, id: LeaseId, lost: Option<&str>) {
        let Some(held) = self.held().remove(&id) else {
            return;
        };
        let error = match lost {
            Some(peer) => {
                let msg = format!("lost contact with {peer}: the coordinator says that it is gone");
                Error::new(Code::PeerLost, msg)
            }
            None => Error::new(Code::LeaseRetired, format!("{id} was released")),
        };
        held.executor.abort_all(&error);
        self.hub.remove_lease(id);
        tracing::info!(lease = %id, "released");
    }

    /// Ends every step in flight with `error` and frees all leases.
    pub fn release_all(&self, error: &Error) {
        let all: Vec<Held> = std::mem::take(&mut *self.held()).into_values().collect();
        for held in all {
            held.executor.abort_all(error);
            self.hub.remove_lease(held.lease.id);
        }
    }

    /// How far the install of a plan is.
    pub fn progress(&self, plan: PlanId) -> Progress {
        self.installing()
            .get(&plan)
            .map_or(Progress::default(), |c| Progress {
                done: c.done.load(Ordering::Relaxed),
                total: c.total.load(Ordering::Relaxed),
            })
    }

    /// Measures the links to other workers.
    pub async fn probe(self: &Arc<Self>, peers: Vec<Participant>) -> Vec<LinkReport> {
        let mut reports = Vec::new();
        for p in peers {
            let measured = match self.link_to(&p, true).await {
                Ok(link) => match link.connection() {
                    Some(c) => probe::probe(c).await,
                    None => Err(Error::internal("workers link over QUIC")),
                },
                Err(e) => Err(e),
            };
            reports.push(match measured {
                Ok((rtt, bandwidth)) => LinkReport {
                    peer: p.name,
                    round_trip: rtt.as_nanos() as u64,
                    bandwidth,
                    failure: None,
                },
                Err(e) => LinkReport {
                    peer: p.name,
                    round_trip: 0,
                    bandwidth: 0.0,
                    failure: Some(e.to_string()),
                },
            });
        }
        reports
    }

    /// This worker's account.
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
            })
            .collect();
        let live_steps = held.values().map(|h| h.executor.live_steps()).sum();
        drop(held);
        WorkerStatus {
            incarnation: self.me.incarnation,
            memory_budget: self.ledger.budget(),
            memory_used: self.ledger.used(),
            memory_peak: self.ledger.total_and_peak().1,
            resident,
            resident_peak,
            programs,
            live_steps,
            steps_done: self.engine.steps_done.load(Ordering::Relaxed),
            links: self.hub.links().iter().map(|l| l.status()).collect(),
            refused: self.hub.refused(),
            cache_bytes: self.cache.as_ref().map_or(0, |c| c.bytes()),
            loaded: self.loaded.get(),
        }
    }
}

/// VmRSS and VmHWM of this process in bytes; zeros where the system does not tell.
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

/// A fresh incarnation.
pub fn incarnation(world: &World) -> Incarnation {
    Incarnation(u64::from_le_bytes(world.rng.bytes()))
}
