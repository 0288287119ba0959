//! The sending end of shared memory: it lends the tensors that lie in segments, and stages large ones that do not.

use std::sync::{Mutex, MutexGuard, PoisonError};

use convoke_common::identity::Role;
use convoke_common::world::Giver;
use convoke_graph::DType;
use convoke_graph::offsets::ALIGN;
use tokio::sync::mpsc;

use super::lending::{Lending, Reach, SegmentUpdate};
use super::staging::Stage;
use crate::lease::Peer;
use crate::link::{CarryResult, Outgoing};
use crate::remote::LaneSender;

/// The sending end of the shared memory of a link.
pub(crate) struct SharingSender {
    me: Role,
    pub(super) lending: Lending,
    pub(super) stage: Stage,
    /// News about the segments of `lending`, for the one task that tells the peer about segments.
    giving: Mutex<Option<mpsc::UnboundedReceiver<SegmentUpdate>>>,
}

impl SharingSender {
    /// The sending end of a member of this role, which has sent nothing.
    pub(super) fn new(me: Role) -> SharingSender {
        // The channel is bounded by the number of segments: each is given and forgotten once.
        let (changes, giving) = mpsc::unbounded_channel();
        SharingSender {
            me,
            lending: Lending::new(changes),
            stage: Stage::default(),
            giving: Mutex::new(Some(giving)),
        }
    }

    fn giving(&self) -> MutexGuard<'_, Option<mpsc::UnboundedReceiver<SegmentUpdate>>> {
        self.giving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the peer reads this end's segments.
    pub(crate) fn reaches(&self) -> bool {
        self.lending.reaches()
    }

    /// Like [`SharingSender::reaches`], but waits until the answer is known.
    pub(crate) async fn settled(&self) -> bool {
        let mut reach = self.lending.reach.subscribe();
        let known = reach.wait_for(|r| *r != Reach::Unknown).await;
        known.is_ok_and(|r| *r == Reach::Together)
    }

    /// Passes a tensor through memory if possible: lends it if it lies in a segment, and stages it otherwise. Returns
    /// `None` if the tensor waits.
    pub(crate) fn lend(&self, out: Outgoing) -> Option<CarryResult> {
        if !self.reaches() || out.cancel.is_cancelled() {
            return Some(Err(out));
        }
        let place = out.tensor.segment();
        let place = place.map(|(segment, offset)| (segment.clone(), offset));
        let aligned = |(_, offset): &(_, u64)| offset.is_multiple_of(ALIGN as u64);
        // A client may change a tensor after sending it, so a client lends nothing. A session's tensor must not be held
        // up by the peer that reads it. The driver of a partitioned body holds results beyond the step that made them,
        // which cannot retire before the loan ends, so that the next step would not begin. The offsets that divide a
        // text into strings are checked once and must not change after that, so strings are never lent.
        let fixed = out.tensor.dtype() != DType::Str;
        let lease = out.key.lease;
        let held = lease.is_session() || lease.is_at_driver();
        let may = fixed && self.me == Role::Worker && !held;
        match place.filter(|p| may && aligned(p)) {
            Some((segment, offset)) => self.lending.lend(segment, offset, out),
            None => self.stage.add(out).map(Err),
        }
    }

    /// Returns once the peer has copied every tensor that was to be staged.
    pub(crate) async fn crossed(&self) {
        self.stage.crossed().await;
    }

    /// Records that the peer reads no segments of this end.
    pub(super) fn apart(&self) {
        self.lending.reach.send_replace(Reach::Apart);
    }

    /// Returns the outcome of `met`, or `None` once it is known that the peer reads no segments of this end.
    pub(super) async fn unless_apart<T>(&self, met: impl Future<Output = Option<T>>) -> Option<T> {
        let mut reach = self.lending.reach.subscribe();
        tokio::select! {
            biased;
            met = met => met,
            _ = reach.wait_for(|r| *r == Reach::Apart) => None,
        }
    }

    /// Gives the peer this end's segments, for as long as the peer takes them.
    pub(super) async fn give(&self, peer: &Peer, lane: &LaneSender, mut giver: Giver) {
        let Some(mut changes) = self.giving().take() else {
            return;
        };
        self.lending.reach.send_replace(Reach::Together);
        let tell = async {
            while let Some(change) = changes.recv().await {
                let carried = match self.tell(&mut giver, change).await {
                    Ok(carried) => carried,
                    Err(e) => {
                        tracing::warn!(peer = peer.name, "it takes no shared memory: {e}");
                        changes.close();
                        self.lending.part()
                    }
                };
                carried.into_iter().for_each(|c| lane.carry(c));
            }
        };
        tokio::join!(tell, self.stage.run(&self.lending, lane));
    }

    async fn tell(
        &self,
        giver: &mut Giver,
        change: SegmentUpdate,
    ) -> std::io::Result<Vec<CarryResult>> {
        match change {
            SegmentUpdate::Give(segment) => {
                giver.give(&segment).await?;
                Ok(self.lending.given(segment.number()))
            }
            SegmentUpdate::Stage(segment, then) => {
                giver.give(&segment).await?;
                // The receiver is gone if the link has ended.
                let _ = then.send(());
                Ok(vec![])
            }
            SegmentUpdate::Forget(number) => {
                self.lending.forgotten(number);
                giver.forget(number).await?;
                Ok(vec![])
            }
        }
    }

    /// Ends all sending because the link has ended: the peer returns nothing any more.
    pub(super) fn end(&self) {
        self.apart();
        self.lending.end();
        self.stage.shut().into_iter().for_each(Outgoing::let_go);
    }
}
