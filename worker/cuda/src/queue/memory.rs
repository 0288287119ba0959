//! Device memory: the budget of a queue in the ledger, and buffers, which are freed in the order of streams.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use convoke_common::error::Result;
use convoke_common::memory::{Ledger, Purpose, Reservation};
use convoke_worker::device::DeviceFailure;

use super::faults::Fate;
use crate::driver::{DriverResult, StreamId};
use crate::gpu::Gpu;

/// The streams of a queue. The queue's thread holds them until all work on them has ended.
pub(crate) struct Lanes {
    gpu: Arc<Gpu>,
    /// Copies to the device.
    pub inward: StreamId,
    pub compute: StreamId,
    /// Copies to the host.
    pub outward: StreamId,
    kept: Mutex<BlockCache>,
}

/// Memory that was taken and freed on `compute`, and is kept for the next that is taken there: the driver takes longer for both
/// than for a launch.
#[derive(Default)]
struct BlockCache {
    /// Addresses by the bytes of their blocks.
    blocks: HashMap<usize, Vec<u64>>,
    bytes: u64,
    /// Whether the queue is closed, so that nothing more is kept.
    closed: bool,
}

/// The size of the block that holds this many bytes. The driver gives no memory of no bytes.
fn block_size(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(512)
}

impl Lanes {
    pub fn new(gpu: Arc<Gpu>) -> DriverResult<Lanes> {
        let mut made = vec![];
        for _ in 0..3 {
            let stream = gpu.driver.stream();
            made.push(stream.inspect_err(|_| made.iter().for_each(|s| gpu.driver.end_stream(*s)))?);
        }
        Ok(Lanes {
            gpu,
            inward: made[0],
            compute: made[1],
            outward: made[2],
            kept: Mutex::default(),
        })
    }

    fn kept(&self) -> MutexGuard<'_, BlockCache> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a kept block for work on `compute`.
    fn take(&self, size: usize) -> Option<u64> {
        let mut kept = self.kept();
        let address = kept.blocks.get_mut(&size)?.pop()?;
        kept.bytes -= size as u64;
        Some(address)
    }

    /// Keeps a block whose last use is ordered before the next work on `compute`. It is not kept if the kept blocks
    /// would then exceed the part of the queue's reservation that is unused once the block's charge has ended.
    fn keep(&self, size: usize, address: u64, charge: &Charge) -> bool {
        let mut kept = self.kept();
        let fits = !kept.closed && kept.bytes + size as u64 <= charge.room();
        if fits {
            kept.bytes += size as u64;
            kept.blocks.entry(size).or_default().push(address);
        }
        fits
    }

    /// Gives all kept blocks back to the driver, and keeps no more: the queue's reservation is about to end.
    pub fn close(&self) {
        self.kept().closed = true;
        self.shrink(0);
    }

    /// Gives kept blocks back to the driver until no more than `room` bytes are kept.
    fn shrink(&self, room: u64) {
        let mut kept = self.kept();
        while kept.bytes > room {
            let Some((size, blocks)) = kept.blocks.iter_mut().find(|(_, b)| !b.is_empty()) else {
                return;
            };
            let (size, address) = (*size, blocks.pop());
            kept.bytes -= size as u64;
            if let Some(address) = address {
                // SAFETY: a kept block came from `allocate`, nobody holds it, and its users are ordered before on `compute`.
                unsafe { self.gpu.driver.free(self.compute, address) };
            }
        }
        kept.blocks.retain(|_, blocks| !blocks.is_empty());
    }

    /// Makes work that is enqueued on `later` from now on wait for all work that `earlier` has so far.
    pub fn order(&self, earlier: StreamId, later: StreamId) -> DriverResult<()> {
        let event = self.gpu.record(earlier)?;
        let ordered = self.gpu.driver.order(later, event);
        self.gpu.driver.end_event(event);
        ordered
    }

    /// Waits until all work on the streams has ended, unless the GPU is lost.
    pub fn wait(&self) {
        for stream in [self.inward, self.compute, self.outward] {
            if self.gpu.lost().is_some() {
                return;
            }
            if let Ok(event) = self.gpu.record(stream) {
                let ended = self.gpu.driver.wait_for(event);
                self.gpu.driver.end_event(event);
                if let Err(e) = ended {
                    self.gpu.lose(&e.message);
                }
            }
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.close();
        for stream in [self.inward, self.compute, self.outward] {
            self.gpu.driver.end_stream(stream);
        }
    }
}

/// The device memory that a queue has reserved, and how much of it is in use.
pub(crate) struct Allowance {
    ledger: Ledger,
    purpose: Purpose,
    _reserved: Reservation,
    free: Mutex<u64>,
}

/// Bytes in use: of those that the queue has reserved, and beyond them.
pub(crate) struct Charge {
    allowance: Arc<Allowance>,
    reserved: u64,
    _beyond: Option<Reservation>,
}

impl Allowance {
    pub fn new(ledger: &Ledger, purpose: Purpose, bytes: u64) -> Result<Allowance> {
        Ok(Allowance {
            ledger: ledger.clone(),
            purpose,
            _reserved: ledger.reserve(purpose, bytes)?,
            free: Mutex::new(bytes),
        })
    }

    /// The bytes that are reserved and not in use.
    fn free(&self) -> u64 {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges a buffer: to the queue's reservation as far as that suffices, and to the ledger beyond it.
    pub fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge> {
        let reserved = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let reserved = bytes.min(*free);
            *free -= reserved;
            reserved
        };
        let mut charge = Charge {
            allowance: self.clone(),
            reserved,
            _beyond: None,
        };
        if bytes > reserved {
            charge._beyond = Some(self.ledger.reserve(self.purpose, bytes - reserved)?);
        }
        Ok(charge)
    }
}

impl Charge {
    /// How many bytes the queue has reserved and does not use, once this charge has ended.
    fn room(&self) -> u64 {
        self.allowance.free() + self.reserved
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let free = self.allowance.free.lock();
        *free.unwrap_or_else(PoisonError::into_inner) += self.reserved;
    }
}

/// Memory of a device tensor. When the last holder drops it, it is freed behind everything that was enqueued before and
/// reads or writes it. The charge ends at once. Memory that was allocated on `compute` is kept for that stream, as far
/// as the queue has reserved more than it uses. Other memory goes back to the driver: an allocation on another stream
/// or of another queue can come before it is free, and the driver's pool then grows beyond what is charged.
pub(crate) struct Memory {
    pub address: u64,
    /// Bytes of the block.
    size: usize,
    /// Whether the memory was taken on `compute`.
    of_compute: bool,
    lanes: Arc<Lanes>,
    /// The stream on which the memory was taken, until `compute` is ordered behind it.
    ahead: Option<StreamId>,
    /// The fate of the launch that writes the memory, where it has one.
    pub fate: Option<Arc<Fate>>,
    /// Whether a copy to the host reads the memory.
    pub copied_out: AtomicBool,
    /// Other queues whose launches read the memory. The work of one whose lanes are gone has ended.
    readers: Mutex<Vec<Weak<Lanes>>>,
    charge: Charge,
}

impl Memory {
    /// Takes memory for work that is enqueued on `stream`, which is one of the lanes.
    pub fn allocate(
        lanes: &Arc<Lanes>,
        stream: StreamId,
        bytes: usize,
        charge: Charge,
    ) -> DriverResult<Memory> {
        let (size, of_compute) = (block_size(bytes), stream == lanes.compute);
        let kept = of_compute.then(|| lanes.take(size)).flatten();
        let address = match kept {
            Some(address) => address,
            None => {
                lanes.shrink(charge.allowance.free());
                lanes.gpu.driver.allocate(stream, size)?
            }
        };
        Ok(Memory {
            address,
            size,
            of_compute,
            lanes: lanes.clone(),
            ahead: (!of_compute).then_some(stream),
            fate: None,
            copied_out: AtomicBool::new(false),
            readers: Mutex::default(),
            charge,
        })
    }

    /// Notes that `compute` is ordered behind the stream on which the memory was taken.
    pub fn ordered(&mut self) {
        self.ahead = None;
    }

    /// Notes that launches or copies of a queue read the memory.
    pub fn read_by(&self, lanes: &Arc<Lanes>) {
        if Arc::ptr_eq(&self.lanes, lanes) {
            return;
        }
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let lanes = Arc::downgrade(lanes);
        if !readers.iter().any(|known| known.ptr_eq(&lanes)) {
            readers.retain(|known| known.strong_count() > 0);
            readers.push(lanes);
        }
    }

    /// The stream on which the memory can be freed: everything that uses it is ordered before.
    fn last_stream(&mut self) -> DriverResult<StreamId> {
        if let Some(stream) = self.ahead {
            return Ok(stream);
        }
        let (lanes, readers) = (self.lanes.clone(), std::mem::take(&mut self.readers));
        let readers = readers.into_inner().unwrap_or_else(PoisonError::into_inner);
        for reader in readers.iter().filter_map(Weak::upgrade) {
            for stream in [reader.compute, reader.outward] {
                lanes.order(stream, lanes.compute)?;
            }
        }
        if !self.copied_out.load(Ordering::Relaxed) {
            return Ok(lanes.compute);
        }
        // Computing need not wait for the copy, unless it takes this very memory.
        lanes.order(lanes.compute, lanes.outward)?;
        Ok(lanes.outward)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A driver that orders nothing any longer has lost the context, and the memory with it.
        if let Ok(stream) = self.last_stream() {
            let is_kept = self.of_compute && stream == self.lanes.compute;
            if is_kept && self.lanes.keep(self.size, self.address, &self.charge) {
                return;
            }
            // SAFETY: the memory came from `allocate`, nobody holds it, and its users are ordered before on the stream.
            unsafe { self.lanes.gpu.driver.free(stream, self.address) };
        }
    }
}

/// The buffer of a device tensor.
pub(crate) enum Buffer {
    Memory(Memory),
    /// Nothing was enqueued that writes it.
    Failed(Arc<DeviceFailure>),
}
