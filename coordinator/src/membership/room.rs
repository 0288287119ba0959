//! How much of each worker's memory is free, and who has the rest.
//!
//! The coordinator knows what it planned: the leases that have not ended, and the plans that are about to be installed.
//! A worker knows what is in use: it reports its ledger before each plan. The taken part of a worker's memory follows
//! from both.
//!
//! ```text
//! taken = what leases take                                              + handles and definitions, as reported
//!         as planned, while any of them may not be in the report yet
//!         else the least of what was planned and what is reported
//! ```
//!
//! Leases share constants at a worker, whichever function they are of. So each constant counts once, and a plan needs
//! only those that are not there ([`PresentConstants`]).
//!
//! A worker whose device has memory of its own has two ledgers. Host and device are reckoned apart, in the same way.
//!
//! Invariants
//! 1. A lease counts from its grant until it ends, and a plan that is to be installed counts until it is granted, or
//!    for [`HELD_FOR`](super::tables::plans::HELD_FOR).
//! 2. The memory of a token's holders counts against their budget in the same way.
//! 3. A refusal for lack of room is remembered for that token only, so that no client can keep the others from a
//!    worker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use convoke_common::identity::{PeerIdentity, TokenId};
use convoke_common::ids::{Incarnation, LeaseId};
use convoke_common::memory::{Purpose, TokenHolding};
use convoke_common::rpc::{MemoryReport, MemoryUse};
use convoke_graph::program::ConstantId;

use super::Membership;
use super::interface::{Asker, ConnectionId, Moment};
use super::tables::known_use::Report;
use super::tables::leases::Charge;
use super::tables::member::Member;
use super::tables::offer::Offer;
use crate::place::{Holder, MemoryModel, PresentConstants};
use crate::plan::{MemoryNeed, PartConstants, PartMemory};

/// One memory of a worker, with what the coordinator knows of it.
struct Space<'a> {
    /// Bytes that programs may use.
    size: u64,
    /// What a part of a plan needs of it.
    need: fn(&PartMemory) -> &MemoryNeed,
    /// What the worker reported of it.
    report: Option<&'a MemoryUse>,
    /// The bytes that the asker's lease needed when the worker had no room for it.
    refused: Option<u64>,
}

/// The part of one memory that one token, or everybody, has.
#[derive(Debug, Default)]
struct Part {
    /// Bytes of leases as planned, without the constants that they share.
    planned: u64,
    /// The shared constants of the leases, with the bytes of each, and the bytes of all.
    constants: BTreeMap<ConstantId, u64>,
    shared: u64,
    /// The last part whose constants were added: many leases are of one plan.
    last: Option<Arc<PartConstants>>,
    /// Bytes of leases as reported.
    reported: u64,
    /// Bytes of everything else, as reported.
    other: u64,
    member: String,
}

impl Part {
    fn add(&mut self, used: &BTreeMap<Purpose, u64>) {
        for (purpose, bytes) in used {
            let sum = match purpose {
                Purpose::Weights | Purpose::Leases => &mut self.reported,
                Purpose::Handles | Purpose::Definitions => &mut self.other,
                // The worker offers what is left of its memory without these, or frees them where memory is needed.
                _ => continue,
            };
            *sum = sum.saturating_add(*bytes);
        }
    }

    fn plan(&mut self, needed: &MemoryNeed) {
        let constants = &needed.constants;
        let rest = needed.all.saturating_sub(constants.total());
        self.planned = self.planned.saturating_add(rest);
        if self
            .last
            .as_ref()
            .is_some_and(|last| Arc::ptr_eq(last, constants))
        {
            return;
        }
        for (id, bytes) in constants.each() {
            if self.constants.insert(*id, *bytes).is_none() {
                self.shared = self.shared.saturating_add(*bytes);
            }
        }
        self.last = Some(constants.clone());
    }

    fn ids(&self) -> Arc<BTreeSet<ConstantId>> {
        Arc::new(self.constants.keys().copied().collect())
    }

    fn taken(&self, certainty: Certainty) -> u64 {
        let planned = self.planned.saturating_add(self.shared);
        let leases = match certainty {
            Certainty::Settled => planned.min(self.reported),
            Certainty::Underway => planned,
            Certainty::Unknown => planned.max(self.reported),
            Certainty::Reported => self.reported,
        };
        leases.saturating_add(self.other)
    }
}

/// How the planned and the reported memory of a worker's leases are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Certainty {
    /// The report covers all leases.
    Settled,
    /// The report may lack some of them.
    Underway,
    /// The report may lack some of them, and the size of others is known from it alone.
    Unknown,
    /// The report covers all leases, of which some have a size that is known from it alone.
    Reported,
}

impl Membership {
    /// Returns the workers to be asked for their memory, and what to pass to the core with their answers, as
    /// [`MemoryReports::asked`](super::events::MemoryReports::asked).
    pub fn to_report(&self, avoid: &[(String, Incarnation)]) -> (Vec<(String, ConnectionId)>, u64) {
        let there = self.members.iter().filter(|(name, m)| {
            let avoided = |o: &Offer| avoid.iter().any(|(n, i)| n == *name && *i == o.incarnation);
            m.serving().is_some_and(|offer| !avoided(offer))
        });
        let asked = there.filter_map(|(name, m)| Some((name.clone(), m.connection()?)));
        (asked.collect(), self.installs)
    }

    /// Notes how much of its memory the worker on this connection uses.
    pub(super) fn reported_memory(
        &mut self,
        connection: ConnectionId,
        asked: u64,
        used: MemoryReport,
    ) {
        let on = |m: &&mut Member| m.connection() == Some(connection);
        if let Some(member) = self.members.values_mut().find(on)
            && let Some(incarnation) = member.living().map(|offer| offer.incarnation)
        {
            member.memory.reported(Report {
                incarnation,
                asked,
                used,
            });
        }
    }

    /// Notes that a worker had no room for its part of a lease.
    pub(super) fn had_no_room(&mut self, now: Moment, lease: LeaseId, worker: &str) {
        let Some((token, bytes)) = self.leases.size_at(lease, worker) else {
            return;
        };
        if let Some(member) = self.members.get_mut(worker) {
            member.memory.refused(now, token, bytes);
        }
    }

    /// Notes that memory may have become free; at the worker `at`, if there is one, for leases that it had no room for.
    pub(super) fn memory_freed(&mut self, at: Option<&str>) {
        self.freed += 1;
        if let Some(member) = at.and_then(|name| self.members.get_mut(name)) {
            member.memory.freed();
        }
    }

    /// Returns a number that changes whenever memory may have become free.
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// Returns what is free of a worker's host for `asker`, and of its device where that has memory of its own.
    pub(super) fn room(
        &self,
        now: Moment,
        name: &str,
        offer: &Offer,
        asker: &Asker,
    ) -> (MemoryModel, Option<MemoryModel>) {
        let identity = &asker.identity;
        let known = self.members.get(name).map(|m| &m.memory);
        let report = known.and_then(|k| k.report(offer.incarnation));
        let leases = self.leases.charges(name, offer.incarnation);
        let wants = asker.wants.as_ref();
        let plans = self.plans.charges(now, name, offer.incarnation, wants);
        let charges: Vec<Charge<'_>> = leases.chain(plans).collect();
        let certainty = Certainty::of(&charges, report);
        let refusal = known.and_then(|k| k.refusal(now, &identity.token_id));
        let host = Space {
            size: offer.memory,
            need: |part| &part.host,
            report: report.map(|r| &r.used.host),
            refused: refusal.map(|[host, _]| host),
        };
        let device = (!offer.device.is_cpu()).then(|| Space {
            size: offer.device_memory,
            need: |part| &part.device,
            report: report.map(|r| &r.used.device),
            // A part that needs nothing of the device had room there.
            refused: refusal.map(|[_, device]| device).filter(|n| *n > 0),
        });
        let model = |space: Space<'_>| space.model(&charges, certainty, identity);
        (model(host), device.map(model))
    }
}

impl Certainty {
    /// How certain the sizes of these leases and plans are, beside what the worker reported last.
    fn of(charges: &[Charge<'_>], report: Option<&Report>) -> Certainty {
        let lacks = |c: &Charge<'_>| report.is_none_or(|r| c.since.is_none_or(|s| r.asked < s));
        let underway = charges.iter().any(lacks);
        let unknown = charges.iter().any(|c| c.size.is_none());
        match (underway, unknown) {
            (false, false) => Certainty::Settled,
            (true, false) => Certainty::Underway,
            (true, true) => Certainty::Unknown,
            (false, true) => Certainty::Reported,
        }
    }
}

impl Space<'_> {
    /// Returns what is free for the holders of `identity`'s token.
    fn model(
        &self,
        charges: &[Charge<'_>],
        certainty: Certainty,
        identity: &PeerIdentity,
    ) -> MemoryModel {
        let mut all = Part::default();
        let mut tokens: BTreeMap<TokenId, Part> = BTreeMap::new();
        for charge in charges {
            let Some((token, needed)) = charge.size else {
                continue;
            };
            let needed = (self.need)(needed);
            all.plan(needed);
            let part = tokens.entry(token.clone()).or_default();
            part.plan(needed);
            charge.member.clone_into(&mut part.member);
        }
        if let Some(report) = self.report {
            all.add(&report.used);
            for TokenHolding {
                token,
                member,
                used,
                ..
            } in &report.holdings
            {
                let part = tokens.entry(token.clone()).or_default();
                part.add(used);
                part.member.clone_from(member);
            }
        }
        let own = tokens.get(&identity.token_id);
        let offered = self.size.min(identity.memory_of(self.size));
        let mut free = self.size.saturating_sub(all.taken(certainty));
        let budget = offered.saturating_sub(own.map_or(0, |part| part.taken(certainty)));
        let mut constants = PresentConstants {
            all: all.ids(),
            own: own.map(Part::ids).unwrap_or_default(),
        };
        if let Some(bytes) = self.refused {
            free = free.min(bytes.saturating_sub(1));
            // The constants that were there did not save enough memory.
            constants = PresentConstants::default();
        }
        let holders = tokens.into_iter().map(|(token, part)| Holder {
            bytes: part.taken(certainty),
            token: token.to_string(),
            member: part.member,
        });
        let mut holders: Vec<Holder> = holders.filter(|h| h.bytes > 0).collect();
        holders.sort_by_key(|h| std::cmp::Reverse(h.bytes));
        MemoryModel {
            free,
            budget,
            offered,
            constants,
            presence: Arc::default(),
            holders,
        }
    }
}
