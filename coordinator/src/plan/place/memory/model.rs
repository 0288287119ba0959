//! One memory of a worker, its host's or its device's, as placement sees it: how much of it is free, and which constants
//! are there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use convoke_graph::program::ConstantId;

use crate::place::work::Work;

/// One memory of a worker as the client may use it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MemoryModel {
    /// Bytes that are free.
    pub free: u64,
    /// Bytes that the client's token may still have of the memory.
    pub budget: u64,
    /// Bytes that the client could use if nothing were taken.
    pub offered: u64,
    /// The constants that are there. They are taken of the memory already, and a lease that reads them shares them.
    pub constants: PresentConstants,
    /// Those of the function that is placed; see [`ClusterModel::for_work`](crate::place::ClusterModel::for_work).
    pub presence: Arc<Presence>,
    /// Those who have memory there, the largest first.
    pub holders: Vec<Holder>,
}

impl MemoryModel {
    /// Returns a memory of this size, none of which is taken.
    pub fn idle(bytes: u64) -> MemoryModel {
        MemoryModel {
            free: bytes,
            budget: bytes,
            offered: bytes,
            ..MemoryModel::default()
        }
    }

    /// Returns the bytes that are free for the client.
    pub fn usable(&self) -> u64 {
        self.free.min(self.budget)
    }

    /// Returns the most bytes that a part of the function may take here, with the constants that are there.
    pub fn reach(&self) -> u64 {
        let [all, own] = self.presence.bytes;
        let memory = self.free.saturating_add(all);
        memory.min(self.budget.saturating_add(own))
    }

    /// Returns whether this much is free for the client.
    pub fn holds(&self, need: &Need) -> bool {
        need.memory <= self.free && need.budget <= self.budget
    }

    /// Takes what a part of the function keeps here, and notes its constants.
    pub fn take(&mut self, kept: &Need, constants: &BTreeMap<ConstantId, u64>) {
        self.free = self.free.saturating_sub(kept.memory);
        self.budget = self.budget.saturating_sub(kept.budget);
        self.constants.add(constants);
    }
}

/// What a part needs of one memory of its worker, without the constants that are there already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// Bytes of the memory.
    pub memory: u64,
    /// Bytes that the client's token is charged for: also those of constants that only others have paid for.
    pub budget: u64,
}

/// The constants that leases have in one memory of a worker.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PresentConstants {
    /// The constants of all leases.
    pub all: Arc<BTreeSet<ConstantId>>,
    /// Those that the client's token is charged for already.
    pub own: Arc<BTreeSet<ConstantId>>,
}

impl PresentConstants {
    /// Adds those of a part that is placed there.
    pub fn add(&mut self, of_part: &BTreeMap<ConstantId, u64>) {
        for ids in [&mut self.all, &mut self.own] {
            Arc::make_mut(ids).extend(of_part.keys());
        }
    }
}

/// The constants of a function that one memory of a worker has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Presence {
    /// For each constant of the function whether the worker has it, and whether the client's token is charged for it;
    /// empty if the worker has none.
    of: Vec<(bool, bool)>,
    /// Bytes of those that the worker has, and of those that the token is charged for.
    bytes: [u64; 2],
}

impl Presence {
    /// Finds which constants of `work` are there; `bytes_each` are the bytes that each of all takes in the memory.
    pub fn new(work: &Work, bytes_each: &[u64], there: &PresentConstants) -> Presence {
        if there.all.is_empty() {
            return Presence::default();
        }
        let is = |all: &BTreeSet<ConstantId>, id: &Option<ConstantId>| {
            id.as_ref().is_some_and(|id| all.contains(id))
        };
        let of = work.const_id.iter();
        let of: Vec<(bool, bool)> = of
            .map(|id| (is(&there.all, id), is(&there.own, id)))
            .collect();
        let mut bytes = [0u64; 2];
        for ((here, own), size) in of.iter().zip(bytes_each) {
            let [all, mine] = &mut bytes;
            *all = all.saturating_add(if *here { *size } else { 0 });
            *mine = mine.saturating_add(if *own { *size } else { 0 });
        }
        Presence { of, bytes }
    }

    /// Returns the bytes of the constants that the worker has.
    pub fn bytes(&self) -> u64 {
        self.bytes[0]
    }

    /// Returns whether the worker has none of the constants.
    pub fn is_empty(&self) -> bool {
        self.bytes[0] == 0
    }

    /// Returns whether the worker has a constant.
    pub fn has(&self, constant: usize) -> bool {
        self.of.get(constant).is_some_and(|(here, _)| *here)
    }

    /// Returns whether the client's token is charged for a constant at the worker.
    pub fn is_paid(&self, constant: usize) -> bool {
        self.of.get(constant).is_some_and(|(_, own)| *own)
    }

    /// Returns which of the constants `kept` are not there, and which are there without being charged to the client's
    /// token.
    pub fn absent(&self, kept: &[bool]) -> (Vec<bool>, Vec<bool>) {
        let each = || kept.iter().copied().enumerate();
        let lacks = each().map(|(c, kept)| kept && !self.has(c));
        let unpaid = each().map(|(c, kept)| kept && self.has(c) && !self.is_paid(c));
        (lacks.collect(), unpaid.collect())
    }
}

/// Clients that have memory of a worker: the holders of one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub token: String,
    /// One of the clients.
    pub member: String,
    pub bytes: u64,
}
