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

mod buffers;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod lending;
mod loan;
mod meeting;
mod receiving;
mod segments;
mod sender;
mod staging;
mod violation;
// These are no module of `staging.rs`, since the models of `tests/models` compile that file.
#[cfg(test)]
mod staging_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use convoke_common::error::Result;
use convoke_common::identity::Role;
use convoke_common::world::{SharedMemory, World};
use convoke_graph::DType;

use crate::frame::{Frame, SharingFrame, TensorHeader};
use crate::hub::Hub;
use crate::link::Link;
use crate::remote::Remote;

use lending::Reach;
use loan::Loan;
use meeting::{bring, invite_to_bring, invite_to_take, meet};
use receiving::{IncomingTensor, StagingReceiver};
use segments::PeerSegments;
pub(crate) use sender::SharingSender;
use violation::broken;

/// The shared memory of one end of a link.
pub(crate) struct LinkSharing {
    memory: Arc<SharedMemory>,
    me: Role,
    peer: Role,
    sender: Arc<SharingSender>,
    /// The segments that the peer gave.
    segments: Arc<PeerSegments>,
    receiving: StagingReceiver,
    /// Whether the peer has sent [`SharingFrame::Meet`]; `asked` says the same of [`SharingFrame::Bring`].
    told: AtomicBool,
    asked: AtomicBool,
    /// Bytes of tensors that arrived over the link.
    received: Arc<AtomicU64>,
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
        Some(LinkSharing {
            memory,
            me,
            peer,
            sender: Arc::new(SharingSender::new(me)),
            segments: Arc::new(PeerSegments::new(peer)),
            receiving: StagingReceiver::default(),
            told: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            received,
        })
    }

    /// The sending end.
    pub(crate) fn sender(&self) -> &Arc<SharingSender> {
        &self.sender
    }

    /// Invites the peer to take this end's segments, and, if it is a client, which has no socket, to bring its own.
    pub(crate) async fn invite(&self, world: &World, remote: &Remote) {
        let (memory, sender) = (&self.memory, &*self.sender);
        let give = invite_to_take(world, memory, sender, remote);
        let take = async {
            if self.peer == Role::Client {
                invite_to_bring(world, memory, sender, &self.segments, remote).await;
            }
        };
        tokio::join!(give, take);
    }

    /// Ends all sharing because the link has ended: the peer returns nothing any more.
    pub(crate) fn end(&self) {
        self.sender.end();
        self.receiving.end();
        self.segments.end();
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
                let (memory, segments) = (self.memory.clone(), self.segments.clone());
                world.spawn(meet(link.clone(), memory, segments, nonce, address));
            }
            SharingFrame::Bring { nonce, address } => {
                worker()?;
                self.once(&self.asked)?;
                if self.me != Role::Client {
                    return Err(broken("a worker has an address"));
                }
                let (memory, sender) = (self.memory.clone(), self.sender.clone());
                world.spawn(bring(link.clone(), memory, sender, nonce, address));
            }
            SharingFrame::Apart => {
                self.sender.lending.reach.send_if_modified(|reach| {
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
                let lent = self
                    .segments
                    .borrowed(segment, offset, tensor.bytes, loan)?;
                match self.me {
                    Role::Worker => hub.borrow(link.peer(), &tensor, lent),
                    // No lease waits for what a client does with the tensor.
                    _ => self.arriving(hub, link, tensor).whole(world, lent),
                }
            }
            SharingFrame::Returned { loan } => {
                let slot = self.sender.lending.returned(loan)?;
                slot.into_iter()
                    .for_each(|slot| self.sender.stage.free(slot));
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
                let part = self
                    .segments
                    .borrowed(segment, offset, len as usize, loan)?;
                self.receiving.part(transfer, part)?;
            }
            SharingFrame::Cut { transfer } => self.receiving.cut(transfer)?,
            SharingFrame::Later { transfer } => self.sender.stage.hold(transfer, tell)?,
            SharingFrame::Unwanted { transfer } => self.sender.stage.unwanted(transfer, tell)?,
            SharingFrame::Again { transfer } => self.sender.stage.again(transfer)?,
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
