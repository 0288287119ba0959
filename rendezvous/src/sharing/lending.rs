//! The loans of one end of a link: tensors that lie in segments of this process, and buffers of the staging segment.
//!
//! Invariants
//! 1. A tensor is lent, is sent over the wire, or waits for its segment; none waits once the peer takes no more segments
//!    or the link has ended.
//! 2. A loan ends once: when the peer returns it, or with the link.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use convoke_common::error::Result;
use convoke_graph::segment::Segment;
use tokio::sync::{mpsc, oneshot, watch};

use super::buffers::StagingBuffer;
use super::violation::broken;
use crate::frame::{Frame, SharingFrame, TensorHeader};
use crate::link::{CarryResult, Outgoing};
use crate::primitives::{Mutex, MutexGuard};

/// Whether the peer can read this end's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Unknown,
    Apart,
    Together,
}

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
pub(super) struct Lending {
    pub reach: watch::Sender<Reach>,
    state: Mutex<LendingState>,
    /// Tells the peer of segments.
    changes: mpsc::UnboundedSender<SegmentUpdate>,
}

#[derive(Default)]
struct LendingState {
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

impl Lending {
    /// No loans, until it is known whether the peer reads this end's segments; `changes` tells it of them.
    pub fn new(changes: mpsc::UnboundedSender<SegmentUpdate>) -> Lending {
        Lending {
            reach: watch::Sender::new(Reach::Unknown),
            state: Mutex::default(),
            changes,
        }
    }

    fn state(&self) -> MutexGuard<'_, LendingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the peer reads this end's segments.
    pub fn reaches(&self) -> bool {
        *self.reach.borrow() == Reach::Together
    }

    /// Lends a tensor that lies in a segment. Returns `None` if it waits until the peer has the segment.
    pub fn lend(&self, segment: Arc<Segment>, offset: u64, out: Outgoing) -> Option<CarryResult> {
        let number = segment.number();
        let mut state = self.state();
        // The peer may have parted since the caller asked: nobody sends a tensor that begins to wait after that.
        if state.over || !self.reaches() {
            return Some(Err(out));
        }
        match state.segments.get_mut(&number) {
            Some(SegmentDelivery::There) => Some(Ok(state.lend(number, offset, out))),
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
                state.segments.insert(number, underway);
                None
            }
        }
    }

    /// Tells the peer of the staging segment. Returns once the peer has it, `None` if it never will.
    pub async fn stage(&self, segment: Arc<Segment>) -> Option<()> {
        let (tell, told) = oneshot::channel();
        let change = SegmentUpdate::Stage(segment, tell);
        self.changes.send(change).ok()?;
        told.await.ok()
    }

    /// Records that a staging buffer is lent to the peer, and returns the number of the loan.
    pub fn lend_slot(&self, slot: StagingBuffer) -> u64 {
        self.state().note(OpenLoan::Slot(slot))
    }

    /// Records that the peer has a segment: the tensors that waited for it are lent.
    pub fn given(&self, number: u64) -> Vec<CarryResult> {
        let mut state = self.state();
        let waited = state.segments.insert(number, SegmentDelivery::There);
        let Some(SegmentDelivery::Underway(waiting)) = waited else {
            return vec![];
        };
        let waiting = waiting.into_iter();
        waiting
            .map(|out| match out.tensor.segment() {
                Some((_, offset)) if !state.over => Ok(state.lend(number, offset, out)),
                _ => Err(out),
            })
            .collect()
    }

    /// Records that a segment has ended.
    pub fn forgotten(&self, number: u64) {
        self.state().segments.remove(&number);
    }

    /// Records that the peer takes no more segments: returns the tensors that waited for one, to be sent over the wire.
    pub fn part(&self) -> Vec<CarryResult> {
        self.reach.send_replace(Reach::Apart);
        let mut state = self.state();
        let mut back = vec![];
        for standing in state.segments.values_mut() {
            if let SegmentDelivery::Underway(waiting) = standing {
                back.extend(waiting.drain(..).map(Err));
            }
        }
        back
    }

    /// Ends the loan of a tensor, or of the staging buffer that this returns.
    pub fn returned(&self, loan: u64) -> Result<Option<StagingBuffer>> {
        let loaned = self.state().loans.remove(&loan);
        match loaned.ok_or_else(|| broken("nothing is lent so"))? {
            OpenLoan::Tensor(out) => {
                out.let_go();
                Ok(None)
            }
            OpenLoan::Slot(slot) => Ok(Some(slot)),
        }
    }

    /// Ends all loans: nothing is returned any more.
    pub fn end(&self) {
        let (loans, segments) = {
            let mut state = self.state();
            state.over = true;
            (
                std::mem::take(&mut state.loans),
                std::mem::take(&mut state.segments),
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
