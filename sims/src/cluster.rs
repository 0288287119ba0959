//! A simulated cluster: production coordinator, workers and clients, each a process on a host of its own.
//!
//! ```text
//! let mut cluster = Cluster::new(Setup { seed: 7, workers: 3, ..Setup::default() });
//! assert!(cluster.settle(Duration::from_secs(10)));        // all workers registered, all clients connected
//! let call = cluster.on_client(0, |c| async move { ... c: convoke::Cluster ... });   // runs on the client's host
//! cluster.kill(Host::Worker(1));                           // faults: methods, at any time between ticks
//! cluster.run_until(Duration::from_secs(5), |_| call.is_over());
//! let outcome = call.take();                               // None: its process ended first
//! ```
//!
//! Time passes in [`Cluster::tick`] alone, 1 ms at a time. Between ticks nothing runs, so that the live processes
//! ([`Cluster::coordinator`], [`Cluster::worker`], [`Cluster::client`]) show one consistent picture; drop their handles
//! before the next tick. [`Cluster::trace`] records what happened.
//!
//! While a run goes on, a scenario may set the [`Knobs`] of a host (compute, disk, calendar) and the
//! [`Wire`](crate::world::Wire) of a directed link, and cause the faults in [`faults`].
//!
//! A supervisor restarts processes that end by themselves; a process that a scenario killed stays down until
//! [`Cluster::start`].

pub mod faults;
mod process;
mod task;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use convoke_common::identity::Budget;
use convoke_rendezvous::Hub;
use tracing::{Dispatch, Level};

use crate::event_log::{EventLog, Recorder};
use crate::history::{Listing, Reply, Request, RequestId};
use crate::world::{EPOCH, Knobs, Machine, SharedWorld, SimTime, Turn, Wires, unexpected, watch};

pub use crate::world::Host;
pub use task::Task;

use process::{Process, Site};
use tokens::Tokens;

/// How much virtual time passes in one tick.
pub const TICK: Duration = Duration::from_millis(1);

/// How long a supervisor waits before it restarts a process that ended by itself.
const RESTART: Duration = Duration::from_millis(200);

/// Packets that a socket holds for a process that does not read them; further packets are lost.
const SOCKET_PACKETS: usize = 4096;

/// The size of a cluster, and what its hosts have.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The seed of every random choice of the simulation.
    pub seed: u64,
    /// The number of workers, which are named `w0`, `w1`, …
    pub workers: u16,
    /// The number of clients, which are named `c0`, `c1`, …
    pub clients: u16,
    /// Bytes that each worker may use.
    pub memory: u64,
    /// Bytes that the first workers may use, by worker; the workers beyond this list use `memory`.
    pub memories: Vec<u64>,
    /// By worker, whether its device is a simulated GPU; the workers beyond this list have none.
    pub simgpus: Vec<bool>,
    /// Bytes of each worker's chunk cache; 0 means that workers have no cache.
    pub cache: u64,
    /// Hosts that have a token of their own, and the budget of that token.
    pub own: BTreeMap<Host, Budget>,
    /// Prints the log of all processes to stderr, up to this level.
    pub print: Option<Level>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            seed: 0,
            workers: 2,
            clients: 1,
            memory: 64 << 20,
            memories: Vec::new(),
            simgpus: Vec::new(),
            cache: 4 << 20,
            own: BTreeMap::new(),
            print: None,
        }
    }
}

/// The state of a host's process, as its supervisor knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostState {
    /// Its process runs.
    Up,
    /// Its process ended, and the supervisor starts the next one at this time.
    Restarting(Duration),
    /// No process runs until [`Cluster::start`].
    Down,
}

/// A simulated cluster, with the methods by which a scenario observes and disturbs it.
pub struct Cluster {
    sim: turmoil::Sim<'static>,
    setup: Setup,
    time: SimTime,
    trace: EventLog,
    wires: Arc<Wires>,
    names: Arc<BTreeMap<String, IpAddr>>,
    tokens: Tokens,
    dispatch: Dispatch,
    coordinator: Site<process::CoordinatorHandle>,
    workers: Vec<Site<process::WorkerHandle>>,
    clients: Vec<Site<process::ClientHandle>>,
    states: BTreeMap<Host, HostState>,
    /// Directed pairs that a scenario cut.
    cuts: BTreeSet<(Host, Host)>,
    /// Hosts whose power failed.
    dark: BTreeSet<Host>,
    /// Directed pairs of hosts between which the network delivers nothing at present.
    severed: BTreeSet<(Host, Host)>,
    ends: Vec<(Duration, Host, String)>,
    /// The request that stands for the coordinator's restart, until its next process serves.
    restart: Option<RequestId>,
    stragglers: Vec<(Host, usize)>,
    panics: Vec<String>,
}

impl Cluster {
    /// Creates a cluster whose processes start with the first tick.
    pub fn new(setup: Setup) -> Cluster {
        watch();
        let mut sim = turmoil::Builder::new()
            .rng_seed(setup.seed)
            .epoch(UNIX_EPOCH + Duration::from_secs(EPOCH))
            .simulation_duration(Duration::MAX)
            .tick_duration(TICK)
            // Packets are delayed by the wires, and not by turmoil.
            .min_message_latency(Duration::ZERO)
            .max_message_latency(Duration::ZERO)
            .udp_capacity(SOCKET_PACKETS)
            .enable_random_order()
            .build();
        let hosts: Vec<Host> = std::iter::once(Host::Coordinator)
            .chain((0..setup.workers).map(Host::Worker))
            .chain((0..setup.clients).map(Host::Client))
            .collect();
        let address = |h: &Host| (h.name(), sim.lookup(h.name()));
        let names: Arc<BTreeMap<String, IpAddr>> = Arc::new(hosts.iter().map(address).collect());
        let time = SimTime::default();
        let trace = EventLog::new(time.clone());
        let wires = Arc::<Wires>::default();
        let common = SharedWorld {
            time: time.clone(),
            trace: trace.clone(),
            wires: wires.clone(),
            names: names.clone(),
        };
        let machine = |host| Arc::new(Machine::new(host, setup.seed, common.clone()));
        let tokens = Tokens::default();
        let coordinator = Site::new(machine(Host::Coordinator));
        let workers: Vec<_> = (0..setup.workers)
            .map(|i| Site::new(machine(Host::Worker(i))))
            .collect();
        let clients: Vec<_> = (0..setup.clients)
            .map(|i| Site::new(machine(Host::Client(i))))
            .collect();
        coordinator.install(&mut sim, {
            let (tokens, own) = (tokens.clone(), setup.own.clone());
            move |p| process::coordinator(p, tokens.clone(), own.clone())
        });
        for (i, site) in workers.iter().enumerate() {
            let (tokens, cache) = (tokens.clone(), setup.cache);
            let memory = setup.memories.get(i).copied().unwrap_or(setup.memory);
            let simgpu = setup.simgpus.get(i).copied().unwrap_or(false);
            site.install(&mut sim, move |p| {
                process::worker(p, tokens.clone(), memory, simgpu, cache)
            });
        }
        for site in &clients {
            let tokens = tokens.clone();
            site.install(&mut sim, move |p| process::client(p, tokens.clone()));
        }
        for site in &workers {
            let name = site.process().machine.member_name();
            trace.history().begin(Request::Start { name });
        }
        let recorder = Recorder::new(trace.clone(), time.clone(), setup.print);
        Cluster {
            sim,
            time,
            wires,
            names,
            tokens,
            dispatch: Dispatch::new(recorder),
            coordinator,
            workers,
            clients,
            states: hosts.into_iter().map(|h| (h, HostState::Up)).collect(),
            cuts: BTreeSet::new(),
            dark: BTreeSet::new(),
            severed: BTreeSet::new(),
            ends: Vec::new(),
            restart: None,
            stragglers: Vec::new(),
            panics: Vec::new(),
            trace,
            setup,
        }
    }

    /// Lets one millisecond pass.
    pub fn tick(&mut self) {
        self.time.set(self.sim.elapsed());
        let (sim, dispatch) = (&mut self.sim, &self.dispatch);
        let stepped = tracing::dispatcher::with_default(dispatch, || sim.step());
        // A host's main task never returns, and a panic of one of its tasks does not reach this loop.
        if let Err(e) = stepped {
            self.panics.push(format!("a host's main task ended: {e}"));
        }
        self.time.set(self.sim.elapsed());
        self.panics.extend(unexpected());
        if self.is_ready(Host::Coordinator)
            && let Some(restart) = self.restart.take()
        {
            self.trace.history().end(restart, Reply::Made);
        }
        self.supervise();
    }

    /// Lets time pass until `over` holds, at most for `bound`. Returns whether it holds.
    pub fn run_until(&mut self, bound: Duration, over: impl Fn(&Cluster) -> bool) -> bool {
        let end = self.elapsed() + bound;
        loop {
            if over(self) {
                return true;
            }
            if self.elapsed() >= end {
                return false;
            }
            self.tick();
        }
    }

    /// Lets this much time pass.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    /// Lets time pass until every process that should run does: workers are registered and clients connected.
    pub fn settle(&mut self, bound: Duration) -> bool {
        self.run_until(bound, |c| {
            let settled = |(h, s): (&Host, &HostState)| *s == HostState::Down || c.is_ready(*h);
            c.states.iter().all(settled)
        })
    }

    /// Time since the simulation began.
    pub fn elapsed(&self) -> Duration {
        self.sim.elapsed()
    }

    /// The simulation's clock, for tasks that run inside it.
    pub fn clock(&self) -> SimTime {
        self.time.clone()
    }

    /// The setup that this cluster was created with.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The record of everything that happened.
    pub fn trace(&self) -> &EventLog {
        &self.trace
    }

    /// All hosts: the coordinator, workers, clients.
    pub fn hosts(&self) -> Vec<Host> {
        self.states.keys().copied().collect()
    }

    /// The state of a host's process, as its supervisor knows it.
    pub fn state(&self, host: Host) -> HostState {
        self.states.get(&host).copied().unwrap_or(HostState::Down)
    }

    /// Whether a host's process runs, is registered or connected, and serves.
    pub fn is_ready(&self, host: Host) -> bool {
        self.process(host).is_some_and(Process::is_ready)
    }

    /// Whether the tasks of a host make progress: its process is up and not paused.
    pub fn is_running(&self, host: Host) -> bool {
        self.state(host) == HostState::Up && !self.machine(host).is_some_and(|m| m.gate.is_closed())
    }

    /// Directed pairs of hosts that a scenario cut.
    pub fn cuts(&self) -> &BTreeSet<(Host, Host)> {
        &self.cuts
    }

    /// Processes that ended, whether by themselves or as asked: when, on which host and why.
    pub fn ends(&self) -> &[(Duration, Host, String)] {
        &self.ends
    }

    /// Processes that left tasks behind when they stopped as asked, and how many tasks.
    pub fn stragglers(&self) -> &[(Host, usize)] {
        &self.stragglers
    }

    /// Panics that nobody injected. There must be none.
    pub fn panics(&self) -> &[String] {
        &self.panics
    }

    /// Tasks of a host that have not ended, except those of the transport.
    pub fn tasks(&self, host: Host) -> usize {
        self.machine(host).map_or(0, |m| m.gate.tasks())
    }

    /// Returns the jobs that ran on a host since the last call.
    pub fn turns(&self, host: Host) -> Vec<Turn> {
        self.machine(host).map_or(vec![], |m| m.turns.take())
    }

    /// The settings of a host's compute, disk and calendar.
    pub fn knobs(&self, host: Host) -> Arc<Knobs> {
        match self.machine(host) {
            Some(machine) => machine.knobs.clone(),
            None => Arc::default(),
        }
    }

    /// How many processes a host has run, the present one included.
    pub fn boots(&self, host: Host) -> u64 {
        self.machine(host).map_or(0, |m| m.boots())
    }

    /// Reads which members and leases the coordinator knows, for the history. The task is over once that is noted, or the
    /// coordinator's process has ended.
    pub fn observe(&self) -> Task<()> {
        let history = self.trace.history().clone();
        let read = history.begin(Request::Read);
        self.on_coordinator(move |c| async move {
            if let Ok((members, leases)) = c.known().await {
                let listing = Listing::of(&members, &leases);
                history.end(read, Reply::Listing(listing));
            }
        })
    }

    /// The coordinator's process, if it serves.
    pub fn coordinator(&self) -> Option<process::CoordinatorHandle> {
        self.coordinator.handle()
    }

    /// A worker's process, if it is registered.
    pub fn worker(&self, i: u16) -> Option<process::WorkerHandle> {
        self.workers.get(usize::from(i))?.handle()
    }

    /// A client's connection to the cluster, if it has one.
    pub fn client(&self, i: u16) -> Option<process::ClientHandle> {
        self.clients.get(usize::from(i))?.handle()
    }

    /// A worker's or client's end of the rendezvous, if its process serves.
    pub fn hub(&self, host: Host) -> Option<Arc<Hub>> {
        match host {
            Host::Coordinator => None,
            Host::Worker(i) => Some(self.worker(i)?.hub().clone()),
            Host::Client(i) => Some(self.client(i)?.hub().clone()),
        }
    }

    /// Runs `work` on the coordinator's host, once the coordinator serves. The task ends without a result if the
    /// process ends first.
    pub fn on_coordinator<T, F>(
        &self,
        work: impl FnOnce(process::CoordinatorHandle) -> F + Send + 'static,
    ) -> Task<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.coordinator.send(work)
    }

    /// Runs `work` on a worker's host, once the worker is registered.
    pub fn on_worker<T, F>(
        &self,
        i: u16,
        work: impl FnOnce(process::WorkerHandle) -> F + Send + 'static,
    ) -> Task<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        match self.workers.get(usize::from(i)) {
            Some(site) => site.send(work),
            None => Task::lost(),
        }
    }

    /// Runs `work` on a client's host, once the client is connected.
    pub fn on_client<T, F>(
        &self,
        i: u16,
        work: impl FnOnce(process::ClientHandle) -> F + Send + 'static,
    ) -> Task<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        match self.clients.get(usize::from(i)) {
            Some(site) => site.send(work),
            None => Task::lost(),
        }
    }

    fn process(&self, host: Host) -> Option<&Process> {
        match host {
            Host::Coordinator => Some(self.coordinator.process()),
            Host::Worker(i) => self.workers.get(usize::from(i)).map(|s| s.process()),
            Host::Client(i) => self.clients.get(usize::from(i)).map(|s| s.process()),
        }
    }

    fn machine(&self, host: Host) -> Option<&Arc<Machine>> {
        self.process(host).map(|p| &p.machine)
    }

    /// Ends the processes whose main function returned or whose power failed, and starts those whose restart is due.
    fn supervise(&mut self) {
        let now = self.elapsed();
        for host in self.hosts() {
            match self.state(host) {
                HostState::Up => {
                    let Some(process) = self.process(host) else {
                        continue;
                    };
                    if process.machine.disk.is_dark() {
                        self.fail_power(host);
                        self.states
                            .insert(host, HostState::Restarting(now + RESTART));
                        continue;
                    }
                    let Some(end) = process.take_end() else {
                        continue;
                    };
                    // A process may have ended by itself before it could notice that it was asked to.
                    let asked = end.wanted || process.is_asked_to_stop();
                    self.end(host);
                    if end.wanted && end.tasks > 0 {
                        self.stragglers.push((host, end.tasks));
                    }
                    let next = match asked {
                        true => HostState::Down,
                        false => HostState::Restarting(now + RESTART),
                    };
                    self.states.insert(host, next);
                    self.ends.push((now, host, end.why));
                }
                HostState::Restarting(at) if at <= now => self.start(host),
                HostState::Restarting(_) | HostState::Down => {}
            }
        }
    }
}
