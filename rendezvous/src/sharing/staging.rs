//! The sending end of staging: tensors that lie in no segment are copied into the staging segment, piece after piece.
//!
//! ```text
//! add ──> the most urgent, a free buffer ──> copied in ──> Part ──> copied out ──> Returned: the buffer is free
//!              ^── Again, from its start ── held <── Later: the peer was not told yet to expect the tensor
//! ```
//!
//! Invariants
//! 1. A buffer that is lent to the peer is not written.
//! 2. `sent` is called once for each tensor: when all of it is in buffers and the peer copies it, when it was cancelled
//!    or refused, or when the link ends.
//! 3. A tensor that the peer does not expect yet occupies no buffer, so no other tensor waits for it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::PoisonError;

use convoke_common::error::Result;
use convoke_common::mutant;
use convoke_graph::Tensor;
use convoke_graph::block::Block;

use super::buffers::{OPEN, SLOT, SLOTS, STAGED, StagingBuffer};
use super::lending::Lending;
use super::violation::broken;
use crate::frame::{Frame, SharingFrame, TensorHeader};
use crate::link::Outgoing;
use crate::primitives::{Mutex, MutexGuard, Notify};
use crate::remote::LaneSender;

/// A tensor that is being staged.
pub(super) struct StagedTensor {
    out: Outgoing,
    /// How many bytes have been put into buffers.
    at: usize,
    /// Whether the peer has taken a piece.
    begun: bool,
    /// Whether the peer does not expect the tensor yet, and will ask for it again.
    held: bool,
}

#[derive(Default)]
pub(super) struct StagingState {
    /// The staged tensors, by the number of the transfer.
    crossing: BTreeMap<u64, StagedTensor>,
    /// The free buffers; the one that was used last is taken first, since it is in the caches.
    pub free: Vec<usize>,
    /// How many buffers are lent to the peer.
    pub lent: usize,
    next: u64,
    /// Whether staging has ended: tensors are sent over the wire.
    shut: bool,
}

/// The next action of the staging task.
pub(super) enum Turn {
    Copy(TensorPiece),
    /// Drop a transfer that was cancelled, perhaps after its first pieces were announced.
    Cancelled(u64, StagedTensor),
}

/// A piece of a tensor, and the buffer that it is copied into.
pub(super) struct TensorPiece {
    transfer: u64,
    tensor: Tensor,
    /// The header of the tensor, which precedes its first piece.
    header: Option<TensorHeader>,
    at: usize,
    slot: usize,
}

/// The tensors that this end stages.
#[derive(Default)]
pub(super) struct Stage {
    state: Mutex<StagingState>,
    changed: Notify,
    /// Notified when no tensor is left to stage.
    idle: Notify,
}

impl StagedTensor {
    fn rest(&self) -> usize {
        self.out.tensor.byte_len() - self.at
    }

    /// Whether the first piece has been announced, but not the last.
    pub fn is_open(&self) -> bool {
        self.at > 0 && self.rest() > 0
    }

    fn is_over(&self) -> bool {
        self.begun && self.rest() == 0
    }
}

impl StagingState {
    fn add(&mut self, out: Outgoing) {
        let crossing = StagedTensor {
            out,
            at: 0,
            begun: false,
            held: false,
        };
        self.crossing.insert(self.next, crossing);
        self.next += 1;
    }

    pub fn turn(&mut self) -> Option<Turn> {
        let slot = *self.free.last()?;
        let more = self.crossing.values().filter(|c| c.is_open()).count() < OPEN;
        let all = self.crossing.iter();
        let (transfer, c) = all
            .filter(|(_, c)| !c.held && c.rest() > 0 && (more || c.is_open()))
            .max_by_key(|(transfer, c)| (c.out.priority, Reverse(**transfer)))?;
        let transfer = *transfer;
        if c.out.cancel.is_cancelled() {
            let crossing = self.crossing.remove(&transfer)?;
            return Some(Turn::Cancelled(transfer, crossing));
        }
        let header = || TensorHeader::of(c.out.key, c.out.slot, &c.out.tensor);
        let chunk = TensorPiece {
            transfer,
            tensor: c.out.tensor.clone(),
            header: (c.at == 0).then(header),
            at: c.at,
            slot,
        };
        self.free.pop();
        self.lent += 1;
        Some(Turn::Copy(chunk))
    }

    /// Removes a tensor if all of it has been announced and the peer has begun to copy it.
    fn over(&mut self, transfer: u64) -> Option<Outgoing> {
        let over = self
            .crossing
            .get(&transfer)
            .is_some_and(StagedTensor::is_over);
        over.then(|| self.crossing.remove(&transfer))
            .flatten()
            .map(|c| c.out)
    }

    pub fn is_idle(&self) -> bool {
        self.crossing.is_empty() && self.lent == 0
    }
}

impl Stage {
    pub fn state(&self) -> MutexGuard<'_, StagingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the staging task.
    pub fn change<T>(&self, change: impl FnOnce(&mut StagingState) -> T) -> T {
        let mut state = self.state();
        let changed = change(&mut state);
        let idle = state.is_idle();
        drop(state);
        self.changed.notify_one();
        if idle {
            self.idle.notify_waiters();
        }
        changed
    }

    /// Stages a tensor; returns it if it is to be sent over the wire.
    pub fn add(&self, out: Outgoing) -> Option<Outgoing> {
        let small = out.tensor.byte_len() < STAGED;
        self.change(|state| {
            if small || state.shut {
                return Some(out);
            }
            state.add(out);
            None
        })
    }

    /// Frees a buffer whose piece the peer has copied.
    pub fn free(&self, slot: StagingBuffer) {
        let over = self.change(|state| {
            state.free.push(slot.index);
            state.lent -= 1;
            let crossing = state.crossing.get_mut(&slot.transfer);
            if let Some(crossing) = crossing.filter(|c| !c.held) {
                crossing.begun = true;
            }
            state.over(slot.transfer)
        });
        over.into_iter().for_each(Outgoing::let_go);
    }

    /// Holds a transfer that the peer does not expect yet; nothing of it has been taken.
    pub fn hold(&self, transfer: u64, tell: impl FnOnce(SharingFrame)) -> Result<()> {
        self.change(|state| {
            // The transfer may have been cancelled.
            let Some(crossing) = state.crossing.get_mut(&transfer) else {
                return Ok(());
            };
            if crossing.at == 0 || crossing.begun {
                return Err(broken("it has begun, or has not been told"));
            }
            if crossing.is_open() {
                // No piece of it can follow, since pieces are announced under the same lock.
                tell(SharingFrame::Cut { transfer });
            }
            (crossing.at, crossing.held) = (0, true);
            Ok(())
        })
    }

    /// Starts a held transfer anew, since the peer expects it now.
    pub fn again(&self, transfer: u64) -> Result<()> {
        self.change(|state| match state.crossing.remove(&transfer) {
            Some(crossing) if !crossing.held => {
                state.crossing.insert(transfer, crossing);
                Err(broken("it is not held"))
            }
            Some(crossing) => {
                state.add(crossing.out);
                Ok(())
            }
            None => Ok(()),
        })
    }

    /// Drops a transfer that the peer has stopped taking.
    pub fn unwanted(&self, transfer: u64, tell: impl FnOnce(SharingFrame)) -> Result<()> {
        let unwanted = self.change(|state| {
            let crossing = state.crossing.get(&transfer);
            if crossing.is_some_and(|c| c.at == 0) {
                return Err(broken("it has not been told"));
            }
            // As in `hold`, no piece can follow; all pieces may have been announced already.
            if crossing.is_some_and(StagedTensor::is_open) {
                tell(SharingFrame::Cut { transfer });
            }
            Ok(state.crossing.remove(&transfer))
        })?;
        unwanted.into_iter().for_each(|c| c.out.let_go());
        Ok(())
    }

    /// Ends staging; returns the tensors that have not been received.
    pub fn shut(&self) -> Vec<Outgoing> {
        let left = self.change(|state| {
            state.shut = true;
            std::mem::take(&mut state.crossing)
        });
        left.into_values().map(|c| c.out).collect()
    }

    /// Returns once the peer has copied every tensor that was to be staged.
    pub async fn crossed(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            // The waiter is registered before the state is read, so that no notification is missed.
            idle.as_mut().enable();
            if self.state().is_idle() {
                return;
            }
            idle.await;
        }
    }

    /// Returns when a tensor waits to be staged.
    async fn wanted(&self) {
        while self.state().crossing.is_empty() {
            self.changed.notified().await;
        }
    }

    /// Announces a piece that is in its buffer, unless its tensor was held meanwhile or the link has ended.
    pub fn tell(
        &self,
        chunk: TensorPiece,
        len: usize,
        part: impl FnOnce(StagingBuffer) -> SharingFrame,
        send: impl Fn(SharingFrame),
    ) {
        let TensorPiece { transfer, slot, .. } = chunk;
        let over = self.change(|state| {
            let crossing = state.crossing.get_mut(&transfer);
            let Some(crossing) = crossing.filter(|c| !c.held) else {
                if !mutant!("staging-buffer-lost") {
                    state.free.push(slot);
                }
                state.lent -= 1;
                return None;
            };
            crossing.at += len;
            let over = state.over(transfer);
            let header = chunk
                .header
                .map(|tensor| SharingFrame::Staged { transfer, tensor });
            header.into_iter().for_each(&send);
            let index = slot;
            send(part(StagingBuffer { index, transfer }));
            over
        });
        over.into_iter().for_each(Outgoing::let_go);
    }
}

impl Stage {
    /// Stages tensors until the link ends, or until no staging segment can be made.
    pub async fn run(&self, lending: &Lending, lane: &LaneSender) {
        self.wanted().await;
        let Some((mut block, segment)) = slots(lending).await else {
            let wire = self.shut().into_iter();
            return wire.for_each(|out| lane.carry(Err(out)));
        };
        self.change(|state| state.free.extend((0..SLOTS).rev()));
        loop {
            let turn = self.state().turn();
            match turn {
                None => self.changed.notified().await,
                Some(Turn::Cancelled(transfer, crossing)) => {
                    if crossing.is_open() {
                        lane.send(&Frame::Sharing(SharingFrame::Cut { transfer }));
                    }
                    crossing.out.let_go();
                    self.change(|_| {});
                }
                Some(Turn::Copy(chunk)) => {
                    self.copy(lending, &mut block, segment, chunk, |told| {
                        lane.send(&Frame::Sharing(told));
                    });
                    // Let the announcement and heartbeats be sent now.
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// Copies a piece into its buffer, and announces it to the peer.
    fn copy(
        &self,
        lending: &Lending,
        block: &mut Block,
        segment: u64,
        chunk: TensorPiece,
        send: impl Fn(SharingFrame),
    ) {
        let (rest, start) = (&chunk.tensor.bytes()[chunk.at..], chunk.slot * SLOT);
        let len = rest.len().min(SLOT);
        block.bytes_mut()[start..start + len].copy_from_slice(&rest[..len]);
        let transfer = chunk.transfer;
        let part = |slot| SharingFrame::Part {
            transfer,
            segment,
            offset: start as u64,
            len: len as u32,
            loan: lending.lend_slot(slot),
        };
        self.tell(chunk, len, part, send);
    }
}

/// Makes the staging segment, and waits until the peer has it.
async fn slots(lending: &Lending) -> Option<(Block, u64)> {
    let block = Block::shared(SLOTS * SLOT)?;
    let segment = block.segment()?.0.clone();
    let number = segment.number();
    lending.stage(segment).await?;
    Some((block, number))
}
