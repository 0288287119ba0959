//! A [`World`] made of simulated parts: turmoil's network, virtual time, a disk in memory, seeded randomness.
//!
//! ```text
//! Machine (one per host, outlives its processes)
//!   ├─ Knobs   what a scenario changes while the host runs
//!   ├─ Gate    every task of the host goes through it: closed, the host is stopped as by SIGSTOP
//!   ├─ Disk    files; a power cut takes what was not synced
//!   └─ boot()  the World of a new process: SimNet, SimCompute, SimStore, SimClock, SimRng
//! ```
//!
//! Invariants:
//! 1. Everything that a run depends on comes from its seed: no clock, thread, file or random number of the machine
//!    that simulates is visible to production code. Only what ring draws for TLS differs, in content, never in length.
//! 2. What one host draws does not depend on what another draws.
//! 3. A process that ended leaves nothing behind but the files of its disk and the packets that it sent.

mod clock;
mod compute;
mod disk;
mod gate;
mod host;
mod knobs;
mod net;
mod panics;
mod rng;
mod store;
mod turns;
mod udp;
mod wire;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use convoke_common::rpc::Death;
use convoke_common::world::{Rng, WallClock, World};

use crate::draw::Draw;
use crate::event_log::EventLog;

pub use clock::{EPOCH, SimTime};
pub use disk::Disk;
pub use gate::{Gate, HostGuard, current_host};
pub use host::Host;
pub use knobs::{DeadlyNode, Knobs, SurvivingWrites};
pub use panics::{unexpected, watch};
pub use turns::{Party, Turn, Turns};
pub use udp::Sockets;
pub use wire::{Wire, Wires};

/// Where every process keeps its state.
pub const STATE: &str = "/state";

/// What all machines of a cluster share.
#[derive(Clone)]
pub struct SharedWorld {
    /// Time since the simulation began.
    pub time: SimTime,
    /// The record of the run.
    pub trace: EventLog,
    /// What the links between hosts do to packets.
    pub wires: Arc<Wires>,
    /// Host names and their addresses.
    pub names: Arc<BTreeMap<String, IpAddr>>,
}

/// A host with everything that outlives its processes.
pub struct Machine {
    /// Which host this is.
    pub host: Host,
    /// The settings that a scenario changes.
    pub knobs: Arc<Knobs>,
    /// The gate that stops and continues the host's tasks.
    pub gate: Arc<Gate>,
    /// The host's files.
    pub disk: Arc<Disk>,
    /// The sockets of the host's current process.
    pub sockets: Arc<Sockets>,
    /// The record of which jobs had the host's compute.
    pub turns: Arc<Turns>,
    /// What its member asks to be called: as the host, unless it has the identity of another.
    member: Mutex<String>,
    /// What its last process died of, as the next one tells.
    deaths: Mutex<Vec<Death>>,
    common: SharedWorld,
    draw: Draw,
    boots: AtomicU64,
}

impl Machine {
    /// Creates a machine that has run no process yet.
    pub fn new(host: Host, seed: u64, common: SharedWorld) -> Machine {
        let draw = Draw::new(seed).fork(&host.name());
        let knobs = Arc::new(Knobs::default());
        Machine {
            gate: Gate::new(host),
            disk: Arc::new(Disk::new(draw.fork("disk"), knobs.clone())),
            sockets: Arc::default(),
            turns: Arc::default(),
            member: Mutex::new(host.name()),
            deaths: Mutex::default(),
            knobs,
            host,
            common,
            draw,
            boots: AtomicU64::new(0),
        }
    }

    /// Creates the world of a new process.
    pub fn boot(&self) -> World {
        let boot = self.boots.fetch_add(1, Ordering::Relaxed);
        let draw = self.draw.fork(&format!("boot {boot}"));
        let rng: Arc<dyn Rng> = Arc::new(rng::SimRng::new(draw.fork("rng")));
        let wall: Arc<dyn WallClock> = Arc::new(clock::SimClock::new(
            self.common.time.clone(),
            self.knobs.clone(),
        ));
        World {
            net: Arc::new(net::SimNet::new(
                self.gate.clone(),
                self.disk.clone(),
                self.common.clone(),
                wall.clone(),
                rng.clone(),
                draw.fork("net"),
                self.sockets.clone(),
            )),
            compute: Arc::new(compute::SimCompute::new(
                self.gate.clone(),
                self.knobs.clone(),
                self.turns.clone(),
                draw.fork("compute"),
            )),
            store: Arc::new(store::SimStore::new(
                self.disk.clone(),
                self.gate.clone(),
                draw.fork("store"),
            )),
            wall,
            rng,
            shared: None,
        }
    }

    /// What its member asks to be called.
    pub fn member_name(&self) -> String {
        self.member
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Notes what its process died of.
    pub fn note_death(&self, death: Death) {
        let mut deaths = self.deaths.lock().unwrap_or_else(PoisonError::into_inner);
        *deaths = vec![death];
    }

    /// What the last process died of, if a node ended it and no process has told it yet.
    pub fn take_deaths(&self) -> Vec<Death> {
        let mut deaths = self.deaths.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *deaths)
    }

    /// Its next process is the member that `other`'s was when its files were as they are now.
    pub fn take_identity(&self, other: &Machine) {
        self.disk.copy_folder(&other.disk, Path::new(STATE));
        let name = other.member_name();
        *self.member.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    /// Processes that it ran, the present one included.
    pub fn boots(&self) -> u64 {
        self.boots.load(Ordering::Relaxed)
    }
}
