//! The speed of the links between workers, as the workers measured it.

use std::collections::BTreeMap;

use convoke_common::rpc::{LinkReport, MeasuredLink};

use crate::place::LinkSpeed;

/// The lowest and the highest latency that a link is recorded with, whatever a worker reports, in nanoseconds.
const LATENCY_NS: (u64, u64) = (500, 10_000_000_000);

/// The measured links, by the names of sender and receiver.
#[derive(Debug, Default)]
pub struct Links(BTreeMap<(String, String), LinkSpeed>);

impl Links {
    /// Records a worker's report on one link; impossible numbers are ignored. A failed probe says nothing about the
    /// link: a busy machine exceeds the probe's bound, and a link that does not work at all is reported by the install,
    /// with advice.
    pub fn set(&mut self, from: &str, report: &LinkReport) {
        let measured = report.bandwidth.is_finite() && report.bandwidth > 0.0;
        if report.failure.is_some() || !measured {
            return;
        }
        let link = LinkSpeed {
            latency_ns: (report.round_trip / 2).clamp(LATENCY_NS.0, LATENCY_NS.1),
            bandwidth: report.bandwidth,
        };
        self.0.insert((from.to_owned(), report.peer.clone()), link);
    }

    /// Returns the link as `from` measured it, else as `to` measured it, or `None` if neither did.
    pub fn get(&self, from: &str, to: &str) -> Option<LinkSpeed> {
        let key = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let link = self
            .0
            .get(&key(from, to))
            .or_else(|| self.0.get(&key(to, from)));
        link.copied()
    }

    /// Returns all measured links.
    pub fn all(&self) -> impl Iterator<Item = MeasuredLink> {
        self.0.iter().map(|((from, to), link)| MeasuredLink {
            from: from.clone(),
            to: to.clone(),
            latency: link.latency_ns,
            bandwidth: link.bandwidth,
        })
    }

    /// Drops all measurements of the links from and to a worker.
    pub fn forget(&mut self, name: &str) {
        self.0.retain(|(from, to), _| from != name && to != name);
    }
}
