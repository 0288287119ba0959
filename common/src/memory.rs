//! The memory ledger: one per worker, the only judge of what fits.
//!
//! Invariants
//! 1. The sum of all reservations never exceeds the budget.
//! 2. A reservation is released when dropped, whatever happened before.
//! 3. Tensors of a [`Pool`] are covered by reservations while they live; its memory is reused between steps.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::block::{Block, Region};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::tensor::Tensor;

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
    freed: Arc<Notify>,
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
            freed: Arc::default(),
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

    /// Told whenever something was given back.
    pub fn freed(&self) -> &Notify {
        &self.freed
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
    drop(b);
    ledger.freed.notify_waiters();
}

/// Makes tensors within a reservation and uses its memory again and again.
///
/// The base reservation is held while the pool or any of its tensors lives; what goes beyond it is reserved tensor by
/// tensor.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    ledger: Ledger,
    account: Account,
    base: Option<Arc<Region>>,
    /// Bytes of living tensors beyond the base.
    beyond: Arc<AtomicU64>,
}

/// Covers one tensor beyond the base.
struct Beyond {
    reservation: Reservation,
    sum: Arc<AtomicU64>,
}

impl Drop for Beyond {
    fn drop(&mut self) {
        self.sum
            .fetch_sub(self.reservation.bytes, Ordering::Relaxed);
    }
}

impl Pool {
    /// A pool that holds `base` bytes for its life.
    pub fn new(ledger: &Ledger, account: Account, base: u64) -> Result<Pool> {
        let region = || {
            let reservation = ledger.reserve(account, base)?;
            let len = usize::try_from(base).map_err(|_| Error::internal("a pool beyond memory"))?;
            Ok::<_, Error>(Region::new(len, Box::new(reservation))?)
        };
        Ok(Pool(Arc::new(Inner {
            base: (base > 0).then(region).transpose()?,
            ledger: ledger.clone(),
            account,
            beyond: Arc::default(),
        })))
    }

    /// A tensor whose elements are unspecified.
    pub fn tensor(&self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let len = Tensor::size_of(dtype, shape)?;
        let block = match self.0.base.as_ref().and_then(|region| region.block(len)) {
            Some(block) => block,
            None => self.beyond(len)?,
        };
        Ok(Tensor::from_block(dtype, shape, block))
    }

    fn beyond(&self, len: usize) -> Result<Block> {
        let reservation = self.0.ledger.reserve(self.0.account, len as u64)?;
        let sum = self.0.beyond.clone();
        sum.fetch_add(len as u64, Ordering::Relaxed);
        let cover = Beyond { reservation, sum };
        Ok(Block::covered(len, Box::new(cover))?)
    }

    /// Bytes of living tensors.
    pub fn live_bytes(&self) -> u64 {
        let base = self.0.base.as_ref().map_or(0, |region| region.used());
        base + self.0.beyond.load(Ordering::Relaxed)
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
    fn memory_is_reused_and_growth_is_accounted() {
        let l = Ledger::new("w0", 4096);
        let p = Pool::new(&l, Account::Leases, 1024).unwrap();
        let a = p.tensor(DType::F32, &[256]).unwrap();
        let at = a.bytes().as_ptr();
        drop(a);
        let b = p.tensor(DType::F32, &[250]).unwrap();
        assert_eq!(b.bytes().as_ptr(), at);
        let c = p.tensor(DType::F32, &[512]).unwrap();
        assert_eq!(l.total_and_peak().0, 1024 + 2048);
        assert_eq!(p.live_bytes(), 1024 + 2048);
        assert!(p.tensor(DType::F32, &[512]).is_err());
        drop(c);
        assert_eq!((l.total_and_peak().0, p.live_bytes()), (1024, 1024));
        // The last tensor keeps the whole base.
        drop(p);
        assert_eq!(l.total_and_peak().0, 1024);
        drop(b);
        assert_eq!(l.total_and_peak().0, 0);
    }
}
