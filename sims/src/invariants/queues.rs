//! What waits to be sent to a peer stays under its bound.

use super::{Found, Invariant, View};
use crate::cluster::Host;

/// Ticks between two looks: queues fill in a moment, but do not empty in one.
const EVERY: u128 = 8;

/// Bytes that may wait at one link.
const MOST: u64 = 64 << 20;

pub(super) struct Queues;

impl Invariant for Queues {
    fn name(&self) -> &'static str {
        "queues are bounded"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Found) {
        if !view.now.as_millis().is_multiple_of(EVERY) {
            return;
        }
        for host in view.cluster.hosts() {
            let Host::Worker(i) = host else { continue };
            let Some(worker) = view.cluster.worker(i) else {
                continue;
            };
            for link in worker.status().links {
                if link.queued_bytes > MOST {
                    found.say(format!(
                        "{host}: {} bytes wait for {}",
                        link.queued_bytes, link.peer
                    ));
                }
            }
        }
    }
}
