//! The receiving end of staged tensors, and of tensors that are lent to an end which copies them at once.
//!
//! ```text
//! Staged ──> a task: expected? ──> its own memory ──> copies piece after piece, returns each ──> finishes the tensor
//! Part ────> in order, checked ──────────────────────^
//!                    └ not yet ──> Later, returns all ──> once it is expected: Again
//!                                           └ refused: Unwanted
//! ```
//!
//! Invariants
//! 1. Memory of a peer is read only after it is known to lie inside its segment, and only the copy is used.
//! 2. A peer has announced no more pieces than the staging segment has buffers, and no more tensors than its sender
//!    may.
//! 3. Each piece is returned once, whatever becomes of its tensor.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::error::Result;
use convoke_common::world::World;
use convoke_graph::segment::SegmentLoan;
use tokio::sync::mpsc;

use super::buffers::{OPEN, SLOT};
use super::loan::PieceCount;
use super::violation::broken;
use crate::frame::{Frame, SharingFrame, TensorHeader};
use crate::hub::Hub;
use crate::link::Link;
use crate::refusal::FrameRefusal;
use crate::remote::{STALL_BOUND, stalled};

/// A tensor whose pieces have not all arrived.
struct Open {
    /// Hands the pieces to the tensor's task, which has ended if the tensor was refused.
    parts: mpsc::UnboundedSender<SegmentLoan>,
    left: usize,
}

/// The tensors that are being staged to this end.
#[derive(Default)]
pub(super) struct StagingReceiver {
    open: Mutex<HashMap<u64, Open>>,
    pub pieces: PieceCount,
}

/// A tensor that is arriving.
pub(super) struct IncomingTensor {
    pub hub: Arc<Hub>,
    pub link: Arc<Link>,
    pub header: TensorHeader,
    /// Bytes of tensors that arrived over the link.
    pub received: Arc<AtomicU64>,
}

type Parts = mpsc::UnboundedReceiver<SegmentLoan>;

impl StagingReceiver {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the task that receives a tensor's pieces.
    pub fn begin(&self, world: &World, transfer: u64, arriving: IncomingTensor) -> Result<()> {
        let left = arriving.header.bytes;
        if left == 0 {
            return Err(broken("a tensor without bytes"));
        }
        let (parts, coming) = mpsc::unbounded_channel();
        let mut open = self.open();
        if open.len() == OPEN {
            return Err(broken("too many tensors at once"));
        }
        if open.insert(transfer, Open { parts, left }).is_some() {
            return Err(broken("a tensor of another's number"));
        }
        drop(open);
        let link = arriving.link.clone();
        let arrive = arriving.arrive(transfer, coming);
        world.spawn(async move { link.until_ended(arrive).await });
        Ok(())
    }

    /// Takes a tensor's next piece.
    pub fn part(&self, transfer: u64, part: SegmentLoan) -> Result<()> {
        let mut all = self.open();
        let open = all.get_mut(&transfer);
        let open = open.ok_or_else(|| broken("a part of no tensor"))?;
        let left = open.left.checked_sub(part.len());
        let left = left.filter(|_| !part.is_empty());
        open.left = left.ok_or_else(|| broken("a part of no length, or beyond its tensor"))?;
        // If the task has ended, the piece is dropped here, and so returned.
        drop(open.parts.send(part));
        if open.left == 0 {
            all.remove(&transfer);
        }
        Ok(())
    }

    /// Ends a tensor whose remaining pieces will not come.
    pub fn cut(&self, transfer: u64) -> Result<()> {
        let cut = self.open().remove(&transfer);
        cut.map(drop).ok_or_else(|| broken("no such tensor"))
    }

    /// Ends all tensors, since nothing more arrives.
    pub fn end(&self) {
        self.open().clear();
    }
}

impl IncomingTensor {
    /// Copies a tensor that is lent as a whole, and then returns it.
    pub fn whole(self, world: &World, lent: SegmentLoan) {
        let (tell, mut coming) = mpsc::unbounded_channel();
        // Sending cannot fail, since the receiver is in this function.
        drop(tell.send(lent));
        let link = self.link.clone();
        let copy = async move {
            if let Err(why) = self.receive(&mut coming).await {
                self.hub.count(why);
            }
        };
        world.spawn(async move { link.until_ended(copy).await });
    }

    async fn arrive(self, transfer: u64, mut parts: Parts) {
        let (hub, link) = (&self.hub, &self.link);
        let foreseen = hub.foreseen(link.peer(), &self.header);
        tokio::pin!(foreseen);
        let now = tokio::select! {
            biased;
            foreseen = &mut foreseen => Some(foreseen),
            () = std::future::ready(()) => None,
        };
        let taken = match now {
            Some(foreseen) => {
                let taken = match foreseen {
                    Ok(()) => self.receive(&mut parts).await,
                    refused => refused,
                };
                if taken.is_err() {
                    link.send(Frame::Sharing(SharingFrame::Unwanted { transfer }));
                }
                taken
            }
            None => {
                link.send(Frame::Sharing(SharingFrame::Later { transfer }));
                // The pieces are dropped only now: those returned after `Later` have not been taken.
                drop(parts);
                let foreseen = foreseen.await;
                link.send(Frame::Sharing(SharingFrame::Again { transfer }));
                foreseen
            }
        };
        if let Err(why) = taken {
            hub.count(why);
        }
    }

    async fn receive(&self, parts: &mut Parts) -> Result<(), FrameRefusal> {
        let (hub, from, received) = (&self.hub, self.link.peer(), &*self.received);
        let mut incoming = hub.begin(from, &self.header)?;
        let len = self.header.bytes;
        let stalled = stalled(received);
        tokio::pin!(stalled);
        let mut at = 0;
        while at < len {
            let part = tokio::select! {
                biased;
                part = parts.recv() => part,
                () = &mut stalled => {
                    incoming.stalled(from, STALL_BOUND);
                    return Err(FrameRefusal::Stalled);
                }
            };
            // The tensor was cut: dropping `incoming` gives the claim back.
            let Some(part) = part else { return Ok(()) };
            let mut copied = 0;
            while copied < part.len() {
                let more = SLOT.min(part.len() - copied);
                let to = incoming.bytes_mut().get_mut(at..at + more);
                if !to.is_some_and(|to| part.copy_to(copied, to)) {
                    return Err(FrameRefusal::Malformed);
                }
                (at, copied) = (at + more, copied + more);
                received.fetch_add(more as u64, Ordering::Relaxed);
                if copied < part.len() {
                    tokio::task::yield_now().await;
                }
            }
            drop(part);
            if at < len {
                // Heartbeats and other tasks run between pieces.
                tokio::task::yield_now().await;
            }
        }
        // Nothing can end this since the last copy: a tensor whose pieces are all returned has arrived.
        incoming.finish()
    }
}
