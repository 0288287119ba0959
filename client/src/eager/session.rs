//! A client's session at one worker: what it issues there, in order.
//!
//! ```text
//! Dialling ──linked──> Up ──link ends──> Lost
//! ```
//!
//! Invariants
//! 1. What is issued is written to the batch in the order of its numbers; the worker numbers it by the same order.
//! 2. At most [`WINDOW`] ops, [`MOVES`] moves and [`PUTTING`] bytes are on their way; beyond that issuing fails, which
//!    changes nothing.
//! 3. Once the session is lost, everything issued fails at once, with the reason.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::Role;
use convoke_common::ids::{LeaseId, StepKey};
use convoke_common::ops::OpDef;
use convoke_common::program::Participant;
use convoke_common::{DType, Shape, Tensor as HostTensor};
use convoke_rendezvous::eager::wire::{
    Command, Definition, Holding, INLINE, LONGEST_ORIGIN, MOST_ACCOUNTS, MOST_HANDLES,
    MOST_ORIGINS, Operand, Report, put_run,
};
use convoke_rendezvous::eager::{Batch, Batches};
use convoke_rendezvous::{Link, Outgoing, Peer};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::prepared::{Key, Prepared, Slot};
use super::{Fetching, Sessions};
use crate::tensor::Tensor;

/// Most ops that may be issued and not resolved.
const WINDOW: u64 = 64 << 10;
/// Most tensors on their way to the worker from others.
const MOVES: usize = 1000;
/// Most bytes of tensors on their way to the worker from this client; a single one may be larger.
const PUTTING: u64 = 256 << 20;
/// Most bytes of commands that wait for the lane.
const WAITING: usize = 16 << 20;
/// Most failures that are kept until somebody asks.
const FAILURES: usize = 64;

/// Whether the worker can be told anything.
enum Way {
    /// What is to be done once it can.
    Dialling(Vec<Box<dyn FnOnce(&Arc<Link>) + Send>>),
    Up(Arc<Link>),
    Lost(Error),
}

/// The shape of a handle that only data decides.
pub(crate) type Late = Arc<std::sync::OnceLock<Shape>>;

struct State {
    way: Way,
    batch: Batch,
    /// Whether the lane was told that there is a batch.
    told: bool,
    next: u64,
    unresolved: u64,
    /// Handles that are not freed.
    live: usize,
    prepared: Prepared,
    origins: HashMap<(&'static str, u32), u32>,
    peers: Vec<Peer>,
    transfers: u64,
    /// Where the tensors on their way come from, by transfer.
    moves: BTreeMap<u64, Peer>,
    late: HashMap<u64, Weak<std::sync::OnceLock<Shape>>>,
    /// Of ops whose handles nobody may have asked.
    failures: VecDeque<Error>,
    requests: u64,
    accounts: BTreeMap<u64, oneshot::Sender<Vec<Holding>>>,
}

/// See the module.
pub(crate) struct WorkerSession {
    pub participant: Participant,
    pub peer: Peer,
    me: Weak<WorkerSession>,
    sessions: Weak<Sessions>,
    state: Mutex<State>,
    putting: Arc<AtomicU64>,
    /// Told when something resolved, or left.
    room: Arc<Notify>,
    /// Tensors on their way out end with the session.
    sending: CancellationToken,
}

/// An op to issue.
pub(crate) struct Issue<'a> {
    pub key: &'a Key,
    /// Remembers where it is prepared.
    pub slot: Option<&'a Slot>,
    pub operands: &'a [Operand<'a>],
    /// By output, the shape that only data decides.
    pub late: &'a [Option<Late>],
}

/// A tensor of another connection.
pub(crate) fn stranger() -> Error {
    let msg = "the tensors belong to different connections to the cluster";
    Error::new(Code::InvalidArgument, msg).advise("fetch the one, and put it with the other's")
}

fn would_block(what: String) -> Error {
    Error::new(Code::WouldBlock, what)
        .advise("await `device.ready()` before issuing more, or fetch something")
}

/// Most bytes that an operand may take in a command: numbers of ten bytes, which integers of eight are written as.
fn most_encoded(operand: &Operand<'_>) -> usize {
    const NUMBER: usize = 10;
    let value = |t: &HostTensor| (2 + t.shape().len()) * NUMBER + t.byte_len() * 5 / 4;
    match operand {
        Operand::Absent | Operand::Handle(_) => NUMBER,
        Operand::Value(t) => value(t),
        Operand::Borrowed(t) => value(t),
    }
}

impl WorkerSession {
    /// A session whose transfers and handles are numbered from these on.
    pub(super) fn new(
        participant: Participant,
        sessions: &Arc<Sessions>,
        (transfers, first): (u64, u64),
    ) -> Arc<WorkerSession> {
        let peer = Peer::of(&participant, Role::Worker);
        let mut batch = Batch::default();
        if first > 0 {
            let mut begin = Vec::new();
            // Of a number it cannot fail.
            drop(Command::Begin { first }.encode(&mut begin, 0));
            batch.body().extend(begin);
        }
        Arc::new_cyclic(|me| WorkerSession {
            participant,
            peer,
            me: me.clone(),
            sessions: Arc::downgrade(sessions),
            state: Mutex::new(State {
                way: Way::Dialling(vec![]),
                batch,
                told: false,
                next: first,
                unresolved: 0,
                live: 0,
                prepared: Prepared::default(),
                origins: HashMap::new(),
                peers: vec![],
                transfers,
                moves: BTreeMap::new(),
                late: HashMap::new(),
                failures: VecDeque::new(),
                requests: 0,
                accounts: BTreeMap::new(),
            }),
            putting: Arc::default(),
            room: Arc::default(),
            sending: CancellationToken::new(),
        })
    }

    /// Fails where the worker is known to have no kernel for a custom op.
    pub fn has_op(&self, def: &OpDef) -> Result<()> {
        self.sessions()?.has_op(&self.participant, def)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both are sessions of one connection to the cluster.
    pub fn is_of(&self, sessions: &Weak<Sessions>) -> bool {
        Weak::ptr_eq(&self.sessions, sessions)
    }

    /// Fails where the other is a session of another connection, which knows nothing of this one's handles.
    pub fn knows(&self, other: &WorkerSession) -> Result<()> {
        match other.is_of(&self.sessions) {
            true => Ok(()),
            false => Err(stranger()),
        }
    }

    pub(crate) fn sessions(&self) -> Result<Arc<Sessions>> {
        let shut = || Error::new(Code::Cancelled, "the cluster's connection was closed");
        self.sessions.upgrade().ok_or_else(shut)
    }

    /// The state, where the session can still be used.
    fn usable(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state();
        match &state.way {
            Way::Lost(error) => Err(error.clone()),
            _ => Ok(state),
        }
    }

    /// As [`Self::usable`], where there is room for one more.
    fn open(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.usable()?;
        if state.unresolved >= WINDOW {
            let msg = format!("{} ops wait for {}", state.unresolved, self.peer.name);
            return Err(would_block(msg));
        }
        if state.batch.len() >= WAITING {
            let msg = format!(
                "{} MiB of ops wait to be sent to {}",
                WAITING >> 20,
                self.peer.name
            );
            return Err(would_block(msg));
        }
        // An op has up to 255 outputs.
        if state.live + 255 > MOST_HANDLES {
            let msg = format!("{} tensors live on {}", state.live, self.peer.name);
            return Err(Error::new(Code::OutOfMemory, msg).advise(format!(
                "drop some: a program may have {MOST_HANDLES} on a worker"
            )));
        }
        Ok(state)
    }

    /// Sends what was written, now or when the lane asks.
    fn flush(&self, mut state: MutexGuard<'_, State>) {
        if state.batch.is_empty() || state.told {
            return;
        }
        let Way::Up(link) = &state.way else { return };
        let link = link.clone();
        state.told = true;
        drop(state);
        if let Some(me) = self.me.upgrade() {
            let source: Arc<dyn Batches> = me;
            link.ready(&source);
        }
    }

    /// Issues an op; gives the number of its first output.
    pub fn issue(&self, issue: &Issue<'_>) -> Result<u64> {
        if issue.operands.iter().map(most_encoded).sum::<usize>() > Batch::MOST {
            let msg = "the values among an op's operands are too large together to be sent with it";
            return Err(Error::new(Code::InvalidArgument, msg)
                .advise("put them on the device, and use the tensors"));
        }
        let mut guard = self.open()?;
        let state = &mut *guard;
        let index = state.prepare(issue.key, issue.slot)?;
        let first = state.next;
        put_run(state.batch.body(), index, issue.operands, first);
        state.next += u64::from(issue.key.outputs);
        state.live += usize::from(issue.key.outputs);
        state.unresolved += 1;
        for (id, late) in (first..).zip(issue.late) {
            if let Some(late) = late {
                state.late.insert(id, Arc::downgrade(late));
            }
        }
        self.flush(guard);
        Ok(first)
    }

    /// Puts a tensor there; gives its number.
    pub fn put(&self, tensor: &HostTensor, origin: &'static Location<'static>) -> Result<u64> {
        let owner = self.sessions()?.session.hub.me.incarnation;
        let mut guard = self.open()?;
        let state = &mut *guard;
        let bytes = tensor.byte_len() as u64;
        let before = self.putting.load(Ordering::Relaxed);
        if before > 0 && before + bytes > PUTTING {
            let msg = format!("{} MiB wait to be sent to {}", before >> 20, self.peer.name);
            return Err(would_block(msg));
        }
        let origin = state.origin(origin)?;
        let id = state.next;
        if tensor.byte_len() <= INLINE {
            let tensor = tensor.clone();
            state.command(&Command::Literal { tensor, origin })?;
        } else {
            let transfer = state.take(0, tensor.dtype(), Some(tensor.shape().into()), origin)?;
            self.putting.fetch_add(bytes, Ordering::Relaxed);
            let key = StepKey {
                lease: LeaseId::of_session(owner),
                n: transfer,
            };
            let (putting, room) = (self.putting.clone(), self.room.clone());
            let out = Outgoing {
                key,
                slot: 0,
                tensor: tensor.clone(),
                priority: 0,
                cancel: self.sending.clone(),
                sent: Box::new(move || {
                    putting.fetch_sub(bytes, Ordering::Relaxed);
                    room.notify_waiters();
                }),
            };
            state.next += 1;
            state.live += 1;
            state.unresolved += 1;
            match &mut state.way {
                Way::Dialling(then) => then.push(Box::new(move |link| link.send_tensor(out))),
                Way::Up(link) => {
                    let link = link.clone();
                    self.flush(guard);
                    link.send_tensor(out);
                }
                Way::Lost(_) => {}
            }
            return Ok(id);
        }
        state.next += 1;
        state.live += 1;
        state.unresolved += 1;
        self.flush(guard);
        Ok(id)
    }

    /// Announces a tensor from another worker; gives its number and the transfer's.
    pub fn take(
        &self,
        from: &WorkerSession,
        dtype: DType,
        shape: Option<Shape>,
        late: Option<&Late>,
        origin: &'static Location<'static>,
    ) -> Result<(u64, u64)> {
        let mut guard = self.open()?;
        let state = &mut *guard;
        if state.moves.len() >= MOVES {
            let msg = format!("{MOVES} tensors are on their way to {}", self.peer.name);
            return Err(would_block(msg));
        }
        let origin = state.origin(origin)?;
        let peer = state.name(&from.participant)?;
        let transfer = state.take(peer, dtype, shape, origin)?;
        state.moves.insert(transfer, from.peer.clone());
        let id = state.next;
        state.next += 1;
        state.live += 1;
        state.unresolved += 1;
        if let Some(late) = late {
            state.late.insert(id, Arc::downgrade(late));
        }
        self.flush(guard);
        Ok((id, transfer))
    }

    /// Sends a handle's tensor to another worker, once that can tell it from a stranger's. Until then it is held.
    pub fn give(self: &Arc<Self>, tensor: &Tensor, to: &Arc<WorkerSession>, transfer: u64) {
        let mut there = to.state();
        match &mut there.way {
            Way::Dialling(then) => {
                let (me, to, tensor) = (self.clone(), to.clone(), tensor.clone());
                then.push(Box::new(move |_| me.give_now(&tensor, &to, transfer)));
            }
            Way::Up(_) => {
                drop(there);
                self.give_now(tensor, to, transfer);
            }
            // Its handle has failed with it.
            Way::Lost(_) => {}
        }
    }

    fn give_now(&self, tensor: &Tensor, to: &WorkerSession, transfer: u64) {
        let given = self.usable().and_then(|mut guard| {
            let state = &mut *guard;
            let none = || Error::internal("a move of what is no handle");
            let handle = tensor.id().ok_or_else(none)?;
            let peer = state.name(&to.participant)?;
            let give = Command::Give {
                handle,
                peer,
                transfer,
            };
            state.command(&give)?;
            self.flush(guard);
            Ok(())
        });
        if let Err(error) = given {
            to.fail_move(transfer, error);
        }
    }

    /// Asks for a handle's tensor.
    pub fn fetch(&self, handle: u64) -> Result<Fetching> {
        let sessions = self.sessions()?;
        let fetching = sessions.expect(&self.peer);
        let mut guard = self.usable()?;
        let give = Command::Give {
            handle,
            peer: 0,
            transfer: fetching.transfer,
        };
        guard.command(&give)?;
        self.flush(guard);
        Ok(fetching)
    }

    /// The program dropped a handle.
    pub fn free(&self, handle: u64) {
        if let Ok(mut guard) = self.usable() {
            guard.late.remove(&handle);
            guard.live = guard.live.saturating_sub(1);
            // Of a number it cannot fail.
            drop(guard.command(&Command::Free(handle)));
            self.flush(guard);
        }
    }

    /// A handle that a step is to fill.
    pub fn reserve(&self, origin: &'static Location<'static>) -> Result<u64> {
        let mut guard = self.open()?;
        let state = &mut *guard;
        let origin = state.origin(origin)?;
        state.command(&Command::Reserve { origin })?;
        let id = state.next;
        state.next += 1;
        state.live += 1;
        state.unresolved += 1;
        self.flush(guard);
        Ok(id)
    }

    /// A reserved handle is not filled.
    pub fn abandon(&self, handle: u64) {
        if let Ok(mut guard) = self.usable() {
            guard.late.remove(&handle);
            guard.live = guard.live.saturating_sub(1);
            // Of a number it cannot fail.
            drop(guard.command(&Command::Abandon(handle)));
            self.flush(guard);
        }
    }

    /// The shape of a handle, set once the worker has said it.
    pub fn late(&self, handle: u64) -> Late {
        let late = Late::default();
        self.state().late.insert(handle, Arc::downgrade(&late));
        late
    }

    /// The numbers of the next transfer and the next handle.
    pub(super) fn numbers(&self) -> (u64, u64) {
        let state = self.state();
        (state.transfers, state.next)
    }

    /// Returns once the session is lost.
    pub async fn gone(&self) {
        self.sending.cancelled().await;
    }

    /// Why the session is lost, where it is.
    pub fn lost_because(&self) -> Option<Error> {
        self.usable().err()
    }

    /// What the session holds, by the lines that issued it.
    pub fn account(&self) -> Result<oneshot::Receiver<Vec<Holding>>> {
        let mut guard = self.usable()?;
        let state = &mut *guard;
        if state.accounts.len() >= MOST_ACCOUNTS {
            let msg = format!(
                "{} accounts of {} are on their way",
                MOST_ACCOUNTS, self.peer.name
            );
            return Err(Error::new(Code::WouldBlock, msg).advise("await one before asking again"));
        }
        let (reply, answer) = oneshot::channel();
        let request = state.requests;
        state.requests += 1;
        state.command(&Command::Account { request })?;
        state.accounts.insert(request, reply);
        self.flush(guard);
        Ok(answer)
    }

    /// Returns once at most `most` ops and half of what may wait to be sent are on their way, or the session is lost.
    pub async fn room(&self, most: u64) -> Result<()> {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            // Registered before looking, so that nothing in between is missed.
            room.as_mut().enable();
            if self.has_room(most)? {
                return Ok(());
            }
            room.await;
        }
    }

    fn has_room(&self, most: u64) -> Result<bool> {
        let state = self.usable()?;
        let putting = self.putting.load(Ordering::Relaxed);
        let few = state.unresolved <= most && state.batch.len() <= WAITING / 2;
        Ok(few && state.moves.len() <= MOVES / 2 && putting <= PUTTING / 2)
    }

    /// Half of the window: enough for bulk issue to go on while it fills.
    pub const HALF: u64 = WINDOW / 2;

    /// The first failure of an op that nobody has asked for yet.
    pub fn take_failure(&self) -> Option<Error> {
        let mut state = self.state();
        let first = state.failures.pop_front();
        state.failures.clear();
        first
    }

    /// How often an op was prepared already, and how often not.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        self.state().prepared.hits_and_misses()
    }

    /// The worker can be told, or cannot.
    pub(super) fn linked(&self, linked: Result<Arc<Link>>) {
        match linked {
            Ok(link) => {
                let mut state = self.state();
                let way = std::mem::replace(&mut state.way, Way::Up(link.clone()));
                // Commands first: a tensor may overtake what announces it, but need not.
                self.flush(state);
                if let Way::Dialling(then) = way {
                    then.into_iter().for_each(|f| f(&link));
                }
                if link.is_closed() {
                    self.lost(&link.lost());
                }
            }
            Err(error) => self.lost(&error),
        }
    }

    /// The link ended, or could not be made.
    pub(super) fn lost(&self, error: &Error) {
        let mut state = self.state();
        if matches!(state.way, Way::Lost(_)) {
            return;
        }
        let way = std::mem::replace(&mut state.way, Way::Lost(error.clone()));
        state.batch = Batch::default();
        state.moves.clear();
        state.late.clear();
        state.accounts.clear();
        state.unresolved = 0;
        drop(state);
        self.sending.cancel();
        // What waits for a link does not come.
        drop(way);
        self.room.notify_waiters();
        if let Ok(sessions) = self.sessions() {
            sessions.ended(&self.peer, error);
        }
    }

    /// A peer that was named to the worker.
    pub(super) fn peer(&self, index: u32) -> Option<Peer> {
        let state = self.state();
        let index = usize::try_from(index).ok()?.checked_sub(1)?;
        state.peers.get(index).cloned()
    }

    /// A move to this worker does not come.
    pub(super) fn fail_move(&self, transfer: u64, error: Error) {
        let Ok(mut guard) = self.usable() else { return };
        if guard.moves.contains_key(&transfer) {
            let error = Box::new(error);
            let fail = Command::Fail { transfer, error };
            if let Err(e) = guard.command(&fail) {
                tracing::error!("{e}");
            }
            self.flush(guard);
        }
    }

    /// Moves from a worker that is lost do not come.
    pub(super) fn source_lost(&self, source: &Peer, error: &Error) {
        let transfers: Vec<u64> = {
            let state = self.state();
            let from = state.moves.iter().filter(|(_, s)| *s == source);
            from.map(|(t, _)| *t).collect()
        };
        for transfer in transfers {
            self.fail_move(transfer, error.clone());
        }
    }

    /// The worker reports.
    pub(super) fn report(&self, report: Report) {
        let mut state = self.state();
        match report {
            Report::Resolved(count) => {
                state.unresolved = state.unresolved.saturating_sub(count);
                drop(state);
                self.room.notify_waiters();
            }
            Report::Failed { error, .. } => {
                tracing::warn!(target: "convoke::eager", "{error}");
                if state.failures.len() < FAILURES {
                    state.failures.push_back(*error);
                }
            }
            Report::Shape { handle, shape } => {
                if let Some(late) = state.late.remove(&handle).and_then(|w| w.upgrade()) {
                    // The worker says it once.
                    let _ = late.set(shape);
                }
            }
            Report::Took { transfer } => {
                state.moves.remove(&transfer);
                drop(state);
                self.room.notify_waiters();
            }
            Report::Accounted { request, held } => {
                if let Some(reply) = state.accounts.remove(&request) {
                    // Whoever asked may be gone.
                    let _ = reply.send(held);
                }
            }
            Report::Undelivered { .. } => {}
        }
    }
}

impl State {
    /// Writes a command.
    fn command(&mut self, command: &Command) -> Result<()> {
        let mut bytes = Vec::new();
        command.encode(&mut bytes, self.next)?;
        if bytes.len() > Batch::MOST {
            let (is, most) = (bytes.len(), Batch::MOST);
            let msg = format!("an op's attributes take {is} bytes, of at most {most}");
            return Err(Error::new(Code::InvalidArgument, msg)
                .advise("make a function of it; large constants of bodies go on a device before"));
        }
        self.batch.body().extend(bytes);
        Ok(())
    }

    /// Where an op is at the worker, which knows it then.
    fn prepare(&mut self, key: &Key, slot: Option<&Slot>) -> Result<u32> {
        if let Some(index) = slot.and_then(|s| self.prepared.again(s)) {
            return Ok(index);
        }
        let (index, new) = self.prepared.find(key);
        if new {
            let origin = self.origin(key.origin)?;
            let definition = Command::Define(Definition {
                index,
                op: key.op.name.to_owned(),
                attrs: key.attrs.clone(),
                operands: key.operands.to_vec(),
                outputs: key.outputs,
                report: key.report,
                origin,
            });
            self.command(&definition)?;
        }
        self.prepared.told(index, slot);
        Ok(index)
    }

    /// The number of a place in the program; those beyond the limit share the first.
    fn origin(&mut self, at: &'static Location<'static>) -> Result<u32> {
        let key = (at.file(), at.line());
        if let Some(known) = self.origins.get(&key) {
            return Ok(*known);
        }
        let index = self.origins.len() as u32 + 1;
        if index >= MOST_ORIGINS {
            return Ok(0);
        }
        let mut place = format!("{}:{}", at.file(), at.line());
        let cut = place.len().saturating_sub(LONGEST_ORIGIN);
        place = place.chars().skip(cut).collect();
        self.command(&Command::Origin { index, place })?;
        self.origins.insert(key, index);
        Ok(index)
    }

    /// The number of a peer.
    fn name(&mut self, participant: &Participant) -> Result<u32> {
        let is = |p: &Peer| p.name == participant.name && p.incarnation == participant.incarnation;
        if let Some(known) = self.peers.iter().position(is) {
            return Ok(known as u32 + 1);
        }
        let index = self.peers.len() as u32 + 1;
        let participant = participant.clone();
        self.peers.push(Peer::of(&participant, Role::Worker));
        self.command(&Command::Peer { index, participant })?;
        Ok(index)
    }

    fn take(&mut self, peer: u32, dtype: DType, shape: Option<Shape>, origin: u32) -> Result<u64> {
        let transfer = self.transfers;
        self.command(&Command::Take {
            peer,
            transfer,
            dtype,
            shape,
            origin,
        })?;
        self.transfers += 1;
        Ok(transfer)
    }
}

impl Batches for WorkerSession {
    fn take(&self, out: &mut Vec<u8>) {
        let mut state = self.state();
        state.told = false;
        state.batch.take(out);
    }
}
