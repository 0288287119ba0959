//! The window of chunks that are on their way into tensors: one per worker, shared by the loads that run at once, each of
//! which takes a share of it that its size allows.
//!
//! Invariants
//! 1. A chunk holds a slot from before it is asked for until its last holder has dropped it.
//! 2. The slots' memory is reserved for the worker's life, and not offered to programs, so that loading never fails
//!    for want of it.
//! 3. Whoever waits for a slot holds none that only it could free.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use convoke_common::artifact::{CHUNK, LEAST_COMING, coming};
use convoke_common::memory::{Account, Ledger, Reservation};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Chunks asked for at once, together: what hides a round trip and a disk's seek.
pub const PIECE: u32 = 4;

/// The window's part of the worker's memory: enough to receive while weights are packed.
const PART: u64 = 32;
/// At 10 Gbit/s, 50 ms of packing.
const MOST: u64 = 64 << 20;

/// See the module.
pub struct Window {
    slots: Arc<Semaphore>,
    /// What literals may take that are loaded ahead of their turn, per load.
    pub ahead: u64,
    _reserved: Option<Reservation>,
}

impl Window {
    /// Bytes that a worker with this budget keeps from programs.
    pub fn bytes(budget: u64) -> u64 {
        (budget / PART).clamp(LEAST_COMING, MOST)
    }

    /// The window of a worker; seven eighths are slots.
    pub fn reserve(ledger: &Ledger) -> Window {
        let all = Window::bytes(ledger.budget());
        let ahead = all / 8;
        let slots = (all - ahead) / CHUNK;
        let free = ledger.budget() - ledger.total_and_peak().0;
        // A worker without even that much memory can hold no program either, which the plan will say.
        let reserved = ledger.reserve(Account::Windows, (slots * CHUNK).min(free));
        Window {
            slots: Arc::new(Semaphore::new(slots as usize)),
            ahead,
            _reserved: reserved.ok(),
        }
    }

    /// The share of a load of so many bytes.
    pub fn share(&self, bytes: u64) -> Share {
        let most = coming(bytes, u64::MAX) / CHUNK;
        let most = usize::try_from(most).unwrap_or(Semaphore::MAX_PERMITS);
        Share {
            all: self.slots.clone(),
            own: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
        }
    }
}

/// See [`Window::share`].
pub struct Share {
    all: Arc<Semaphore>,
    own: Arc<Semaphore>,
}

impl Share {
    /// `count` slots, at most [`PIECE`], in the order asked.
    pub async fn slots(&self, count: u32) -> Option<Slots> {
        // Neither semaphore is ever closed. What is the load's own is taken first: it waits for no other load.
        let own = self.own.clone().acquire_many_owned(count).await.ok()?;
        let all = self.all.clone().acquire_many_owned(count).await.ok()?;
        Some(Slots { own, all })
    }
}

/// Room for chunks.
pub struct Slots {
    own: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
}

impl Slots {
    /// One of them.
    pub fn split(&mut self) -> Option<Slots> {
        let (own, all) = (self.own.split(1)?, self.all.split(1)?);
        Some(Slots { own, all })
    }
}

/// The buffers of one load, used again and again: fresh memory costs more than what is read into it.
#[derive(Clone, Default)]
pub struct Buffers(Arc<Mutex<Vec<Box<[u8]>>>>);

impl Buffers {
    /// A buffer of [`CHUNK`] bytes; what is in it is unspecified.
    pub fn take(&self) -> Buffer {
        let used = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Buffer {
            bytes: used.unwrap_or_else(|| vec![0; CHUNK as usize].into()),
            home: self.clone(),
        }
    }
}

/// Returns to where it was taken when it is dropped.
pub struct Buffer {
    bytes: Box<[u8]>,
    home: Buffers,
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut home = self.home.0.lock().unwrap_or_else(PoisonError::into_inner);
        home.push(bytes);
    }
}

/// Where a chunk's bytes are.
pub enum Held {
    /// In the first bytes of a buffer.
    Buffer(Buffer, usize),
    /// With whoever made them.
    Shared(Bytes),
}

impl Deref for Held {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Held::Buffer(b, len) => &b[..*len],
            Held::Shared(b) => b,
        }
    }
}

/// The verified bytes of a chunk, in its slot; clones share both.
#[derive(Clone)]
pub struct Chunk(Arc<(Held, Slots)>);

impl Chunk {
    /// `bytes` in `slot`.
    pub fn new(bytes: Held, slot: Slots) -> Chunk {
        Chunk(Arc::new((bytes, slot)))
    }
}

impl Deref for Chunk {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0.0
    }
}
