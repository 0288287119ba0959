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
//! 1. Every transition is a compare-and-swap on the whole word, so registering, filling and aborting meet
//!    there: a recv registered after an abort is told so, and one registered before is woken or told.
//! 2. The cell is touched only by the one who moved the word to PUBLISHING, or from FULL to TAKEN or
//!    ABORTED. PUBLISHING lasts a few instructions; who meets it spins.
//! 3. One consumer: a second register is refused.

use convoke_common::mutant;

use crate::primitives::{AtomicU64, Cell, Ordering, spin_loop};

const BITS: u32 = 4;
const EMPTY: u64 = 0;
const WAITING: u64 = 1;
const FILLING: u64 = 2;
/// As FILLING, with a registered consumer.
const FILLING_WAITED: u64 = 3;
const PUBLISHING: u64 = 4;
const FULL: u64 = 5;
const TAKEN: u64 = 6;
const ABORTED: u64 = 7;

/// Largest step number: what the word has room for.
pub const MAX_STEP: u64 = (1 << (64 - BITS)) - 1;

fn word(n: u64, state: u64) -> u64 {
    n << BITS | state
}

/// A meeting point of one send and one recv per step.
pub struct Slot<T> {
    word: AtomicU64,
    cell: Cell<Option<T>>,
}

// SAFETY: invariant 2: the word admits one toucher of the cell at a time, with release on its way out
// and acquire on its way in; T crosses threads and is never shared.
unsafe impl<T: Send> Sync for Slot<T> {}

/// What [`Slot::register`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Registered<T> {
    /// Nothing yet: the publisher will learn that it is waited for.
    Waiting,
    /// The value was there already.
    Ready(T),
    /// The step was aborted, or the slot belongs to a later step.
    Aborted,
}

/// Why a slot cannot be filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfillable {
    /// Somebody else filled it, or is about to.
    Duplicate,
    /// The step was aborted.
    Aborted,
    /// The slot serves a later step.
    Stale,
}

/// What [`Slot::publish`] did.
#[derive(Debug, PartialEq, Eq)]
pub enum Published<T> {
    /// The value waits to be taken by someone who will ask.
    Stored,
    /// A registered consumer is to be told.
    Awaited,
    /// The step was aborted meanwhile; the value comes back.
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
    /// The state under step `n`: `Ok` when the slot is at `n` or may become so, `Err` when it is past.
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

    /// Asks for the value of step `n`.
    pub fn register(&self, n: u64) -> Registered<T> {
        loop {
            let (w, state) = self.read(n);
            let to = match state {
                Ok(EMPTY) => WAITING,
                Ok(FILLING) => FILLING_WAITED,
                Ok(FULL) => match self.take(n) {
                    Some(v) => return Registered::Ready(v),
                    None => continue,
                },
                _ => return Registered::Aborted,
            };
            if self.swap(w, word(n, to)) {
                return Registered::Waiting;
            }
        }
    }

    /// Becomes the one who fills step `n`.
    pub fn claim(&self, n: u64) -> Result<(), Unfillable> {
        loop {
            let (w, state) = self.read(n);
            let to = match state {
                Ok(EMPTY) => FILLING,
                Ok(TAKEN) if mutant!("duplicate-delivered") => FILLING,
                Ok(WAITING) => FILLING_WAITED,
                Ok(ABORTED) => return Err(Unfillable::Aborted),
                Ok(_) => return Err(Unfillable::Duplicate),
                Err(()) => return Err(Unfillable::Stale),
            };
            if self.swap(w, word(n, to)) {
                return Ok(());
            }
        }
    }

    /// Gives a claim back unfilled.
    pub fn unclaim(&self, n: u64) {
        if !self.swap(word(n, FILLING), word(n, EMPTY)) {
            self.swap(word(n, FILLING_WAITED), word(n, WAITING));
        }
    }

    /// Delivers the value of a claimed slot.
    pub fn publish(&self, n: u64, value: T) -> Published<T> {
        let awaited = loop {
            if self.swap(word(n, FILLING), word(n, PUBLISHING)) {
                break false;
            }
            if self.swap(word(n, FILLING_WAITED), word(n, PUBLISHING)) {
                break true;
            }
            let w = self.word.load(Ordering::Acquire);
            if w != word(n, FILLING) && w != word(n, FILLING_WAITED) {
                return Published::Refused(value);
            }
        };
        // SAFETY: PUBLISHING excludes every other toucher of the cell (invariant 2).
        self.cell.with_mut(|cell| unsafe { *cell = Some(value) });
        self.word.store(word(n, FULL), Ordering::Release);
        if awaited {
            Published::Awaited
        } else {
            Published::Stored
        }
    }

    /// Takes the value of step `n`, where it is there.
    pub fn take(&self, n: u64) -> Option<T> {
        let (w, state) = self.read(n);
        // The cell is emptied under PUBLISHING, so that neither an abort nor a later step meets it.
        if state != Ok(FULL) || !self.swap(w, word(n, PUBLISHING)) {
            return None;
        }
        // SAFETY: as in `publish`.
        let value = self.cell.with_mut(|cell| unsafe { (*cell).take() });
        self.word.store(word(n, TAKEN), Ordering::Release);
        value
    }

    /// Ends step `n` here: drops a value that nobody took, and refuses whatever comes later.
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
