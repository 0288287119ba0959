//! The constants that a worker has, and the installs that load the others: a plain state machine, without locks and I/O.
//!
//! ```text
//!             want                publish
//! (absent) ─────────> Loading(by) ────────> Present ──reclaim──> (absent)
//!     ^                    │ its install ended, or another took over
//!     └────────────────────┘
//! ```
//!
//! Invariants
//! 1. A constant that is here is used by those who were given a charge for it, or by nobody; only then is it evicted,
//!    the one that is unused for longest first.
//! 2. However an install ends, a constant that it was to load is absent afterwards, or another install makes it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use convoke_common::error::Result;
use convoke_common::memory::{Charge, Pool, SharedTensor};
use convoke_common::rpc::WeightsStatus;
use convoke_graph::Tensor;
use convoke_graph::program::ConstantId;

use crate::weights::counter::Counter;

/// The most constants of a worker: several large models have as many, and their records, of some 200 bytes each that no
/// ledger counts, stay small together.
pub const MOST: usize = 16 << 10;

/// The number of an install at this store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoadId(u64);

enum Entry {
    Loading(LoadId),
    Present(SharedTensor),
}

/// The answer to an install that asks for a constant.
pub enum ConstantAnswer {
    /// The constant is here; the install's token is charged for it.
    Here(Tensor, Charge),
    /// The install is to make it.
    Yours,
    /// An install is making it, perhaps the same one, for another value.
    Coming,
}

/// The constants of a worker.
#[derive(Default)]
pub struct Core {
    entries: BTreeMap<ConstantId, Entry>,
    /// The installs that load, with the bytes that each has loaded so far.
    loads: BTreeMap<LoadId, Arc<Counter>>,
    next: u64,
}

impl Core {
    /// Begins an install.
    pub fn begin(&mut self, counter: Arc<Counter>) -> LoadId {
        let load = LoadId(self.next);
        self.next += 1;
        self.loads.insert(load, counter);
        load
    }

    /// Asks for a constant. Fails where the owner of `pool` may have no more memory.
    pub fn want(&mut self, load: LoadId, id: ConstantId, pool: &Pool) -> Result<ConstantAnswer> {
        match self.entries.get(&id) {
            Some(Entry::Present(there)) => {
                let charge = pool.charge(&there.reservation)?;
                Ok(ConstantAnswer::Here(there.tensor.clone(), charge))
            }
            Some(Entry::Loading(_)) => Ok(ConstantAnswer::Coming),
            None => {
                self.entries.insert(id, Entry::Loading(load));
                Ok(ConstantAnswer::Yours)
            }
        }
    }

    /// Has `load` make a constant that another install is making. Returns whether it is to be made at all.
    pub fn take_over(&mut self, load: LoadId, id: ConstantId) -> bool {
        match self.entries.get(&id) {
            Some(Entry::Present(_)) => false,
            Some(Entry::Loading(_)) | None => {
                self.entries.insert(id, Entry::Loading(load));
                true
            }
        }
    }

    /// Takes a constant that an install has made. If another install was faster, the result is the constant that it has
    /// made.
    pub fn publish(
        &mut self,
        id: ConstantId,
        made: &SharedTensor,
    ) -> (Option<SharedTensor>, Vec<SharedTensor>) {
        if let Some(Entry::Present(there)) = self.entries.get(&id) {
            return (Some(there.clone()), vec![]);
        }
        self.entries.insert(id, Entry::Present(made.clone()));
        let over = self.entries.len() > MOST;
        let evicted = if over { self.evict(0) } else { vec![] };
        if over && evicted.is_empty() {
            self.entries.remove(&id);
        }
        (None, evicted)
    }

    /// Ends an install, whether or not it has made all that it was to make.
    pub fn end(&mut self, load: LoadId) {
        self.loads.remove(&load);
        let is_of = |e: &Entry| matches!(e, Entry::Loading(by) if *by == load);
        self.entries.retain(|_, entry| !is_of(entry));
    }

    /// The bytes that have been loaded by those who are making these constants.
    pub fn progress(&self, ids: impl Iterator<Item = ConstantId>) -> u64 {
        let making = ids.filter_map(|id| match self.entries.get(&id)? {
            Entry::Loading(by) => Some(*by),
            Entry::Present(_) => None,
        });
        let mut making: Vec<LoadId> = making.collect();
        making.sort_unstable();
        making.dedup();
        let counters = making.iter().filter_map(|by| self.loads.get(by));
        counters.map(|c| c.done.load(Ordering::Relaxed)).sum()
    }

    /// Removes constants that nobody uses until they have `bytes` bytes or more, or none is left. The caller drops the
    /// result once it holds no lock.
    pub fn evict(&mut self, bytes: u64) -> Vec<SharedTensor> {
        let unused = self.entries.iter().filter_map(|(id, entry)| match entry {
            Entry::Present(there) => Some((there.reservation.unused_since()?, *id)),
            Entry::Loading(_) => None,
        });
        let mut unused: Vec<_> = unused.collect();
        unused.sort_unstable();
        let (mut evicted, mut freed) = (vec![], 0);
        for (_, id) in unused {
            if let Some(Entry::Present(there)) = self.entries.remove(&id) {
                freed += there.reservation.bytes();
                evicted.push(there);
            }
            if freed >= bytes {
                break;
            }
        }
        evicted
    }

    /// How many bytes there are, and how many of them are used by nobody, or by several.
    pub fn status(&self) -> WeightsStatus {
        let mut status = WeightsStatus::default();
        for entry in self.entries.values() {
            let Entry::Present(there) = entry else {
                continue;
            };
            let bytes = there.reservation.bytes();
            status.held_bytes += bytes;
            match there.reservation.users() {
                0 => status.unused_bytes += bytes,
                1 => {}
                _ => status.shared_bytes += bytes,
            }
        }
        status
    }
}
