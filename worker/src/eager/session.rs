//! One client's eager work at this worker.
//!
//! ```text
//! lane ──batch──> commands ──> core ──ready, brief──> kernel on this thread
//!                                └──ready, longer──> one compute job ──> kernel over the pool's threads
//! core ──effects──> peers ──> link (tensors)        core ──reports──> batch, when the lane can send
//! ```
//!
//! Invariants
//! 1. Compute has at most one job of a session at a time; the job goes on while any op is ready.
//! 2. Ops that run on the thread that delivers commands are brief, also in sum: the rest of a batch goes to the job.
//! 3. Nothing is sent while the core is locked.

mod arrivals;
mod commands;
mod device;
mod direct;
mod job;
mod peers;
mod reports;
mod state;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use convoke_common::actor::Core as _;
use convoke_common::error::{Code, Error, Result};
use convoke_common::ids::LeaseId;
use convoke_common::memory::Pool;
use convoke_common::world::Share;
use convoke_graph::Tensor;
use convoke_rendezvous::eager::Batches;
use convoke_rendezvous::{Link, Peer};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::device::SessionDevice;
use self::state::{Runner, SessionState};
use super::core::{Core, Id, TensorCallback};
use super::worker::SessionWorker;
use crate::device::OwnedDevice;
use crate::executor::Engine;
use crate::health::wedge::Work;
use crate::node::records::{GrowingRecords, Records, account_of, share_of};

/// Most predicted time of the ops of one batch that run on the thread that delivers it.
const DELIVERY: Duration = Duration::from_micros(200);
/// The names of a sent value and of a tensor's move in errors, as the client calls them.
const PUT: &str = "put";
const TO: &str = "to";

/// One client's session at this worker.
pub(crate) struct Session {
    pub owner: Peer,
    pub id: LeaseId,
    pub link: Arc<Link>,
    engine: Arc<Engine>,
    /// The share that is charged for the session's ops.
    share: Share,
    worker: Weak<dyn SessionWorker>,
    pool: Pool,
    /// The worker's device, where it has memory of its own.
    device: Option<SessionDevice>,
    /// The records of the client's token.
    records: Records,
    state: Mutex<SessionState>,
    /// Set when the session ends; running kernels look at it.
    ended: AtomicBool,
    /// Cancels the tensors on their way out when the session ends.
    sending: CancellationToken,
    /// Told of each tensor that comes before its announcement.
    early: Arc<Notify>,
    /// Number of handles that a client in this process holds of ops that it ran itself.
    direct: Arc<AtomicU64>,
    me: Weak<Session>,
}

impl Session {
    pub fn new(
        owner: Peer,
        link: Arc<Link>,
        engine: Arc<Engine>,
        worker: Weak<dyn SessionWorker>,
        pool: Pool,
        books: GrowingRecords,
        early: Arc<Notify>,
    ) -> Arc<Session> {
        let records = books.records().clone();
        let device = engine.device.clone().map(|owned| {
            SessionDevice::new(OwnedDevice {
                memory: account_of(&owned.memory, Some(&link)),
                ..owned
            })
        });
        let state = SessionState {
            core: Core::new(device.is_some()),
            books: Some(books),
            ..SessionState::default()
        };
        Arc::new_cyclic(|me| Session {
            id: LeaseId::of_session(owner.incarnation),
            share: share_of(
                Some(&link),
                &owner.name,
                LeaseId::of_session(owner.incarnation),
            ),
            owner,
            link,
            engine,
            worker,
            pool,
            device,
            records,
            state: Mutex::new(state),
            ended: AtomicBool::new(false),
            sending: CancellationToken::new(),
            early,
            direct: Arc::default(),
            me: me.clone(),
        })
    }

    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of handles that have a tensor or will have one.
    pub fn handles(&self) -> u64 {
        self.state().core.handles() as u64 + self.direct.load(Ordering::Relaxed)
    }

    /// Bytes of the session's tensors.
    pub fn live_bytes(&self) -> u64 {
        self.pool.live_bytes()
    }

    /// Copies a value that came with a command into counted memory.
    fn own(&self, value: &Tensor) -> Result<Tensor> {
        let mut own = self.pool.alike(value);
        if let Some(bytes) = own.as_mut().ok().and_then(|t| t.bytes_mut()) {
            bytes.copy_from_slice(value.bytes());
        }
        own
    }

    /// Adds to an error the place in the client's program that issued what failed.
    fn issued(&self, state: &SessionState, error: Error, op: &str, origin: u32) -> Error {
        let mut error = error.at(self.engine.place());
        if let Some(site) = error.site.as_mut().filter(|s| s.origin.is_none()) {
            site.op.get_or_insert_with(|| op.to_owned());
            site.origin = state.place(origin);
        }
        error
    }

    /// Acts on a change: sends tensors and reports, and starts a job if an op is ready.
    fn settle(&self, mut state: MutexGuard<'_, SessionState>) {
        let effects = state.core.commands();
        let ready = state.core.peek_ready().is_some() && !state.work.is_full();
        let start = ready && state.runner == Runner::None;
        if start {
            state.runner = Runner::Queued;
        }
        let said = state.core.has_reports() || !state.asked.is_empty();
        let report = said && !std::mem::replace(&mut state.reporting, true);
        drop(state);
        effects.into_iter().for_each(|e| self.perform(e));
        if start {
            self.start();
        }
        if report {
            self.report();
        }
    }

    fn report(&self) {
        if let Some(me) = self.me.upgrade() {
            let source: Arc<dyn Batches> = me;
            self.link.ready(&source);
        }
    }

    /// Lends a handle's tensor to a step: `then` is called with it, perhaps before this returns.
    pub fn lend(&self, id: Id, donate: bool, then: TensorCallback) {
        let mut state = self.state();
        state.core.lend(id, donate, then);
        self.settle(state);
    }

    /// Fills a handle with a step's tensor.
    pub fn fill(&self, id: Id, tensor: Tensor) -> Result<()> {
        let mut state = self.state();
        let filled = state.core.fill(id, tensor);
        self.settle(state);
        match filled {
            true => Ok(()),
            false => Err(Error::new(
                Code::NotFound,
                format!("handle {id} waits for no step"),
            )),
        }
    }

    /// The pool that tensors of handles are allocated from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Makes the running kernel stop.
    pub fn stop(&self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(device) = &self.device {
            device.stop();
        }
    }

    /// Ends the session, because the client is gone: its memory is freed once a running kernel has ended.
    pub fn end(&self) {
        self.stop();
        self.sending.cancel();
        let mut state = self.state();
        if state.is_active() || !state.work.is_idle() {
            let me = self.me.clone();
            let look = move || {
                let me = me.upgrade()?;
                let state = me.state();
                let device = me.device.as_ref();
                let on_device = device.is_some_and(|device| device.at_work(&state.work));
                let runs = state.is_active() || on_device;
                drop(state);
                runs.then(|| {
                    let msg = "a kernel of an eager session does not stop";
                    Error::new(Code::Wedged, msg).at(me.engine.place())
                })
            };
            self.engine
                .watch
                .ended(Work::Session(self.id), Box::new(look));
        }
        let mut core = std::mem::take(&mut state.core);
        state.ops.clear();
        state.origins.clear();
        state.peers.clear();
        state.books = None;
        let copies = state.work.end();
        drop(state);
        drop(copies);
        if let Some(device) = &self.device {
            device.recall();
        }
        // Steps that wait for a handle end with the link of their driver, the session's owner. It has ended or is replaced.
        drop(core.commands());
        // The tensors are freed without the lock.
        drop(core);
    }
}

/// The error of what a session that has ended does no more.
pub(super) fn gone() -> Error {
    Error::new(Code::LeaseRetired, "the session ended")
}
