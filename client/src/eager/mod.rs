//! Eager work as the client has it: a session at each worker that it uses, and the tensors that it fetches.
//!
//! Invariants
//! 1. Issuing needs no round trip: commands wait in their session's batch until the lane asks. It waits only where that and
//!    what is on its way have reached their bounds.
//! 2. A fetch ends: with its tensor, or with why it does not come.
//! 3. A move is known here until its destination has taken it, so that either end's loss ends it at the other.

pub(crate) mod direct;
mod prepared;
mod session;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use convoke_common::Tensor as HostTensor;
use convoke_common::error::{Code, Error, Result};
use convoke_common::ids::{Incarnation, LeaseId, StepKey};
use convoke_common::ops::{CustomOp, OpDef};
use convoke_common::program::Participant;
use convoke_common::rpc::{ClusterStatus, MemberState};
use convoke_rendezvous::Peer;
use convoke_rendezvous::eager::Eager;
use convoke_rendezvous::eager::wire::{Reader, Report};
use convoke_rendezvous::frame::TensorHeader;
use convoke_rendezvous::hub::Refused;
use tokio::sync::oneshot;

pub(crate) use self::prepared::{Key, Slot};
pub(crate) use self::session::{Issue, Late, WorkerSession, stranger};

use crate::runtime::NetThread;
use crate::session::Session;

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

/// A fetch that was asked for. Dropped, it is not waited for any more.
pub(crate) struct Fetching {
    sessions: Weak<Sessions>,
    pub transfer: u64,
    pub answer: oneshot::Receiver<Result<HostTensor>>,
}

impl Drop for Fetching {
    fn drop(&mut self) {
        if let Some(sessions) = self.sessions.upgrade() {
            sessions.fetches().open.remove(&self.transfer);
        }
    }
}

/// A worker that was there when it was last asked.
struct Member {
    worker: Participant,
    /// The custom ops that it has kernels for.
    ops: Vec<CustomOp>,
    /// Measured floating-point operations per second.
    flops: f64,
}

/// The sessions of a client.
pub(crate) struct Sessions {
    pub session: Arc<Session>,
    net: NetThread,
    /// By the worker's process.
    workers: Mutex<BTreeMap<(String, Incarnation), Arc<WorkerSession>>>,
    /// Who was there when it was last asked.
    members: RwLock<Vec<Member>>,
    fetches: Mutex<Fetches>,
    fails_when_full: AtomicBool,
}

impl Sessions {
    pub fn new(session: Arc<Session>, net: &NetThread) -> Arc<Sessions> {
        let sessions = Arc::new(Sessions {
            session,
            net: net.clone(),
            workers: Mutex::default(),
            members: RwLock::default(),
            fetches: Mutex::default(),
            fails_when_full: AtomicBool::new(false),
        });
        let served: Arc<dyn Eager> = sessions.clone();
        sessions.session.hub.serve_eager(Arc::downgrade(&served));
        sessions
    }

    fn workers(&self) -> MutexGuard<'_, BTreeMap<(String, Incarnation), Arc<WorkerSession>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fetches(&self) -> MutexGuard<'_, Fetches> {
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the calling thread is to wait where a worker has as much on its way as it may.
    fn waits_for_room(&self) -> bool {
        !self.fails_when_full.load(Ordering::Relaxed) && self.net.is_elsewhere()
    }

    /// Whether issuing fails at once where there is no room.
    pub fn fail_when_full(&self, fails: bool) {
        self.fails_when_full.store(fails, Ordering::Relaxed);
    }

    /// Ends all: what waits for them ends as well.
    pub fn close(&self) {
        let error = Error::new(Code::Cancelled, "the cluster's connection was closed");
        self.all().iter().for_each(|s| s.lost(&error));
    }

    /// How much they hold, by table.
    pub fn tables(&self) -> Vec<(&'static str, usize)> {
        let mut tables = vec![("fetches", self.fetches().open.len())];
        for session in self.all() {
            tables.extend(session.tables());
        }
        tables
    }

    /// Every session.
    pub fn all(&self) -> Vec<Arc<WorkerSession>> {
        self.workers().values().cloned().collect()
    }

    /// Notes who is there.
    pub fn note_members(&self, status: &ClusterStatus) {
        let serves = |s: MemberState| s == MemberState::Alive;
        let alive = status.members.iter().filter(|m| serves(m.state));
        let mut members: Vec<_> = alive
            .map(|m| Member {
                worker: Participant {
                    name: m.name.clone(),
                    incarnation: m.incarnation,
                    address: m.address.clone(),
                },
                ops: m.ops.clone(),
                flops: m.flops,
            })
            .collect();
        members.sort_by(|a, b| a.worker.name.cmp(&b.worker.name));
        // A session that was lost is followed by another as long as its worker's process is there.
        let there = |(name, incarnation): &(String, Incarnation)| {
            let is = |p: &Participant| p.name == *name && p.incarnation == *incarnation;
            members.iter().any(|m| is(&m.worker))
        };
        self.workers()
            .retain(|key, session| there(key) || session.lost_because().is_none());
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = members;
    }

    /// Who was there when it was last asked, by name.
    pub fn members(&self) -> Vec<Participant> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.iter().map(|m| m.worker.clone()).collect()
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
    pub fn fastest_with(self: &Arc<Self>, def: &OpDef) -> Option<Arc<WorkerSession>> {
        let wanted = CustomOp::of(def);
        let fastest = {
            let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
            let able = members.iter().filter(|m| m.ops.contains(&wanted));
            // Of equals the first by name.
            let fastest = able.rev().max_by(|a, b| a.flops.total_cmp(&b.flops))?;
            fastest.worker.clone()
        };
        Some(self.at(&fastest))
    }

    /// The session at a worker; the first that asks has it dialled. One that was lost is followed by another, with
    /// transfers and handles of other numbers: what is still on its way for the first is refused.
    pub fn at(self: &Arc<Self>, worker: &Participant) -> Arc<WorkerSession> {
        let key = (worker.name.clone(), worker.incarnation);
        let mut workers = self.workers();
        let first = match workers.get(&key) {
            Some(known) => match known.lost_because() {
                None => return known.clone(),
                Some(_) => known.numbers(),
            },
            None => (0, 0),
        };
        let session = WorkerSession::new(worker.clone(), Arc::downgrade(self), first);
        workers.insert(key, session.clone());
        drop(workers);
        let (client, to) = (self.session.clone(), session.clone());
        self.net.detach(async move {
            let links = client.links(std::slice::from_ref(&to.participant)).await;
            to.linked(links.and_then(|l| {
                let none = || Error::internal("no link to a worker that was dialled");
                l.into_iter().next().ok_or_else(none)
            }));
        });
        session
    }

    /// Asks for a tensor's coming; the transfer is to be told to its worker.
    pub fn expect(self: &Arc<Self>, from: &Peer) -> Fetching {
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
        Fetching {
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
            // Whoever asked may be gone.
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
            // Whoever asked may be gone.
            let _ = fetch.reply.send(result);
        }
    }

    /// A move's source cannot send it, or is gone: the destination is told.
    fn undelivered(&self, to: &Peer, transfer: u64, error: Error) {
        let key = (to.name.clone(), to.incarnation);
        let session = self.workers().get(&key).cloned();
        if let Some(session) = session {
            session.fail_move(transfer, error);
        }
    }

    /// A worker's session ended.
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

/// Nobody hears of the links any more.
impl Drop for Sessions {
    fn drop(&mut self) {
        self.close();
    }
}

impl Eager for Sessions {
    fn batch(&self, from: &Peer, batch: &[u8]) -> Result<()> {
        let key = (from.name.clone(), from.incarnation);
        let session = self.workers().get(&key).cloned();
        let none = || Error::new(Code::ProtocolViolation, "a report of no session");
        let session = session.ok_or_else(none)?;
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

    fn claim(&self, from: &Peer, h: &TensorHeader) -> Result<(), Refused> {
        if !self.mine(h.key) {
            return Err(Refused::UnknownLease);
        }
        let mut fetches = self.fetches();
        let fetch = fetches.open.get_mut(&h.key.n).ok_or(Refused::StaleStep)?;
        if fetch.from != *from {
            return Err(Refused::WrongSource);
        }
        match std::mem::replace(&mut fetch.claimed, true) {
            true => Err(Refused::Duplicate),
            false => Ok(()),
        }
    }

    fn buffer(&self, h: &TensorHeader) -> Result<HostTensor> {
        Ok(HostTensor::zeros(h.dtype, &h.shape)?)
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
        let key = (peer.name.clone(), peer.incarnation);
        let session = self.workers().get(&key).cloned();
        if let Some(session) = session {
            session.lost(error);
        }
    }
}
