//! The slot: where one send meets one recv, in one atomic word.
//!
//! ```text
//! word = step number << 4 | state
//!
//! EMPTY --register--> WAITING            EMPTY|WAITING --claim--> FILLING   (the claimer owns the value to come)
//! FILLING --publish--> PUBLISHING --> FULL --take--> TAKEN
//! EMPTY|WAITING|FILLING|FULL --abort--> ABORTED
//! a word of an earlier step whose slot is at rest (TAKEN, ABORTED, EMPTY) reads as EMPTY of a later one
//! ```
//!
//! Invariants
//! 1. Every transition is a compare-and-swap on the whole word, which orders registering, filling and aborting: a recv
//!    that is registered after an abort learns of it, and one that is registered before is woken or told.
//! 2. The cell is accessed only by the thread that moved the word to PUBLISHING, or from FULL to TAKEN or ABORTED.
//!    PUBLISHING lasts a few instructions; a thread that meets it spins.
//! 3. There is one consumer: a second register is refused.

use convoke_common::mutant;

use crate::primitives::{AtomicU64, Cell, Ordering, spin_loop};

const BITS: u32 = 4;
const EMPTY: u64 = 0;
const WAITING: u64 = 1;
const FILLING: u64 = 2;
/// The state FILLING, with a registered consumer.
const FILLING_WAITED: u64 = 3;
const PUBLISHING: u64 = 4;
const FULL: u64 = 5;
const TAKEN: u64 = 6;
const ABORTED: u64 = 7;

/// The largest step number for which the word has room.
pub const MAX_STEP: u64 = (1 << (64 - BITS)) - 1;

fn word(n: u64, state: u64) -> u64 {
    n << BITS | state
}

/// The meeting point of one send and one recv of each step.
pub struct Slot<T> {
    word: AtomicU64,
    cell: Cell<Option<T>>,
}

// SAFETY: invariant 2 holds: the word admits one thread at a time to the cell, with release when it leaves and acquire
// when it enters; T crosses threads and is never shared.
unsafe impl<T: Send> Sync for Slot<T> {}

/// The result of [`Slot::register`].
#[derive(Debug, PartialEq, Eq)]
pub enum RegisterOutcome<T> {
    /// There is no value yet: the publisher will learn that a consumer waits.
    Waiting,
    /// The value was already there.
    Ready(T),
    /// The step was aborted, or the slot belongs to a later step.
    Aborted,
}

/// How far the sender and the receiver of a slot have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meeting {
    /// Neither the sender nor the receiver has come, or both have met, or the step was aborted.
    None,
    /// The receiver waits for the value.
    ReceiverWaits,
    /// The value is arriving.
    Arriving,
    /// The value waits for the receiver.
    ValueWaits,
}

/// Why a slot cannot be filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillFailure {
    /// Another sender filled the slot, or is about to.
    Duplicate,
    /// The step was aborted.
    Aborted,
    /// The slot serves a later step.
    Stale,
}

/// The result of [`Slot::publish`].
#[derive(Debug, PartialEq, Eq)]
pub enum PublishOutcome<T> {
    /// The value is stored until a consumer asks for it.
    Stored,
    /// The value is stored, and the registered consumer is to be told.
    Awaited,
    /// The step was aborted meanwhile; the value is returned.
    Refused(T),
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot {
            word: AtomicU64::new(word(0, EMPTY)),
            cell: Cell::new(None),
        }
    }
}

impl<T> Slot<T> {
    /// The word, and its state for step `n`: `Err` if the slot has passed step `n`.
    fn read(&self, n: u64) -> (u64, Result<u64, ()>) {
        loop {
            let w = self.word.load(Ordering::Acquire);
            let (at, state) = (w >> BITS, w & ((1 << BITS) - 1));
            if at > n {
                return (w, Err(()));
            }
            match state {
                PUBLISHING => spin_loop(),
                _ if at == n => return (w, Ok(state)),
                EMPTY | TAKEN | ABORTED => return (w, Ok(EMPTY)),
                // A table retires a step, and so brings its slots to rest, before it admits the next.
                _ => return (w, Err(())),
            }
        }
    }

    fn swap(&self, from: u64, to: u64) -> bool {
        self.word
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Returns how far the sender and the receiver have come at this moment, whichever step the slot serves.
    pub fn meeting(&self) -> Meeting {
        match self.word.load(Ordering::Relaxed) & ((1 << BITS) - 1) {
            WAITING => Meeting::ReceiverWaits,
            FILLING | FILLING_WAITED | PUBLISHING => Meeting::Arriving,
            FULL => Meeting::ValueWaits,
            _ => Meeting::None,
        }
    }

    /// Registers the consumer of step `n`.
    pub fn register(&self, n: u64) -> RegisterOutcome<T> {
        loop {
            let (w, state) = self.read(n);
            let to = match state {
                Ok(EMPTY) => WAITING,
                Ok(FILLING) => FILLING_WAITED,
                Ok(FULL) => match self.take(n) {
                    Some(v) => return RegisterOutcome::Ready(v),
                    None => continue,
                },
                _ => return RegisterOutcome::Aborted,
            };
            if self.swap(w, word(n, to)) {
                return RegisterOutcome::Waiting;
            }
        }
    }

    /// Claims the slot, so that the caller is the one that fills step `n`.
    pub fn claim(&self, n: u64) -> Result<(), FillFailure> {
        loop {
            let (w, state) = self.read(n);
            let to = match state {
                Ok(EMPTY) => FILLING,
                Ok(TAKEN) if mutant!("duplicate-delivered") => FILLING,
                Ok(WAITING) => FILLING_WAITED,
                Ok(ABORTED) => return Err(FillFailure::Aborted),
                Ok(_) => return Err(FillFailure::Duplicate),
                Err(()) => return Err(FillFailure::Stale),
            };
            if self.swap(w, word(n, to)) {
                return Ok(());
            }
        }
    }

    /// Gives back a claim without filling the slot.
    pub fn unclaim(&self, n: u64) {
        if !self.swap(word(n, FILLING), word(n, EMPTY)) {
            self.swap(word(n, FILLING_WAITED), word(n, WAITING));
        }
    }

    /// Delivers the value of a claimed slot.
    pub fn publish(&self, n: u64, value: T) -> PublishOutcome<T> {
        let awaited = loop {
            if self.swap(word(n, FILLING), word(n, PUBLISHING)) {
                break false;
            }
            if self.swap(word(n, FILLING_WAITED), word(n, PUBLISHING)) {
                break true;
            }
            let w = self.word.load(Ordering::Acquire);
            if w != word(n, FILLING) && w != word(n, FILLING_WAITED) {
                return PublishOutcome::Refused(value);
            }
        };
        // SAFETY: PUBLISHING excludes every other access to the cell (invariant 2).
        self.cell.with_mut(|cell| unsafe { *cell = Some(value) });
        self.word.store(word(n, FULL), Ordering::Release);
        if awaited {
            PublishOutcome::Awaited
        } else {
            PublishOutcome::Stored
        }
    }

    /// Takes the value of step `n`, if it has been published.
    pub fn take(&self, n: u64) -> Option<T> {
        let (w, state) = self.read(n);
        // The cell is emptied under PUBLISHING, so that neither an abort nor a later step accesses it meanwhile.
        if state != Ok(FULL) || !self.swap(w, word(n, PUBLISHING)) {
            return None;
        }
        // SAFETY: as in `publish`.
        let value = self.cell.with_mut(|cell| unsafe { (*cell).take() });
        self.word.store(word(n, TAKEN), Ordering::Release);
        value
    }

    /// Ends step `n` in this slot: drops a value that was not taken, and refuses whatever arrives later.
    pub fn abort(&self, n: u64) {
        loop {
            let (w, state) = self.read(n);
            match state {
                Ok(FULL) => drop(self.take(n)),
                Ok(ABORTED) | Err(()) => return,
                Ok(_) => {
                    if self.swap(w, word(n, ABORTED)) {
                        return;
                    }
                }
            }
        }
    }
}
