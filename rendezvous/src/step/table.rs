//! A lease's step table: K steps of dense slots, and the window that fences everything else.
//!
//! Invariants
//! 1. Entry `n mod K` serves step `n` only after step `n - K` was retired here.
//! 2. A frame below the window is dead, above it a protocol error; neither touches a slot.
//! 3. Retiring drops every value that the step still holds.

use std::sync::{Arc, OnceLock, atomic};

use convoke_common::error::Error;
use convoke_common::mutant;
use convoke_common::rpc::RendezvousStatus;
use convoke_graph::Tensor;

use super::slot::{MAX_STEP, Meeting, Slot};
use crate::primitives::{AtomicU64, Ordering};

const OPEN: u64 = 1;

/// The delivery over an edge: its tensor, or, in a partial step, the error that came in its place.
pub type Delivery = Result<Tensor, Arc<Error>>;

struct Entry {
    /// The step number << 1 | open. If it is not open, this step is the next that may be opened.
    word: AtomicU64,
    slots: Box<[Slot<Delivery>]>,
}

/// The slots of the steps in flight of one lease at one participant.
pub struct StepTable {
    entries: Box<[Entry]>,
    /// Counts the aborted steps of all tables of this end.
    aborts: OnceLock<Arc<atomic::AtomicU64>>,
}

/// Why a frame's step is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceReason {
    /// The step is below the window: it is over.
    Stale,
    /// The step is above the window: it may not have started yet.
    Ahead,
    /// The program has no such slot.
    NoSuchSlot,
}

impl StepTable {
    /// A table for `in_flight` steps of `slots` slots.
    pub fn new(in_flight: u32, slots: usize) -> StepTable {
        let entries = (0..u64::from(in_flight.max(1)))
            .map(|i| Entry {
                word: AtomicU64::new(i << 1),
                slots: (0..slots).map(|_| Slot::default()).collect(),
            })
            .collect();
        StepTable {
            entries,
            aborts: OnceLock::new(),
        }
    }

    /// Counts aborted steps by `all` from now on. The first counter stays.
    pub fn count_aborts(&self, all: Arc<atomic::AtomicU64>) {
        self.aborts.get_or_init(|| all);
    }

    /// The number of steps in the window, K.
    pub fn in_flight(&self) -> u64 {
        self.entries.len() as u64
    }

    fn entry(&self, n: u64) -> &Entry {
        &self.entries[(n % self.in_flight()) as usize]
    }

    /// Admits a frame of step `n`; opens the step if it is the next one of its entry.
    pub fn admit(&self, n: u64) -> Result<(), FenceReason> {
        if n > MAX_STEP >> 1 {
            return Err(FenceReason::Ahead);
        }
        let e = self.entry(n);
        let w = e.word.load(Ordering::Acquire);
        match (w >> 1).cmp(&n) {
            std::cmp::Ordering::Less => Err(FenceReason::Ahead),
            std::cmp::Ordering::Greater => Err(FenceReason::Stale),
            std::cmp::Ordering::Equal if w & OPEN == OPEN => Ok(()),
            std::cmp::Ordering::Equal => {
                match e
                    .word
                    .compare_exchange(w, w | OPEN, Ordering::AcqRel, Ordering::Acquire)
                {
                    Ok(_) => Ok(()),
                    Err(now) if now == w | OPEN => Ok(()),
                    Err(_) => Err(FenceReason::Stale),
                }
            }
        }
    }

    /// Whether step `n` is in flight at this participant.
    pub fn is_open(&self, n: u64) -> bool {
        n <= MAX_STEP >> 1 && self.entry(n).word.load(Ordering::Acquire) == n << 1 | OPEN
    }

    /// A slot of step `n`, which is admitted first.
    pub fn slot(&self, n: u64, slot: u32) -> Result<&Slot<Delivery>, FenceReason> {
        self.admit(n)?;
        self.entry(n)
            .slots
            .get(slot as usize)
            .ok_or(FenceReason::NoSuchSlot)
    }

    /// Aborts the slots of step `n`: none of its values is delivered any more.
    pub fn abort(&self, n: u64) {
        if self.is_open(n) {
            if let Some(all) = self.aborts.get() {
                all.fetch_add(1, Ordering::Relaxed);
            }
            let left_out = usize::from(mutant!("abort-skips-slot"));
            let slots = self.entry(n).slots.iter().skip(left_out);
            slots.for_each(|s| s.abort(n));
        }
    }

    /// Retires step `n`, which opens the window for step `n + K`. Returns `false` if step `n` was not in flight.
    pub fn retire(&self, n: u64) -> bool {
        if !self.is_open(n) {
            return false;
        }
        let e = self.entry(n);
        e.slots.iter().for_each(|s| s.abort(n));
        let next = (n + self.in_flight()) << 1;
        e.word
            .compare_exchange(n << 1 | OPEN, next, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The number of steps in flight.
    pub fn open_steps(&self) -> u64 {
        let open = |e: &&Entry| e.word.load(Ordering::Relaxed) & OPEN == OPEN;
        self.entries.iter().filter(open).count() as u64
    }

    /// Adds to `status` what the steps in flight wait for at this moment.
    pub fn add_to(&self, status: &mut RendezvousStatus) {
        status.open_steps += self.open_steps();
        for slot in self.entries.iter().flat_map(|e| &e.slots) {
            match slot.meeting() {
                Meeting::None => {}
                Meeting::ReceiverWaits => status.waiting_receives += 1,
                Meeting::Arriving => status.arriving_tensors += 1,
                Meeting::ValueWaits => status.waiting_tensors += 1,
            }
        }
    }
}
