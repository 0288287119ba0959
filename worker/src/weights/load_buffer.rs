//! The load buffer of a worker: slots for the chunks that are on their way into tensors. The loads that run at once
//! share it; each takes as many slots as its size allows.
//!
//! Invariants
//! 1. A chunk holds a slot from before it is requested until its last holder has dropped it.
//! 2. The slots' memory is reserved for the worker's life, and not offered to programs, so that loading never fails for
//!    lack of it.
//! 3. A task that waits for a slot holds none that only it could free.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use convoke_common::memory::{Ledger, Purpose, Reservation};
use convoke_graph::artifact::{CHUNK, LEAST_COMING, coming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Chunks requested together: enough to hide a round trip and a disk's seek.
pub const PIECE: u32 = 4;

/// The divisor of the worker's memory that gives the size of the load buffer: it is enough to receive while weights are
/// packed.
const PART: u64 = 32;
/// Most bytes of a load buffer. At 10 Gbit/s they arrive in 50 ms, while other chunks are packed.
const MOST: u64 = 64 << 20;

/// The slots of a worker's load buffer, and the reservation that pays for them.
pub struct LoadBuffer {
    permits: Arc<Semaphore>,
    /// Bytes that literals loaded ahead of their turn may take, per load.
    pub ahead: u64,
    _reserved: Option<Reservation>,
}

impl LoadBuffer {
    /// Bytes that a worker with this memory limit keeps from programs.
    pub fn bytes(budget: u64) -> u64 {
        (budget / PART).clamp(LEAST_COMING, MOST)
    }

    /// Reserves the load buffer of a worker; seven eighths of it are slots.
    pub fn reserve(ledger: &Ledger) -> LoadBuffer {
        let all = LoadBuffer::bytes(ledger.limit());
        let ahead = all / 8;
        let permits = (all - ahead) / CHUNK;
        let free = ledger.limit() - ledger.total_and_peak().0;
        // A worker without even that much memory can hold no program either, which the plan will report.
        let reserved = ledger.reserve(Purpose::Buffers, (permits * CHUNK).min(free));
        LoadBuffer {
            permits: Arc::new(Semaphore::new(permits as usize)),
            ahead,
            _reserved: reserved.ok(),
        }
    }

    /// The share of a load of `bytes` bytes.
    pub fn allotment(&self, bytes: u64) -> Allotment {
        let most = coming(bytes, u64::MAX) / CHUNK;
        let most = usize::try_from(most).unwrap_or(Semaphore::MAX_PERMITS);
        Allotment {
            all: self.permits.clone(),
            own: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
        }
    }
}

/// The slots that one load may hold, made by [`LoadBuffer::allotment`].
pub struct Allotment {
    all: Arc<Semaphore>,
    own: Arc<Semaphore>,
}

impl Allotment {
    /// Waits for `count` slots, at most [`PIECE`]; requests are served in their order.
    pub async fn permits(&self, count: u32) -> Option<ChunkPermits> {
        // Neither semaphore is ever closed. The load's own permits are taken first: they depend on no other load.
        let own = self.own.clone().acquire_many_owned(count).await.ok()?;
        let all = self.all.clone().acquire_many_owned(count).await.ok()?;
        Some(ChunkPermits { own, all })
    }
}

/// Slots that are held until they are dropped, one for each chunk.
pub struct ChunkPermits {
    own: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
}

impl ChunkPermits {
    /// Splits off one slot; `None` where none is left.
    pub fn split(&mut self) -> Option<ChunkPermits> {
        let (own, all) = (self.own.split(1)?, self.all.split(1)?);
        Some(ChunkPermits { own, all })
    }
}

/// The buffers of one load, which are used again and again: fresh memory costs more than reading into it.
#[derive(Clone, Default)]
pub struct Buffers(Arc<Mutex<Vec<Box<[u8]>>>>);

impl Buffers {
    /// A buffer of [`CHUNK`] bytes with arbitrary contents.
    pub fn take(&self) -> Buffer {
        let used = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Buffer {
            bytes: used.unwrap_or_else(|| vec![0; CHUNK as usize].into()),
            home: self.clone(),
        }
    }
}

/// A buffer that returns to its [`Buffers`] when it is dropped.
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
pub enum ChunkBytes {
    /// In a buffer of the load, of which the chunk fills this many bytes.
    Buffer(Buffer, usize),
    /// In memory that the client's source shares.
    Shared(Bytes),
}

impl Deref for ChunkBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            ChunkBytes::Buffer(b, len) => &b[..*len],
            ChunkBytes::Shared(b) => b,
        }
    }
}

/// The verified bytes of a chunk, in its slot; clones share both.
#[derive(Clone)]
pub struct Chunk(Arc<(ChunkBytes, ChunkPermits)>);

impl Chunk {
    /// Puts `bytes` into `permit`.
    pub fn new(bytes: ChunkBytes, permit: ChunkPermits) -> Chunk {
        Chunk(Arc::new((bytes, permit)))
    }
}

impl Deref for Chunk {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0.0
    }
}
