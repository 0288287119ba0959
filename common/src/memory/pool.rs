//! Pools: tensors within a reservation, whose memory is reused between steps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use convoke_graph::block::{Block, Cover, MemoryAccount, Region};
use convoke_graph::dtype::DType;
use convoke_graph::tensor::{INLINE, Tensor, TensorError};

use super::shared::{Charge, SharedReservation, SharedTensor};
use super::{Ledger, Purpose, Reservation, SharedBlocks};
use crate::error::{Error, Result};

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
    /// The reservation; `None` once it is shared.
    own: Mutex<Option<Reservation>>,
    shared: OnceLock<SharedReservation>,
    bytes: u64,
    sum: Arc<AtomicU64>,
    /// Keeps memory in use that another ledger counts as shared.
    _held: Option<Charge>,
}

impl ExtraReservation {
    fn of(reservation: Reservation, sum: Arc<AtomicU64>, held: Option<Charge>) -> ExtraReservation {
        let bytes = reservation.bytes;
        sum.fetch_add(bytes, Ordering::Relaxed);
        ExtraReservation {
            own: Mutex::new(Some(reservation)),
            shared: OnceLock::new(),
            bytes,
            sum,
            _held: held,
        }
    }

    fn own(&self) -> MutexGuard<'_, Option<Reservation>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the bytes are counted by this ledger, and belong to nobody else.
    fn is_of(&self, ledger: &Ledger) -> bool {
        let own = self.own();
        own.as_ref().is_some_and(|r| r.ledger.is(ledger))
    }

    /// Makes the reservation shared, where it is not yet; the result is charged to whoever has had it.
    fn share(&self, ledger: &Ledger) -> Result<(SharedReservation, Charge)> {
        let mut own = self.own();
        if let Some(reservation) = own.take() {
            let (shared, charge) = SharedReservation::of(reservation, Purpose::UnusedWeights);
            let shared = self.shared.get_or_init(|| shared).clone();
            return Ok((shared, charge));
        }
        drop(own);
        let shared = self
            .shared
            .get()
            .ok_or_else(|| Error::internal("a reservation of nobody"))?;
        Ok((shared.clone(), shared.charge(ledger)?))
    }
}

impl MemoryAccount for ExtraReservation {
    fn take(&self, memory: Block) {
        let own = self.own().take();
        match own {
            Some(reservation) => reservation.keep(memory),
            // The store that shares the memory decides whether it is kept.
            None => drop(memory),
        }
    }
}

impl Drop for ExtraReservation {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The shared reservation of a tensor's memory, if it has one.
fn shared_of(tensor: &Tensor) -> Option<&SharedReservation> {
    let cover = tensor.cover()?;
    match cover.downcast_ref::<Charge>() {
        Some(charge) => Some(charge.reservation()),
        None => cover.downcast_ref::<ExtraReservation>()?.shared.get(),
    }
}

impl Pool {
    /// How the small tensors of a pool without a base share blocks.
    pub const SHARED_BLOCKS: SharedBlocks = SharedBlocks {
        small: SMALL as u32,
        block: SHARED as u32,
    };

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
        })))
    }

    /// Makes a tensor with unspecified elements, or of empty strings. Fails where its size overflows, or the ledger refuses
    /// its memory.
    pub fn tensor(&self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let len = Tensor::size_of(dtype, shape)?;
        match dtype {
            DType::Str => self.empty_strings(shape, len),
            _ => self.of_size(dtype, shape, len),
        }
    }

    /// Makes a tensor of empty strings, whose table has `len` bytes.
    #[cold]
    fn empty_strings(&self, shape: &[usize], len: usize) -> Result<Tensor> {
        let mut tensor = self.of_size(DType::Str, shape, len)?;
        if let Some(table) = tensor.bytes_mut() {
            table.fill(0);
        }
        Ok(tensor)
    }

    /// Makes a tensor with unspecified elements, and with `room` bytes behind them for [`Tensor::grown`] where memory is free
    /// that nobody counts on: neither the base, which plans fill, nor what would have to be freed for it. The room is reserved as
    /// the elements are. Strings have none.
    pub fn with_room(&self, dtype: DType, shape: &[usize], room: usize) -> Result<Tensor> {
        let len = Tensor::size_of(dtype, shape)?;
        match len.checked_add(room) {
            Some(all) if dtype != DType::Str && len > 0 && all > INLINE => {
                let block = match self.0.ledger.free() >= all as u64 {
                    true => self.beyond(all).or_else(|_| self.block(len)),
                    false => self.block(len),
                };
                Ok(Tensor::from_block(dtype, shape, block?))
            }
            _ => self.tensor(dtype, shape),
        }
    }

    /// Makes a tensor of the dtype, shape and size of another one, with unspecified elements.
    pub fn alike(&self, tensor: &Tensor) -> Result<Tensor> {
        self.of_size(tensor.dtype(), tensor.shape(), tensor.byte_len())
    }

    /// Makes a tensor of `len` bytes, with unspecified elements. Fails where a tensor of this dtype and shape cannot have
    /// that size, or the ledger refuses its memory.
    pub fn sized(&self, dtype: DType, shape: &[usize], len: usize) -> Result<Tensor> {
        Tensor::check_size(dtype, shape, len)?;
        self.of_size(dtype, shape, len)
    }

    #[inline(always)]
    fn of_size(&self, dtype: DType, shape: &[usize], len: usize) -> Result<Tensor> {
        if let Some(tensor) = Tensor::inline(dtype, shape, len) {
            return Ok(tensor);
        }
        Ok(Tensor::from_block(dtype, shape, self.block(len)?))
    }

    /// A block of `len` bytes: cut from the base or from a shared reservation where there is room, else with a reservation of its
    /// own.
    #[inline(always)]
    fn block(&self, len: usize) -> Result<Block> {
        let cut = match &self.0.base {
            Some(region) => region.block(len),
            None if len <= SMALL => self.small(len),
            None => None,
        };
        match cut {
            Some(block) => Ok(block),
            None => self.beyond(len),
        }
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
        let Some((memory, reservation)) = self.0.ledger.kept(self.0.purpose, len)? else {
            return Ok(Block::covered(len, Box::new(self.reserved(len, None)?))?);
        };
        let cover = ExtraReservation::of(reservation, self.0.beyond.clone(), None);
        Ok(memory.with_cover(Box::new(cover)))
    }

    fn reserved(&self, len: usize, held: Option<Charge>) -> Result<ExtraReservation> {
        let reservation = self.0.ledger.reserve(self.0.purpose, len as u64)?;
        Ok(ExtraReservation::of(
            reservation,
            self.0.beyond.clone(),
            held,
        ))
    }

    /// Takes a tensor that was made elsewhere into the pool. It stays where it lies, and its bytes are reserved as long
    /// as the result, or a view of it, lives. A tensor that has a reservation of its own in the same ledger is returned
    /// unchanged, and one whose memory is shared is charged to the pool's owner.
    pub fn adopt(&self, tensor: Tensor) -> Result<Tensor> {
        if let Some(charged) = self.charged(&tensor)? {
            return Ok(charged);
        }
        let counted = tensor
            .cover()
            .and_then(|c| c.downcast_ref::<ExtraReservation>());
        if counted.is_some_and(|extra| extra.is_of(&self.0.ledger)) {
            return Ok(tensor);
        }
        let held = shared_of(&tensor).map(SharedReservation::hold);
        let cover = self.reserved(tensor.byte_len(), held)?;
        Ok(tensor.covered(Box::new(cover)))
    }

    /// The same tensor, charged to the pool's owner as long as the result, or a view of it, lives. `None` where its
    /// memory is not shared in the pool's ledger.
    pub fn charged(&self, tensor: &Tensor) -> Result<Option<Tensor>> {
        let shared = shared_of(tensor).filter(|shared| shared.is_of(&self.0.ledger));
        let charge = shared.map(|shared| shared.charge(&self.0.ledger));
        Ok(charge
            .transpose()?
            .map(|charge| tensor.covered(Box::new(charge))))
    }

    /// Makes the memory of one of the pool's tensors shared. A tensor without a reservation of its own is copied.
    pub fn share(&self, tensor: &Tensor) -> Result<(SharedTensor, Charge)> {
        let cover = tensor.cover();
        if let Some(extra) = cover.and_then(|c| c.downcast_ref::<ExtraReservation>()) {
            let (reservation, charge) = extra.share(&self.0.ledger)?;
            let tensor = tensor.clone();
            return Ok((
                SharedTensor {
                    tensor,
                    reservation,
                },
                charge,
            ));
        }
        let (dtype, shape, len) = (tensor.dtype(), tensor.shape(), tensor.byte_len());
        if len <= INLINE {
            // Such a tensor lies in itself, or is a view of another one, and no budget counts it.
            let nothing = self.0.ledger.reserve(self.0.purpose, 0)?;
            let (reservation, charge) = SharedReservation::of(nothing, Purpose::UnusedWeights);
            let tensor = Tensor::from_bytes(dtype, shape, tensor.bytes())?;
            return Ok((
                SharedTensor {
                    tensor,
                    reservation,
                },
                charge,
            ));
        }
        let extra = self.reserved(len, None)?;
        let (reservation, charge) = extra.share(&self.0.ledger)?;
        let mut block = Block::covered(len, Box::new(extra))?;
        block.bytes_mut().copy_from_slice(tensor.bytes());
        let tensor = Tensor::from_block(dtype, shape, block);
        Ok((
            SharedTensor {
                tensor,
                reservation,
            },
            charge,
        ))
    }

    /// Charges the pool's owner for memory that is shared.
    pub fn charge(&self, shared: &SharedReservation) -> Result<Charge> {
        shared.charge(&self.0.ledger)
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
    use crate::error::Code;

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
    fn room_behind_a_tensor_is_accounted_and_never_asked_for_in_vain() {
        let l = Ledger::new("w0", 100 << 10);
        let p = Pool::new(&l, Purpose::Leases, 0).unwrap();
        let a = p.with_room(DType::U8, &[40 << 10], 20 << 10).unwrap();
        assert_eq!((a.byte_len(), p.live_bytes()), (40 << 10, 60 << 10));
        // The elements fit beside it, and room behind them does not.
        let b = p.with_room(DType::U8, &[40 << 10], 1).unwrap();
        assert_eq!((b.byte_len(), p.live_bytes()), (40 << 10, 100 << 10));
        assert!(p.with_room(DType::U8, &[5000], 0).is_err());
        assert!(a.grown(&[60 << 10]).is_ok());
        assert!(b.grown(&[(40 << 10) + 1]).is_err());
        let none = p.with_room(DType::Str, &[3], 8).unwrap();
        assert_eq!(none.to_strings().unwrap(), ["", "", ""]);
        assert!(p.with_room(DType::U8, &[4], usize::MAX).is_ok());
    }

    #[test]
    fn room_is_not_taken_from_what_others_count_on() {
        let l = Ledger::new("w0", 100 << 10);
        let p = Pool::new(&l, Purpose::Leases, 50 << 10).unwrap();
        let a = p.with_room(DType::U8, &[20 << 10], 10 << 10).unwrap();
        assert_eq!((a.byte_len(), l.total_and_peak().0), (20 << 10, 80 << 10));
        // The ledger's free memory cannot hold the elements with their room, so there is no room; the base holds the
        // elements.
        let b = p.with_room(DType::U8, &[45 << 10], 1).unwrap();
        assert_eq!((b.byte_len(), l.total_and_peak().0), (45 << 10, 80 << 10));
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

    #[test]
    fn a_region_that_is_full_is_followed_by_another() {
        let shared = SHARED as u64;
        let l = Ledger::new("w0", 5 * shared);
        let p = Pool::new(&l, Purpose::Handles, 0).unwrap();
        let mut all = vec![];
        while l.total_and_peak().0 <= shared {
            all.push(p.tensor(DType::U8, &[100]).unwrap());
        }
        assert_eq!(l.total_and_peak().0, 2 * shared);
    }
}
