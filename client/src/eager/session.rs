//! A client's session at one worker: what it issues there, in order.
//!
//! ```text
//! Dialling ──linked──> Up ──link ends──> Lost
//! ```
//!
//! Invariants
//! 1. Commands are written to the batch in the order of the handles that they make; the worker numbers the handles by
//!    the same order.
//! 2. At most [`WINDOW`] ops, [`MOVES`] moves and [`PUTTING`] bytes are on their way; beyond that issuing waits until
//!    an eighth of the bound is free or the session is lost. Where the program wants that, and on the network thread,
//!    which has to make the room, issuing fails at once instead, which changes nothing.
//! 3. Once the session is lost, everything issued fails at once, with the reason.

mod state;
mod transfers;

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use convoke_common::device_spec::DeviceId;
use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_common::identity::Role;
use convoke_graph::Shape;
use convoke_graph::Tensor as HostTensor;
use convoke_graph::ops::OpDef;
use convoke_rendezvous::eager::wire::{
    Command, Holding, MOST_ACCOUNTS, MOST_HANDLES, Operand, Report, put_run,
};
use convoke_rendezvous::eager::{Batch, Batches};
use convoke_rendezvous::{Link, Peer};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use self::state::{DialState, SessionState};
use self::transfers::{MOVES, PUTTING};
use super::direct::Line;
use super::prepared::{Key, RememberedPlace};
use super::room::Room;
use super::{Sessions, shut};

/// How many ops may be issued and not resolved.
const WINDOW: u64 = 64 << 10;
/// How many bytes of commands may wait for the lane.
const WAITING: usize = 16 << 20;
/// How many failures are kept until somebody asks for them.
const FAILURES: usize = 64;

/// The cell for a handle's shape that only data decides.
pub(crate) type LateShape = Arc<std::sync::OnceLock<Shape>>;

/// A client's session at one worker, with the state of what it has issued there.
pub(crate) struct WorkerSession {
    pub participant: Participant,
    /// The worker's device.
    pub device: DeviceId,
    pub peer: Peer,
    me: Weak<WorkerSession>,
    sessions: Weak<Sessions>,
    state: Mutex<SessionState>,
    room: Room,
    /// Cancelled when the session is lost, which ends the sending of tensors.
    sending: CancellationToken,
    /// The direct way to the worker once it is linked, where it is in this process.
    line: OnceLock<Line>,
}

/// An op to issue.
pub(crate) struct Issue<'a> {
    pub key: &'a Key,
    /// Remembers where the op is prepared.
    pub slot: Option<&'a RememberedPlace>,
    pub operands: &'a [Operand<'a>],
    /// By output, the cell for a shape that only data decides.
    pub late: &'a [Option<LateShape>],
}

/// The error of a tensor that belongs to another connection.
pub(crate) fn stranger() -> Error {
    let msg = "the tensors belong to different connections to the cluster";
    Error::new(Code::InvalidArgument, msg).advise("fetch the one, and put it with the other's")
}

/// Something that is to be issued, and needs room.
#[derive(Clone, Copy)]
enum RoomRequest<'a> {
    Op(&'a Key),
    /// A result of a call.
    Result(&'static Location<'static>),
    /// A tensor from another worker.
    Move(&'static Location<'static>),
    /// A tensor of this many bytes from this client.
    Put(u64, &'static Location<'static>),
}

impl fmt::Display for RoomRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, at) = match self {
            RoomRequest::Op(key) => (key.op.name, key.origin),
            RoomRequest::Result(at) => ("the result of a call", *at),
            RoomRequest::Move(at) => ("a move", *at),
            RoomRequest::Put(_, at) => ("a put", *at),
        };
        write!(f, "{what} at {}:{}", at.file(), at.line())
    }
}

/// How many bytes an operand may take in a command. A number takes up to ten bytes, and so does an integer of eight
/// bytes.
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
    /// Makes a session whose transfers and handles are numbered from `transfers` and `first` on.
    pub(super) fn new(
        participant: Participant,
        device: DeviceId,
        sessions: Weak<Sessions>,
        (transfers, first): (u64, u64),
    ) -> Arc<WorkerSession> {
        let peer = Peer::of(&participant, Role::Worker);
        let mut batch = Batch::default();
        if first > 0 {
            let mut begin = Vec::new();
            // Encoding a number cannot fail.
            drop(Command::Begin { first }.encode(&mut begin, 0));
            batch.body().extend(begin);
        }
        Arc::new_cyclic(|me| WorkerSession {
            participant,
            device,
            peer,
            me: me.clone(),
            sessions,
            state: Mutex::new(SessionState::new(batch, transfers, first)),
            room: Room::default(),
            sending: CancellationToken::new(),
            line: OnceLock::new(),
        })
    }

    /// Fails where the worker is known to have no kernel for a custom op.
    pub fn has_op(&self, def: &OpDef) -> Result<()> {
        self.sessions()?.has_op(&self.participant, def)
    }

    /// The way for brief ops to run on the caller's thread, if there is one.
    pub fn line(&self) -> Option<&Line> {
        self.line.get()
    }

    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many entries the session holds in each table.
    pub fn tables(&self) -> [(&'static str, usize); 6] {
        let state = self.state();
        let known = state.late.values().filter(|late| late.strong_count() > 0);
        [
            ("unresolved ops", state.unresolved as usize),
            ("handles", state.live),
            ("moves", state.moves.len()),
            ("shapes that wait", known.count()),
            ("requests", state.accounts.len()),
            ("bytes of commands", state.batch.len()),
        ]
    }

    /// Whether this session belongs to the connection that has these sessions.
    pub fn is_of(&self, sessions: &Weak<Sessions>) -> bool {
        Weak::ptr_eq(&self.sessions, sessions)
    }

    /// Whether the session is one of these.
    pub fn is_in(&self, sessions: &Arc<Sessions>) -> bool {
        std::ptr::eq(self.sessions.as_ptr(), Arc::as_ptr(sessions))
    }

    /// Fails where the other session belongs to another connection, which knows nothing of this one's handles.
    pub fn knows(&self, other: &WorkerSession) -> Result<()> {
        match other.is_of(&self.sessions) {
            true => Ok(()),
            false => Err(stranger()),
        }
    }

    pub(crate) fn sessions(&self) -> Result<Arc<Sessions>> {
        self.sessions.upgrade().ok_or_else(shut)
    }

    /// Locks the state. Fails where the session is lost.
    fn usable(&self) -> Result<MutexGuard<'_, SessionState>> {
        let state = self.state();
        match &state.way {
            DialState::Lost(error) => Err(error.clone()),
            _ => Ok(state),
        }
    }

    /// Names the quantity that has reached its bound, so that there is no room for `need`. With `some`, an eighth of
    /// the bound has to be free.
    fn full(&self, state: &SessionState, need: RoomRequest<'_>, some: bool) -> Option<String> {
        let most = |most: u64| if some { most - most / 8 } else { most };
        let (ops, waiting) = (state.unresolved, state.batch.len());
        let (moves, putting) = (state.moves.len(), self.room.putting());
        if ops >= most(WINDOW) {
            return Some(format!("{ops} ops"));
        }
        if waiting as u64 >= most(WAITING as u64) {
            return Some(format!("{} MiB of commands", waiting >> 20));
        }
        match need {
            RoomRequest::Move(_) if moves as u64 >= most(MOVES as u64) => {
                Some(format!("{moves} moves"))
            }
            RoomRequest::Put(bytes, _) if putting > 0 && putting + bytes > PUTTING => {
                Some(format!("{} MiB of values", putting >> 20))
            }
            _ => None,
        }
    }

    /// Locks the state, like [`Self::usable`], once there is room. Waits for room, or fails where the thread may not
    /// wait.
    fn open(&self, need: RoomRequest<'_>) -> Result<MutexGuard<'_, SessionState>> {
        loop {
            let state = self.open_now(need);
            let full = |e: &Error| e.code == Code::WouldBlock;
            if !state.as_ref().is_err_and(full) || !self.sessions()?.waits_for_room() {
                return state;
            }
            drop(state);
            let mut state = self.usable()?;
            while self.full(&state, need, true).is_some() {
                state = self.room.wait(state);
                if let DialState::Lost(error) = &state.way {
                    return Err(error.clone());
                }
            }
        }
    }

    /// Locks the state, like [`Self::open`], but fails at once where there is no room.
    fn open_now(&self, need: RoomRequest<'_>) -> Result<MutexGuard<'_, SessionState>> {
        let state = self.usable()?;
        if let Some(what) = self.full(&state, need, false) {
            let worker = &self.peer.name;
            let msg = format!("{need} cannot be issued yet: {what} are on their way to {worker}");
            return Err(Error::new(Code::WouldBlock, msg)
                .advise("await `device.ready()` before issuing more, or fetch something"));
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

    /// Sends the commands that were written, now or when the lane asks for them.
    fn flush(&self, mut state: MutexGuard<'_, SessionState>) {
        if state.batch.is_empty() || state.told {
            return;
        }
        let DialState::Up(link) = &state.way else {
            return;
        };
        let link = link.clone();
        state.told = true;
        drop(state);
        if let Some(me) = self.me.upgrade() {
            let source: Arc<dyn Batches> = me;
            link.ready(&source);
        }
    }

    /// Issues an op. Returns the number of its first output.
    pub fn issue(&self, issue: &Issue<'_>) -> Result<u64> {
        if issue.operands.iter().map(most_encoded).sum::<usize>() > Batch::MOST {
            let msg = "the values among an op's operands are too large together to be sent with it";
            return Err(Error::new(Code::InvalidArgument, msg)
                .advise("put them on the device, and use the tensors"));
        }
        let mut guard = self.open(RoomRequest::Op(issue.key))?;
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

    /// Frees a handle that the program has dropped.
    pub fn free(&self, handle: u64) {
        if let Ok(mut guard) = self.usable() {
            guard.late.remove(&handle);
            guard.live = guard.live.saturating_sub(1);
            // Encoding a number cannot fail.
            drop(guard.command(&Command::Free(handle)));
            self.flush(guard);
        }
    }

    /// Reserves a handle that a step is to fill. Fails at once where there is no room.
    pub fn reserve(&self, origin: &'static Location<'static>) -> Result<u64> {
        let mut guard = self.open_now(RoomRequest::Result(origin))?;
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

    /// Gives up a reserved handle, which no step fills.
    pub fn abandon(&self, handle: u64) {
        if let Ok(mut guard) = self.usable() {
            guard.late.remove(&handle);
            guard.live = guard.live.saturating_sub(1);
            // Encoding a number cannot fail.
            drop(guard.command(&Command::Abandon(handle)));
            self.flush(guard);
        }
    }

    /// Returns the cell for a handle's shape, which is set once the worker has reported the shape.
    pub fn late(&self, handle: u64) -> LateShape {
        let late = LateShape::default();
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

    /// Why the session is lost, if it is.
    pub fn lost_because(&self) -> Option<Error> {
        self.usable().err()
    }

    /// Asks the worker what the session holds, by the lines that issued it.
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

    /// Returns once at most `most` ops, and half of what may wait to be sent, are on their way. Fails where the session
    /// is lost.
    pub async fn room(&self, most: u64) -> Result<()> {
        let look = || match self.has_room(most) {
            Ok(room) => room.then_some(Ok(())),
            Err(error) => Some(Err(error)),
        };
        self.room.until(look).await
    }

    fn has_room(&self, most: u64) -> Result<bool> {
        let state = self.usable()?;
        let putting = self.room.putting();
        let few = state.unresolved <= most && state.batch.len() <= WAITING / 2;
        Ok(few && state.moves.len() <= MOVES / 2 && putting <= PUTTING / 2)
    }

    /// Half of the window: enough for bulk issue to go on while it fills.
    pub const HALF: u64 = WINDOW / 2;

    /// Takes the first failure of an op since this was last called, and forgets the others.
    pub fn take_failure(&self) -> Option<Error> {
        let mut state = self.state();
        let first = state.failures.pop_front();
        state.failures.clear();
        first
    }

    /// How often an op was prepared already, and how often not.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        let (hits, misses) = self.state().prepared.hits_and_misses();
        let direct = self.line().map_or((0, 0), Line::hits_and_misses);
        (hits + direct.0, misses + direct.1)
    }

    /// Notes the link to the worker, or why there is none.
    pub(super) fn linked(&self, linked: Result<Arc<Link>>) {
        match linked {
            Ok(link) => {
                // A session that was lost meanwhile stays lost: whoever waits for it was told.
                let Ok(mut state) = self.usable() else { return };
                let way = std::mem::replace(&mut state.way, DialState::Up(link.clone()));
                if let Some(direct) = link.direct() {
                    self.line.get_or_init(|| Line::new(&direct));
                }
                // Commands are sent first: a tensor may overtake the command that announces it, but need not.
                self.flush(state);
                if let DialState::Dialling(then) = way {
                    then.into_iter().for_each(|f| f(&link));
                }
                if link.is_closed() {
                    self.lost(&link.refusal().unwrap_or_else(|| link.lost()));
                }
            }
            Err(error) => self.lost(&error),
        }
    }

    /// Notes that a link to the worker ended. It may have been a former one, which this session does not use.
    pub(super) fn link_ended(&self, error: &Error) {
        let uses_another = match &self.state().way {
            DialState::Dialling(_) => true,
            DialState::Up(link) => !link.is_closed(),
            DialState::Lost(_) => false,
        };
        if !uses_another {
            self.lost(error);
        }
    }

    /// Ends the session, since its link ended or could not be made.
    pub(super) fn lost(&self, error: &Error) {
        let mut state = self.state();
        if matches!(state.way, DialState::Lost(_)) {
            return;
        }
        let way = std::mem::replace(&mut state.way, DialState::Lost(error.clone()));
        state.batch = Batch::default();
        state.moves.clear();
        state.late.clear();
        state.accounts.clear();
        state.unresolved = 0;
        state.live = 0;
        drop(state);
        self.sending.cancel();
        self.line().into_iter().for_each(Line::end);
        // The closures that wait for a link never run.
        drop(way);
        self.room.tell();
        if let Ok(sessions) = self.sessions() {
            sessions.ended(&self.peer, error);
        }
    }

    /// The peer that was named to the worker by this number.
    pub(super) fn peer(&self, index: u32) -> Option<Peer> {
        let state = self.state();
        let index = usize::try_from(index).ok()?.checked_sub(1)?;
        state.peers.get(index).cloned()
    }

    /// Handles a report of the worker.
    pub(super) fn report(&self, report: Report) {
        let mut state = self.state();
        match report {
            Report::Resolved(count) => {
                state.unresolved = state.unresolved.saturating_sub(count);
                drop(state);
                self.room.tell();
            }
            Report::Failed { error, .. } => {
                tracing::warn!(target: "convoke::eager", "{error}");
                if state.failures.len() < FAILURES {
                    state.failures.push_back(*error);
                }
            }
            Report::Shape { handle, shape } => {
                if let Some(late) = state.late.remove(&handle).and_then(|w| w.upgrade()) {
                    // A fetch of the tensor may have set the shape before.
                    let _ = late.set(shape);
                }
            }
            Report::Took { transfer } => {
                state.moves.remove(&transfer);
                drop(state);
                self.room.tell();
            }
            Report::Accounted { request, held } => {
                if let Some(reply) = state.accounts.remove(&request) {
                    // The caller may not wait for the answer any more.
                    let _ = reply.send(held);
                }
            }
            Report::Undelivered { .. } => {}
        }
    }
}

impl Batches for WorkerSession {
    fn take(&self, out: &mut Vec<u8>) {
        let mut state = self.state();
        state.told = false;
        state.batch.take(out);
        drop(state);
        self.room.tell();
    }
}

#[cfg(test)]
mod tests {
    use convoke_common::ids::Incarnation;
    use convoke_rendezvous::Hub;

    use super::*;

    #[test]
    fn what_was_lost_while_it_was_dialled_stays_lost() {
        let peer = |role, name: &str| Peer {
            role,
            name: name.into(),
            incarnation: Incarnation(1),
        };
        let hubs = [
            Hub::new(peer(Role::Client, "c")),
            Hub::new(peer(Role::Worker, "w0")),
        ];
        Link::join_local(&hubs[0], &hubs[1]);
        let link = hubs[0].link(&hubs[1].me).unwrap();
        let participant = Participant {
            name: "w0".into(),
            incarnation: Incarnation(1),
            address: String::new(),
        };
        let session = WorkerSession::new(participant, DeviceId::default(), Weak::new(), (0, 0));
        assert!(session.lost_because().is_none());
        session.lost(&Error::new(Code::Cancelled, "closed"));
        session.linked(Ok(link));
        assert_eq!(
            session.lost_because().map(|e| e.code),
            Some(Code::Cancelled)
        );
        assert!(session.account().is_err());
    }
}
