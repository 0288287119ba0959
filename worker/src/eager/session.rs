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

mod device;
mod direct;
mod peers;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use convoke_common::actor::Core as _;
use convoke_common::error::{Code, Error, Result, Site};
use convoke_common::ids::LeaseId;
use convoke_common::memory::{Pool, Reservation};
use convoke_common::world::Share;
use convoke_graph::ids::FunctionId;
use convoke_graph::ops::OpError;
use convoke_kernels::Exec;
use convoke_rendezvous::FrameRefusal;
use convoke_rendezvous::eager::wire::{
    Command, Definition, Holding, MOST_ACCOUNTS, Operand, Reader, Report,
};
use convoke_rendezvous::eager::{Batch, Batches};
use convoke_rendezvous::frame::TensorHeader;
use convoke_rendezvous::{Link, Peer};
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::device::{DeviceWork, SessionDevice};
use self::peers::NamedPeer;
use super::core::{Core, Failure, Id, Run, TensorCallback};
use super::prepared::{PreparedOp, ShapeFacts};
use crate::compute::Crew;
use crate::cpu::{Launch, Operands, Outputs};
use crate::device::OwnedDevice;
use crate::executor::Engine;
use crate::health::wedge::Work;
use crate::node::holdings::Holdings;
use crate::node::records::{GrowingRecords, Records, account_of, share_of};

/// Most predicted time of the ops of one batch that run on the thread that delivers it.
const DELIVERY: Duration = Duration::from_micros(200);
/// Most kernels that the session's job runs before it queues up again, so that other jobs get their turn.
const TURN: usize = 256;
/// Most bytes of a value within an op that are not counted: all ops under way can have as many.
const UNCOUNTED: usize = 1 << 10;
/// Bytes that a kept command takes in memory: [`KEPT`], and its length [`IN_MEMORY`] times, since its contents are
/// taken apart and copied by kernels.
const KEPT: u64 = 2 << 10;
const IN_MEMORY: u64 = 8;
/// The names of a sent value and of a tensor's move in errors, as the client calls them.
const PUT: &str = "put";
const TO: &str = "to";
/// Most entries of an account of handles.
const MOST_HELD: usize = 256;

/// A defined op. One that cannot be run is kept as well: every run of it fails with the reason.
#[derive(Clone)]
enum DefinedOp {
    Ready(Arc<PreparedOp>),
    Refused(Arc<Refusal>),
}

struct Refusal {
    operands: usize,
    outputs: usize,
    origin: u32,
    error: Arc<Failure>,
}

/// The state of the session's job.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Runner {
    #[default]
    None,
    /// Compute has the job, but no thread has begun it.
    Queued,
    Active,
}

/// A definition or name that a session keeps, with the reservation of its memory.
struct ChargedEntry<T> {
    value: T,
    _charge: Option<Reservation>,
}

#[derive(Default)]
struct SessionState {
    core: Core,
    ops: BTreeMap<u32, ChargedEntry<DefinedOp>>,
    origins: BTreeMap<u32, ChargedEntry<Arc<str>>>,
    peers: BTreeMap<u32, NamedPeer>,
    /// What the worker's device has of the session.
    work: DeviceWork,
    /// The reservation for handles, waiting ops and reports, until the session ends.
    books: Option<GrowingRecords>,
    runner: Runner,
    /// Numbers of the requests for an account that the client waits for.
    asked: Vec<u64>,
    /// Whether the lane was told that there are reports.
    reporting: bool,
    /// Whether a batch of commands came since the last period ended.
    heard: bool,
}

impl SessionState {
    /// Whether a thread runs the session's job.
    fn is_active(&self) -> bool {
        self.runner == Runner::Active
    }

    /// The name of a place in the client's program, if the client has told it.
    fn origin(&self, index: u32) -> Option<Arc<str>> {
        self.origins.get(&index).map(|place| place.value.clone())
    }

    fn place(&self, index: u32) -> Option<String> {
        self.origin(index).map(|place| place.to_string())
    }
}

/// The definition of an op that is refused whenever it is run.
fn refusal(d: &Definition, error: Arc<Failure>) -> DefinedOp {
    DefinedOp::Refused(Arc::new(Refusal {
        operands: d.operands.len(),
        outputs: usize::from(d.outputs),
        origin: d.origin,
        error,
    }))
}

/// One client's session at this worker.
pub(crate) struct Session {
    pub owner: Peer,
    pub id: LeaseId,
    pub link: Arc<Link>,
    engine: Arc<Engine>,
    /// The share that is charged for the session's ops.
    share: Share,
    holdings: Weak<Holdings>,
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
        holdings: Weak<Holdings>,
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
            holdings,
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

    /// Executes a batch of commands; fails where it cannot be understood.
    pub fn batch(&self, batch: &[u8]) -> Result<()> {
        let mut state = self.state();
        state.heard = true;
        let mut left = DELIVERY;
        let mut reader = Reader::new(batch);
        while !reader.is_empty() {
            let next = state.core.next();
            let before = reader.remaining();
            match reader.command(next)? {
                Command::Run(index) => {
                    let defined = state.ops.get(&index).ok_or_else(no_such_op)?;
                    let defined = defined.value.clone();
                    let count = match &defined {
                        DefinedOp::Ready(prepared) => prepared.operands(),
                        DefinedOp::Refused(refusal) => refusal.operands,
                    };
                    let mut operands: SmallVec<[Operand<'static>; 4]> = SmallVec::new();
                    let mut full = None;
                    for _ in 0..count {
                        operands.push(match reader.operand(next)? {
                            Operand::Value(t) if t.byte_len() > UNCOUNTED => match self.own(&t) {
                                Ok(own) => Operand::Value(own),
                                Err(error) => {
                                    full = Some(error);
                                    Operand::Absent
                                }
                            },
                            other => other,
                        });
                    }
                    match defined {
                        DefinedOp::Ready(prepared) => {
                            match full {
                                None => state.core.run(prepared, operands),
                                Some(e) => {
                                    let e =
                                        self.issued(&state, e, prepared.op.name, prepared.origin);
                                    let e = state.core.failure(e);
                                    state.core.refuse(prepared.origin, prepared.outputs, e);
                                }
                            }
                            self.run_brief(&mut state, &mut left);
                        }
                        DefinedOp::Refused(r) => {
                            state.core.refuse(r.origin, r.outputs, r.error.clone());
                        }
                    }
                }
                command => {
                    let written = before - reader.remaining();
                    self.obey(&mut state, command, written)?;
                }
            }
            state.core.check_bounds()?;
            let needed = state.core.footprint();
            let books = state.books.as_mut();
            books.map_or(Ok(()), |books| books.cover(needed))?;
        }
        self.settle(state);
        Ok(())
    }

    /// Executes any command other than the run of an op.
    fn obey(&self, state: &mut SessionState, command: Command, written: usize) -> Result<()> {
        match command {
            Command::Define(d) => {
                let index = d.index;
                // The former definition is dropped first, which makes room for the new one.
                state.ops.remove(&index);
                let op = d.op.clone();
                let (value, charge) = match self.charge(written) {
                    Ok(charge) => (self.define(state, d), Some(charge)),
                    Err(error) => {
                        let error = self.issued(state, error, &op, d.origin);
                        (refusal(&d, state.core.failure(error)), None)
                    }
                };
                let _charge = charge;
                state.ops.insert(index, ChargedEntry { value, _charge });
            }
            Command::Run(_) => {}
            Command::Begin { first } => state.core.begin(first)?,
            Command::Free(id) => state.core.free(id),
            Command::Give {
                handle,
                peer,
                transfer,
            } => state.core.give(handle, peer, transfer),
            Command::Take {
                peer,
                transfer,
                dtype,
                shape,
                origin,
            } => {
                let from = self.peer(state, peer)?;
                let failed = state.core.early_failure(&from, transfer);
                if let Some(failed) = failed {
                    let op = if peer == 0 { PUT } else { TO };
                    let located = self.issued(state, failed, op, origin);
                    state.core.fail_early(&from, transfer, located);
                }
                state.core.take(from, transfer, dtype, shape, origin);
            }
            Command::Reserve { origin } => state.core.reserve(origin),
            Command::Abandon(id) => state.core.abandon(id),
            Command::Literal { tensor, origin } => match self.own(&tensor) {
                Ok(own) => state.core.literal(own, origin),
                Err(error) => {
                    let error = self.issued(state, error, PUT, origin);
                    let error = state.core.failure(error);
                    state.core.refuse(origin, 1, error);
                }
            },
            Command::Peer { index, participant } => {
                let charge = self.charge(written)?;
                state
                    .peers
                    .insert(index, NamedPeer::new(participant, charge));
            }
            Command::Fail { transfer, error } => state.core.fail(transfer, *error),
            Command::Account { request } => {
                if state.asked.len() >= MOST_ACCOUNTS {
                    let msg = "more accounts are asked for than are given at once";
                    return Err(Error::new(Code::ProtocolViolation, msg));
                }
                state.asked.push(request);
            }
            Command::Origin { index, place } => {
                let _charge = Some(self.charge(written)?);
                let value = place.into();
                state.origins.insert(index, ChargedEntry { value, _charge });
            }
        }
        Ok(())
    }

    /// Reserves the memory that a command of `written` bytes leaves behind.
    fn charge(&self, written: usize) -> Result<Reservation> {
        let bytes = KEPT + (written as u64).saturating_mul(IN_MEMORY);
        self.records.reserve(bytes)
    }

    fn define(&self, state: &SessionState, d: Definition) -> DefinedOp {
        let asked = d.clone();
        let refused = |e: OpError| {
            let error = Error::new(Code::UnsupportedOp, e.to_string()).at(Site {
                op: Some(asked.op.clone()),
                origin: state.place(asked.origin),
                ..self.engine.place()
            });
            refusal(&asked, state.core.failure(error))
        };
        let device = self.device.as_ref().map(SessionDevice::device);
        let prepared = match PreparedOp::new(d, device) {
            Ok(prepared) => prepared,
            Err(error) => return refused(error),
        };
        let opened = match prepared.device {
            Some(_) => self.open_queue(),
            None => Ok(()),
        };
        match opened {
            Ok(()) => DefinedOp::Ready(Arc::new(prepared)),
            Err(error) => {
                let error = self.issued(state, error, &asked.op, asked.origin);
                refusal(&asked, state.core.failure(error))
            }
        }
    }

    /// Copies a value that came with a command into counted memory.
    fn own(&self, value: &convoke_graph::Tensor) -> Result<convoke_graph::Tensor> {
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

    fn account(&self, state: &SessionState) -> Vec<Holding> {
        let named = |origin: &u32| state.place(*origin).unwrap_or_default();
        let held = state.core.held().into_iter();
        let mut held: Vec<_> = held
            .map(|(origin, (handles, bytes))| Holding {
                origin: named(&origin),
                handles,
                bytes,
            })
            .collect();
        held.sort_by_key(|h| std::cmp::Reverse(h.bytes));
        held.truncate(MOST_HELD);
        // An account must fit into one report, although its places may have long names.
        let mut room = Batch::MOST / 2;
        held.retain(|h| {
            let least = h.origin.len() + size_of::<Holding>();
            room = room.saturating_sub(least);
            room > 0
        });
        held
    }

    /// Runs ready ops on this thread, as long as they are brief.
    fn run_brief(&self, state: &mut SessionState, left: &mut Duration) {
        // A device may call back at once, which must not happen under the session's lock.
        if self.device.is_some() {
            return;
        }
        let longest = self.engine.compute.brief();
        while let Some(run) = state.core.peek_ready() {
            let seen = run.seen();
            let predicted = seen.predicted;
            let brief = predicted <= longest && predicted <= *left;
            if !brief || !self.engine.compute.admits(&self.share, predicted) {
                return;
            }
            *left -= predicted;
            let Some(run) = state.core.next_ready() else {
                return;
            };
            let (first, prepared) = (run.first, run.prepared.clone());
            let origin = state.origin(prepared.origin);
            let Some(result) = self.launch(run, origin, None, &seen) else {
                return;
            };
            state.core.finished(first, &prepared, result);
        }
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

    /// Submits the session's job to compute.
    fn start(&self) {
        let Some(me) = self.me.upgrade() else { return };
        self.engine.gate.started();
        let begun = me.clone();
        let begin = Box::new(move || {
            begun.state().runner = Runner::Active;
            true
        });
        let job = Box::new(move || me.work());
        if let Err(refused) = self.engine.compute.submit_begun(&self.share, 0, begin, job) {
            self.engine.gate.quiesced();
            let why = format!(
                "the compute threads take no further work ({:?})",
                refused.reason
            );
            let error = Error::new(Code::Busy, why).at(self.engine.place());
            let mut state = self.state();
            state.runner = Runner::None;
            while let Some(run) = state.core.next_ready() {
                state
                    .core
                    .finished(run.first, &run.prepared, Err(error.clone()));
            }
            self.settle(state);
        }
    }

    /// The session's job: runs ready ops until there are none, or its turn is over.
    fn work(&self) {
        let crew = Crew::current();
        for _ in 0..self.engine.compute.slice().min(TURN) {
            let mut state = self.state();
            if state.work.is_full() {
                break;
            }
            let Some(run) = state.core.next_ready() else {
                break;
            };
            if let Some(device) = &self.device {
                drop(state);
                match self.advance(device, run, crew.as_deref()) {
                    true => continue,
                    false => break,
                }
            }
            let (first, prepared) = (run.first, run.prepared.clone());
            let seen = run.seen();
            let origin = state.origin(prepared.origin);
            drop(state);
            let Some(result) = self.launch(run, origin, crew.as_deref(), &seen) else {
                break;
            };
            let mut state = self.state();
            state.core.finished(first, &prepared, result);
            self.settle(state);
        }
        if let Some(device) = &self.device {
            self.mark(device);
        }
        let mut state = self.state();
        state.runner = Runner::None;
        if self.ended.load(Ordering::Relaxed) {
            self.rests(&state);
        }
        self.settle(state);
        self.engine.gate.quiesced();
    }

    /// Runs an op; `None` where the session ended meanwhile. Then nothing may be told of the op: a worker that awaits its
    /// result would pass on to the client that the session ended, before the client knows why.
    fn launch(
        &self,
        mut run: Run,
        origin: Option<Arc<str>>,
        crew: Option<&Crew>,
        seen: &ShapeFacts,
    ) -> Option<Result<Outputs>> {
        if let Some(refusal) = self.engine.gate.refusal() {
            return Some(Err(self.engine.refused(refusal)));
        }
        let brief = seen.predicted <= self.engine.compute.brief();
        let exec = match crew {
            Some(crew) if brief => Exec::single(&self.ended).in_turns(crew),
            Some(crew) => crew.exec(&self.ended),
            None => Exec::single(&self.ended),
        };
        // Other jobs may take their turn between kernels that have no check points. The kernel itself notices the
        // session's end.
        let _ = exec.check();
        let op = run.prepared.op.name;
        let place = origin.as_deref().unwrap_or(op);
        let _noted = self.engine.note(&FunctionId::default(), place);
        let mut launch = Launch {
            inputs: Operands::given(&mut run.inputs),
            sizes: seen.sizes.as_ref(),
            exec,
            pool: &self.pool,
        };
        let site = || Site {
            op: Some(op.to_owned()),
            origin: origin.as_deref().map(str::to_owned),
            operands: run.prepared.signatures(seen.operands.shapes()),
            ..Site::default()
        };
        let (kernel, outputs) = (&*run.prepared.kernel, run.prepared.outputs);
        let result = self.engine.launch(kernel, op, outputs, &mut launch, site);
        match result {
            Ok(outputs) => Some(Ok(outputs)),
            Err(error) => error
                .or_else(|| {
                    let refusal = self.engine.gate.refusal();
                    refusal.map(|refusal| self.engine.refused(refusal))
                })
                .map(Err),
        }
    }

    /// Admits a tensor that begins to arrive.
    pub fn claim(&self, from: &Peer, h: &TensorHeader) -> Result<(), FrameRefusal> {
        let mut state = self.state();
        let claimed = state.core.claim(from, h);
        self.settle(state);
        claimed
    }

    /// Allocates the tensor that the arriving bytes are written to.
    pub fn buffer(&self, h: &TensorHeader) -> Result<convoke_graph::Tensor> {
        let tensor = self.pool.sized(h.dtype, &h.shape, h.bytes);
        tensor.map_err(|e| e.at(self.engine.place()))
    }

    /// Takes over a tensor of a client in this process without a copy, counted as one of the session's.
    pub fn adopt(&self, tensor: convoke_graph::Tensor) -> Result<convoke_graph::Tensor> {
        let adopted = self.pool.adopt(tensor);
        adopted.map_err(|e| e.at(self.engine.place()))
    }

    /// See [`convoke_rendezvous::eager::EagerService::foreseen`].
    pub fn foreseen(&self, from: &Peer, n: u64) -> Option<tokio::sync::oneshot::Receiver<()>> {
        self.state().core.foreseen(from, n)
    }

    /// Ends a transfer, which has arrived or failed.
    pub fn arrived(&self, from: &Peer, n: u64, result: Result<convoke_graph::Tensor>) {
        let mut state = self.state();
        let op = if *from == self.owner { PUT } else { TO };
        let origin = state.core.origin_of(n);
        let result = result.map_err(|e| self.issued(&state, e, op, origin));
        state.core.end(from, n, result);
        let early = state.core.has_early();
        let mut left = DELIVERY;
        self.run_brief(&mut state, &mut left);
        self.settle(state);
        if early {
            self.early.notify_one();
        }
    }

    /// Lets a period pass, see [`Core::age`]. Returns whether a tensor still waits for its announcement. A period in which
    /// commands came does not count: the announcement may be behind others on a slow link.
    pub fn age(&self, periods: u32, error: &Error) -> bool {
        let error = error.clone().at(self.engine.place());
        let mut state = self.state();
        if !std::mem::take(&mut state.heard) {
            state.core.age(periods, &error);
        }
        state.core.has_early()
    }

    /// Lends a handle's tensor to a step: `then` is called with it, perhaps before this returns.
    pub fn lend(&self, id: Id, donate: bool, then: TensorCallback) {
        let mut state = self.state();
        state.core.lend(id, donate, then);
        self.settle(state);
    }

    /// Fills a handle with a step's tensor.
    pub fn fill(&self, id: Id, tensor: convoke_graph::Tensor) -> Result<()> {
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

impl Batches for Session {
    fn take(&self, out: &mut Vec<u8>) {
        let mut state = self.state();
        state.reporting = false;
        for request in std::mem::take(&mut state.asked) {
            let held = self.account(&state);
            state.core.report(Report::Accounted { request, held });
        }
        let reports = state.core.reports();
        drop(state);
        let mut batch = Batch::default();
        for report in reports {
            let mut one = Vec::new();
            match report.encode(&mut one) {
                Ok(()) if one.len() <= Batch::MOST => batch.body().extend(one),
                _ => tracing::error!("a report does not fit its batch"),
            }
        }
        batch.take(out);
    }
}

fn no_such_op() -> Error {
    Error::new(Code::ProtocolViolation, "no such prepared op")
}
