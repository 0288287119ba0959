//! A worker's links to the drivers of leases and to other workers, and the measurement of their speed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_common::identity::Role;
use convoke_common::rpc::LinkReport;
use convoke_graph::ids::ParticipantIx;
use convoke_graph::program::{Axes, Program, most_bytes};
use convoke_rendezvous::frame::LANE_LIMIT;
use convoke_rendezvous::{Link, Peer, probe};

use super::Holdings;

/// How long a peer of a new lease may take to link itself: it installs the same lease at the same time.
const LINK_BOUND: Duration = Duration::from_secs(10);

impl Holdings {
    /// The links that participant `me` needs for this program: to the driver, which has this role, and to workers with a
    /// common edge.
    pub(super) async fn links(
        self: &Arc<Self>,
        participants: &[Participant],
        me: ParticipantIx,
        program: &Program,
        driven_by: Role,
    ) -> Result<Vec<Option<Arc<Link>>>> {
        let driver = participants.len() - 1;
        let mut links = Vec::new();
        for (i, p) in participants.iter().enumerate() {
            let ix = i as ParticipantIx;
            let needed = i == driver
                || program.recvs.iter().any(|r| r.from == ix)
                || program.sends.iter().any(|s| s.to == ix);
            if ix == me || !needed {
                links.push(None);
                continue;
            }
            links.push(Some(match (i == driver, driven_by) {
                (true, Role::Client) => self.link_to(p, Role::Client, false).await?,
                _ => self.link_to_worker(p).await?,
            }));
        }
        Ok(links)
    }

    /// The link to a participant. Without one, this worker dials or, if `dial` is false, waits to be dialled.
    pub(super) async fn link_to(
        self: &Arc<Self>,
        p: &Participant,
        role: Role,
        dial: bool,
    ) -> Result<Arc<Link>> {
        let peer = Peer::of(p, role);
        if let Some(link) = self.hub.link(&peer) {
            return Ok(link);
        }
        if dial {
            let me = self.clone();
            let serve = move |watched, name| {
                crate::node::service::serve_connection(&me, watched, Role::Worker, name, None);
            };
            return self.dialler.link(p, serve).await;
        }
        self.hub.await_link(&peer, LINK_BOUND).await.ok_or_else(|| {
            let msg = format!("{} did not connect to worker {}", p.name, self.me.name);
            let culprit = match role {
                // The driver knows that it is there itself: from its side, this worker is out of reach.
                Role::Client => &self.me.name,
                _ => &p.name,
            };
            Error::unreachable(Some(culprit), msg).advise(
                "start the worker with --advertise HOST:PORT, an address that the others can reach",
            )
        })
    }

    /// Measures the links to other workers. Only a peer that no link leads to is a failure: one that answers a probe too late
    /// is busy, or about to end, and its link is reported without a speed.
    pub async fn probe(self: &Arc<Self>, peers: Vec<Participant>) -> Vec<LinkReport> {
        let mut reports = Vec::new();
        for p in peers {
            let (measured, failure) = match self.link_to(&p, Role::Worker, true).await {
                Ok(link) => (self.measured(&link).await, None),
                Err(e) => (Ok(Default::default()), Some(e.to_string())),
            };
            let (round_trip, bandwidth) = measured.unwrap_or_else(|e| {
                tracing::info!(peer = p.name, "the link is not measured: {e}");
                Default::default()
            });
            reports.push(LinkReport {
                peer: p.name,
                round_trip: round_trip.as_nanos() as u64,
                bandwidth,
                failure,
            });
        }
        reports
    }

    /// Round-trip time, and bytes per second towards the peer.
    async fn measured(&self, link: &Link) -> Result<(Duration, f64)> {
        let connection = link.connection();
        let connection = connection.ok_or_else(|| Error::internal("workers link over QUIC"))?;
        let probed = probe::probe(connection).await;
        let (round_trip, wire) = probed.map_err(|e| e.about(&link.peer().name))?;
        let bandwidth = match link.shares().await {
            // Lent memory is read in place.
            true => wire.max(self.engine.compute.speed().1),
            false => wire,
        };
        Ok((round_trip, bandwidth))
    }
}

/// Whether a program sends tensors that another worker on this host can read in place.
pub(super) async fn lends(program: &Program, axes: &Axes, links: &[Option<Arc<Link>>]) -> bool {
    let bounds = axes.at_bounds();
    let large = |value: u32| {
        let value = program.values.get(value as usize);
        let most = value.and_then(|v| most_bytes(&v.ty, &bounds));
        most.is_none_or(|bytes| bytes > LANE_LIMIT as u64)
    };
    let to: BTreeSet<ParticipantIx> = program
        .sends
        .iter()
        .filter(|s| large(s.value))
        .map(|s| s.to)
        .collect();
    for to in to {
        if let Some(Some(link)) = links.get(usize::from(to))
            && link.peer().role == Role::Worker
            && link.shares().await
        {
            return true;
        }
    }
    false
}

/// An error that reports the loss of this peer.
pub(super) fn gone(peer: &str, msg: String) -> Error {
    Error::new(Code::PeerLost, msg).about(peer)
}
