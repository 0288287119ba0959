//! How fast workers reach each other, as they measured it.

use std::collections::BTreeMap;

use convoke_common::rpc::{LinkReport, MeasuredLink};

use crate::place::Link;

/// No link is faster, and none slower, than this, whatever a worker says.
const LATENCY_NS: (u64, u64) = (500, 10_000_000_000);

/// Measured links by name, from and to.
#[derive(Debug, Default)]
pub struct Links(BTreeMap<(String, String), Link>);

impl Links {
    /// Takes a worker's report in. A number that cannot be one is not taken. A probe that failed says nothing of
    /// the link: a busy machine misses the probe's bound, and a link that does not work at all is the install's to
    /// report, with what to do about it.
    pub fn set(&mut self, from: &str, report: &LinkReport) {
        let measured = report.bandwidth.is_finite() && report.bandwidth > 0.0;
        if report.failure.is_some() || !measured {
            return;
        }
        let link = Link {
            latency_ns: (report.round_trip / 2).clamp(LATENCY_NS.0, LATENCY_NS.1),
            bandwidth: report.bandwidth,
        };
        self.0.insert((from.to_owned(), report.peer.clone()), link);
    }

    /// The link as measured by `from`, else as measured by `to`; `None` where neither could.
    pub fn get(&self, from: &str, to: &str) -> Option<Link> {
        let key = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let link = self
            .0
            .get(&key(from, to))
            .or_else(|| self.0.get(&key(to, from)));
        link.copied()
    }

    /// All that were measured.
    pub fn all(&self) -> impl Iterator<Item = MeasuredLink> {
        self.0.iter().map(|((from, to), link)| MeasuredLink {
            from: from.clone(),
            to: to.clone(),
            latency: link.latency_ns,
            bandwidth: link.bandwidth,
        })
    }

    /// Drops what was measured of a worker.
    pub fn forget(&mut self, name: &str) {
        self.0.retain(|(from, to), _| from != name && to != name);
    }
}
