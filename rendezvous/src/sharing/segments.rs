//! The segments that the peer gives, which this end maps and reads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::error::Result;
use convoke_common::identity::Role;
use convoke_common::world::{SegmentNotice, Taker};
use convoke_graph::segment::{PeerSegment, SegmentLoan};

use super::buffers::{SLOT, SLOTS};
use super::loan::Loan;
use super::violation::broken;
use crate::lease::Peer;

/// The most segments of one peer that are mapped at once.
const MOST: usize = 4096;

/// The segments of the peer, by their number.
pub(super) struct PeerSegments {
    peer: Role,
    all: Mutex<HashMap<u64, Arc<PeerSegment>>>,
}

impl PeerSegments {
    /// The segments of a peer of this role, which has given none.
    pub(super) fn new(peer: Role) -> PeerSegments {
        let all = Mutex::default();
        PeerSegments { peer, all }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<PeerSegment>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory that the peer says it lends.
    pub(super) fn borrowed(
        &self,
        segment: u64,
        offset: u64,
        len: usize,
        loan: Loan,
    ) -> Result<SegmentLoan> {
        let of = self.all().get(&segment).cloned();
        let of = of.ok_or_else(|| broken("no such segment"))?;
        let lent = SegmentLoan::new(of, offset, len, Box::new(loan));
        lent.ok_or_else(|| broken("outside of its segment"))
    }

    /// Keeps a segment that the peer gave; returns `false` if the peer gives too many, or too large ones.
    pub(super) fn keep(&self, number: u64, segment: PeerSegment) -> bool {
        let (most, longest) = match self.peer {
            Role::Client => (1, SLOTS * SLOT),
            _ => (MOST, usize::MAX),
        };
        let mut segments = self.all();
        let room = segments.len() < most && segment.len() <= longest;
        if room {
            segments.insert(number, Arc::new(segment));
        }
        room
    }

    /// Takes the segments that the peer gives, until it gives no more.
    pub(super) async fn take(&self, peer: &Peer, mut taker: Taker) {
        loop {
            let told = match taker.next().await {
                Ok(told) => told,
                Err(e) => {
                    return tracing::debug!(peer = peer.name, "gives no more memory: {e}");
                }
            };
            match told {
                SegmentNotice::Given(number, segment) => {
                    if !self.keep(number, segment) || taker.has(number).await.is_err() {
                        return;
                    }
                }
                SegmentNotice::Forgotten(number) => {
                    self.all().remove(&number);
                }
            }
        }
    }

    /// Forgets all segments, since the link has ended.
    pub(super) fn end(&self) {
        self.all().clear();
    }
}
