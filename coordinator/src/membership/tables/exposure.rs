//! Records which functions each incarnation of a worker was granted: its death may be blamed on these only.
//!
//! A worker itself reports what its former process died of, so its word alone must not count. A death counts if this
//! coordinator saw the process end, and had granted it a lease of the function.
//!
//! Invariants
//! 1. The records are bounded: the functions granted last of each incarnation, and the incarnations that ended last, of
//!    each worker and of all.
//! 2. A restart of the coordinator forgets everything. Deaths in leases that it did not grant itself do not count.

use std::collections::{BTreeMap, VecDeque};

use convoke_common::grant::Participant;
use convoke_common::ids::Incarnation;
use convoke_graph::ids::FunctionId;

/// Most functions that are kept of one incarnation.
const FUNCTIONS: usize = 256;

/// Most ended incarnations that are kept. Each is looked up when the next process of its worker registers.
const ENDED: usize = 256;

/// Most ended incarnations that are kept of one worker. The next process of a worker reports the death of the last one,
/// so that one record would do; but a process that was cut off may register while its successor starts.
const ENDED_OF_ONE: usize = 4;

#[derive(Debug)]
struct Exposure {
    incarnation: Incarnation,
    /// The functions; the one granted last is at the back.
    functions: VecDeque<FunctionId>,
}

/// The functions that living and ended incarnations were granted.
#[derive(Debug, Default)]
pub struct Exposures {
    /// The living incarnation of each worker, by the worker's name.
    living: BTreeMap<String, Exposure>,
    /// Ended incarnations with their workers' names; the one that ended last is at the back.
    ended: VecDeque<(String, Exposure)>,
}

impl Exposures {
    /// Records that a worker was granted a lease of a function.
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

    /// Records that the coordinator saw an incarnation end.
    pub fn lost(&mut self, worker: &str, incarnation: Incarnation) {
        let Some(exposure) = self.living.remove(worker) else {
            return;
        };
        if exposure.incarnation != incarnation {
            return;
        }
        let of_worker = |(name, _): &(String, Exposure)| name == worker;
        let own = self.ended.iter().filter(|e| of_worker(e)).count();
        if own >= ENDED_OF_ONE {
            let oldest = self.ended.iter().position(of_worker);
            oldest.and_then(|at| self.ended.remove(at));
        } else if self.ended.len() >= ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back((worker.to_owned(), exposure));
    }

    /// Drops the functions of a worker whose name is free again.
    pub fn forget(&mut self, worker: &str) {
        self.living.remove(worker);
    }

    /// Returns whether an incarnation was seen to end and may have died in a function.
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
        // A worker that ends again and again pushes out nobody but itself.
        for n in 0..ENDED as u64 {
            exposures.granted(&worker("b", n), function(0));
            exposures.lost("b", Incarnation(n));
        }
        assert!(explains(&exposures, 1));
        assert_eq!(exposures.ended.len(), 1 + ENDED_OF_ONE);
        let last = Incarnation(ENDED as u64 - 1);
        assert!(exposures.explains("b", last, &function(0)));
        assert!(!exposures.explains("b", Incarnation(0), &function(0)));
        for n in 0..ENDED {
            let name = format!("c{n}");
            exposures.granted(&worker(&name, 1), function(0));
            exposures.lost(&name, Incarnation(1));
        }
        assert!(!explains(&exposures, 1));
        assert!(exposures.living.is_empty() && exposures.ended.len() == ENDED);
        exposures.granted(&worker("d", 1), function(0));
        exposures.forget("d");
        assert!(exposures.living.is_empty());
    }
}
