//! Two ends of a link on one host: tensors pass through shared memory instead of over the wire.
//!
//! ```text
//! sender                                             receiver
//! Meet { nonce, address } ── lane ─────────────────> meets the sender there, or says that they are Apart
//!                         <───────── lane ── Bring { nonce, address } or the sender meets the receiver
//! each segment that a tensor lies in ── socket ────> maps and confirms it; until then its tensors wait
//!
//! Lent { header, segment, offset, loan } ── lane ──> fills the slot in place; a client copies the tensor instead
//! Staged { header }, Part { segment, offset, … } ──> copies piece after piece into memory of its own
//! releases the tensor, or reuses the buffer <─────── Returned { loan } once the receiver no longer uses it
//! ```
//! A worker listens at a socket; a client connects to it, and leaves no socket behind. Tensors that lie in a segment
//! are lent to a worker, or to a client until it has copied them. Any other large tensor is *staged*: it passes through
//! a segment of a few buffers, so that both ends copy at the same time.
//!
//! Invariants
//! 1. Lent memory is held until it is returned or the link ends. An end that lost a link does not reuse lent memory: a
//!    lease's steps end with the link, and the lease's memory is not used for others.
//! 2. Each loan is returned once, whatever becomes of the tensor.
//! 3. The end of a segment is announced: no process keeps memory that its owner has given back.
//! 4. A client lends no tensor: the tensors that it sends are copied, and only the copy is read. A worker maps no more
//!    of a client's memory than the staging buffers.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod lending;
mod loan;
mod meeting;
mod receiving;
mod staging;
// These are no module of `staging.rs`, since the models of `tests/models` compile that file.
#[cfg(test)]
mod staging_tests;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::Role;
use convoke_common::world::{SharedMemory, World};
use convoke_graph::DType;
use convoke_graph::block::ALIGN;
use convoke_graph::segment::{PeerSegment, SegmentLoan};
use tokio::sync::mpsc;

use crate::frame::{Frame, SharingFrame, TensorHeader};
use crate::hub::Hub;
use crate::link::{Link, Outgoing};

use lending::{Lending, Reach, SegmentUpdate};
use loan::Loan;
use meeting::{bring, meet};
use receiving::{IncomingTensor, StagingReceiver};
use staging::Stage;

/// How a tensor travels: a frame that lends it, or the tensor itself, to be sent over the wire.
pub(crate) type CarryResult = std::result::Result<Frame, Outgoing>;

/// The shared memory of one end of a link.
pub(crate) struct LinkSharing {
    memory: Arc<SharedMemory>,
    me: Role,
    peer: Role,
    lending: Lending,
    stage: Stage,
    /// News about the segments of `lending`, for the one task that tells the peer about segments.
    giving: Mutex<Option<mpsc::UnboundedReceiver<SegmentUpdate>>>,
    /// Whether the peer has sent [`SharingFrame::Meet`]; `asked` says the same of [`SharingFrame::Bring`].
    told: AtomicBool,
    asked: AtomicBool,
    /// The segments that the peer gave, by their number.
    segments: Mutex<HashMap<u64, Arc<PeerSegment>>>,
    receiving: StagingReceiver,
    /// Bytes of tensors that arrived over the link.
    received: Arc<AtomicU64>,
}

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken(why: &str) -> Error {
    Error::new(Code::ProtocolViolation, format!("shared memory: {why}"))
}

impl LinkSharing {
    /// The shared memory of one end of a link; `None` if members of these two roles never share memory.
    pub(crate) fn new(
        memory: Arc<SharedMemory>,
        [me, peer]: [Role; 2],
        received: Arc<AtomicU64>,
    ) -> Option<LinkSharing> {
        match (me, peer) {
            (Role::Worker, Role::Worker | Role::Client) | (Role::Client, Role::Worker) => {}
            _ => return None,
        }
        // The channel is bounded by the number of segments: each is given and forgotten once.
        let (changes, giving) = mpsc::unbounded_channel();
        Some(LinkSharing {
            memory,
            me,
            peer,
            lending: Lending::new(changes),
            stage: Stage::default(),
            giving: Mutex::new(Some(giving)),
            told: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            segments: Mutex::default(),
            receiving: StagingReceiver::default(),
            received,
        })
    }

    /// Whether the peer reads this end's segments.
    pub(crate) fn reaches(&self) -> bool {
        self.lending.reaches()
    }

    /// Like [`LinkSharing::reaches`], but waits until the answer is known.
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

    fn apart(&self) {
        self.lending.reach.send_replace(Reach::Apart);
    }

    /// Ends all sharing because the link has ended: the peer returns nothing any more.
    pub(crate) fn end(&self) {
        self.apart();
        self.lending.end();
        self.stage.shut().into_iter().for_each(Outgoing::let_go);
        self.receiving.end();
        locked(&self.segments).clear();
    }

    /// The memory that the peer says it lends.
    fn borrowed(&self, segment: u64, offset: u64, len: usize, loan: Loan) -> Result<SegmentLoan> {
        let of = locked(&self.segments).get(&segment).cloned();
        let of = of.ok_or_else(|| broken("no such segment"))?;
        let lent = SegmentLoan::new(of, offset, len, Box::new(loan));
        lent.ok_or_else(|| broken("outside of its segment"))
    }

    fn arriving(&self, hub: &Arc<Hub>, link: &Arc<Link>, header: TensorHeader) -> IncomingTensor {
        IncomingTensor {
            hub: hub.clone(),
            link: link.clone(),
            header,
            received: self.received.clone(),
        }
    }

    /// Takes a frame of the peer; fails if it violates the protocol.
    pub(crate) fn frame(
        &self,
        world: &World,
        hub: &Arc<Hub>,
        link: &Arc<Link>,
        frame: SharingFrame,
    ) -> Result<()> {
        let worker = || match self.peer {
            Role::Worker => Ok(()),
            _ => Err(broken("a client is met nowhere, and lends nothing")),
        };
        let tell = |told| link.send(Frame::Sharing(told));
        match frame {
            SharingFrame::Meet { nonce, address } => {
                worker()?;
                self.once(&self.told)?;
                world.spawn(meet(link.clone(), nonce, address));
            }
            SharingFrame::Bring { nonce, address } => {
                worker()?;
                self.once(&self.asked)?;
                if self.me != Role::Client {
                    return Err(broken("a worker has an address"));
                }
                world.spawn(bring(link.clone(), nonce, address));
            }
            SharingFrame::Apart => {
                self.lending.reach.send_if_modified(|reach| {
                    let unknown = *reach == Reach::Unknown;
                    if unknown {
                        *reach = Reach::Apart;
                    }
                    unknown
                });
            }
            SharingFrame::Lent {
                tensor,
                segment,
                offset,
                loan,
            } => {
                worker()?;
                let loan = Loan::new(link, loan);
                if tensor.dtype == DType::Str {
                    return Err(broken("strings are checked in memory of one's own"));
                }
                let lent = self.borrowed(segment, offset, tensor.bytes, loan)?;
                match self.me {
                    Role::Worker => hub.borrow(link.peer(), &tensor, lent),
                    // No lease waits for what a client does with the tensor.
                    _ => self.arriving(hub, link, tensor).whole(world, lent),
                }
            }
            SharingFrame::Returned { loan } => {
                let slot = self.lending.returned(loan)?;
                slot.into_iter().for_each(|slot| self.stage.free(slot));
            }
            SharingFrame::Staged { transfer, tensor } => {
                let arriving = self.arriving(hub, link, tensor);
                self.receiving.begin(world, transfer, arriving)?;
            }
            SharingFrame::Part {
                transfer,
                segment,
                offset,
                len,
                loan,
            } => {
                let loan = self.receiving.pieces.loan(link, loan)?;
                let part = self.borrowed(segment, offset, len as usize, loan)?;
                self.receiving.part(transfer, part)?;
            }
            SharingFrame::Cut { transfer } => self.receiving.cut(transfer)?,
            SharingFrame::Later { transfer } => self.stage.hold(transfer, tell)?,
            SharingFrame::Unwanted { transfer } => self.stage.unwanted(transfer, tell)?,
            SharingFrame::Again { transfer } => self.stage.again(transfer)?,
        }
        Ok(())
    }

    fn once(&self, said: &AtomicBool) -> Result<()> {
        match said.swap(true, Ordering::Relaxed) {
            true => Err(broken("it is met at one place")),
            false => Ok(()),
        }
    }
}
