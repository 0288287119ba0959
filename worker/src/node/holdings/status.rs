//! The status that a worker reports of itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use convoke_common::ids::PlanId;
use convoke_common::memory::Ledger;
use convoke_common::rpc::{
    DeviceMemory, HeldLease, MemoryReport, MemoryUse, ProgramStatus, Progress, WorkerStatus,
};
use convoke_common::world::World;

use super::{Holdings, InstalledLease, LeaseCore};
use crate::weights::counter::Counter;

impl Holdings {
    /// Number of things held for clients, by table.
    pub fn tables(&self) -> Vec<(&'static str, usize)> {
        let counts = |leases: &LeaseCore| (leases.all_held().count(), leases.installing());
        let (held, installing) = self.leases.look(counts);
        vec![
            ("programs", held),
            ("installs", installing),
            ("releases", self.settling()),
            ("sessions", self.eager.count()),
        ]
    }

    /// The leases that are held, as the coordinator is told of them.
    pub fn leases(&self) -> Vec<HeldLease> {
        told(&self.held())
    }

    /// Like [`Holdings::leases`], for a registration: reports of dropped leases are superfluous with it.
    pub fn leases_to_register(&self) -> Vec<HeldLease> {
        told(&self.tell_leases(|leases| leases.register().cloned().collect::<Vec<_>>()))
    }

    /// How far the install of a plan has got.
    pub fn progress(&self, plan: PlanId) -> Progress {
        let counted = |counter: &Counter| Progress {
            done: counter.done.load(Ordering::Relaxed),
            total: counter.total.load(Ordering::Relaxed),
        };
        let look = |leases: &LeaseCore| leases.progress(plan).map(counted);
        self.leases.look(look).unwrap_or_default()
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
    pub fn memory(&self) -> MemoryReport {
        let of = |ledger: &Ledger| MemoryUse {
            used: ledger.used(),
            holdings: ledger.holdings(),
        };
        let device = self.engine.device.as_ref();
        MemoryReport {
            host: of(&self.ledger),
            device: device.map(|owned| of(&owned.memory)).unwrap_or_default(),
        }
    }

    /// The worker's status.
    pub fn status(&self) -> WorkerStatus {
        let (resident, resident_peak) = resident(&self.world);
        let held = self.held();
        let programs = held
            .iter()
            .map(|h| ProgramStatus {
                lease: h.lease.id,
                name: h.name.clone(),
                driver: h.lease.name_of(h.lease.driver()).to_owned(),
                nodes: h.each().map(|h| h.executor.nodes()).sum(),
                weights_bytes: h.each().map(|h| h.weights_bytes).sum(),
                shared_weights_bytes: h.each().map(|h| h.executor.shared_bytes()).sum(),
            })
            .collect();
        let all = held.iter().flat_map(|h| h.each());
        let live_steps = all.map(|h| h.executor.live_steps()).sum();
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
            rendezvous: self.hub.status(),
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

fn told(held: &[Arc<InstalledLease>]) -> Vec<HeldLease> {
    let of = |h: &Arc<InstalledLease>| {
        let driver = h.lease.participants.last()?;
        Some(HeldLease {
            lease: h.lease.id,
            model: h.name.clone(),
            driver: (driver.name.clone(), driver.incarnation),
        })
    };
    held.iter().filter_map(of).collect()
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
