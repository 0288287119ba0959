//! The use of a worker's memory beside the coordinator's own records.

use std::collections::BTreeMap;
use std::time::Duration;

use convoke_common::identity::TokenId;
use convoke_common::ids::Incarnation;
use convoke_common::rpc::MemoryReport;

use super::offer::shortened;
use crate::membership::interface::Moment;

/// How long it is remembered that a worker had no room for a lease, unless it frees memory.
const REFUSED_FOR: Duration = Duration::from_secs(5);

/// For how many tokens it is remembered that a worker had no room.
const REFUSALS: usize = 64;

/// Most tokens of which a worker's report may name the memory; there are no more tokens.
const HOLDINGS: usize = 4096;

/// What the coordinator knows of one worker's memory beside its own records: the use as the worker reported it, and the
/// leases that the worker had no room for.
#[derive(Debug, Default)]
pub struct KnownUse {
    report: Option<Report>,
    /// The size of a lease that the worker had no room for, on its host and on its device, by the token of its client, and
    /// until when that counts.
    refusals: BTreeMap<TokenId, (Moment, [u64; 2])>,
}

/// A worker's report, and the counters of the coordinator when it asked for the report.
#[derive(Debug)]
pub struct Report {
    pub incarnation: Incarnation,
    /// The number of installs that were over.
    pub asked: u64,
    pub used: MemoryReport,
}

impl KnownUse {
    /// Notes a report of the worker, in place of the last one.
    pub fn reported(&mut self, mut report: Report) {
        for memory in [&mut report.used.host, &mut report.used.device] {
            memory.holdings.truncate(HOLDINGS);
            for holding in &mut memory.holdings {
                holding.member = shortened(&holding.member);
            }
        }
        self.report = Some(report);
    }

    /// Returns the last report of an incarnation of the worker.
    pub fn report(&self, incarnation: Incarnation) -> Option<&Report> {
        let report = self.report.as_ref();
        report.filter(|r| r.incarnation == incarnation)
    }

    /// Notes that the worker had no room for a lease of a token's client, which needs these bytes of its host and of
    /// its device.
    pub fn refused(&mut self, now: Moment, token: TokenId, bytes: [u64; 2]) {
        self.refusals.retain(|_, (until, _)| *until > now);
        if self.refusals.len() < REFUSALS {
            self.refusals.insert(token, (now + REFUSED_FOR, bytes));
        }
    }

    /// Returns the bytes on host and device that the worker had no room for, if a lease of the token's client was
    /// refused of late.
    pub fn refusal(&self, now: Moment, token: &TokenId) -> Option<[u64; 2]> {
        let refusal = self.refusals.get(token);
        let refusal = refusal.filter(|(until, _)| *until > now);
        refusal.map(|(_, bytes)| *bytes)
    }

    /// Notes that the worker may have room again for the leases that it refused.
    pub fn freed(&mut self) {
        self.refusals.clear();
    }
}
