//! The weight store of a worker: the constants of programs in their final form, known by their content. Leases of one
//! model share them, and they stay until their memory is asked for.
//!
//! ```text
//! install ── want ──> here: a tensor, and a charge to the install's token
//!                     absent: the install makes it ── publish ──> here, for all who wait
//!                     coming: the install waits, and takes over where whoever makes it fails or stalls
//! ledger ── memory is short ──> constants without a charge are evicted
//! ```
//!
//! Invariants
//! 1. A constant is loaded by one install at a time, and no install depends on another to succeed.
//! 2. Nobody writes to a constant: while it is here, the store holds its tensor too, and kernels overwrite only tensors
//!    that nobody else holds.
//! 3. No memory is reserved, and no tensor dropped, under the store's lock.

mod core;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::error::Result;
use convoke_common::memory::{Charge, Ledger, Pool, Reclaim};
use convoke_common::rpc::WeightsStatus;
use convoke_graph::Tensor;
use convoke_graph::program::ConstantId;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::weights::counter::Counter;
use core::{ConstantAnswer, Core, LoadId};

/// The layout of what kernels make in the init part; another layout is another constant.
pub const LAYOUT: &[u8] = b"cpu 1";

/// How long an install waits for constants that another one makes, while that one loads fewer than [`LEAST_LOADED`]
/// bytes.
const PATIENCE: Duration = Duration::from_secs(10);
const LEAST_LOADED: u64 = 8 << 20;

/// The constants of a worker.
#[derive(Default)]
pub struct WeightStore {
    core: Mutex<Core>,
    /// Notified when a constant was made, or whoever was to make it has ended.
    changed: Notify,
}

impl Reclaim for WeightStore {
    fn reclaim(&self, bytes: u64) -> bool {
        let evicted = self.core().evict(bytes);
        let any = !evicted.is_empty();
        drop(evicted);
        any
    }
}

impl WeightStore {
    /// An empty store, whose unused constants make room for reservations in `ledger`.
    pub fn new(ledger: &Ledger) -> Arc<WeightStore> {
        let store = Arc::new(WeightStore::default());
        let source: Arc<dyn Reclaim> = store.clone();
        ledger.reclaim_from(Arc::downgrade(&source));
        store
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an install that wants these constants, by value, and counts the bytes that it loads in `counter`.
    pub fn begin(
        self: &Arc<Self>,
        wanted: BTreeMap<u32, ConstantId>,
        counter: Arc<Counter>,
    ) -> Constants {
        Constants {
            load: self.core().begin(counter),
            store: self.clone(),
            missing: wanted,
            charges: vec![],
        }
    }

    /// How many bytes there are, and how many of them are used by nobody, or by several.
    pub fn status(&self) -> WeightsStatus {
        self.core().status()
    }
}

/// The constants of one install. Dropping it leaves the constants that are not made yet to other installs.
pub struct Constants {
    store: Arc<WeightStore>,
    load: LoadId,
    /// The values whose constants are not there yet.
    missing: BTreeMap<u32, ConstantId>,
    charges: Vec<Charge>,
}

impl Drop for Constants {
    fn drop(&mut self) {
        self.store.core().end(self.load);
        self.store.changed.notify_waiters();
    }
}

impl Constants {
    /// Takes the constants that are there into `values`, and waits as long as all others are made by somebody else.
    /// Returns the values that the install is to make and publish; none once all are there.
    pub async fn next(&mut self, pool: &Pool, values: &mut [Option<Tensor>]) -> Result<Vec<u32>> {
        let store = self.store.clone();
        let (mut since, mut left, mut loaded) = (Instant::now(), usize::MAX, 0);
        loop {
            let changed = store.changed.notified();
            tokio::pin!(changed);
            // The waiter registers before it looks, so that it misses no change.
            changed.as_mut().enable();
            let mine = self.look(pool, values)?;
            if !mine.is_empty() || self.missing.is_empty() {
                return Ok(mine);
            }
            let now = store.core().progress(self.missing.values().copied());
            if self.missing.len() < left || now.abs_diff(loaded) >= LEAST_LOADED {
                (since, left, loaded) = (Instant::now(), self.missing.len(), now);
            } else if since.elapsed() >= PATIENCE {
                let mine = self.take_over();
                if !mine.is_empty() {
                    return Ok(mine);
                }
            }
            // Where the time is over, the loop looks how far the others have got.
            drop(tokio::time::timeout_at(since + PATIENCE, changed).await);
        }
    }

    fn look(&mut self, pool: &Pool, values: &mut [Option<Tensor>]) -> Result<Vec<u32>> {
        let mut core = self.store.core();
        let (mut mine, mut replaced) = (vec![], vec![]);
        for (v, id) in std::mem::take(&mut self.missing) {
            match core.want(self.load, id, pool)? {
                ConstantAnswer::Here(tensor, charge) => {
                    // Where the literal was loaded for another constant, its own memory goes.
                    replaced.extend(values[v as usize].replace(tensor));
                    self.charges.push(charge);
                    continue;
                }
                ConstantAnswer::Yours => mine.push(v),
                ConstantAnswer::Coming => {}
            }
            self.missing.insert(v, id);
        }
        drop(core);
        drop(replaced);
        Ok(mine)
    }

    fn take_over(&mut self) -> Vec<u32> {
        let mut core = self.store.core();
        let missing = self.missing.iter();
        let mine = missing.filter(|(_, id)| core.take_over(self.load, **id));
        mine.map(|(v, _)| *v).collect()
    }

    /// Whether the store is to have the constant of value `v`, and does not have it yet.
    pub fn is_missing(&self, v: u32) -> bool {
        self.missing.contains_key(&v)
    }

    /// Gives a constant that the install has made to the store. Returns the tensor to use: where another install was
    /// faster, it is that one's.
    pub fn publish(&mut self, v: u32, made: Tensor, pool: &Pool) -> Result<Tensor> {
        let Some(id) = self.missing.remove(&v) else {
            return Ok(made);
        };
        let (shared, charge) = pool.share(&made)?;
        drop(made);
        let (theirs, evicted) = self.store.core().publish(id, &shared);
        drop(evicted);
        self.store.changed.notify_waiters();
        let Some(theirs) = theirs else {
            self.charges.push(charge);
            return Ok(shared.tensor);
        };
        self.charges.push(pool.charge(&theirs.reservation)?);
        Ok(theirs.tensor)
    }

    /// Ends the install; returns the charges of the lease, which it holds as long as it lasts.
    pub fn finish(mut self) -> Vec<Charge> {
        std::mem::take(&mut self.charges)
    }
}
