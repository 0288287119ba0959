//! The memory ledger: one per worker, the only judge of what fits.
//!
//! Invariants
//! 1. The sum of all reservations never exceeds the budget.
//! 2. A reservation is released when dropped, whatever happened before.
//! 3. Tensors of a [`Pool`] are covered by reservations while they live; blocks are reused between steps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::tensor::{Block, Recycle, Tensor};

/// What memory is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Account {
    /// The process itself, before any work.
    Base,
    /// Weights in the form that kernels use.
    Weights,
    /// Tensors of steps.
    Leases,
    /// Tensors of eager handles.
    Handles,
    /// Bytes in flight while weights load.
    Windows,
}

#[derive(Debug, Default)]
struct Books {
    used: BTreeMap<Account, u64>,
    total: u64,
    peak: u64,
}

/// The ledger of one worker.
#[derive(Debug, Clone)]
pub struct Ledger {
    budget: u64,
    owner: Arc<str>,
    books: Arc<Mutex<Books>>,
}

/// A reservation, released on drop.
#[derive(Debug)]
pub struct Reservation {
    ledger: Ledger,
    account: Account,
    bytes: u64,
}

impl Ledger {
    /// A ledger of `budget` bytes for the worker `owner`.
    pub fn new(owner: &str, budget: u64) -> Ledger {
        Ledger {
            budget,
            owner: owner.into(),
            books: Arc::default(),
        }
    }

    /// The budget in bytes.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Reserves `bytes`, or says what is used.
    pub fn reserve(&self, account: Account, bytes: u64) -> Result<Reservation> {
        let mut b = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let total = b.total.saturating_add(bytes);
        if total > self.budget {
            return Err(Error::new(
                Code::OutOfMemory,
                format!(
                    "worker {} has {} of {} MiB free; {} more MiB are needed",
                    self.owner,
                    mib(self.budget - b.total),
                    mib(self.budget),
                    mib(bytes)
                ),
            )
            .advise("raise --memory of the worker, add workers, or run smaller inputs"));
        }
        b.total = total;
        b.peak = b.peak.max(total);
        *b.used.entry(account).or_default() += bytes;
        Ok(Reservation {
            ledger: self.clone(),
            account,
            bytes,
        })
    }

    /// Bytes in use by account.
    pub fn used(&self) -> BTreeMap<Account, u64> {
        self.books
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .used
            .clone()
    }

    /// Bytes in use, and the most there ever were.
    pub fn total_and_peak(&self) -> (u64, u64) {
        let b = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        (b.total, b.peak)
    }
}

/// MiB with one decimal.
fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / (1 << 20) as f64)
}

impl Reservation {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves `bytes` more.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        let mut more = self.ledger.reserve(self.account, bytes)?;
        self.bytes += std::mem::take(&mut more.bytes);
        Ok(())
    }

    /// Gives back all but `bytes`.
    pub fn shrink(&mut self, bytes: u64) {
        let give = self.bytes.saturating_sub(bytes);
        self.bytes -= give;
        release(&self.ledger, self.account, give);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        release(&self.ledger, self.account, self.bytes);
    }
}

fn release(ledger: &Ledger, account: Account, bytes: u64) {
    let mut b = ledger.books.lock().unwrap_or_else(PoisonError::into_inner);
    b.total -= bytes;
    if let Some(u) = b.used.get_mut(&account) {
        *u -= bytes;
    }
}

/// Makes tensors within a reservation and reuses their blocks.
///
/// The base reservation is held for the pool's life; what goes beyond it is reserved tensor by tensor.
#[derive(Clone)]
pub struct Pool(Arc<PoolInner>);

struct PoolInner {
    base: Reservation,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// Free blocks by size.
    free: BTreeMap<usize, Vec<Block>>,
    free_bytes: u64,
    live_bytes: u64,
    /// What is reserved beyond the base; it shrinks as live bytes sink.
    extra: Option<Reservation>,
}

/// Bytes of the block that serves `bytes`: blocks of nearly equal size serve each other.
pub fn class(bytes: usize) -> usize {
    let step = (bytes.next_power_of_two() / 32).max(64);
    bytes.max(1).div_ceil(step) * step
}

impl Pool {
    /// A pool that holds `base` bytes for its life.
    pub fn new(ledger: &Ledger, account: Account, base: u64) -> Result<Pool> {
        let state = PoolState {
            extra: Some(ledger.reserve(account, 0)?),
            ..PoolState::default()
        };
        let base = ledger.reserve(account, base)?;
        Ok(Pool(Arc::new(PoolInner {
            base,
            state: Mutex::new(state),
        })))
    }

    /// A tensor whose elements are unspecified.
    pub fn tensor(&self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let size = class(Tensor::size_of(dtype, shape)?);
        Ok(Tensor::from_block(dtype, shape, self.block(size)?))
    }

    fn block(&self, size: usize) -> Result<Block> {
        let bytes = size as u64;
        let mut s = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let reused = s.free.get_mut(&size).and_then(Vec::pop);
        if reused.is_some() {
            s.free_bytes -= bytes;
        } else {
            let have = self.0.base.bytes + s.extra.as_ref().map_or(0, Reservation::bytes);
            s.evict_until(have, bytes);
            let need = (s.live_bytes + s.free_bytes + bytes).saturating_sub(have);
            if let Some(extra) = s.extra.as_mut().filter(|_| need > 0) {
                extra.grow(need)?;
            }
        }
        let mut block = match reused.map_or_else(|| Block::zeroed(size), Ok) {
            Ok(b) => b,
            Err(e) => {
                s.give_back(self.0.base.bytes);
                return Err(e.into());
            }
        };
        s.live_bytes += bytes;
        drop(s);
        let home: Weak<PoolInner> = Arc::downgrade(&self.0);
        block.set_recycler(Arc::new(Home(home)));
        Ok(block)
    }

    /// Bytes of living tensors.
    pub fn live_bytes(&self) -> u64 {
        self.0
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .live_bytes
    }
}

impl PoolState {
    /// What was reserved beyond the base goes back as soon as nothing needs it.
    fn give_back(&mut self, base: u64) {
        let needed = (self.live_bytes + self.free_bytes).saturating_sub(base);
        if let Some(extra) = &mut self.extra {
            extra.shrink(needed);
        }
    }

    /// Drops free blocks until `bytes` more fit under `limit` or none is left.
    fn evict_until(&mut self, limit: u64, bytes: u64) {
        while self.live_bytes + self.free_bytes + bytes > limit {
            let Some((&size, _)) = self.free.iter().rev().find(|(_, v)| !v.is_empty()) else {
                return;
            };
            if let Some(v) = self.free.get_mut(&size) {
                v.pop();
                if v.is_empty() {
                    self.free.remove(&size);
                }
            }
            self.free_bytes -= size as u64;
        }
    }
}

struct Home(Weak<PoolInner>);

impl Recycle for Home {
    fn recycle(&self, block: Block) {
        let Some(pool) = self.0.upgrade() else { return };
        let size = block.bytes().len();
        let mut s = pool.state.lock().unwrap_or_else(PoisonError::into_inner);
        s.live_bytes -= size as u64;
        let within = s.live_bytes + s.free_bytes + size as u64 <= pool.base.bytes;
        if within {
            s.free_bytes += size as u64;
            s.free.entry(size).or_default().push(block);
        }
        s.give_back(pool.base.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_never_exceeded_and_drops_release() {
        let l = Ledger::new("w0", 100);
        let a = l.reserve(Account::Weights, 60).unwrap();
        let e = l.reserve(Account::Leases, 41).unwrap_err();
        assert_eq!(e.code, Code::OutOfMemory);
        drop(a);
        let mut b = l.reserve(Account::Leases, 100).unwrap();
        b.shrink(10);
        assert_eq!(l.total_and_peak(), (10, 100));
        drop(b);
        assert_eq!(l.total_and_peak().0, 0);
    }

    #[test]
    fn blocks_are_reused_and_growth_is_accounted() {
        let l = Ledger::new("w0", 4096);
        let p = Pool::new(&l, Account::Leases, 1024).unwrap();
        let a = p.tensor(DType::F32, &[256]).unwrap();
        let at = a.bytes().as_ptr();
        drop(a);
        let b = p.tensor(DType::F32, &[250]).unwrap();
        assert_eq!(b.bytes().as_ptr(), at);
        let c = p.tensor(DType::F32, &[512]).unwrap();
        assert_eq!(l.total_and_peak().0, 1024 + 2048);
        assert!(p.tensor(DType::F32, &[512]).is_err());
        drop((b, c));
        assert_eq!((l.total_and_peak().0, p.live_bytes()), (1024, 0));
        drop(p);
        assert_eq!(l.total_and_peak().0, 0);
    }
}
