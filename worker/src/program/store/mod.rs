//! The program store of a worker: the programs of recent installs, known by their content hash. Leases of one program
//! share it, and an install of a program that is here is sent no program.
//!
//! ```text
//! grant with a hash ── find ──> here: the lease shares the program
//!                           '-> absent: the coordinator sends it ── hash is compared ── keep ──> here, for later leases
//! records are short of memory ──> programs without a charge are dropped
//! ```
//!
//! Invariants
//! 1. A program is known by the hash that this worker computed of it.
//! 2. All programs together take at most half of the records' own part of memory. Where there is no room for a program,
//!    its lease alone has it.
//! 3. A program that a lease is charged for is kept; of the others, the one that is unused for longest goes first.
//! 4. No memory is reserved, and no program dropped, under the store's lock.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::error::{Code, Error, Result};
use convoke_common::memory::{Charge, Reclaim, Reservation, SharedReservation};
use convoke_common::mutant;
use convoke_common::rpc::ProgramStoreStatus;
use convoke_graph::ids::ProgramId;
use convoke_graph::program::{HashedProgram, Program};

use crate::node::records::Records;

/// Bytes that a program takes in memory for each byte that it takes on the wire.
const IN_MEMORY: u64 = 4;

/// The divisor of the records' memory that gives the part for programs, used or not.
const PART: u64 = 2;

/// The most programs of a store, so that their records beside the graphs stay small.
const MOST: usize = 1024;

/// A program in the store, with the reservation of its memory.
struct Entry {
    program: HashedProgram,
    memory: SharedReservation,
}

#[derive(Default)]
struct Core {
    entries: BTreeMap<ProgramId, Entry>,
    /// Bytes of all entries.
    bytes: u64,
    received: u64,
    received_bytes: u64,
}

/// The programs of a worker.
pub struct ProgramStore {
    core: Mutex<Core>,
    /// Most bytes of all programs together.
    limit: u64,
}

/// The payment of a lease's client for its program, which lasts as long as this lives.
#[derive(Debug)]
pub enum ProgramPayment {
    /// A share of a program that the store has.
    Shared {
        /// The client's charge.
        charge: Charge,
    },
    /// A program that the store has no room for, or whose memory the client cannot share.
    Own {
        /// The lease's own reservation.
        reservation: Reservation,
    },
}

impl Core {
    /// Removes an entry.
    fn remove(&mut self, id: &ProgramId) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        self.bytes -= entry.memory.bytes();
        Some(entry)
    }

    /// Removes programs that nobody uses, the one that is unused for longest first, for as long as `more` says that more
    /// are to go; it is given the core and the bytes that were freed. The caller drops the result once it holds no lock.
    fn evict(&mut self, more: impl Fn(&Core, u64) -> bool) -> Vec<Entry> {
        let unused = self.entries.iter();
        let unused = unused.filter_map(|(id, entry)| Some((entry.memory.unused_since()?, *id)));
        let mut unused: Vec<(u64, ProgramId)> = unused.collect();
        unused.sort_unstable();
        let (mut evicted, mut freed) = (vec![], 0);
        for (_, id) in unused {
            if !more(self, freed) {
                break;
            }
            if let Some(entry) = self.remove(&id) {
                freed += entry.memory.bytes();
                evicted.push(entry);
            }
        }
        evicted
    }

    /// Adds a program, unless it is there. Returns the programs that had to go for it, or the program itself if there
    /// is no room.
    fn insert(&mut self, entry: Entry, limit: u64) -> Vec<Entry> {
        let id = entry.program.id();
        if self.entries.contains_key(&id) {
            return vec![entry];
        }
        self.bytes += entry.memory.bytes();
        self.entries.insert(id, entry);
        let over = |core: &Core| core.bytes > limit || core.entries.len() > MOST;
        let mut gone = self.evict(|core, _| over(core));
        if over(self) {
            gone.extend(self.remove(&id));
        }
        gone
    }
}

impl Reclaim for ProgramStore {
    fn reclaim(&self, bytes: u64) -> bool {
        let evicted = self.core().evict(|_, freed| freed < bytes);
        let any = !evicted.is_empty();
        drop(evicted);
        any
    }
}

impl ProgramStore {
    /// An empty store in the records' own part of memory, which drops unused programs where records need that memory.
    pub fn new(records: &Records) -> Arc<ProgramStore> {
        let store = Arc::new(ProgramStore {
            core: Mutex::default(),
            limit: records.own_part() / PART,
        });
        let source: Arc<dyn Reclaim> = store.clone();
        records.reclaim_from(Arc::downgrade(&source));
        store
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program with this hash: the one that is here, or the one that was `sent`. `None` where there is neither.
    /// Fails if the program that was sent has another hash.
    pub fn find(
        &self,
        id: &ProgramId,
        sent: Option<Arc<Program>>,
    ) -> Result<Option<HashedProgram>> {
        let sent = sent.map(HashedProgram::new).transpose();
        let sent = sent.map_err(|e| Error::new(Code::ProtocolViolation, e.to_string()))?;
        if let Some(sent) = sent.as_ref().filter(|sent| sent.id() != *id) {
            let msg = format!(
                "the program that was sent has the hash {}, the grant names {id}",
                sent.id()
            );
            return Err(Error::new(Code::ProtocolViolation, msg));
        }
        let mut core = self.core();
        if let Some(sent) = &sent {
            core.received += 1;
            core.received_bytes += sent.encoded_bytes();
        }
        let here = match mutant!("programs-merged") {
            false => core.entries.get(id),
            true => core.entries.values().next(),
        };
        Ok(here.map(|entry| entry.program.clone()).or(sent))
    }

    /// Keeps a program for this lease and for later ones. The result is the payment of the holder of `records`.
    pub fn keep(&self, program: &HashedProgram, records: &Records) -> Result<ProgramPayment> {
        let bytes = program.encoded_bytes().saturating_mul(IN_MEMORY);
        let own = || {
            let reservation = records.reserve(bytes)?;
            Ok(ProgramPayment::Own { reservation })
        };
        let core = self.core();
        let here = core.entries.get(&program.id());
        if let Some(charge) = here.map(|entry| records.charge(&entry.memory)) {
            drop(core);
            return charge.map_or_else(|_| own(), |charge| Ok(ProgramPayment::Shared { charge }));
        }
        drop(core);
        if bytes > self.limit {
            return own();
        }
        // Beyond their own part, records take memory that others need more than this store.
        let Ok((memory, charge)) = records.share(bytes) else {
            return own();
        };
        let entry = Entry {
            program: program.clone(),
            memory,
        };
        drop(self.core().insert(entry, self.limit));
        Ok(ProgramPayment::Shared { charge })
    }

    /// The number of programs, and the bytes that the worker was sent.
    pub fn status(&self) -> ProgramStoreStatus {
        let core = self.core();
        let all = core.entries.values();
        let unused = all.filter(|entry| entry.memory.unused_since().is_some());
        ProgramStoreStatus {
            held: core.entries.len() as u64,
            held_bytes: core.bytes,
            unused: unused.count() as u64,
            received: core.received,
            received_bytes: core.received_bytes,
        }
    }
}
