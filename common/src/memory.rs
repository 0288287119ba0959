//! The memory ledger: one per process or worker, the only judge of what fits.
//!
//! Invariants
//! 1. The sum of all reservations never exceeds the ledger's memory limit.
//! 2. A reservation is released when dropped, whatever happened before.
//! 3. Bytes that are reserved on behalf of a token are counted for it, and never exceed what its holders may have
//!    together.
//! 4. Reservations cover the tensors of a [`Pool`] while they live; the pool's memory is reused between steps.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use convoke_graph::block::{Block, Cover, LARGE, Region, Spare};
use convoke_graph::dtype::DType;
use convoke_graph::tensor::{Tensor, TensorError};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::error::{Code, Error, Result};
use crate::identity::TokenId;
use crate::mutant;

/// The purpose that memory is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The process itself, before any work.
    Base,
    /// Weights in the form that kernels use.
    Weights,
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
}

impl Purpose {
    /// The name of the purpose in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Purpose::Base => "base",
            Purpose::Weights => "weights",
            Purpose::Leases => "steps",
            Purpose::Handles => "handles",
            Purpose::Buffers => "windows",
            Purpose::Definitions => "definitions",
            Purpose::Requests => "requests",
            Purpose::Plans => "plans",
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
    /// The holdings of the tokens whose holders have memory.
    tokens: BTreeMap<TokenId, TokenHolding>,
}

impl Books {
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
    name: Arc<str>,
    owner: Option<Arc<Owner>>,
    books: Arc<Mutex<Books>>,
    freed: Arc<Notify>,
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
            name: name.into(),
            owner: None,
            books: Arc::default(),
            freed: Arc::default(),
        }
    }

    /// The same ledger, but what is reserved through the result is reserved on behalf of `owner`.
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

    /// Reserves `bytes` for a purpose. Fails with [`Code::OutOfMemory`] where that exceeds what the owner may have, or
    /// the ledger's memory limit; the error says how much is used, and by which tokens.
    pub fn reserve(&self, purpose: Purpose, bytes: u64) -> Result<Reservation> {
        let mut b = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let total = b.total.saturating_add(bytes);
        if let Some(owner) = &self.owner {
            let known = b.tokens.get(&owner.token);
            let has = known.map_or(0, TokenHolding::total);
            if has.saturating_add(bytes) > owner.limit {
                let nothing = || TokenHolding {
                    token: owner.token.clone(),
                    member: owner.member.clone(),
                    limit: owner.limit,
                    used: BTreeMap::new(),
                };
                let mut holding = known.cloned().unwrap_or_else(nothing);
                holding.limit = owner.limit;
                let (has, more) = (holding.has(&self.name), mib(bytes));
                let msg = format!("{has}; {more} more MiB are needed");
                return Err(Error::new(Code::OutOfMemory, msg).advise(
                    "drop what is no longer used, or use a token with a larger budget, \
                     made with `convoke token create`",
                ));
            }
        }
        if total > self.limit {
            return Err(Error::new(
                Code::OutOfMemory,
                format!(
                    "worker {} has {} of {} MiB free; {} more MiB are needed{}",
                    self.name,
                    mib(self.limit - b.total),
                    mib(self.limit),
                    mib(bytes),
                    b.largest()
                ),
            )
            .advise("raise --memory of the worker, add workers, or run smaller inputs"));
        }
        b.total = total;
        b.peak = b.peak.max(total);
        *b.used.entry(purpose).or_default() += bytes;
        if let Some(owner) = self.owner.as_ref().filter(|_| bytes > 0) {
            let new = || TokenHolding {
                token: owner.token.clone(),
                member: String::new(),
                limit: 0,
                used: BTreeMap::new(),
            };
            let holding = match b.tokens.get_mut(&owner.token) {
                Some(holding) => holding,
                None => b.tokens.entry(owner.token.clone()).or_insert_with(new),
            };
            if holding.member != owner.member {
                holding.member.clone_from(&owner.member);
            }
            holding.limit = owner.limit;
            *holding.used.entry(purpose).or_default() += bytes;
        }
        Ok(Reservation {
            ledger: self.clone(),
            purpose,
            bytes,
        })
    }

    /// Bytes that the holders of this ledger's token have for one purpose; 0 where the ledger has no owner.
    pub fn used_by_owner(&self, purpose: Purpose) -> u64 {
        let Some(owner) = &self.owner else { return 0 };
        let b = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let holding = b.tokens.get(&owner.token);
        holding
            .and_then(|h| h.used.get(&purpose))
            .copied()
            .unwrap_or(0)
    }

    /// The memory that the holders of each token have.
    pub fn holdings(&self) -> Vec<TokenHolding> {
        let b = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        b.tokens.values().cloned().collect()
    }

    /// Notified whenever memory was released.
    pub fn freed(&self) -> &Notify {
        &self.freed
    }

    /// Bytes in use, by purpose.
    pub fn used(&self) -> BTreeMap<Purpose, u64> {
        self.books
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .used
            .clone()
    }

    /// Bytes in use, and the most bytes that were ever in use at once.
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
        let mut b = self
            .ledger
            .books
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
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

fn release(ledger: &Ledger, purpose: Purpose, bytes: u64) {
    let mut b = ledger.books.lock().unwrap_or_else(PoisonError::into_inner);
    b.total -= bytes;
    if let Some(u) = b.used.get_mut(&purpose) {
        *u -= bytes;
    }
    if let Some(owner) = &ledger.owner
        && let Some(holding) = b.tokens.get_mut(&owner.token)
    {
        if let Some(used) = holding.used.get_mut(&purpose) {
            // The mutant counts twice as many bytes as released.
            *used = used.saturating_sub(bytes << u32::from(mutant!("released-twice")));
        }
        if holding.total() == 0 {
            b.tokens.remove(&owner.token);
        }
    }
    drop(b);
    ledger.freed.notify_waiters();
}

/// In a pool without a base, tensors of at most `SMALL` bytes share reservations of `SHARED` bytes.
const SMALL: usize = 4 << 10;
const SHARED: usize = 64 << 10;

/// Makes tensors within a reservation, whose memory is reused again and again.
///
/// The base reservation is held while the pool or any of its tensors lives; tensors beyond it have a reservation each.
/// In a pool without a base, small tensors share reservations, each of which is held while any of its tensors lives.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    ledger: Ledger,
    purpose: Purpose,
    base: Option<Arc<Region>>,
    small: Mutex<SmallRegions>,
    /// Bytes of living tensors beyond the base, except the small ones.
    beyond: Arc<AtomicU64>,
    /// Keeps the memory of the last large tensor for the next one, while [`Pool::reuse`] is on.
    spare: Mutex<Option<Arc<Spare>>>,
}

/// The regions that small tensors are cut from.
#[derive(Default)]
struct SmallRegions {
    /// The region that the next small tensor is cut from.
    current: Weak<Region>,
    all: Vec<Weak<Region>>,
}

impl SmallRegions {
    /// A region of which half or less is used, if there is one.
    fn roomy(&mut self) -> Option<Arc<Region>> {
        self.all.retain(|region| region.strong_count() > 0);
        let mut all = self.all.iter().filter_map(Weak::upgrade);
        all.find(|region| region.used() <= SHARED as u64 / 2)
    }
}

/// Covers one tensor beyond the base, or one that was adopted.
struct ExtraReservation {
    reservation: Reservation,
    sum: Arc<AtomicU64>,
}

impl Drop for ExtraReservation {
    fn drop(&mut self) {
        self.sum
            .fetch_sub(self.reservation.bytes, Ordering::Relaxed);
    }
}

impl Pool {
    /// Makes a pool that reserves `base` bytes for its life.
    pub fn new(ledger: &Ledger, purpose: Purpose, base: u64) -> Result<Pool> {
        Self::with(ledger, purpose, base, Region::new)
    }

    /// Makes a pool whose base peers on this host can read, where the system has such memory.
    pub fn shared(ledger: &Ledger, purpose: Purpose, base: u64) -> Result<Pool> {
        Self::with(ledger, purpose, base, Region::shared)
    }

    fn with(
        ledger: &Ledger,
        purpose: Purpose,
        base: u64,
        make: impl FnOnce(usize, Cover) -> Result<Arc<Region>, TensorError>,
    ) -> Result<Pool> {
        let region = || {
            let reservation = ledger.reserve(purpose, base)?;
            let len = usize::try_from(base).map_err(|_| Error::internal("a pool beyond memory"))?;
            Ok::<_, Error>(make(len, Box::new(reservation))?)
        };
        Ok(Pool(Arc::new(Inner {
            base: (base > 0).then(region).transpose()?,
            ledger: ledger.clone(),
            purpose,
            small: Mutex::default(),
            beyond: Arc::default(),
            spare: Mutex::default(),
        })))
    }

    /// Switches the reuse of large memory on or off. While it is on, the pool keeps the memory of the last dropped
    /// tensor of [`LARGE`] bytes or more beyond the base, with its reservation, until it makes the next such tensor.
    pub fn reuse(&self, on: bool) {
        let spare = on.then(Arc::<Spare>::default);
        *self.0.spare.lock().unwrap_or_else(PoisonError::into_inner) = spare;
    }

    /// Makes a tensor with unspecified elements. Fails where its size overflows, or the ledger refuses its memory.
    pub fn tensor(&self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let len = Tensor::size_of(dtype, shape)?;
        if let Some(tensor) = Tensor::inline(dtype, shape, len) {
            return Ok(tensor);
        }
        let cut = match &self.0.base {
            Some(region) => region.block(len),
            None if len <= SMALL => self.small(len),
            None => None,
        };
        let block = match cut {
            Some(block) => block,
            None => self.beyond(len)?,
        };
        Ok(Tensor::from_block(dtype, shape, block))
    }

    /// Cuts a block from a shared reservation. Returns `None` where the ledger refuses another shared reservation.
    fn small(&self, len: usize) -> Option<Block> {
        let mut small = self.0.small.lock().unwrap_or_else(PoisonError::into_inner);
        let current = small.current.upgrade();
        if let Some(block) = current.and_then(|region| region.block(len)) {
            return Some(block);
        }
        let region = match small.roomy() {
            Some(region) => region,
            None => {
                let cover = self.0.ledger.reserve(self.0.purpose, SHARED as u64).ok()?;
                let region = Region::new(SHARED, Box::new(cover)).ok()?;
                small.all.push(Arc::downgrade(&region));
                region
            }
        };
        small.current = Arc::downgrade(&region);
        region.block(len)
    }

    fn beyond(&self, len: usize) -> Result<Block> {
        let spare = self.0.spare.lock();
        let spare = spare.unwrap_or_else(PoisonError::into_inner).clone();
        let Some(spare) = spare else {
            return self.made(len);
        };
        let block = match len < LARGE {
            true => self.made(len).ok(),
            false => None,
        };
        // Otherwise the kept block is used if it fits, and released if not, so that it never prevents another
        // allocation.
        let block = block.or_else(|| spare.take(len));
        Ok(spare.awaits(block.map_or_else(|| self.made(len), Ok)?))
    }

    fn made(&self, len: usize) -> Result<Block> {
        Ok(Block::covered(len, Box::new(self.reserved(len)?))?)
    }

    fn reserved(&self, len: usize) -> Result<ExtraReservation> {
        let reservation = self.0.ledger.reserve(self.0.purpose, len as u64)?;
        let sum = self.0.beyond.clone();
        sum.fetch_add(len as u64, Ordering::Relaxed);
        Ok(ExtraReservation { reservation, sum })
    }

    /// Takes a tensor that was made elsewhere into the pool. It stays where it lies, and its bytes are reserved as long
    /// as the result, or a view of it, lives. A tensor that has a reservation of its own in the same ledger is returned
    /// unchanged.
    pub fn adopt(&self, tensor: Tensor) -> Result<Tensor> {
        let counted = tensor
            .cover()
            .and_then(|c| c.downcast_ref::<ExtraReservation>());
        let books = counted.map(|beyond| &beyond.reservation.ledger.books);
        if books.is_some_and(|books| Arc::ptr_eq(books, &self.0.ledger.books)) {
            return Ok(tensor);
        }
        Ok(tensor.covered(Box::new(self.reserved(tensor.byte_len())?)))
    }

    /// Bytes of the pool's living tensors.
    pub fn live_bytes(&self) -> u64 {
        let base = self.0.base.as_ref().map_or(0, |region| region.used());
        let small = self.0.small.lock().unwrap_or_else(PoisonError::into_inner);
        let regions = small.all.iter().filter_map(Weak::upgrade);
        let small: u64 = regions.map(|region| region.asked()).sum();
        base + small + self.0.beyond.load(Ordering::Relaxed)
    }
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

    #[test]
    fn memory_is_reused_and_growth_is_accounted() {
        let l = Ledger::new("w0", 4096);
        let p = Pool::new(&l, Purpose::Leases, 1024).unwrap();
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

    #[test]
    fn what_is_adopted_is_counted_once_while_anything_made_of_it_lives() {
        let len = SMALL as u64 + 1;
        let (l, other) = (Ledger::new("w0", 3 * len - 1), Ledger::new("w1", 10 * len));
        let p = Pool::new(&l, Purpose::Handles, 0).unwrap();
        let theirs = Tensor::zeros(DType::U8, &[len as usize]).unwrap();
        let mine = p.adopt(theirs.clone()).unwrap();
        assert_eq!(mine.bytes().as_ptr(), theirs.bytes().as_ptr());
        assert_eq!((l.total_and_peak().0, p.live_bytes()), (len, len));
        // Tensors that the pool adopted or made before are not counted again.
        let made = p.tensor(DType::U8, &[len as usize]).unwrap();
        let again =
            [&mine, &made].map(|t| p.adopt(t.reshape(&[1, len as usize]).unwrap()).unwrap());
        assert_eq!(l.total_and_peak().0, 2 * len);
        let e = p.adopt(theirs).unwrap_err();
        assert_eq!(e.code, Code::OutOfMemory, "{e}");
        drop((mine, made));
        assert_eq!(l.total_and_peak().0, 2 * len);
        // Another ledger counts the tensor for itself.
        let elsewhere = Pool::new(&other, Purpose::Handles, 0).unwrap();
        let moved = elsewhere.adopt(again[0].clone()).unwrap();
        drop(again);
        assert_eq!((l.total_and_peak().0, p.live_bytes()), (0, 0));
        assert_eq!(other.total_and_peak().0, len);
        drop(moved);
        assert_eq!(other.total_and_peak().0, 0);
    }

    #[test]
    fn memory_is_kept_for_the_next_of_its_size_as_long_as_that_is_wanted() {
        let large = 8 << 20;
        let l = Ledger::new("w0", 2 * large);
        let p = Pool::new(&l, Purpose::Weights, 0).unwrap();
        let tensor = |len: u64| p.tensor(DType::U8, &[len as usize]);
        drop(tensor(large).unwrap());
        assert_eq!(l.total_and_peak().0, 0);
        p.reuse(true);
        drop(tensor(large).unwrap());
        drop(tensor(SMALL as u64 + 1).unwrap());
        assert_eq!(l.total_and_peak().0, large);
        let pair = (tensor(large).unwrap(), tensor(large).unwrap());
        assert!(tensor(large).is_err());
        drop(pair);
        assert_eq!(l.total_and_peak().0, large);
        // The kept memory never prevents another tensor.
        let rest = l.reserve(Purpose::Leases, large - 1).unwrap();
        drop(tensor(SMALL as u64 + 1).unwrap());
        assert_eq!(l.total_and_peak().0, large - 1);
        drop(rest);
        drop(tensor(2 * large).unwrap());
        assert_eq!(l.total_and_peak().0, 2 * large);
        p.reuse(false);
        assert_eq!((l.total_and_peak().0, p.live_bytes()), (0, 0));
    }

    #[test]
    fn small_tensors_share_reservations_that_end_with_them() {
        let shared = SHARED as u64;
        let l = Ledger::new("w0", 5 * shared);
        let p = Pool::new(&l, Purpose::Handles, 0).unwrap();
        let small = || p.tensor(DType::U8, &[100]).unwrap();
        let (a, b) = (small(), small());
        assert_eq!((l.total_and_peak().0, p.live_bytes()), (shared, 200));
        drop(a);
        assert_eq!((l.total_and_peak().0, p.live_bytes()), (shared, 100));
        let large = p.tensor(DType::U8, &[SMALL + 1]).unwrap();
        assert_eq!(l.total_and_peak().0, shared + SMALL as u64 + 1);
        drop((b, large));
        assert_eq!((l.total_and_peak().0, p.live_bytes()), (0, 0));
        // One tensor of each region is kept, and the holes are filled before another region is made.
        let mut kept = Vec::new();
        for _ in 0..3 {
            let mut all: Vec<Tensor> = (0..SHARED / 128 - 3).map(|_| small()).collect();
            kept.extend(all.pop());
        }
        assert_eq!(l.total_and_peak().0, shared);
        // Where no shared reservation fits any more, tensors are reserved one by one.
        let rest = l.reserve(Purpose::Leases, 4 * shared - 500).unwrap();
        let mut full: Vec<Tensor> = (0..SHARED / 128 - 3).map(|_| small()).collect();
        full.extend((0..5).map(|_| small()));
        assert!(p.tensor(DType::U8, &[100]).is_err());
        drop((rest, full, kept));
        assert_eq!((l.total_and_peak().0, p.live_bytes()), (0, 0));
    }
}
