//! The hub: where a process's leases and links meet.
//!
//! Frames arrive over links, each with the peer's authenticated role and name. The hub finds the lease, checks that
//! this peer may send this frame, and hands it on; whatever is refused is counted by reason.
//!
//! Invariants
//! 1. Only a lease's driver starts its steps and releases the lease; only an edge's declared source fills the edge;
//!    only a participant aborts.
//! 2. A link is replaced only by one whose certificate has the same role, name and token.
//! 3. A refused frame changes nothing but a counter; except that a step which can no longer succeed, since its tensor
//!    was refused or its lease is gone, is ended and not left waiting.

mod incoming;
mod links;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::Role;
use convoke_common::ids::{LeaseId, StepKey};
use convoke_common::mutant;
use convoke_common::rpc::RendezvousStatus;
use convoke_graph::Tensor;
use convoke_graph::ids::ParticipantIx;
use convoke_graph::segment::SegmentLoan;
use dashmap::DashMap;

use self::incoming::Destination;
pub use self::incoming::Incoming;
use self::links::Links;
use crate::eager::{DirectSession, EagerService};
use crate::frame::{Frame, TensorHeader};
use crate::lease::{Lease, Peer};
use crate::link::{Link, LinkId};
use crate::refusal::FrameRefusal;
use crate::remote::STALL_BOUND;
use crate::step::slot::{PublishOutcome, Slot};
use crate::step::table::Delivery;

/// A process's end of the rendezvous.
pub struct Hub {
    pub me: Peer,
    leases: DashMap<LeaseId, Arc<Lease>>,
    links: Links,
    refused: Mutex<BTreeMap<FrameRefusal, u64>>,
    /// How often steps of leases were aborted here. It is one counter, which the leases' tables share, because a lease
    /// may end while its step is aborted.
    aborts: Arc<AtomicU64>,
    eager: OnceLock<Weak<dyn EagerService>>,
}

impl Hub {
    /// A hub without leases or links.
    pub fn new(me: Peer) -> Arc<Hub> {
        Arc::new(Hub {
            me,
            leases: DashMap::new(),
            links: Links::new(),
            refused: Mutex::default(),
            aborts: Arc::default(),
            eager: OnceLock::new(),
        })
    }

    /// Hands eager work to `eager` from now on; the caller keeps its owner.
    pub fn serve_eager(&self, eager: Weak<dyn EagerService>) {
        if self.eager.set(eager).is_err() {
            tracing::warn!("eager work is served already");
        }
    }

    fn eager(&self) -> Option<Arc<dyn EagerService>> {
        self.eager.get()?.upgrade()
    }

    /// Takes a batch of an eager session, which came over the link `over` or within this process; fails if the batch is
    /// malformed.
    pub fn batch(&self, from: &Peer, over: Option<LinkId>, batch: &[u8]) -> Result<()> {
        match self.eager() {
            Some(eager) => eager.batch(from, over, batch),
            None => {
                self.count(FrameRefusal::UnknownLease);
                Ok(())
            }
        }
    }

    /// The direct execution of brief ops of a client in this process.
    pub(crate) fn direct(&self, from: &Peer) -> Option<Arc<dyn DirectSession>> {
        self.eager()?.direct(from)
    }

    /// Returns once it is known whether a tensor of an eager session is expected: the tensor may overtake the command
    /// that announces it.
    pub(crate) async fn foreseen(&self, from: &Peer, h: &TensorHeader) -> Result<(), FrameRefusal> {
        let Some(eager) = self.eager() else {
            return Ok(());
        };
        let Some(foreseen) = eager.foreseen(from, h) else {
            return Ok(());
        };
        // The sender is dropped if the tensor will never be expected; `begin` then reports that.
        if tokio::time::timeout(STALL_BOUND, foreseen).await.is_ok() {
            return Ok(());
        }
        let msg = format!("a tensor was not announced for {STALL_BOUND:?} after it came");
        eager.failed(from, h.key, Error::new(Code::PeerLost, msg));
        Err(FrameRefusal::Stalled)
    }

    /// Adds a lease.
    pub fn add_lease(&self, lease: Arc<Lease>) {
        lease.table.count_aborts(self.aborts.clone());
        self.leases.insert(lease.id, lease);
    }

    /// Removes a lease: its frames are refused from now on.
    pub fn remove_lease(&self, id: LeaseId) -> Option<Arc<Lease>> {
        self.leases.remove(&id).map(|(_, lease)| lease)
    }

    /// The lease with this id.
    pub fn lease(&self, id: LeaseId) -> Option<Arc<Lease>> {
        self.leases.get(&id).map(|l| l.clone())
    }

    /// All leases, by id.
    pub fn leases(&self) -> Vec<Arc<Lease>> {
        let mut all: Vec<_> = self.leases.iter().map(|l| l.value().clone()).collect();
        all.sort_by_key(|l| l.id);
        all
    }

    /// Counts of the sends and receives that meet at this end, or wait to meet.
    pub fn status(&self) -> RendezvousStatus {
        let mut status = RendezvousStatus {
            aborts: self.aborts.load(Ordering::Relaxed),
            ..RendezvousStatus::default()
        };
        for lease in self.leases() {
            status.leases += 1;
            lease.table.add_to(&mut status);
        }
        status
    }

    /// Counts a refusal by its reason.
    pub fn count(&self, why: FrameRefusal) {
        *self
            .refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(why)
            .or_insert(0) += 1;
        tracing::debug!(reason = why.name(), "frame refused");
    }

    /// The number of refusals by reason.
    pub fn refused(&self) -> BTreeMap<String, u64> {
        let r = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        r.iter().map(|(k, v)| (k.name().to_string(), *v)).collect()
    }

    /// Adds a link, in place of a former one to the same member. Leases keep the links with which they were installed;
    /// a link to a former incarnation is closed. Returns `false` if this very incarnation is linked with a certificate
    /// of another token.
    #[must_use]
    pub fn add_link(&self, link: Arc<Link>) -> bool {
        self.links.add(link)
    }

    /// The newest open link to this very incarnation of `peer`.
    pub fn link(&self, peer: &Peer) -> Option<Arc<Link>> {
        self.links.newest(peer)
    }

    /// Waits until `peer` has linked itself to this process, for at most `bound`.
    pub async fn await_link(&self, peer: &Peer, bound: Duration) -> Option<Arc<Link>> {
        let link = self.links.awaited(peer);
        tokio::time::timeout(bound, link).await.ok()
    }

    /// All links, sorted by the peer's name.
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.links.all()
    }

    /// Reports the end of a link to eager work, and to every lease in which the peer takes part.
    pub fn link_lost(&self, link: &Arc<Link>, why: &str) {
        let peer = link.peer();
        self.links.remove(link);
        let error = Error::lost(&peer.name, why);
        if let Some(eager) = self.eager() {
            eager.lost(peer, &link.refusal().unwrap_or_else(|| error.clone()));
        }
        for lease in self.leases() {
            if let Some(ix) = lease.index_of(peer) {
                lease.handler.peer_lost(ix, &error);
            }
        }
    }

    fn find(&self, from: &Peer, id: LeaseId) -> Result<(Arc<Lease>, ParticipantIx), FrameRefusal> {
        let lease = self.lease(id).ok_or(FrameRefusal::UnknownLease)?;
        let ix = lease.index_of(from).ok_or(FrameRefusal::Stranger)?;
        Ok((lease, ix))
    }

    /// Takes a frame that carries no tensor, or counts why it is refused. Returns the answer that the sender waits for,
    /// if it waits for one: whoever brought the frame takes it back.
    pub fn frame(&self, from: &Peer, frame: Frame) -> Option<Frame> {
        let begun = match &frame {
            Frame::Start { key, .. } => Some(*key),
            _ => None,
        };
        let why = self.try_frame(from, frame).err()?;
        self.count(why);
        let begun = begun.filter(|_| why == FrameRefusal::UnknownLease);
        begun.map(|key| self.denial(from, key))
    }

    fn try_frame(&self, from: &Peer, frame: Frame) -> Result<(), FrameRefusal> {
        match frame {
            Frame::Start {
                key,
                axes,
                trace,
                partial,
            } => {
                let (lease, ix) = self.find(from, key.lease)?;
                if ix != lease.driver() {
                    return Err(FrameRefusal::NotDriver);
                }
                lease.table.admit(key.n)?;
                if !lease.handler.start(key.n, axes, trace, partial) {
                    return Err(FrameRefusal::Duplicate);
                }
            }
            Frame::Abort { key, error } if key.lease.is_session() => {
                let eager = self.eager().ok_or(FrameRefusal::UnknownLease)?;
                eager.failed(from, key, *error);
            }
            Frame::Abort { key, mut error } => {
                let (lease, ix) = self.find(from, key.lease)?;
                if lease.me == lease.driver() && mutant!("cause-renamed") {
                    error.code = Code::Internal;
                }
                lease.table.admit(key.n)?;
                lease.handler.abort(key.n, *error, ix);
            }
            Frame::Failed { key, slots, error } => {
                let (lease, ix) = self.find(from, key.lease)?;
                for slot in slots {
                    if let Err(why) = fail_edge(&lease, ix, key.n, slot, &error) {
                        self.count(why);
                    }
                }
            }
            Frame::Done { key } => {
                let (lease, ix) = self.find(from, key.lease)?;
                if lease.me != lease.driver() {
                    return Err(FrameRefusal::NotDriver);
                }
                if !lease.table.is_open(key.n) {
                    return Err(FrameRefusal::StaleStep);
                }
                lease.handler.done(key.n, ix);
            }
            Frame::Release { lease } => {
                let (lease, ix) = match self.find(from, lease) {
                    // The coordinator released the lease first.
                    Err(FrameRefusal::UnknownLease) => return Ok(()),
                    found => found?,
                };
                if ix != lease.driver() {
                    return Err(FrameRefusal::NotDriver);
                }
                lease.handler.released();
            }
            Frame::Tensor(_) | Frame::Sharing(_) => return Err(FrameRefusal::WrongTensor),
        }
        Ok(())
    }

    /// What a driver is told whose lease is not here any more: no other participant would end the step.
    fn denial(&self, from: &Peer, key: StepKey) -> Frame {
        let msg = format!("{} is not installed at {}", key.lease, self.me.name);
        let error = Box::new(Error::new(Code::LeaseRetired, msg));
        let lease = match from.role {
            // Steps that a worker starts are those of a partitioned body.
            Role::Worker => key.lease.at_driver(),
            _ => key.lease,
        };
        let key = StepKey { lease, n: key.n };
        Frame::Abort { key, error }
    }

    /// Checks a tensor's header, claims its slot and allocates its buffer.
    pub fn begin(&self, from: &Peer, h: &TensorHeader) -> Result<Incoming, FrameRefusal> {
        if h.key.lease.is_session() {
            return self.transfer(from, h, |eager| eager.buffer(h));
        }
        let (lease, _) = self.claim(from, h)?;
        let (n, slot) = (h.key.n, h.slot);
        match lease.pool.sized(h.dtype, &h.shape, h.bytes) {
            Ok(t) => Ok(Incoming::new(Destination::Slot { lease, n, slot }, t)),
            Err(e) => {
                if let Ok(s) = lease.table.slot(n, slot) {
                    s.unclaim(n);
                }
                // The step cannot complete without this tensor, so it fails here, with the ledger's error.
                lease.handler.abort(n, e, lease.me);
                Err(FrameRefusal::OverBudget)
            }
        }
    }

    /// Admits a tensor of an eager session, in the memory that `take` provides.
    fn transfer(
        &self,
        from: &Peer,
        h: &TensorHeader,
        take: impl FnOnce(&dyn EagerService) -> Result<Tensor>,
    ) -> Result<Incoming, FrameRefusal> {
        let eager = self.eager().ok_or(FrameRefusal::UnknownLease)?;
        eager.claim(from, h)?;
        let taken = take(&*eager);
        let (from, key) = (from.clone(), h.key);
        let to = Destination::Session { eager, from, key };
        match taken {
            Ok(tensor) => Ok(Incoming::new(to, tensor)),
            Err(e) => {
                to.fail(e);
                Err(FrameRefusal::OverBudget)
            }
        }
    }

    fn claim(
        &self,
        from: &Peer,
        h: &TensorHeader,
    ) -> Result<(Arc<Lease>, ParticipantIx), FrameRefusal> {
        let (lease, ix) = self.find(from, h.key.lease)?;
        let slot = edge(&lease, ix, h.key.n, h.slot)?;
        if let Err(e) = lease.check(h) {
            tracing::warn!(key = %h.key, peer = from.name, "{e}");
            // The source sends the tensor only once: without it the step would wait for ever.
            lease.handler.abort(h.key.n, e, lease.me);
            return Err(FrameRefusal::WrongTensor);
        }
        slot.claim(h.key.n)?;
        Ok((lease.clone(), ix))
    }

    /// Takes a tensor that is passed by reference, over a local link.
    pub fn deliver(&self, from: &Peer, h: &TensorHeader, tensor: Tensor) {
        let (n, slot) = (h.key.n, h.slot);
        let incoming = match h.key.lease.is_session() {
            true => self.transfer(from, h, |eager| eager.adopt(h, tensor)),
            false => self
                .claim(from, h)
                .map(|(lease, _)| Incoming::new(Destination::Slot { lease, n, slot }, tensor)),
        };
        match incoming {
            Ok(incoming) => incoming.publish(),
            Err(why) => self.count(why),
        }
    }

    /// Takes a step's tensor that lies in memory lent by the peer.
    pub(crate) fn borrow(&self, from: &Peer, h: &TensorHeader, lent: SegmentLoan) {
        let claimed = self.claim(from, h).and_then(|(lease, _)| {
            let (n, slot) = (h.key.n, h.slot);
            let tensor = Tensor::lent(h.dtype, &h.shape, lent);
            let to = Destination::Slot { lease, n, slot };
            Incoming::new(to, tensor).finish()
        });
        if let Err(why) = claimed {
            self.count(why);
        }
    }
}

/// The slot of an edge, if this participant is the one that fills it.
fn edge(
    lease: &Lease,
    from: ParticipantIx,
    n: u64,
    slot: u32,
) -> Result<&Slot<Delivery>, FrameRefusal> {
    let found = lease.table.slot(n, slot)?;
    let spec = lease.recvs().get(slot as usize);
    match spec.is_some_and(|s| lease.is_same(s.from, from)) {
        true => Ok(found),
        false => Err(FrameRefusal::WrongSource),
    }
}

/// Fills an edge with an error in place of its tensor. A driver may not do that, since it has the tensors that it
/// feeds.
fn fail_edge(
    lease: &Lease,
    from: ParticipantIx,
    n: u64,
    slot: u32,
    error: &Arc<Error>,
) -> Result<(), FrameRefusal> {
    let found = edge(lease, from, n, slot)?;
    if from == lease.driver() {
        return Err(FrameRefusal::WrongTensor);
    }
    found.claim(n)?;
    if found.publish(n, Err(error.clone())) == PublishOutcome::Awaited {
        lease.handler.arrived(n, slot);
    }
    Ok(())
}
