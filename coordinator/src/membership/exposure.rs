//! Which functions each incarnation of a worker was granted: what its death may be blamed on.
//!
//! A worker reports itself what its former process died of, so that its word alone must not count: a death is one of a
//! process that this coordinator itself saw end, and of a function in a lease that it granted to that process.
//!
//! Invariants
//! 1. What is kept is bounded: of one incarnation the functions granted last, and of those that ended the latest.
//! 2. A restart of the coordinator forgets all of it. Deaths in leases that it did not grant itself do not count.

use std::collections::{BTreeMap, VecDeque};

use convoke_common::ids::{FunctionId, Incarnation};
use convoke_common::program::Participant;

/// Functions that are kept of one incarnation.
const FUNCTIONS: usize = 256;

/// Incarnations that ended and are kept, the latest: each is asked for when the next process of its worker registers.
const ENDED: usize = 256;

#[derive(Debug)]
struct Exposure {
    incarnation: Incarnation,
    /// The one granted last is at the back.
    functions: VecDeque<FunctionId>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Exposures {
    /// By the worker's name.
    living: BTreeMap<String, Exposure>,
    /// The one that ended last is at the back.
    ended: VecDeque<(String, Exposure)>,
}

impl Exposures {
    /// A worker is granted a lease of a function.
    pub fn granted(&mut self, worker: &Participant, function: FunctionId) {
        let fresh = || Exposure {
            incarnation: worker.incarnation,
            functions: VecDeque::new(),
        };
        let exposure = self.living.entry(worker.name.clone()).or_insert_with(fresh);
        if exposure.incarnation != worker.incarnation {
            *exposure = fresh();
        }
        exposure.functions.retain(|f| *f != function);
        if exposure.functions.len() >= FUNCTIONS {
            exposure.functions.pop_front();
        }
        exposure.functions.push_back(function);
    }

    /// An incarnation ended, as this coordinator saw.
    pub fn lost(&mut self, worker: &str, incarnation: Incarnation) {
        let Some(exposure) = self.living.remove(worker) else {
            return;
        };
        if exposure.incarnation != incarnation {
            return;
        }
        if self.ended.len() >= ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back((worker.to_owned(), exposure));
    }

    /// Whether an incarnation that is seen to have ended may have died in a function.
    pub fn explains(&self, worker: &str, incarnation: Incarnation, function: &FunctionId) -> bool {
        let mut ended = self.ended.iter();
        ended.any(|(name, e)| {
            name == worker && e.incarnation == incarnation && e.functions.contains(function)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str, incarnation: u64) -> Participant {
        Participant {
            name: name.into(),
            incarnation: Incarnation(incarnation),
            address: String::new(),
        }
    }

    fn function(n: usize) -> FunctionId {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&n.to_le_bytes());
        FunctionId(id)
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut exposures = Exposures::default();
        for n in 0..=FUNCTIONS {
            exposures.granted(&worker("a", 1), function(n));
        }
        exposures.lost("a", Incarnation(1));
        let explains = |e: &Exposures, n| e.explains("a", Incarnation(1), &function(n));
        assert!(!explains(&exposures, 0) && explains(&exposures, 1));
        for n in 0..ENDED as u64 {
            exposures.granted(&worker("b", n), function(0));
            exposures.lost("b", Incarnation(n));
        }
        assert!(!explains(&exposures, 1));
        assert!(exposures.living.is_empty() && exposures.ended.len() == ENDED);
    }
}
