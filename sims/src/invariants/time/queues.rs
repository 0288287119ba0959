//! The bytes that wait to be sent to a peer stay under a bound: the windows of the leases that both ends share, plus
//! what is put or moved over a new connection before its peer lets it be sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use convoke_graph::program::most_bytes;
use convoke_rendezvous::{Hub, Lease};

use crate::cluster::Host;
use crate::faults::Harm;
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;

/// Bytes of frames without tensors that may wait at one link.
const FRAMES: u64 = 16 << 10;

/// How long a link may hold tensors of a lease that both ends have dropped, or whose other end has gone.
const LINGER: Duration = Duration::from_secs(15);

/// Bytes that a client may put or move over a new connection before the connection sends them.
const PUTS: u64 = 256 << 20;

/// How long a new connection may carry next to nothing: its peer accepts more only once it knows who dials.
const OPENING: Duration = Duration::from_secs(2);

/// The bytes that one end of a lease may have on their way to another.
struct Window {
    bytes: u64,
    /// When either end had the lease last.
    seen: Duration,
}

#[derive(Default)]
pub(in crate::invariants) struct Queues {
    /// The windows, by the names of sender and receiver and by the lease.
    windows: BTreeMap<(String, String, u64), Window>,
    /// When each connection was first seen, by its host and its number.
    opened: BTreeMap<(Host, usize), Duration>,
}

impl Invariant for Queues {
    fn name(&self) -> &'static str {
        "queues are bounded"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        let hosts = view.cluster.hosts().into_iter();
        let hubs: Vec<(Host, Arc<Hub>)> = hosts
            .filter_map(|h| Some((h, view.cluster.hub(h)?)))
            .collect();
        for (_, hub) in &hubs {
            hub.leases().iter().for_each(|l| self.note(l, view.now));
        }
        self.windows.retain(|_, w| w.seen + LINGER >= view.now);
        let mut opened = BTreeMap::new();
        for (host, hub) in hubs {
            // A host that forges frames sends more than its windows allow.
            let since = view.now.saturating_sub(LINGER);
            if view
                .injuries(since, view.now)
                .any(|i| i.host == host && i.harm == Harm::Forge)
            {
                continue;
            }
            for link in hub.links() {
                let (peer, waits) = (&link.peer().name, link.status().queued_bytes);
                let mut bound = self.bound(&hub.me.name, peer);
                if let Some(connection) = link.connection() {
                    let connection = (host, connection.stable_id());
                    let first = self.opened.get(&connection).copied().unwrap_or(view.now);
                    if first + OPENING > view.now {
                        bound += PUTS;
                    }
                    opened.insert(connection, first);
                }
                if waits > bound {
                    found.say(format!(
                        "{host}: {waits} bytes wait for {peer}, above {bound}"
                    ));
                }
            }
        }
        self.opened = opened;
    }
}

impl Queues {
    /// Notes what the other participants of a lease may send to this end, and that the windows of what this end sends
    /// are still in use.
    fn note(&mut self, lease: &Lease, now: Duration) {
        let me = lease.name_of(lease.me);
        let bounds = lease.axes.at_bounds();
        for (ix, p) in lease.participants.iter().enumerate() {
            let there = (me.to_owned(), p.name.clone(), lease.id.0);
            if let Some(window) = self.windows.get_mut(&there) {
                window.seen = now;
            }
            let here = (p.name.clone(), me.to_owned(), lease.id.0);
            let window = self.windows.entry(here).or_insert_with(|| {
                let edges = lease.recvs().iter().filter(|r| usize::from(r.from) == ix);
                let bytes: u64 = edges.filter_map(|r| most_bytes(&r.ty, &bounds)).sum();
                let bytes = bytes * lease.table.in_flight();
                Window { bytes, seen: now }
            });
            window.seen = now;
        }
    }

    fn bound(&self, from: &str, to: &str) -> u64 {
        let all = self.windows.iter();
        let both = all.filter(|((a, b, _), _)| a == from && b == to);
        both.map(|(_, w)| w.bytes).sum::<u64>() + FRAMES
    }
}
