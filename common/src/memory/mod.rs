//! The memory ledger: one per process or worker, the only judge of what fits.
//!
//! Invariants
//! 1. The sum of all reservations, and of the memory that is kept for the next ones, never exceeds the ledger's memory
//!    limit.
//! 2. A reservation is released when dropped, whatever happened before.
//! 3. Bytes that are reserved on behalf of a token are counted for it, and never exceed what its holders may have
//!    together.
//! 4. Reservations cover the tensors of a [`Pool`] while they live; the pool's memory is reused between steps.
//! 5. No reservation fails for lack of memory while there is memory that a [`Reclaim`] could free.

mod kept;
mod pool;
mod shared;
mod shared_blocks;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use convoke_graph::block::MemoryAccount;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

pub use pool::Pool;
pub use shared::{Charge, SharedReservation, SharedTensor};
pub use shared_blocks::SharedBlocks;

use crate::error::{Code, Error, Result};
use crate::identity::TokenId;
use crate::mutant;
use kept::BlockCache;

/// The purpose that memory is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The process itself, before any work.
    Base,
    /// Weights in the form that kernels use.
    Weights,
    /// Weights that nobody uses at the moment. They are freed where memory is asked for, and count as free.
    UnusedWeights,
    /// Tensors of steps.
    #[serde(rename = "steps")]
    Leases,
    /// Tensors of eager handles.
    Handles,
    /// Bytes in flight while weights load.
    #[serde(rename = "windows")]
    Buffers,
    /// What eager sessions remember besides tensors: prepared ops, names, handles and ops that wait.
    Definitions,
    /// Requests that arrive, wait or are served.
    Requests,
    /// Plans that are kept until they are installed.
    Plans,
    /// Memory that dropped tensors left for the next ones of their size. It is freed where memory is asked for, or after
    /// two seconds, and counts as free.
    Kept,
}

impl Purpose {
    /// The name of the purpose in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Purpose::Base => "base",
            Purpose::Weights => "weights",
            Purpose::UnusedWeights => "unused_weights",
            Purpose::Leases => "steps",
            Purpose::Handles => "handles",
            Purpose::Buffers => "windows",
            Purpose::Definitions => "definitions",
            Purpose::Requests => "requests",
            Purpose::Plans => "plans",
            Purpose::Kept => "kept",
        }
    }
}

/// The token and the member on whose behalf memory is reserved. All holders of a token are counted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The token that brought the member's certificate.
    pub token: TokenId,
    /// The member that acts now, for messages.
    pub member: String,
    /// Bytes that all holders of the token may have together in this ledger.
    pub limit: u64,
}

/// The memory that the holders of one token have in a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenHolding {
    pub token: TokenId,
    /// The member that reserved last.
    pub member: String,
    /// Bytes that the holders may have together.
    #[serde(rename = "limit_bytes")]
    pub limit: u64,
    /// Bytes that the holders have, by purpose.
    #[serde(rename = "used_bytes")]
    pub used: BTreeMap<Purpose, u64>,
}

impl TokenHolding {
    /// Bytes that the holders have, for all purposes together.
    pub fn total(&self) -> u64 {
        self.used.values().sum()
    }

    fn has(&self, name: &str) -> String {
        let used = self.used.iter().filter(|(_, bytes)| **bytes > 0);
        let used: Vec<String> = used
            .map(|(purpose, bytes)| format!("{} {}", purpose.as_str(), mib(*bytes)))
            .collect();
        let used = match used.is_empty() {
            true => String::new(),
            false => format!(": {}", used.join(", ")),
        };
        format!(
            "token {} ({}) has {} of its {} MiB at {name}{used}",
            self.token,
            self.member,
            mib(self.total()),
            mib(self.limit)
        )
    }
}

/// How many tokens an error names: those whose holders have most.
const NAMED: usize = 3;

#[derive(Debug, Default)]
struct Books {
    used: BTreeMap<Purpose, u64>,
    total: u64,
    peak: u64,
    kept: BlockCache,
    /// The holdings of the tokens whose holders have memory.
    tokens: BTreeMap<TokenId, TokenHolding>,
    /// How often a shared reservation has lost its last user.
    disuses: u64,
}

impl Books {
    /// Fails where `bytes` more exceed what the owner may have at the worker or process `name`.
    fn afford(&self, owner: &Owner, bytes: u64, name: &str) -> Result<()> {
        let known = self.tokens.get(&owner.token);
        let has = known.map_or(0, TokenHolding::total);
        if has.saturating_add(bytes) <= owner.limit {
            return Ok(());
        }
        let nothing = || TokenHolding {
            token: owner.token.clone(),
            member: owner.member.clone(),
            limit: owner.limit,
            used: BTreeMap::new(),
        };
        let mut holding = known.cloned().unwrap_or_else(nothing);
        holding.limit = owner.limit;
        let (has, more) = (holding.has(name), mib(bytes));
        let msg = format!("{has}; {more} more MiB are needed");
        Err(Error::new(Code::OutOfMemory, msg).advise(
            "drop what is no longer used, or use a token with a larger budget, \
             made with `convoke token create`",
        ))
    }

    /// Counts `bytes` for a purpose, and for the owner where there is one.
    fn add(&mut self, owner: Option<&Owner>, purpose: Purpose, bytes: u64) {
        self.total += bytes;
        self.peak = self.peak.max(self.total);
        *self.used.entry(purpose).or_default() += bytes;
        if let Some(owner) = owner {
            self.charge(owner, purpose, bytes);
        }
    }

    /// Takes back what [`Books::add`] has counted.
    fn subtract(&mut self, owner: Option<&Owner>, purpose: Purpose, bytes: u64) {
        self.total -= bytes;
        if let Some(used) = self.used.get_mut(&purpose) {
            *used -= bytes;
        }
        if let Some(owner) = owner {
            self.discharge(owner, purpose, bytes);
        }
    }

    /// Counts `bytes` for the owner.
    fn charge(&mut self, owner: &Owner, purpose: Purpose, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let new = || TokenHolding {
            token: owner.token.clone(),
            member: String::new(),
            limit: 0,
            used: BTreeMap::new(),
        };
        let holding = match self.tokens.get_mut(&owner.token) {
            Some(holding) => holding,
            None => self.tokens.entry(owner.token.clone()).or_insert_with(new),
        };
        if holding.member != owner.member {
            holding.member.clone_from(&owner.member);
        }
        holding.limit = owner.limit;
        *holding.used.entry(purpose).or_default() += bytes;
    }

    /// Takes back what [`Books::charge`] has counted.
    fn discharge(&mut self, owner: &Owner, purpose: Purpose, bytes: u64) {
        let Some(holding) = self.tokens.get_mut(&owner.token) else {
            return;
        };
        if let Some(used) = holding.used.get_mut(&purpose) {
            // The mutant counts twice as many bytes as released.
            *used = used.saturating_sub(bytes << u32::from(mutant!("released-twice")));
        }
        if holding.total() == 0 {
            self.tokens.remove(&owner.token);
        }
    }

    /// Names the tokens whose holders have most, for the error of a reservation that does not fit.
    fn largest(&self) -> String {
        let mut all: Vec<_> = self.tokens.values().collect();
        all.sort_by_key(|holding| std::cmp::Reverse(holding.total()));
        let named = all.iter().take(NAMED).map(|holding| {
            let (token, member) = (&holding.token, &holding.member);
            format!(
                "; token {token} ({member}) has {} MiB",
                mib(holding.total())
            )
        });
        named.collect()
    }
}

/// The ledger of one process or worker.
#[derive(Debug, Clone)]
pub struct Ledger {
    limit: u64,
    place: Arc<LedgerPlace>,
    owner: Option<Arc<Owner>>,
    books: Arc<Mutex<Books>>,
    freed: Arc<Notify>,
    reclaimer: Arc<Reclaimer>,
    /// The most bytes of dropped tensors that are kept.
    keeps: u64,
    /// Notified whenever memory is kept.
    keeps_some: Arc<Notify>,
}

/// The worker or process whose memory a ledger counts, as errors name it.
#[derive(Debug)]
struct LedgerPlace {
    /// The worker or process.
    name: String,
    /// The same as part of a sentence.
    holder: String,
    /// The option of the worker that sets the limit.
    option: &'static str,
}

/// Memory that is kept without need, and freed where a reservation needs it.
pub trait Reclaim: Send + Sync {
    /// Frees `bytes` bytes or more, or as many as there are; returns whether any were freed.
    fn reclaim(&self, bytes: u64) -> bool;
}

#[derive(Default)]
struct Reclaimer(OnceLock<Weak<dyn Reclaim>>);

impl std::fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reclaimer")
    }
}

/// Bytes that are reserved in a ledger until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    ledger: Ledger,
    purpose: Purpose,
    bytes: u64,
}

impl Ledger {
    /// Makes a ledger of the worker or process `name`, with a memory limit of `limit` bytes.
    pub fn new(name: &str, limit: u64) -> Ledger {
        Ledger {
            limit,
            place: Arc::new(LedgerPlace {
                name: name.to_owned(),
                holder: format!("worker {name}"),
                option: "--memory",
            }),
            owner: None,
            books: Arc::default(),
            freed: Arc::default(),
            reclaimer: Arc::default(),
            keeps: 0,
            keeps_some: Arc::default(),
        }
    }

    /// Makes a ledger of the memory of a device of the worker `name`.
    pub fn of_device(name: &str, limit: u64) -> Ledger {
        Ledger {
            place: Arc::new(LedgerPlace {
                name: name.to_owned(),
                holder: format!("the device of worker {name}"),
                option: "--device-memory",
            }),
            ..Ledger::new(name, limit)
        }
    }

    /// Returns the same ledger on behalf of `owner`: reservations through it are counted for the owner as well.
    pub fn of(&self, owner: Owner) -> Ledger {
        Ledger {
            owner: Some(Arc::new(owner)),
            ..self.clone()
        }
    }

    /// The owner on whose behalf this ledger reserves, if it has one.
    pub fn owner(&self) -> Option<&Owner> {
        self.owner.as_deref()
    }

    /// The ledger's memory limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Has `from` free memory wherever a reservation would fail for lack of it. Only the first call has an effect.
    pub fn reclaim_from(&self, from: Weak<dyn Reclaim>) {
        // The ledger has a source already.
        let _ = self.reclaimer.0.set(from);
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `bytes` for a purpose. Fails with [`Code::OutOfMemory`] where that exceeds what the owner may have, or
    /// the ledger's memory limit; the error says how much is used, and by which tokens.
    pub fn reserve(&self, purpose: Purpose, bytes: u64) -> Result<Reservation> {
        let in_the_way = loop {
            let (missing, error) = {
                let mut b = self.books();
                let owner = self.owner();
                owner.map_or(Ok(()), |o| b.afford(o, bytes, &self.place.name))?;
                let total = b.total.saturating_add(bytes);
                if total <= self.limit {
                    b.add(owner, purpose, bytes);
                    let room = self.limit.min(b.peak) - total;
                    break b.kept.above(room);
                }
                (total - self.limit, self.full(&b, bytes))
            };
            // The reclaimer takes locks of its own and changes the books, so it must not be called under this lock.
            let source = self.reclaimer.0.get().and_then(Weak::upgrade);
            if !source.is_some_and(|s| s.reclaim(missing)) {
                return Err(error);
            }
        };
        drop(in_the_way);
        Ok(Reservation {
            ledger: self.clone(),
            purpose,
            bytes,
        })
    }

    fn full(&self, b: &Books, bytes: u64) -> Error {
        let msg = format!(
            "{} has {} of {} MiB free; {} more MiB are needed{}",
            self.place.holder,
            mib(self.limit - b.total),
            mib(self.limit),
            mib(bytes),
            b.largest()
        );
        let option = self.place.option;
        Error::new(Code::OutOfMemory, msg).advise(format!(
            "raise {option} of the worker, add workers, or run smaller inputs"
        ))
    }

    /// Bytes that the holders of this ledger's token have for one purpose; 0 where the ledger has no owner.
    pub fn used_by_owner(&self, purpose: Purpose) -> u64 {
        let Some(owner) = &self.owner else { return 0 };
        let b = self.books();
        let holding = b.tokens.get(&owner.token);
        holding
            .and_then(|h| h.used.get(&purpose))
            .copied()
            .unwrap_or(0)
    }

    /// The memory that the holders of each token have.
    pub fn holdings(&self) -> Vec<TokenHolding> {
        let b = self.books();
        b.tokens.values().cloned().collect()
    }

    /// Whether both are the same ledger, on whosever behalf.
    fn is(&self, other: &Ledger) -> bool {
        Arc::ptr_eq(&self.books, &other.books)
    }

    /// Notified whenever memory was released.
    pub fn freed(&self) -> &Notify {
        &self.freed
    }

    /// Bytes in use, by purpose, and those that are kept.
    pub fn used(&self) -> BTreeMap<Purpose, u64> {
        let b = self.books();
        let mut used = b.used.clone();
        if b.kept.bytes() > 0 {
            used.insert(Purpose::Kept, b.kept.bytes());
        }
        used
    }

    /// Bytes that nobody uses.
    pub fn free(&self) -> u64 {
        self.limit.saturating_sub(self.books().total)
    }

    /// Bytes in use, without those that are kept, and the most bytes that were ever in use at once.
    pub fn total_and_peak(&self) -> (u64, u64) {
        let b = self.books();
        (b.total, b.peak)
    }
}

/// MiB with one decimal.
fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / (1 << 20) as f64)
}

impl Reservation {
    /// The size of the reservation in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds `bytes` to the reservation. Fails as [`Ledger::reserve`] does, and leaves the reservation as it was.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        let mut more = self.ledger.reserve(self.purpose, bytes)?;
        self.bytes += std::mem::take(&mut more.bytes);
        Ok(())
    }

    /// Counts the reservation for another purpose from now on.
    pub fn becomes(&mut self, purpose: Purpose) {
        let mut b = self.ledger.books();
        let move_to = |used: &mut BTreeMap<Purpose, u64>| {
            if let Some(former) = used.get_mut(&self.purpose) {
                *former = former.saturating_sub(self.bytes);
            }
            *used.entry(purpose).or_default() += self.bytes;
        };
        move_to(&mut b.used);
        let token = self.ledger.owner.as_ref().map(|owner| &owner.token);
        if let Some(holding) = token.and_then(|token| b.tokens.get_mut(token)) {
            move_to(&mut holding.used);
        }
        drop(b);
        self.purpose = purpose;
    }

    /// Makes the reservation one that several owners use at once. Its owner is the first to be charged; while nobody is,
    /// it counts for the purpose `unused`.
    pub fn shared(self, unused: Purpose) -> (SharedReservation, Charge) {
        SharedReservation::of(self, unused)
    }

    /// Releases all of the reservation except `bytes`.
    pub fn shrink(&mut self, bytes: u64) {
        let give = self.bytes.saturating_sub(bytes);
        self.bytes -= give;
        release(&self.ledger, self.purpose, give);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        release(&self.ledger, self.purpose, self.bytes);
    }
}

impl MemoryAccount for Reservation {}

fn release(ledger: &Ledger, purpose: Purpose, bytes: u64) {
    ledger.books().subtract(ledger.owner(), purpose, bytes);
    ledger.freed.notify_waiters();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_never_exceeded_and_drops_release() {
        let l = Ledger::new("w0", 100);
        let a = l.reserve(Purpose::Weights, 60).unwrap();
        let e = l.reserve(Purpose::Leases, 41).unwrap_err();
        assert_eq!(e.code, Code::OutOfMemory);
        drop(a);
        let mut b = l.reserve(Purpose::Leases, 100).unwrap();
        b.shrink(10);
        assert_eq!(l.total_and_peak(), (10, 100));
        drop(b);
        assert_eq!(l.total_and_peak().0, 0);
    }

    #[test]
    fn a_ledger_that_keeps_nothing_lists_nothing_kept() {
        let l = Ledger::new("w0", 100);
        let _held = l.reserve(Purpose::Weights, 60).unwrap();
        assert_eq!(l.used(), [(Purpose::Weights, 60)].into());
    }

    /// Frees nothing, and notes for how many bytes it was asked.
    #[derive(Default)]
    struct ReclaimLog(Mutex<Vec<u64>>);

    impl Reclaim for ReclaimLog {
        fn reclaim(&self, bytes: u64) -> bool {
            self.0.lock().unwrap().push(bytes);
            false
        }
    }

    #[test]
    fn no_more_is_asked_for_than_is_missing() {
        let l = Ledger::new("w0", 100);
        let asked = Arc::<ReclaimLog>::default();
        let source: Arc<dyn Reclaim> = asked.clone();
        l.reclaim_from(Arc::downgrade(&source));
        let _held = l.reserve(Purpose::Weights, 60).unwrap();
        assert!(l.reserve(Purpose::Leases, 45).is_err());
        assert_eq!(*asked.0.lock().unwrap(), [5]);
    }

    #[test]
    fn a_token_takes_no_more_than_its_budget_and_is_named() {
        let l = Ledger::new("w0", 10 << 20);
        let owner = |token: &str, limit: u64| Owner {
            token: token.parse().unwrap(),
            member: format!("client-of-{token}"),
            limit: limit << 20,
        };
        let (a, b) = (l.of(owner("aaaa", 6)), l.of(owner("bbbb", 8)));
        let held = a.reserve(Purpose::Handles, 4 << 20).unwrap();
        let definitions = a.reserve(Purpose::Definitions, 1 << 20).unwrap();
        let e = a.reserve(Purpose::Weights, 2 << 20).unwrap_err();
        assert_eq!(
            (e.code, &*e.message),
            (
                Code::OutOfMemory,
                "token aaaa (client-of-aaaa) has 5.0 of its 6.0 MiB at w0: handles 4.0, \
                 definitions 1.0; 2.0 more MiB are needed"
            )
        );
        // Another holder of the token is counted together with the first.
        assert!(
            l.of(owner("aaaa", 6))
                .reserve(Purpose::Leases, 2 << 20)
                .is_err()
        );
        let mut other = b.reserve(Purpose::Weights, 5 << 20).unwrap();
        let e = b.reserve(Purpose::Weights, 1 << 20).unwrap_err();
        assert!(e.message.contains("w0 has 0.0 of 10.0 MiB free"), "{e}");
        assert!(
            e.message
                .contains("token aaaa (client-of-aaaa) has 5.0 MiB"),
            "{e}"
        );
        other.becomes(Purpose::Plans);
        other.shrink(1 << 20);
        assert_eq!(l.used()[&Purpose::Plans], 1 << 20);
        let holdings = l.holdings();
        assert_eq!(holdings.len(), 2);
        assert_eq!((holdings[1].total(), holdings[1].limit), (1 << 20, 8 << 20));
        drop((held, definitions, other));
        assert!(l.holdings().is_empty() && l.total_and_peak().0 == 0);
    }
}
