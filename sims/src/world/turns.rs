//! A record of who had compute and who waited meanwhile. It is kept where jobs run, apart from the queue that decides
//! who is next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::ids::LeaseId;
use convoke_common::world::{AccountId, Share};

/// A party that competes for compute: a lease or session, with its account.
pub type Party = (AccountId, LeaseId);

/// A job that ran.
#[derive(Debug, Clone)]
pub struct Turn {
    pub of: Party,
    pub took: Duration,
    /// The other parties that had a job waiting during the whole turn.
    pub waited: BTreeSet<Party>,
}

#[derive(Default)]
struct TurnState {
    /// The number of waiting jobs of each party.
    waiting: BTreeMap<Party, usize>,
    turns: Vec<Turn>,
}

/// The turns of one host, and the jobs that wait for theirs.
#[derive(Default)]
pub struct Turns(Mutex<TurnState>);

fn party(share: &Share) -> Party {
    (share.account().clone(), share.lease())
}

impl Turns {
    fn noted(&self) -> MutexGuard<'_, TurnState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clears the record for a new process, in which nobody waits yet.
    pub(super) fn restart(&self) {
        *self.noted() = TurnState::default();
    }

    /// Notes that a job begins to wait.
    pub(super) fn waits(&self, share: &Share) {
        *self.noted().waiting.entry(party(share)).or_default() += 1;
    }

    /// Notes that a job begins to run. Returns the other parties whose jobs wait while it runs.
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

    /// Notes that a job has ended.
    pub(super) fn ended(&self, share: &Share, took: Duration, waited: BTreeSet<Party>) {
        let of = party(share);
        self.noted().turns.push(Turn { of, took, waited });
    }

    /// Returns the turns that ended since the last call.
    pub fn take(&self) -> Vec<Turn> {
        std::mem::take(&mut self.noted().turns)
    }
}
