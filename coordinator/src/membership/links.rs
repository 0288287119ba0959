//! How fast workers reach each other, as they measured it.

use std::collections::BTreeMap;

use convoke_common::rpc::LinkReport;

use crate::place::Link;

/// What a link that does not work counts as: no plan uses it unless all else is impossible.
const BROKEN: Link = Link {
    latency_ns: 10_000_000_000,
    bandwidth: 1.0,
};

/// No link is faster than this, whatever a worker says.
const LEAST_LATENCY_NS: u64 = 500;

/// Measured links by name, from and to.
#[derive(Debug, Default)]
pub struct Links(BTreeMap<(String, String), Link>);

impl Links {
    /// Takes a worker's report in. A number that cannot be one is not taken.
    pub fn set(&mut self, from: &str, report: &LinkReport) {
        let link = if report.failure.is_some() {
            BROKEN
        } else if report.bandwidth.is_finite() && report.bandwidth > 0.0 {
            Link {
                latency_ns: (report.round_trip / 2).clamp(LEAST_LATENCY_NS, BROKEN.latency_ns),
                bandwidth: report.bandwidth,
            }
        } else {
            return;
        };
        self.0.insert((from.to_owned(), report.peer.clone()), link);
    }

    /// The link as measured by `from`, else as measured by `to`.
    pub fn get(&self, from: &str, to: &str) -> Option<Link> {
        let key = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let link = self
            .0
            .get(&key(from, to))
            .or_else(|| self.0.get(&key(to, from)));
        link.copied()
    }

    /// Drops what was measured of a worker.
    pub fn forget(&mut self, name: &str) {
        self.0.retain(|(from, to), _| from != name && to != name);
    }
}
