//! Who had compute, and who waited meanwhile: noted where jobs run, apart from the queue that decides it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::ids::LeaseId;
use convoke_common::world::{AccountId, Share};

/// Who computes: an account, and a lease or session of it.
pub type Party = (AccountId, LeaseId);

/// A job that ran.
#[derive(Debug, Clone)]
pub struct Turn {
    pub of: Party,
    pub took: Duration,
    /// Others who had a job waiting all the while.
    pub waited: BTreeSet<Party>,
}

#[derive(Default)]
struct Noted {
    /// Jobs that wait, by whose they are.
    waiting: BTreeMap<Party, usize>,
    turns: Vec<Turn>,
}

/// See the module.
#[derive(Default)]
pub struct Turns(Mutex<Noted>);

fn party(share: &Share) -> Party {
    (share.account().clone(), share.lease())
}

impl Turns {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new process: nobody waits.
    pub(super) fn restart(&self) {
        *self.noted() = Noted::default();
    }

    /// A job waits from now on.
    pub(super) fn waits(&self, share: &Share) {
        *self.noted().waiting.entry(party(share)).or_default() += 1;
    }

    /// A job runs from now on: who waits for it to end.
    pub(super) fn begins(&self, share: &Share) -> BTreeSet<Party> {
        let waiting = &mut self.noted().waiting;
        let of = party(share);
        if let Some(jobs) = waiting.get_mut(&of) {
            *jobs -= 1;
            if *jobs == 0 {
                waiting.remove(&of);
            }
        }
        waiting.keys().filter(|p| **p != of).cloned().collect()
    }

    /// It has ended.
    pub(super) fn ended(&self, share: &Share, took: Duration, waited: BTreeSet<Party>) {
        let of = party(share);
        self.noted().turns.push(Turn { of, took, waited });
    }

    /// What has ended since this was asked last.
    pub fn take(&self) -> Vec<Turn> {
        std::mem::take(&mut self.noted().turns)
    }
}
