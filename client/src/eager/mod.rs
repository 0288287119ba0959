//! The client's side of eager work: a session at each worker that it uses, and the tensors that it fetches.
//!
//! Invariants
//! 1. Issuing needs no round trip: commands wait in their session's batch until the lane asks for them. The caller
//!    waits only if the batch, or the work on its way, has reached its bound.
//! 2. Every fetch ends, with its tensor or with the error that keeps the tensor from coming.
//! 3. This client knows a move until its destination has taken the tensor, so that the loss of either end ends the move
//!    at the other.
//! 4. Tensors and devices own the sessions, by a [`SessionOwner`]; nothing that the sessions own keeps a handle for
//!    longer than a worker is being dialled.

pub(crate) mod direct;
mod prepared;
mod room;
mod session;
pub(crate) mod told;

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use convoke_common::device_spec::DeviceId;
use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_common::ids::{Incarnation, LeaseId, StepKey};
use convoke_common::rpc::{ClusterStatus, MemberState};
use convoke_graph::Tensor as HostTensor;
use convoke_graph::ops::{CustomOp, OpDef};
use convoke_rendezvous::FrameRefusal;
use convoke_rendezvous::Peer;
use convoke_rendezvous::eager::EagerService;
use convoke_rendezvous::eager::wire::{Reader, Report};
use convoke_rendezvous::frame::TensorHeader;
use convoke_rendezvous::link::LinkId;
use tokio::sync::oneshot;

pub(crate) use self::prepared::{Key, RememberedPlace};
pub(crate) use self::session::{Issue, LateShape, WorkerSession, stranger};

use crate::cluster::presence::ClusterPresence;
use crate::cluster::runtime::NetThread;

/// A tensor on its way to this client.
struct Fetch {
    from: Peer,
    claimed: bool,
    reply: oneshot::Sender<Result<HostTensor>>,
}

#[derive(Default)]
struct Fetches {
    next: u64,
    open: BTreeMap<u64, Fetch>,
}

/// A fetch that was asked for. Dropping it gives the fetch up.
pub(crate) struct PendingFetch {
    sessions: Weak<Sessions>,
    pub transfer: u64,
    pub answer: oneshot::Receiver<Result<HostTensor>>,
}

impl Drop for PendingFetch {
    fn drop(&mut self) {
        if let Some(sessions) = self.sessions.upgrade() {
            sessions.fetches().open.remove(&self.transfer);
        }
    }
}

/// A worker that was serving when the cluster's status was last asked for.
struct ListedWorker {
    worker: Participant,
    device: DeviceId,
    /// The custom ops that it has kernels for.
    ops: Vec<CustomOp>,
    /// Measured floating-point operations per second of its host.
    flops: f64,
}

/// A session as tensors and devices hold it. It keeps the connection to the cluster alive, and an embedded cluster as
/// well.
pub(crate) struct SessionOwner {
    session: Arc<WorkerSession>,
    _sessions: Arc<Sessions>,
}

impl SessionOwner {
    /// The session alone, which does not keep the connection alive.
    pub fn session(&self) -> &Arc<WorkerSession> {
        &self.session
    }
}

impl Deref for SessionOwner {
    type Target = WorkerSession;

    #[inline]
    fn deref(&self) -> &WorkerSession {
        &self.session
    }
}

/// A session, and the one handle that its tensors and devices share as long as there are any.
struct SessionEntry {
    session: Arc<WorkerSession>,
    handle: Weak<SessionOwner>,
}

impl SessionEntry {
    fn handle(&mut self, sessions: &Arc<Sessions>) -> Arc<SessionOwner> {
        if let Some(handle) = self.handle.upgrade() {
            return handle;
        }
        let handle = Arc::new(SessionOwner {
            session: self.session.clone(),
            _sessions: sessions.clone(),
        });
        self.handle = Arc::downgrade(&handle);
        handle
    }
}

type Workers = BTreeMap<(String, Incarnation), SessionEntry>;

/// The sessions of a client.
pub(crate) struct Sessions {
    pub session: Arc<ClusterPresence>,
    /// The sessions, by the worker's process.
    workers: Mutex<Workers>,
    /// The workers that were serving when the cluster's status was last asked for, in the order of their names.
    members: RwLock<Vec<ListedWorker>>,
    fetches: Mutex<Fetches>,
    fails_when_full: AtomicBool,
    closed: AtomicBool,
    /// Keeps an embedded cluster alive as long as its client.
    _keeps: Option<Arc<dyn Any + Send + Sync>>,
    // Declared last, so that it is dropped after what runs on it.
    net: NetThread,
}

/// The error of a use of a connection that the program has closed.
pub(crate) fn shut() -> Error {
    Error::new(Code::Cancelled, "the cluster was shut down")
        .advise("fetch what is needed before `Cluster::shutdown`")
}

impl Sessions {
    /// Makes a list without sessions, which serves the hub's eager messages. `keeps` lives as long as the list.
    pub fn new(
        session: Arc<ClusterPresence>,
        keeps: Option<Arc<dyn Any + Send + Sync>>,
        net: &NetThread,
    ) -> Arc<Sessions> {
        let sessions = Arc::new(Sessions {
            session,
            workers: Mutex::default(),
            members: RwLock::default(),
            fetches: Mutex::default(),
            fails_when_full: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            _keeps: keeps,
            net: net.clone(),
        });
        let served: Arc<dyn EagerService> = sessions.clone();
        sessions.session.hub.serve_eager(Arc::downgrade(&served));
        sessions
    }

    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session at a worker, where there is one.
    fn of(&self, worker: &Peer) -> Option<Arc<WorkerSession>> {
        let key = (worker.name.clone(), worker.incarnation);
        self.workers().get(&key).map(|known| known.session.clone())
    }

    fn fetches(&self) -> MutexGuard<'_, Fetches> {
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the calling thread waits while a worker has as much on its way as it may.
    fn waits_for_room(&self) -> bool {
        !self.fails_when_full.load(Ordering::Relaxed) && self.net.is_elsewhere()
    }

    /// Sets whether issuing fails at once where there is no room.
    pub fn fail_when_full(&self, fails: bool) {
        self.fails_when_full.store(fails, Ordering::Relaxed);
    }

    /// Ends all sessions for good; whatever waits for one ends as well.
    pub fn close(&self) {
        // The flag is set before the sessions are listed: whoever begins a session meanwhile, under the list's lock,
        // sees the flag.
        self.closed.store(true, Ordering::SeqCst);
        self.all().iter().for_each(|s| s.lost(&shut()));
    }

    /// How many entries the sessions hold in each table.
    pub fn tables(&self) -> Vec<(&'static str, usize)> {
        let mut tables = vec![("fetches", self.fetches().open.len())];
        for session in self.all() {
            tables.extend(session.tables());
        }
        tables
    }

    /// Every session.
    pub fn all(&self) -> Vec<Arc<WorkerSession>> {
        let workers = self.workers();
        workers.values().map(|k| k.session.clone()).collect()
    }

    /// Notes which workers are serving.
    pub fn note_members(&self, status: &ClusterStatus) {
        let serves = |s: MemberState| s == MemberState::Alive;
        let alive = status.members.iter().filter(|m| serves(m.state));
        let mut members: Vec<_> = alive
            .map(|m| ListedWorker {
                worker: Participant {
                    name: m.name.clone(),
                    incarnation: m.incarnation,
                    address: m.address.clone(),
                },
                device: m.device.clone(),
                ops: m.ops.clone(),
                flops: m.host_flops,
            })
            .collect();
        members.sort_by(|a, b| a.worker.name.cmp(&b.worker.name));
        // A lost session is kept as long as its worker's process is serving: the session that follows it continues its
        // numbers.
        let there = |(name, incarnation): &(String, Incarnation)| {
            let is = |p: &Participant| p.name == *name && p.incarnation == *incarnation;
            members.iter().any(|m| is(&m.worker))
        };
        self.workers()
            .retain(|key, known| there(key) || known.session.lost_because().is_none());
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = members;
    }

    /// The workers that were serving when the cluster's status was last asked for, in the order of their names.
    pub fn members(&self) -> Vec<Participant> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.iter().map(|m| m.worker.clone()).collect()
    }

    /// The device of a worker; `cpu:0` where the worker was not serving when the cluster's status was last asked for.
    pub fn device_at(&self, worker: &Participant) -> DeviceId {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let is = |p: &Participant| p.name == worker.name && p.incarnation == worker.incarnation;
        let member = members.iter().find(|m| is(&m.worker));
        member.map(|m| m.device.clone()).unwrap_or_default()
    }

    /// Fails where a worker is known to have no kernel for a custom op as it is defined here.
    pub fn has_op(&self, worker: &Participant, def: &OpDef) -> Result<()> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let is = |p: &Participant| p.name == worker.name && p.incarnation == worker.incarnation;
        let Some(member) = members.iter().find(|m| is(&m.worker)) else {
            return Ok(());
        };
        let wanted = CustomOp::of(def);
        if member.ops.contains(&wanted) {
            return Ok(());
        }
        let what = match member.ops.iter().any(|op| op.name == wanted.name) {
            true => "has another definition of",
            false => "has no kernel of",
        };
        let able = members.iter().filter(|m| m.ops.contains(&wanted));
        let able: Vec<&str> = able.map(|m| &*m.worker.name).collect();
        let msg = format!("worker {} {what} the op '{}'", worker.name, def.name);
        Err(
            Error::new(Code::UnsupportedOp, msg).advise(match able.is_empty() {
                true => "start a worker of a binary that registers it".into(),
                false => format!(
                    "issue it on a device of one that has it: {}",
                    able.join(", ")
                ),
            }),
        )
    }

    /// The session at the fastest worker, as measured, that has a kernel of a custom op as it is defined here.
    pub fn fastest_with(self: &Arc<Self>, def: &OpDef) -> Option<Arc<SessionOwner>> {
        let wanted = CustomOp::of(def);
        let fastest = {
            let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
            let able = members.iter().filter(|m| m.ops.contains(&wanted));
            // If several are equally fast, it is the first by name.
            let fastest = able.rev().max_by(|a, b| a.flops.total_cmp(&b.flops))?;
            fastest.worker.clone()
        };
        Some(self.at(&fastest))
    }

    /// Measured floating-point operations per second of the host of the worker with this name; 0 where it is not a
    /// member any more.
    pub fn flops_of(&self, name: &str) -> f64 {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let member = members.iter().find(|m| m.worker.name == name);
        member.map_or(0.0, |m| m.flops)
    }

    /// Returns the session at a worker; the first call dials the worker. A session that was lost is followed by
    /// another, whose transfers and handles have other numbers, so that messages for the lost one are refused. Once the
    /// sessions are closed, a new session is lost from the beginning.
    pub fn at(self: &Arc<Self>, worker: &Participant) -> Arc<SessionOwner> {
        let key = (worker.name.clone(), worker.incarnation);
        let mut workers = self.workers();
        let first = match workers.get_mut(&key) {
            Some(known) => match known.session.lost_because() {
                None => return known.handle(self),
                Some(_) => known.session.numbers(),
            },
            None => (0, 0),
        };
        let device = self.device_at(worker);
        let session = WorkerSession::new(worker.clone(), device, Arc::downgrade(self), first);
        let mut known = SessionEntry {
            session: session.clone(),
            handle: Weak::new(),
        };
        let handle = known.handle(self);
        workers.insert(key, known);
        let closed = self.closed.load(Ordering::SeqCst);
        drop(workers);
        if closed {
            session.lost(&shut());
            return handle;
        }
        let (client, to) = (self.session.clone(), session);
        self.net.detach(async move {
            let links = client.links(std::slice::from_ref(&to.participant)).await;
            to.linked(links.and_then(|l| {
                let none = || Error::internal("no link to a worker that was dialled");
                l.into_iter().next().ok_or_else(none)
            }));
        });
        handle
    }

    /// Begins a fetch from a worker. The caller has to tell the worker the number of the transfer.
    pub fn expect(self: &Arc<Self>, from: &Peer) -> PendingFetch {
        let (reply, answer) = oneshot::channel();
        let mut fetches = self.fetches();
        let transfer = fetches.next;
        fetches.next += 1;
        let fetch = Fetch {
            from: from.clone(),
            claimed: false,
            reply,
        };
        fetches.open.insert(transfer, fetch);
        PendingFetch {
            sessions: Arc::downgrade(self),
            transfer,
            answer,
        }
    }

    /// Ends the fetches from a worker that is lost.
    fn fail_fetches(&self, from: &Peer, error: &Error) {
        let failed: Vec<Fetch> = {
            let mut fetches = self.fetches();
            let of_peer = fetches.open.extract_if(.., |_, f| f.from == *from);
            of_peer.map(|(_, f)| f).collect()
        };
        for fetch in failed {
            // The caller may have given the fetch up.
            let _ = fetch.reply.send(Err(error.clone()));
        }
    }

    fn end_fetch(&self, from: &Peer, key: StepKey, result: Result<HostTensor>) {
        let fetch = {
            let mut fetches = self.fetches();
            let of_peer = fetches.open.get(&key.n).is_some_and(|f| f.from == *from);
            of_peer.then(|| fetches.open.remove(&key.n)).flatten()
        };
        if let Some(fetch) = fetch {
            // The caller may have given the fetch up.
            let _ = fetch.reply.send(result);
        }
    }

    /// Tells the destination of a move that its source cannot send the tensor.
    fn undelivered(&self, to: &Peer, transfer: u64, error: Error) {
        if let Some(session) = self.of(to) {
            session.fail_move(transfer, error);
        }
    }

    /// Ends the fetches and moves from a worker whose session ended.
    pub fn ended(&self, worker: &Peer, error: &Error) {
        self.fail_fetches(worker, error);
        for session in self.all() {
            session.source_lost(worker, error);
        }
    }

    fn mine(&self, key: StepKey) -> bool {
        key.lease == LeaseId::of_session(self.session.hub.me.incarnation)
    }
}

/// Ends the sessions, since nobody hears of their links any more.
impl Drop for Sessions {
    fn drop(&mut self) {
        self.close();
    }
}

impl EagerService for Sessions {
    fn batch(&self, from: &Peer, _: Option<LinkId>, batch: &[u8]) -> Result<()> {
        let none = || Error::new(Code::ProtocolViolation, "a report of no session");
        let session = self.of(from).ok_or_else(none)?;
        let mut reader = Reader::new(batch);
        let mut undelivered = Vec::new();
        while !reader.is_empty() {
            match reader.report()? {
                Report::Undelivered {
                    peer,
                    transfer,
                    error,
                } => undelivered.extend(session.peer(peer).map(|p| (p, transfer, error))),
                report => session.report(report),
            }
        }
        for (to, transfer, error) in undelivered {
            self.undelivered(&to, transfer, *error);
        }
        Ok(())
    }

    fn claim(&self, from: &Peer, h: &TensorHeader) -> Result<(), FrameRefusal> {
        if !self.mine(h.key) {
            return Err(FrameRefusal::UnknownLease);
        }
        let mut fetches = self.fetches();
        let fetch = fetches
            .open
            .get_mut(&h.key.n)
            .ok_or(FrameRefusal::StaleStep)?;
        if fetch.from != *from {
            return Err(FrameRefusal::WrongSource);
        }
        match std::mem::replace(&mut fetch.claimed, true) {
            true => Err(FrameRefusal::Duplicate),
            false => Ok(()),
        }
    }

    fn buffer(&self, h: &TensorHeader) -> Result<HostTensor> {
        Ok(HostTensor::zeros(h.dtype, &h.shape)?)
    }

    fn adopt(&self, _: &TensorHeader, tensor: HostTensor) -> Result<HostTensor> {
        // A client's memory is its owner's business.
        Ok(tensor)
    }

    fn foreseen(&self, _: &Peer, _: &TensorHeader) -> Option<oneshot::Receiver<()>> {
        // A fetch is known before its worker is told.
        None
    }

    fn arrived(&self, from: &Peer, key: StepKey, tensor: HostTensor) {
        if self.mine(key) {
            self.end_fetch(from, key, Ok(tensor));
        }
    }

    fn failed(&self, from: &Peer, key: StepKey, error: Error) {
        if self.mine(key) {
            self.end_fetch(from, key, Err(error));
        }
    }

    fn lost(&self, peer: &Peer, error: &Error) {
        if let Some(session) = self.of(peer) {
            session.link_ended(error);
        }
    }
}
