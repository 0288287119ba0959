//! Eager work: the ops that clients issue one by one.
//!
//! A session begins with a client's first batch, and ends with the link that the batch came over, or when its client has
//! made another one. It needs neither the coordinator nor a lease.

mod core;
mod prepared;
mod session;
#[cfg(test)]
mod tests;
mod value;
mod worker;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::{Budget, Role};
use convoke_common::ids::{LeaseId, StepKey};
use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_common::mutant;
use convoke_graph::Tensor;
use convoke_rendezvous::FrameRefusal;
use convoke_rendezvous::eager::{DirectSession, EagerService};
use convoke_rendezvous::frame::TensorHeader;
use convoke_rendezvous::link::LinkId;
use convoke_rendezvous::remote::STALL_BOUND;
use convoke_rendezvous::{Hub, Link, Peer};
use tokio::sync::{Notify, oneshot};

pub(crate) use self::core::HandleOutcome;
pub(crate) use self::session::Session;
pub(crate) use self::worker::{LinkCallback, SessionWorker};

use self::session::gone;
use crate::executor::Engine;
use crate::node::records::{GrowingRecords, account_of};

/// How often a session is listed anew because its client's link was replaced meanwhile.
const RENEWALS: usize = 4;

/// How many silent periods a tensor that came first waits for its announcement; a period is `STALL_BOUND / PERIODS`.
const PERIODS: u32 = 4;

/// Bytes of records that a session takes before it has done anything.
const SESSION: u64 = 16 << 10;

/// The sessions of a worker, by the client that they serve.
pub struct Sessions {
    engine: Arc<Engine>,
    ledger: Ledger,
    worker: OnceLock<Weak<dyn SessionWorker>>,
    all: Mutex<BTreeMap<LeaseId, Arc<Session>>>,
    /// Told of each tensor that comes before its announcement.
    early: Arc<Notify>,
}

impl Sessions {
    /// A worker's sessions, of which there are none yet.
    pub fn new(engine: Arc<Engine>, ledger: Ledger) -> Arc<Sessions> {
        Arc::new(Sessions {
            engine,
            ledger,
            worker: OnceLock::new(),
            all: Mutex::default(),
            early: Arc::default(),
        })
    }

    /// Ties the sessions to their worker.
    pub(crate) fn attach(&self, worker: Weak<dyn SessionWorker>) {
        let _ = self.worker.set(worker);
    }

    fn all(&self) -> Vec<Arc<Session>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().cloned().collect()
    }

    fn get(&self, id: LeaseId) -> Option<Arc<Session>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&id).cloned()
    }

    fn find(&self, id: LeaseId) -> Option<Arc<Session>> {
        self.begin(id).ok().flatten()
    }

    /// Finds or begins the session with this id. It can begin where the client that it belongs to has a link; fails
    /// where the client's token has as many sessions as it may.
    fn begin(&self, id: LeaseId) -> Result<Option<Arc<Session>>> {
        let Some(worker) = self.worker() else {
            return Ok(None);
        };
        for _ in 0..RENEWALS {
            let Some(session) = self.find_or_list(id, &worker)? else {
                return Ok(None);
            };
            if !is_over(&session, worker.hub()) {
                return Ok(Some(session));
            }
            // Its link ended, or its client is back on another one, before anybody noticed or was told.
            self.end_over();
        }
        Ok(None)
    }

    /// The listed session, or a new one on the newest link of its client; `None` where there is no such link.
    fn find_or_list(
        &self,
        id: LeaseId,
        worker: &Arc<dyn SessionWorker>,
    ) -> Result<Option<Arc<Session>>> {
        if let Some(session) = self.get(id) {
            return Ok(Some(session));
        }
        let of = |l: &Arc<Link>| {
            let peer = l.peer();
            let owns = peer.role == Role::Client && LeaseId::of_session(peer.incarnation) == id;
            owns && !l.is_closed()
        };
        let Some(link) = worker.hub().links().into_iter().rev().find(of) else {
            return Ok(None);
        };
        let ledger = account_of(&self.ledger, Some(&link));
        let pool = Pool::new(&ledger, Purpose::Handles, 0)?;
        let mut books = GrowingRecords::new(worker.records().of(Some(&link)))?;
        books.cover(SESSION)?;
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(identity) = link.identity() {
            let most = identity.budget.sessions.unwrap_or(Budget::SESSIONS);
            let same = |s: &&Arc<Session>| {
                let other = s.link.identity();
                s.id != id && other.is_some_and(|i| i.token_id == identity.token_id)
            };
            if all.values().filter(same).count() >= most as usize {
                let token = &identity.token_id;
                let msg = format!("the holders of token {token} have {most} sessions here already");
                return Err(Error::new(Code::Busy, msg).advise(
                    "end one, or use a token made with `convoke token create --sessions`",
                ));
            }
        }
        let begin = || {
            let (owner, engine) = (link.peer().clone(), self.engine.clone());
            let worker = Arc::downgrade(worker);
            let early = self.early.clone();
            Session::new(owner, link.clone(), engine, worker, pool, books, early)
        };
        Ok(Some(all.entry(id).or_insert_with(begin).clone()))
    }

    /// The session of the client that drives a lease.
    pub(crate) fn of_driver(&self, driver: &Peer) -> Option<Arc<Session>> {
        let id = LeaseId::of_session(driver.incarnation);
        self.find(id).filter(|s| s.owner == *driver)
    }

    fn of_key(&self, key: StepKey) -> Result<Arc<Session>, FrameRefusal> {
        self.find(key.lease).ok_or(FrameRefusal::UnknownLease)
    }

    fn worker(&self) -> Option<Arc<dyn SessionWorker>> {
        self.worker.get().and_then(Weak::upgrade)
    }

    /// Ends the sessions whose links have ended or were replaced.
    fn end_over(&self) {
        let Some(worker) = self.worker() else {
            return;
        };
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let over: Vec<_> = all
            .extract_if(.., |_, s| is_over(s, worker.hub()))
            .map(|(_, s)| s)
            .collect();
        drop(all);
        over.iter().for_each(|s| s.end());
    }

    /// Gives tensors up that nobody announces, as long as it is awaited.
    pub async fn keep_time(&self) {
        let msg = format!("a tensor was not announced for {STALL_BOUND:?} after it came");
        let error = Error::new(Code::PeerLost, msg);
        loop {
            self.early.notified().await;
            let mut wait = true;
            while wait {
                tokio::time::sleep(STALL_BOUND / PERIODS).await;
                let aged = self.all().into_iter().map(|s| s.age(PERIODS, &error));
                wait = aged.fold(false, |any, early| any | early);
            }
        }
    }

    /// Stops the running kernels of all sessions, because the worker is about to end.
    pub fn stop(&self) {
        self.all().iter().for_each(|s| s.stop());
    }

    /// Ends all sessions, because the worker ends.
    pub fn end(&self) {
        let all = std::mem::take(&mut *self.all.lock().unwrap_or_else(PoisonError::into_inner));
        all.values().for_each(|s| s.end());
    }

    /// Number of sessions.
    pub fn count(&self) -> usize {
        self.all().len()
    }

    /// Number of handles that have a tensor or will have one, and bytes of their tensors.
    pub fn live(&self) -> (u64, u64) {
        let all = self.all();
        let handles = all.iter().map(|s| s.handles()).sum();
        let bytes = all.iter().map(|s| s.live_bytes()).sum();
        (handles, bytes)
    }
}

/// Whether a session's link has ended, or its client has made another one since: a client dials a worker anew only once
/// it has lost its former link and session, which the worker may notice later.
fn is_over(session: &Session, hub: &Hub) -> bool {
    let link = &session.link;
    let replaced = || {
        let newest = hub.link(&session.owner);
        newest.is_some_and(|newest| !Arc::ptr_eq(&newest, link))
    };
    // A link within this process ends at both ends at once.
    link.is_closed()
        || link.connection().is_some() && replaced() && !mutant!("former-session-served")
}

impl EagerService for Sessions {
    fn batch(&self, from: &Peer, over: Option<LinkId>, batch: &[u8]) -> Result<()> {
        let id = LeaseId::of_session(from.incarnation);
        let session = self.begin(id)?.filter(|s| s.owner == *from);
        let none = || Error::new(Code::ProtocolViolation, "an eager batch without a link");
        let session = session.ok_or_else(none)?;
        match over.is_none_or(|over| session.link.id() == Some(over)) {
            true => session.batch(batch),
            // It belongs to a session that its client has given up.
            false => Ok(()),
        }
    }

    fn claim(&self, from: &Peer, h: &TensorHeader) -> Result<(), FrameRefusal> {
        self.of_key(h.key)?.claim(from, h)
    }

    fn buffer(&self, h: &TensorHeader) -> Result<Tensor> {
        self.get(h.key.lease).ok_or_else(gone)?.buffer(h)
    }

    fn adopt(&self, h: &TensorHeader, tensor: Tensor) -> Result<Tensor> {
        self.get(h.key.lease).ok_or_else(gone)?.adopt(tensor)
    }

    fn foreseen(&self, from: &Peer, h: &TensorHeader) -> Option<oneshot::Receiver<()>> {
        self.of_key(h.key).ok()?.foreseen(from, h.key.n)
    }

    fn arrived(&self, from: &Peer, key: StepKey, tensor: Tensor) {
        if let Some(session) = self.get(key.lease) {
            session.arrived(from, key.n, Ok(tensor));
        }
    }

    fn failed(&self, from: &Peer, key: StepKey, error: Error) {
        if let Some(session) = self.get(key.lease) {
            session.arrived(from, key.n, Err(error));
        }
    }

    fn lost(&self, peer: &Peer, error: &Error) {
        self.end_over();
        self.all().iter().for_each(|s| s.lost(peer, error.clone()));
    }

    fn direct(&self, from: &Peer) -> Option<Arc<dyn DirectSession>> {
        let session: Arc<dyn DirectSession> = self.of_driver(from)?;
        Some(session)
    }
}
