//! Device memory: what a queue may use by the ledger, and buffers, which are freed in the order of streams.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use convoke_common::error::Result;
use convoke_common::memory::{Ledger, Purpose, Reservation};
use convoke_worker::device::DeviceFailure;

use crate::driver::{Driver, DriverResult, StreamId};

/// The streams of a queue.
pub(crate) struct Lanes {
    pub driver: Arc<dyn Driver>,
    /// Copies to the device.
    pub inward: StreamId,
    pub compute: StreamId,
    /// Copies to the host.
    pub outward: StreamId,
}

impl Lanes {
    pub fn new(driver: Arc<dyn Driver>) -> DriverResult<Lanes> {
        let (inward, compute, outward) = (driver.stream()?, driver.stream()?, driver.stream()?);
        Ok(Lanes {
            driver,
            inward,
            compute,
            outward,
        })
    }

    /// Lets what is enqueued on `later` from now on wait for all that `earlier` has so far.
    pub fn order(&self, earlier: StreamId, later: StreamId) -> DriverResult<()> {
        let event = self.driver.record(earlier)?;
        let ordered = self.driver.order(later, event);
        self.driver.end_event(event);
        ordered
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        for stream in [self.inward, self.compute, self.outward] {
            self.driver.end_stream(stream);
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
/// reads or writes it; the charge ends at once, because the next allocation is enqueued behind that as well.
pub(crate) struct Memory {
    pub address: u64,
    lanes: Arc<Lanes>,
    /// Whether a copy to the host reads the memory.
    pub copied_out: AtomicBool,
    /// Other queues whose launches read the memory.
    readers: Mutex<Vec<Arc<Lanes>>>,
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
            address: lanes.driver.allocate(stream, bytes.max(1))?,
            lanes: lanes.clone(),
            copied_out: AtomicBool::new(false),
            readers: Mutex::default(),
            _charge: charge,
        })
    }

    /// Notes that launches or copies of a queue read the memory.
    pub fn read_by(&self, lanes: &Arc<Lanes>) {
        if Arc::ptr_eq(&self.lanes, lanes) {
            return;
        }
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if !readers.iter().any(|known| Arc::ptr_eq(known, lanes)) {
            readers.push(lanes.clone());
        }
    }

    /// The stream on which the memory can be freed: everything that uses it is ordered before.
    fn last_stream(&mut self) -> DriverResult<StreamId> {
        let (lanes, readers) = (self.lanes.clone(), std::mem::take(&mut self.readers));
        for reader in readers.into_inner().unwrap_or_else(PoisonError::into_inner) {
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
            unsafe { self.lanes.driver.free(stream, self.address) };
        }
    }
}

/// The buffer of a device tensor.
pub(crate) enum Buffer {
    Memory(Memory),
    /// Nothing was enqueued that writes it.
    Failed(Arc<DeviceFailure>),
}
