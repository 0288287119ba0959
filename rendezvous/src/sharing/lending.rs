//! The loans of one end of a link: tensors that lie in segments of this process, and buffers of the staging segment.

use std::collections::HashMap;
use std::sync::Arc;

use convoke_common::error::Result;
use convoke_common::identity::Role;
use convoke_graph::DType;
use convoke_graph::block::ALIGN;
use convoke_graph::segment::Segment;
use tokio::sync::oneshot;

use super::staging::StagingBuffer;
use super::{CarryResult, LinkSharing, broken, locked};
use crate::frame::{Frame, SharingFrame, TensorHeader};
use crate::link::Outgoing;

/// News about a segment for the peer.
pub(super) enum SegmentUpdate {
    Give(Arc<Segment>),
    /// Like `Give`, for the staging segment; the sender is answered when the peer has it.
    Stage(Arc<Segment>, oneshot::Sender<()>),
    Forget(u64),
}

/// Whether the peer has a segment.
enum SegmentDelivery {
    /// The segment is being given; these tensors wait until the peer has it.
    Underway(Vec<Outgoing>),
    There,
}

/// Memory that the peer uses until it returns it.
enum OpenLoan {
    Tensor(Outgoing),
    Slot(StagingBuffer),
}

/// The loans of this end: tensors and staging buffers.
#[derive(Default)]
pub(super) struct LendingState {
    /// The segments that were given to the peer, by number.
    segments: HashMap<u64, SegmentDelivery>,
    loans: HashMap<u64, OpenLoan>,
    next: u64,
    over: bool,
}

impl LendingState {
    fn note(&mut self, loaned: OpenLoan) -> u64 {
        let loan = self.next;
        self.next += 1;
        self.loans.insert(loan, loaned);
        loan
    }

    /// Records that a tensor is lent, and returns the frame that says so.
    fn lend(&mut self, segment: u64, offset: u64, out: Outgoing) -> Frame {
        let tensor = TensorHeader::of(out.key, out.slot, &out.tensor);
        let loan = self.note(OpenLoan::Tensor(out));
        Frame::Sharing(SharingFrame::Lent {
            tensor,
            segment,
            offset,
            loan,
        })
    }
}

impl LinkSharing {
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
            Some((segment, offset)) => self.lend_in(segment, offset, out),
            None => self.stage.add(out).map(Err),
        }
    }

    pub(super) fn lend_in(
        &self,
        segment: Arc<Segment>,
        offset: u64,
        out: Outgoing,
    ) -> Option<CarryResult> {
        let number = segment.number();
        let mut lending = locked(&self.lending);
        // The peer may have parted since the caller asked: nobody sends a tensor that begins to wait after that.
        if lending.over || !self.reaches() {
            return Some(Err(out));
        }
        match lending.segments.get_mut(&number) {
            Some(SegmentDelivery::There) => Some(Ok(lending.lend(number, offset, out))),
            Some(SegmentDelivery::Underway(waiting)) => {
                waiting.push(out);
                None
            }
            None => {
                let changes = self.changes.clone();
                // The receiver may be gone, with the link.
                segment.at_end(move || drop(changes.send(SegmentUpdate::Forget(number))));
                if self.changes.send(SegmentUpdate::Give(segment)).is_err() {
                    return Some(Err(out));
                }
                let underway = SegmentDelivery::Underway(vec![out]);
                lending.segments.insert(number, underway);
                None
            }
        }
    }

    /// Records that a staging buffer is lent to the peer, and returns the number of the loan.
    pub(super) fn lend_slot(&self, slot: StagingBuffer) -> u64 {
        locked(&self.lending).note(OpenLoan::Slot(slot))
    }

    /// Records that the peer has a segment: the tensors that waited for it are lent.
    pub(super) fn given(&self, number: u64) -> Vec<CarryResult> {
        let mut lending = locked(&self.lending);
        let waited = lending.segments.insert(number, SegmentDelivery::There);
        let Some(SegmentDelivery::Underway(waiting)) = waited else {
            return vec![];
        };
        let waiting = waiting.into_iter();
        waiting
            .map(|out| match out.tensor.segment() {
                Some((_, offset)) if !lending.over => Ok(lending.lend(number, offset, out)),
                _ => Err(out),
            })
            .collect()
    }

    pub(super) fn forgotten(&self, number: u64) {
        locked(&self.lending).segments.remove(&number);
    }

    /// Records that the peer takes no more segments: returns the tensors that waited for one, to be sent over the wire.
    pub(super) fn part(&self) -> Vec<CarryResult> {
        self.apart();
        let mut lending = locked(&self.lending);
        let mut back = vec![];
        for standing in lending.segments.values_mut() {
            if let SegmentDelivery::Underway(waiting) = standing {
                back.extend(waiting.drain(..).map(Err));
            }
        }
        back
    }

    pub(super) fn returned(&self, loan: u64) -> Result<()> {
        let loaned = locked(&self.lending).loans.remove(&loan);
        match loaned.ok_or_else(|| broken("nothing is lent so"))? {
            OpenLoan::Tensor(out) => out.let_go(),
            OpenLoan::Slot(slot) => self.stage.free(slot),
        }
        Ok(())
    }

    /// Ends all loans: nothing is returned any more.
    pub(super) fn end_lending(&self) {
        let (loans, segments) = {
            let mut lending = locked(&self.lending);
            lending.over = true;
            (
                std::mem::take(&mut lending.loans),
                std::mem::take(&mut lending.segments),
            )
        };
        let loans = loans.into_values().filter_map(|l| match l {
            OpenLoan::Tensor(out) => Some(out),
            OpenLoan::Slot(_) => None,
        });
        let waiting = segments.into_values().filter_map(|s| match s {
            SegmentDelivery::Underway(waiting) => Some(waiting),
            SegmentDelivery::There => None,
        });
        loans.chain(waiting.flatten()).for_each(Outgoing::let_go);
    }
}
