//! The dataflow of a session: which handles are there, which ops wait for them, which may run.
//!
//! ```text
//! run ──operands there──> ready (in issue order) ──finished──> handle ──> ops, gives that wait for it
//!  └──some missing──> waiting ──last one arrives──┘    failed operand ──> every output fails, with the same error
//! take ──> expected ──claim, arrived──> handle         a tensor that is early waits for its take
//! ```
//!
//! Invariants
//! 1. A handle resolves once: with its tensor, or with the error of whatever it depends on that failed by itself.
//! 2. Ready ops are handed out in the order they were issued; what waits holds up nothing that was issued after it.
//! 3. A handle that was dropped frees its tensor as soon as nothing that was issued before needs it.
//! 4. What all of this takes in memory besides tensors is known at any time, see [`Core::footprint`].
//! 5. What arrives without having been announced is bounded, in number and by the size of what shares a lane.

mod transfers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use convoke_common::Tensor;
use convoke_common::error::{Code, Error, Result};
use convoke_rendezvous::Peer;
use convoke_rendezvous::eager::wire::{MOST_HANDLES, Operand, Report};
use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;

use self::transfers::{Early, Expected};
use super::prepared::{Prepared, Seen};
use crate::cpu::{Inputs, Outputs};

/// Most transfers that may come before they are announced: as many as a client may have on their way.
pub(super) const MOST_EARLY: usize = 1024;
/// Most reports that wait for the client to read them: several for each handle that it may have.
const MOST_REPORTS: usize = 4 * MOST_HANDLES;
/// Most failures that are reported before the client has read them; each handle tells its own besides.
const MOST_FAILED: usize = 64;

/// What a handle takes at most besides its tensor, in bytes: itself, its place in a table, and who waits for it.
const HANDLE: u64 = 256;
/// What an op takes that is issued and not handed out.
const OP: u64 = 256;
/// What an operand takes besides the bytes of its value.
const OPERAND: u64 = 160;
/// What takes who waits for a handle's tensor to be sent.
const GIVE: u64 = 64;
/// What an announced transfer takes.
const TRANSFER: u64 = 256;

/// The number of a handle.
pub(super) type Id = u64;

enum State {
    Pending {
        waiters: SmallVec<[Waiter; 1]>,
        dropped: bool,
    },
    Ready(Tensor),
    Failed(Arc<Error>),
}

struct Handle {
    state: State,
    origin: u32,
}

enum Waiter {
    /// The op at this entry, unless that is another's by now.
    Run {
        op: usize,
        first: Id,
        operand: usize,
    },
    Give {
        peer: u32,
        transfer: u64,
    },
    /// A step whose operand it is.
    Step(Then),
}

/// What a step does with a handle's tensor, once it is there.
pub(crate) type Then = Box<dyn FnOnce(Settled) + Send>;

struct Waiting {
    run: Run,
    missing: usize,
}

/// An op whose operands are there.
pub(super) struct Run {
    pub prepared: Arc<Prepared>,
    pub inputs: Inputs,
    /// Its first output.
    pub first: Id,
    /// Bytes that it takes until it is handed out.
    kept: u64,
}

impl Run {
    /// What is known of it.
    pub fn seen(&self) -> Arc<Seen> {
        let inputs: SmallVec<[Option<&Tensor>; 4]> =
            self.inputs.iter().map(Option::as_ref).collect();
        self.prepared.seen(&inputs)
    }
}

impl PartialEq for Run {
    fn eq(&self, other: &Run) -> bool {
        self.first == other.first
    }
}
impl Eq for Run {}
impl PartialOrd for Run {
    fn partial_cmp(&self, other: &Run) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Run {
    fn cmp(&self, other: &Run) -> std::cmp::Ordering {
        self.first.cmp(&other.first)
    }
}

/// What follows outside the session.
pub(super) enum Effect {
    Send {
        peer: u32,
        transfer: u64,
        tensor: Tensor,
    },
    Abort {
        peer: u32,
        transfer: u64,
        error: Arc<Error>,
    },
    /// A step goes on.
    Step(Then, Settled),
}

/// See the module.
#[derive(Default)]
pub(super) struct Core {
    handles: FxHashMap<Id, Handle>,
    next: Id,
    waiting: Slab<Waiting>,
    ready: BinaryHeap<Reverse<Run>>,
    expected: BTreeMap<u64, Expected>,
    early: BTreeMap<(u64, String), (Peer, Early)>,
    /// What steps want of handles that are not made yet, in this order: their words may overtake the session's.
    ahead: BTreeMap<Id, SmallVec<[Ahead; 1]>>,
    /// How much that is.
    wanted: usize,
    /// Above the transfers that were announced so far.
    announced: u64,
    effects: Vec<Effect>,
    /// Handles made and resolved since this was asked for.
    resolved: u64,
    reports: Vec<Report>,
    failures: usize,
    /// Bytes of the ops that wait or are ready, and of those who wait for a tensor to be sent.
    kept: u64,
}

/// What a step wants of a handle.
enum Ahead {
    Lend(bool, Then),
    Fill(Tensor),
}

/// A handle's tensor, or why there is none.
pub(crate) type Settled = Result<Tensor, Arc<Error>>;

impl Core {
    /// The number of the handle made next.
    pub fn next(&self) -> Id {
        self.next
    }

    /// Handles that are there or will be.
    pub fn handles(&self) -> usize {
        self.handles.len()
    }

    /// Bytes that handles, ops, transfers and reports take, tensors in counted memory left out.
    pub fn footprint(&self) -> u64 {
        let reports = self.reports.len() * size_of::<Report>();
        self.handles.len() as u64 * HANDLE
            + self.expected.len() as u64 * TRANSFER
            + reports as u64
            + self.kept
    }

    fn make(&mut self, origin: u32, count: usize) -> Id {
        let first = self.next;
        for id in first..first + count as u64 {
            let (waiters, dropped) = (SmallVec::new(), false);
            let state = State::Pending { waiters, dropped };
            self.handles.insert(id, Handle { state, origin });
        }
        self.next += count as u64;
        if !self.ahead.is_empty() {
            self.catch_up(first);
        }
        first
    }

    /// Numbers handles from `first` on.
    pub fn begin(&mut self, first: Id) -> Result<()> {
        if self.next > 0 {
            let msg = "a session begins twice";
            return Err(Error::new(Code::ProtocolViolation, msg));
        }
        self.next = first;
        // Steps that want handles of the session before, which was lost.
        let later = self.ahead.split_off(&first);
        let lost = std::mem::replace(&mut self.ahead, later);
        for (id, ahead) in lost {
            self.wanted -= ahead.len();
            for each in ahead {
                if let Ahead::Lend(_, then) = each {
                    let gone = Err(Arc::new(unknown(id)));
                    self.effects.push(Effect::Step(then, gone));
                }
            }
        }
        Ok(())
    }

    /// Does what steps have wanted of handles that are made now.
    fn catch_up(&mut self, first: Id) {
        let later = self.ahead.split_off(&self.next);
        let due = std::mem::replace(&mut self.ahead, later);
        self.wanted -= due.values().map(SmallVec::len).sum::<usize>();
        for (id, ahead) in due.into_iter().filter(|(id, _)| *id >= first) {
            for each in ahead {
                match each {
                    Ahead::Lend(donate, then) => self.lend(id, donate, then),
                    Ahead::Fill(tensor) => drop(self.fill(id, tensor)),
                }
            }
        }
    }

    /// Notes what a step wants of a handle that is not made yet; gives it back where too much is wanted already.
    fn foresee(&mut self, id: Id, ahead: Ahead) -> Result<(), Ahead> {
        let known = self.ahead.get(&id).into_iter().flatten();
        let filled = known.filter(|a| matches!(a, Ahead::Fill(_))).count() > 0;
        if self.wanted >= MOST_EARLY || filled && matches!(ahead, Ahead::Fill(_)) {
            return Err(ahead);
        }
        self.wanted += 1;
        self.ahead.entry(id).or_default().push(ahead);
        Ok(())
    }

    /// An op was issued. It is handed out by [`Core::next_ready`] when its operands are there.
    pub fn run(&mut self, prepared: Arc<Prepared>, operands: SmallVec<[Operand<'static>; 4]>) {
        let first = self.make(prepared.origin, prepared.outputs);
        let failed = operands.iter().find_map(|o| match o {
            Operand::Handle(id) => match self.handles.get(id).map(|h| &h.state) {
                Some(State::Failed(e)) => Some(e.clone()),
                Some(_) if *id < first => None,
                _ => Some(Arc::new(unknown(*id))),
            },
            _ => None,
        });
        if let Some(error) = failed {
            return self.fail_outputs(first, prepared.outputs, error);
        }
        let op = self.waiting.vacant_key();
        let value = |o: &Operand| match o {
            Operand::Value(t) => OPERAND + t.byte_len() as u64,
            _ => OPERAND,
        };
        let kept = OP + operands.iter().map(value).sum::<u64>();
        let (mut inputs, mut missing) = (Inputs::new(), 0);
        for (operand, given) in operands.into_iter().enumerate() {
            inputs.push(match given {
                Operand::Absent => None,
                Operand::Value(t) => Some(t),
                Operand::Borrowed(t) => Some(t.clone()),
                Operand::Handle(id) => match self.handles.get_mut(&id).map(|h| &mut h.state) {
                    Some(State::Ready(t)) => Some(t.clone()),
                    Some(State::Pending { waiters, .. }) => {
                        waiters.push(Waiter::Run { op, first, operand });
                        missing += 1;
                        None
                    }
                    _ => None,
                },
            });
        }
        let run = Run {
            prepared,
            inputs,
            first,
            kept,
        };
        self.kept += kept;
        if missing == 0 {
            self.ready.push(Reverse(run));
        } else {
            self.waiting.insert(Waiting { run, missing });
        }
    }

    /// The op to launch next: of those that are ready, the one that was issued first.
    pub fn next_ready(&mut self) -> Option<Run> {
        let run = self.ready.pop()?.0;
        self.kept -= run.kept;
        Some(run)
    }

    /// Looks at it.
    pub fn peek_ready(&self) -> Option<&Run> {
        self.ready.peek().map(|r| &r.0)
    }

    /// An op has ended.
    pub fn finished(&mut self, first: Id, prepared: &Prepared, result: Result<Outputs, Error>) {
        match result {
            Ok(outputs) => {
                self.resolved += 1;
                for (i, t) in outputs.into_iter().take(prepared.outputs).enumerate() {
                    let handle = first + i as u64;
                    if prepared.report {
                        let shape = t.shape().into();
                        self.reports.push(Report::Shape { handle, shape });
                    }
                    self.settle(handle, Ok(t));
                }
            }
            Err(error) => self.failed(first, prepared.outputs, error),
        }
    }

    /// An op was issued that cannot be run.
    pub fn refuse(&mut self, origin: u32, outputs: usize, error: Error) {
        let first = self.make(origin, outputs);
        self.failed(first, outputs, error);
    }

    /// An op has failed by itself.
    fn failed(&mut self, first: Id, outputs: usize, error: Error) {
        self.tell_failure(first, &error);
        self.fail_outputs(first, outputs, Arc::new(error));
    }

    fn tell_failure(&mut self, handle: Id, error: &Error) {
        if self.failures < MOST_FAILED {
            self.failures += 1;
            let error = Box::new(error.clone());
            self.reports.push(Report::Failed { handle, error });
        }
    }

    /// Fails where there is more than a client may cause.
    pub fn check_bounds(&self) -> Result<()> {
        let msg = match (self.handles.len(), self.reports.len()) {
            (handles, _) if handles > MOST_HANDLES => "a session has more handles than it may",
            (_, reports) if reports > MOST_REPORTS => "a client does not read what it is told",
            _ => return Ok(()),
        };
        Err(Error::new(Code::ProtocolViolation, msg))
    }

    fn fail_outputs(&mut self, first: Id, outputs: usize, error: Arc<Error>) {
        self.resolved += 1;
        for id in first..first + outputs as u64 {
            self.settle(id, Err(error.clone()));
        }
    }

    /// Resolves a handle, and what depends on it as far as that fails with it. Without recursion: chains are long.
    fn settle(&mut self, id: Id, settled: Settled) {
        let mut todo: Vec<(Id, Settled)> = vec![(id, settled)];
        while let Some((id, settled)) = todo.pop() {
            let Some(handle) = self.handles.get_mut(&id) else {
                continue;
            };
            let state = match &settled {
                Ok(t) => State::Ready(t.clone()),
                Err(e) => State::Failed(e.clone()),
            };
            let State::Pending { waiters, dropped } = std::mem::replace(&mut handle.state, state)
            else {
                continue;
            };
            if dropped {
                self.handles.remove(&id);
            }
            for waiter in waiters {
                match waiter {
                    Waiter::Give { peer, transfer } => {
                        self.kept -= GIVE;
                        self.effects.push(match &settled {
                            Ok(tensor) => Effect::Send {
                                peer,
                                transfer,
                                tensor: tensor.clone(),
                            },
                            Err(error) => Effect::Abort {
                                peer,
                                transfer,
                                error: error.clone(),
                            },
                        });
                    }
                    Waiter::Step(then) => {
                        self.effects.push(Effect::Step(then, settled.clone()));
                    }
                    Waiter::Run { op, first, operand } => {
                        // One that failed for another operand is gone.
                        let waits = self.waiting.get(op).is_some_and(|w| w.run.first == first);
                        if waits {
                            self.operand(op, operand, &settled, &mut todo);
                        }
                    }
                }
            }
        }
    }

    fn operand(
        &mut self,
        op: usize,
        operand: usize,
        settled: &Settled,
        todo: &mut Vec<(Id, Settled)>,
    ) {
        match settled {
            Ok(t) => {
                let waiting = &mut self.waiting[op];
                waiting.run.inputs[operand] = Some(t.clone());
                waiting.missing -= 1;
                if waiting.missing == 0 {
                    self.ready.push(Reverse(self.waiting.remove(op).run));
                }
            }
            Err(error) => {
                let run = self.waiting.remove(op).run;
                self.kept -= run.kept;
                self.resolved += 1;
                let outputs = run.first..run.first + run.prepared.outputs as u64;
                todo.extend(outputs.map(|id| (id, Err(error.clone()))));
            }
        }
    }

    /// A value came with the command.
    pub fn literal(&mut self, tensor: Tensor, origin: u32) {
        let id = self.make(origin, 1);
        self.resolved += 1;
        self.settle(id, Ok(tensor));
    }

    /// The client dropped a handle.
    pub fn free(&mut self, id: Id) {
        match self.handles.get_mut(&id).map(|h| &mut h.state) {
            Some(State::Pending { dropped, .. }) => *dropped = true,
            _ => drop(self.handles.remove(&id)),
        }
    }

    /// A handle's tensor is to go to a peer.
    pub fn give(&mut self, id: Id, peer: u32, transfer: u64) {
        let error = match self.handles.get_mut(&id).map(|h| &mut h.state) {
            Some(State::Pending { waiters, .. }) => {
                self.kept += GIVE;
                return waiters.push(Waiter::Give { peer, transfer });
            }
            Some(State::Ready(tensor)) => {
                let tensor = tensor.clone();
                return self.effects.push(Effect::Send {
                    peer,
                    transfer,
                    tensor,
                });
            }
            Some(State::Failed(error)) => error.clone(),
            None => Arc::new(unknown(id)),
        };
        self.effects.push(Effect::Abort {
            peer,
            transfer,
            error,
        });
    }

    /// A new handle that a step fills.
    pub fn reserve(&mut self, origin: u32) {
        self.make(origin, 1);
    }

    /// A reserved handle is not filled.
    pub fn abandon(&mut self, id: Id) {
        self.free(id);
        if self.handles.contains_key(&id) {
            self.resolved += 1;
            let error = Error::new(Code::Cancelled, "the step that was to fill it failed");
            self.settle(id, Err(Arc::new(error)));
        }
    }

    /// A step has a reserved handle's tensor; false where the handle waits for none.
    pub fn fill(&mut self, id: Id, tensor: Tensor) -> bool {
        if id >= self.next {
            return self.foresee(id, Ahead::Fill(tensor)).is_ok();
        }
        let state = self.handles.get(&id).map(|h| &h.state);
        let waits = matches!(state, Some(State::Pending { .. }));
        if waits {
            self.resolved += 1;
            let (handle, shape) = (id, tensor.shape().into());
            self.reports.push(Report::Shape { handle, shape });
            self.settle(id, Ok(tensor));
        }
        waits
    }

    /// A step needs a handle's tensor, now or when it is there. One that is donated is the step's alone, unless what was
    /// issued before still reads it.
    pub fn lend(&mut self, id: Id, donate: bool, then: Then) {
        let then = match id >= self.next {
            false => then,
            true => match self.foresee(id, Ahead::Lend(donate, then)) {
                Err(Ahead::Lend(_, then)) => then,
                _ => return,
            },
        };
        let settled = match self.handles.get_mut(&id).map(|h| &mut h.state) {
            Some(State::Pending { waiters, dropped }) => {
                *dropped |= donate;
                return waiters.push(Waiter::Step(then));
            }
            Some(State::Ready(tensor)) => Ok(tensor.clone()),
            Some(State::Failed(error)) => Err(error.clone()),
            None => Err(Arc::new(unknown(id))),
        };
        if donate {
            self.handles.remove(&id);
        }
        self.effects.push(Effect::Step(then, settled));
    }

    /// A handle's tensor, where it is there.
    pub fn value(&self, id: Id) -> Option<Tensor> {
        match &self.handles.get(&id)?.state {
            State::Ready(tensor) => Some(tensor.clone()),
            _ => None,
        }
    }

    /// What follows outside, in the order it was decided.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether the client is to be told something.
    pub fn has_reports(&self) -> bool {
        self.resolved > 0 || !self.reports.is_empty()
    }

    /// What the client is to be told.
    pub fn reports(&mut self) -> Vec<Report> {
        let mut reports = std::mem::take(&mut self.reports);
        self.failures = 0;
        if self.resolved > 0 {
            reports.push(Report::Resolved(std::mem::take(&mut self.resolved)));
        }
        reports
    }

    /// Tells the client something besides.
    pub fn report(&mut self, report: Report) {
        self.reports.push(report);
    }

    /// Handles and bytes by origin.
    pub fn held(&self) -> BTreeMap<u32, (u64, u64)> {
        let mut held: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for handle in self.handles.values() {
            let entry = held.entry(handle.origin).or_default();
            entry.0 += 1;
            if let State::Ready(t) = &handle.state {
                entry.1 += t.byte_len() as u64;
            }
        }
        held
    }
}

fn unknown(id: Id) -> Error {
    let msg = format!("handle {id} is not there: it was dropped, or is of another session");
    Error::new(Code::NotFound, msg)
}
