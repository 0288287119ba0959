//! Device memory: what a queue may use by the ledger, and buffers, which are freed in the order of streams.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use convoke_common::error::Result;
use convoke_common::memory::{Ledger, Purpose, Reservation};
use convoke_worker::device::DeviceFailure;

use crate::device::Gpu;
use crate::driver::{DriverResult, StreamId};

/// The streams of a queue. The queue's thread holds them until all work on them has ended.
pub(crate) struct Lanes {
    gpu: Arc<Gpu>,
    /// Copies to the device.
    pub inward: StreamId,
    pub compute: StreamId,
    /// Copies to the host.
    pub outward: StreamId,
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
        })
    }

    /// Lets what is enqueued on `later` from now on wait for all that `earlier` has so far.
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

    /// Charges a buffer: to what is reserved as far as that goes, and to the ledger beyond.
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

impl Drop for Charge {
    fn drop(&mut self) {
        let free = self.allowance.free.lock();
        *free.unwrap_or_else(PoisonError::into_inner) += self.reserved;
    }
}

/// Memory of a device tensor. When the last holder drops it, it is freed behind everything that was enqueued before and
/// reads or writes it. The charge ends at once. A later allocation on `compute` takes the memory again, but one on another
/// stream or of another queue can come before the memory is free: the driver's pool then grows beyond what is charged.
pub(crate) struct Memory {
    pub address: u64,
    lanes: Arc<Lanes>,
    /// The stream on which the memory was taken, until `compute` is ordered behind it.
    ahead: Option<StreamId>,
    /// Whether a copy to the host reads the memory.
    pub copied_out: AtomicBool,
    /// Other queues whose launches read the memory. The work of one whose lanes are gone has ended.
    readers: Mutex<Vec<Weak<Lanes>>>,
    _charge: Charge,
}

impl Memory {
    /// Takes memory for what is enqueued on `stream`, which is one of the lanes.
    pub fn allocate(
        lanes: &Arc<Lanes>,
        stream: StreamId,
        bytes: usize,
        charge: Charge,
    ) -> DriverResult<Memory> {
        Ok(Memory {
            // The driver gives no memory of no bytes.
            address: lanes.gpu.driver.allocate(stream, bytes.max(1))?,
            lanes: lanes.clone(),
            ahead: (stream != lanes.compute).then_some(stream),
            copied_out: AtomicBool::new(false),
            readers: Mutex::default(),
            _charge: charge,
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
