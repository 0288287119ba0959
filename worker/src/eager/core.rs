//! The dataflow of a session: which handles have their tensors, which ops wait for them, and which ops may run.
//!
//! ```text
//! run ──operands there──> ready (in issue order) ──finished──> handle ──> ops, sends that wait for it
//!  └──some missing──> waiting ──last one arrives──┘    failed operand ──> every output fails, with the same error
//! take ──> expected ──claim, arrived──> handle         a tensor that is early waits for its take
//! ```
//!
//! Invariants
//! 1. A handle resolves once: with its tensor, or with the error of the op or transfer that it depends on and that
//!    failed by itself.
//! 2. Ready ops are handed out in the order they were issued; an op that waits holds up no op that was issued after it.
//! 3. A dropped handle frees its tensor as soon as no op that was issued before the drop needs it.
//! 4. The bytes that all of this takes besides tensors are known at any time, see [`Core::footprint`].
//! 5. Transfers that arrive without having been announced are bounded, in number and by the size of tensors that travel
//!    on a lane.

mod device;
mod failure;
mod transfers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use convoke_common::actor;
use convoke_common::error::{Code, Error, Result};
use convoke_graph::Tensor;
use convoke_rendezvous::Peer;
use convoke_rendezvous::eager::wire::{MOST_HANDLES, Operand, Report};
use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;

pub(super) use self::failure::{CountedBytes, Failure};
use self::transfers::{EarlyTransfer, ExpectedTransfer};
use super::prepared::{PreparedOp, ShapeFacts};
use super::value::{DeviceValue, Value};
use crate::cpu::{Inputs, Outputs};

/// Most transfers that may come before they are announced: as many as a client may have under way.
pub(super) const MOST_EARLY: usize = 1024;
/// Most reports that wait for the client to read them: several for each handle that it may have.
const MOST_REPORTS: usize = 4 * MOST_HANDLES;
/// Most failures that are reported before the client has read them; each handle tells its own failure besides.
const MOST_FAILED: usize = 64;

/// Most bytes that a handle takes besides its tensor: itself, its place in a table, and the list of its waiters.
const HANDLE: u64 = 256;
/// Most bytes that a value takes besides its elements where the worker has a device.
const DEVICE_VALUE: u64 = 384;
/// Bytes of an op that is issued and not handed out.
const OP: u64 = 256;
/// Bytes of an operand besides its value.
const OPERAND: u64 = 160;
/// Bytes of a send that waits for its tensor.
const GIVE: u64 = 64;
/// Bytes of an announced transfer, and of a tensor on its way to a peer.
const TRANSFER: u64 = 256;

/// The number of a handle.
pub(super) type Id = u64;

enum HandleState {
    Pending {
        waiters: SmallVec<[Waiter; 1]>,
        dropped: bool,
    },
    Ready(Value),
    Failed(Arc<Failure>),
}

struct Handle {
    state: HandleState,
    origin: u32,
}

enum Waiter {
    /// The op at this entry, unless another op has the entry by now.
    Run {
        op: usize,
        first: Id,
        operand: usize,
    },
    Give {
        peer: u32,
        transfer: u64,
    },
    /// A step that reads the handle.
    Step(TensorCallback),
}

/// How a step uses a handle's tensor once it has resolved.
pub(crate) type TensorCallback = Box<dyn FnOnce(HandleOutcome) + Send>;

struct WaitingRun {
    run: Run,
    missing: usize,
}

/// An op whose operands are there, or will be.
pub(super) struct Run {
    pub prepared: Arc<PreparedOp>,
    pub inputs: Inputs,
    /// Where the worker has a device, the operands that are values of handles; each of the others, and each that was copied
    /// to the host for this op, is in `inputs`. It may be shorter than those.
    pub values: Vec<Option<Arc<DeviceValue>>>,
    /// The number of the op's first output.
    pub first: Id,
    /// Bytes that the op takes until it is handed out.
    kept: u64,
}

impl Run {
    /// Bytes that the op takes until it is handed out.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Sets an operand to a handle's value.
    fn set(&mut self, operand: usize, value: &Value) {
        match value {
            Value::Host(tensor) => self.inputs[operand] = Some(tensor.clone()),
            Value::Device(value) => {
                self.values.resize(self.inputs.len(), None);
                self.values[operand] = Some(value.clone());
            }
        }
    }

    /// The predicted time and the sizes of the op with these operands, which all are in `inputs`.
    pub fn seen(&self) -> Arc<ShapeFacts> {
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

/// A command that must be carried out outside the session.
pub(super) enum Effect {
    Send {
        peer: u32,
        transfer: u64,
        value: Value,
        /// Counts the tensor's place in queues, until the link has let go of it.
        counted: CountedBytes,
    },
    Abort {
        peer: u32,
        transfer: u64,
        error: Arc<Failure>,
    },
    /// A step that waited for a handle goes on.
    Step(TensorCallback, Result<Value, Arc<Error>>),
}

/// The handles, ops and transfers of a session.
#[derive(Default)]
pub(super) struct Core {
    handles: FxHashMap<Id, Handle>,
    /// Whether the worker has a device with memory of its own.
    has_device: bool,
    next: Id,
    waiting: Slab<WaitingRun>,
    ready: BinaryHeap<Reverse<Run>>,
    expected: BTreeMap<u64, ExpectedTransfer>,
    early: BTreeMap<(u64, String), (Peer, EarlyTransfer)>,
    /// Requests of steps for handles that are not made yet, by handle and in their order: a step's command may overtake
    /// the session's.
    ahead: BTreeMap<Id, SmallVec<[HandleUse; 1]>>,
    /// Number of these requests.
    wanted: usize,
    /// One more than the highest transfer that was announced so far.
    announced: u64,
    effects: VecDeque<Effect>,
    /// Handles made and resolved since the last report to the client.
    resolved: u64,
    reports: Vec<Report>,
    failures: usize,
    /// Bytes of the errors in the reports.
    reported: u64,
    /// Bytes of the errors that handles have, and of tensors on their way to peers.
    counted: Arc<AtomicU64>,
    /// Bytes of the ops that wait or are ready, of the sends that wait for their tensors, and of the errors in the reports.
    kept: u64,
}

/// A request of a step for a handle that is not made yet.
enum HandleUse {
    Lend(bool, TensorCallback),
    Fill(Tensor),
}

/// A handle's tensor, or the error that explains its absence, for a step.
pub(crate) type HandleOutcome = Result<Tensor, Arc<Error>>;

/// The same for what the session keeps.
pub(super) type HandleResult = Result<Value, Arc<Failure>>;

impl actor::Core for Core {
    type Command = Effect;

    fn next_command(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn commands(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects).into()
    }
}

impl Core {
    /// The core of a session at a worker that has a device with memory of its own, or none.
    pub fn new(has_device: bool) -> Core {
        Core {
            has_device,
            ..Core::default()
        }
    }

    /// The value of a handle whose tensor came to the host, or was made there.
    fn value_of(&self, tensor: Tensor) -> Value {
        match self.has_device {
            false => Value::Host(tensor),
            true => Value::Device(Arc::new(DeviceValue::of_host(tensor))),
        }
    }

    /// The number of the next handle.
    pub fn next(&self) -> Id {
        self.next
    }

    /// Number of handles that have a tensor or will have one.
    pub fn handles(&self) -> usize {
        self.handles.len()
    }

    /// Bytes that handles, ops, transfers and reports take, without the tensors in counted memory.
    pub fn footprint(&self) -> u64 {
        let reports = self.reports.len() * size_of::<Report>();
        let handle = match self.has_device {
            false => HANDLE,
            true => HANDLE + DEVICE_VALUE,
        };
        self.handles.len() as u64 * handle
            + self.expected.len() as u64 * TRANSFER
            + reports as u64
            + self.counted.load(Ordering::Relaxed)
            + self.kept
    }

    /// Makes an error that handles may share.
    pub fn failure(&self, error: Error) -> Arc<Failure> {
        Failure::new(error, &self.counted)
    }

    /// Counts a tensor that is on its way to a peer, until what this returns is dropped.
    pub fn on_its_way(&self) -> CountedBytes {
        CountedBytes::new(TRANSFER, &self.counted)
    }

    fn make(&mut self, origin: u32, count: usize) -> Id {
        let first = self.next;
        for id in first..first + count as u64 {
            let (waiters, dropped) = (SmallVec::new(), false);
            let state = HandleState::Pending { waiters, dropped };
            self.handles.insert(id, Handle { state, origin });
        }
        self.next += count as u64;
        if !self.ahead.is_empty() {
            self.catch_up(first);
        }
        first
    }

    /// Numbers the session's handles from `first` on.
    pub fn begin(&mut self, first: Id) -> Result<()> {
        if self.next > 0 {
            let msg = "a session begins twice";
            return Err(Error::new(Code::ProtocolViolation, msg));
        }
        self.next = first;
        // Handles below `first` belonged to the session before, which was lost: steps that want them fail.
        let later = self.ahead.split_off(&first);
        let lost = std::mem::replace(&mut self.ahead, later);
        for (id, ahead) in lost {
            self.wanted -= ahead.len();
            for each in ahead {
                if let HandleUse::Lend(_, then) = each {
                    let gone = Err(Arc::new(unknown(id)));
                    self.effects.push_back(Effect::Step(then, gone));
                }
            }
        }
        Ok(())
    }

    /// Serves the requests of steps for handles that are made now.
    fn catch_up(&mut self, first: Id) {
        let later = self.ahead.split_off(&self.next);
        let due = std::mem::replace(&mut self.ahead, later);
        self.wanted -= due.values().map(SmallVec::len).sum::<usize>();
        for (id, ahead) in due.into_iter().filter(|(id, _)| *id >= first) {
            for each in ahead {
                match each {
                    HandleUse::Lend(donate, then) => self.lend(id, donate, then),
                    HandleUse::Fill(tensor) => drop(self.fill(id, tensor)),
                }
            }
        }
    }

    /// Keeps a step's request for a handle that is not made yet; returns it where too many are kept already.
    fn foresee(&mut self, id: Id, ahead: HandleUse) -> Result<(), HandleUse> {
        let known = self.ahead.get(&id).into_iter().flatten();
        let filled = known.filter(|a| matches!(a, HandleUse::Fill(_))).count() > 0;
        if self.wanted >= MOST_EARLY || filled && matches!(ahead, HandleUse::Fill(_)) {
            return Err(ahead);
        }
        self.wanted += 1;
        self.ahead.entry(id).or_default().push(ahead);
        Ok(())
    }

    /// Issues an op. [`Core::next_ready`] hands it out once its operands are there.
    pub fn run(&mut self, prepared: Arc<PreparedOp>, operands: SmallVec<[Operand<'static>; 4]>) {
        let first = self.make(prepared.origin, prepared.outputs);
        let failed = operands.iter().find_map(|o| match o {
            Operand::Handle(id) => match self.handles.get(id).map(|h| &h.state) {
                Some(HandleState::Failed(e)) => Some(e.clone()),
                Some(_) if *id < first => None,
                _ => Some(self.failure(unknown(*id))),
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
        let mut values = Vec::new();
        let count = operands.len();
        for (operand, given) in operands.into_iter().enumerate() {
            inputs.push(match given {
                Operand::Absent => None,
                Operand::Value(t) => Some(t),
                Operand::Borrowed(t) => Some(t.clone()),
                Operand::Handle(id) => match self.handles.get_mut(&id).map(|h| &mut h.state) {
                    Some(HandleState::Ready(Value::Host(t))) => Some(t.clone()),
                    Some(HandleState::Ready(Value::Device(v))) => {
                        values.resize(count, None);
                        values[operand] = Some(v.clone());
                        None
                    }
                    Some(HandleState::Pending { waiters, .. }) => {
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
            values,
            first,
            kept,
        };
        self.kept += kept;
        if missing == 0 {
            self.ready.push(Reverse(run));
        } else {
            self.waiting.insert(WaitingRun { run, missing });
        }
    }

    /// Takes the op to launch next: of the ready ops, the one that was issued first.
    pub fn next_ready(&mut self) -> Option<Run> {
        let run = self.ready.pop()?.0;
        self.kept -= run.kept;
        Some(run)
    }

    /// The op to launch next, which stays queued.
    pub fn peek_ready(&self) -> Option<&Run> {
        self.ready.peek().map(|r| &r.0)
    }

    /// Resolves the outputs of an op that has ended.
    pub fn finished(&mut self, first: Id, prepared: &PreparedOp, result: Result<Outputs, Error>) {
        match result {
            Ok(outputs) => {
                self.resolved += 1;
                for (i, t) in outputs.into_iter().take(prepared.outputs).enumerate() {
                    let handle = first + i as u64;
                    if prepared.report {
                        let shape = t.shape().into();
                        self.report(Report::Shape { handle, shape });
                    }
                    let value = self.value_of(t);
                    self.settle(handle, Ok(value));
                }
            }
            Err(error) => self.failed(first, prepared.outputs, self.failure(error)),
        }
    }

    /// Issues an op that cannot be run: its outputs fail.
    pub fn refuse(&mut self, origin: u32, outputs: usize, error: Arc<Failure>) {
        let first = self.make(origin, outputs);
        self.failed(first, outputs, error);
    }

    /// Fails the outputs of an op that has failed by itself, and reports that.
    fn failed(&mut self, first: Id, outputs: usize, error: Arc<Failure>) {
        self.tell_failure(first, &error);
        self.fail_outputs(first, outputs, error);
    }

    fn tell_failure(&mut self, handle: Id, error: &Error) {
        if self.failures < MOST_FAILED {
            self.failures += 1;
            let error = Box::new(error.clone());
            self.report(Report::Failed { handle, error });
        }
    }

    /// Fails where the session has more handles or unread reports than a client may cause.
    pub fn check_bounds(&self) -> Result<()> {
        let msg = match (self.handles.len(), self.reports.len()) {
            (handles, _) if handles > MOST_HANDLES => "a session has more handles than it may",
            (_, reports) if reports > MOST_REPORTS => "a client does not read what it is told",
            _ => return Ok(()),
        };
        Err(Error::new(Code::ProtocolViolation, msg))
    }

    /// Fails the outputs of an op whose operand has failed.
    pub fn fail_outputs(&mut self, first: Id, outputs: usize, error: Arc<Failure>) {
        self.resolved += 1;
        for id in first..first + outputs as u64 {
            self.settle(id, Err(error.clone()));
        }
    }

    /// Resolves a handle, and all that fails with it. There is no recursion, since chains are long.
    fn settle(&mut self, id: Id, settled: HandleResult) {
        let mut todo: Vec<(Id, HandleResult)> = vec![(id, settled)];
        while let Some((id, settled)) = todo.pop() {
            let Some(handle) = self.handles.get_mut(&id) else {
                continue;
            };
            let state = match &settled {
                Ok(value) => HandleState::Ready(value.clone()),
                Err(e) => HandleState::Failed(e.clone()),
            };
            let HandleState::Pending { waiters, dropped } =
                std::mem::replace(&mut handle.state, state)
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
                        let effect = match &settled {
                            Ok(value) => Effect::Send {
                                peer,
                                transfer,
                                value: value.clone(),
                                counted: self.on_its_way(),
                            },
                            Err(error) => Effect::Abort {
                                peer,
                                transfer,
                                error: error.clone(),
                            },
                        };
                        self.effects.push_back(effect);
                    }
                    Waiter::Step(then) => {
                        let settled = settled.clone().map_err(|e| e.error.clone());
                        self.effects.push_back(Effect::Step(then, settled));
                    }
                    Waiter::Run { op, first, operand } => {
                        // An op that has failed by another operand is gone from its entry.
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
        settled: &HandleResult,
        todo: &mut Vec<(Id, HandleResult)>,
    ) {
        match settled {
            Ok(value) => {
                let waiting = &mut self.waiting[op];
                waiting.run.set(operand, value);
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

    /// Makes a handle of a value that came with a command.
    pub fn literal(&mut self, tensor: Tensor, origin: u32) {
        let id = self.make(origin, 1);
        self.resolved += 1;
        let value = self.value_of(tensor);
        self.settle(id, Ok(value));
    }

    /// Drops a handle for the client.
    pub fn free(&mut self, id: Id) {
        match self.handles.get_mut(&id).map(|h| &mut h.state) {
            Some(HandleState::Pending { dropped, .. }) => *dropped = true,
            _ => drop(self.handles.remove(&id)),
        }
    }

    /// Sends a handle's tensor to a peer, now or once it is there.
    pub fn give(&mut self, id: Id, peer: u32, transfer: u64) {
        let error = match self.handles.get_mut(&id).map(|h| &mut h.state) {
            Some(HandleState::Pending { waiters, .. }) => {
                self.kept += GIVE;
                return waiters.push(Waiter::Give { peer, transfer });
            }
            Some(HandleState::Ready(value)) => {
                let value = value.clone();
                let counted = self.on_its_way();
                return self.effects.push_back(Effect::Send {
                    peer,
                    transfer,
                    value,
                    counted,
                });
            }
            Some(HandleState::Failed(error)) => error.clone(),
            None => self.failure(unknown(id)),
        };
        self.effects.push_back(Effect::Abort {
            peer,
            transfer,
            error,
        });
    }

    /// Makes a handle that a step will fill.
    pub fn reserve(&mut self, origin: u32) {
        self.make(origin, 1);
    }

    /// Gives up a reserved handle, which no step fills.
    pub fn abandon(&mut self, id: Id) {
        self.free(id);
        if self.handles.contains_key(&id) {
            self.resolved += 1;
            let error = Error::new(Code::Cancelled, "the step that was to fill it failed");
            self.settle(id, Err(self.failure(error)));
        }
    }

    /// Fills a reserved handle with a step's tensor; false where the handle does not wait for one.
    pub fn fill(&mut self, id: Id, tensor: Tensor) -> bool {
        if id >= self.next {
            return self.foresee(id, HandleUse::Fill(tensor)).is_ok();
        }
        let state = self.handles.get(&id).map(|h| &h.state);
        let waits = matches!(state, Some(HandleState::Pending { .. }));
        if waits {
            self.resolved += 1;
            let (handle, shape) = (id, tensor.shape().into());
            self.report(Report::Shape { handle, shape });
            let value = self.value_of(tensor);
            self.settle(id, Ok(value));
        }
        waits
    }

    /// Lends a handle's tensor to a step, now or once it is there. A donated tensor is the step's alone, unless an op
    /// that was issued before still reads it.
    pub fn lend(&mut self, id: Id, donate: bool, then: TensorCallback) {
        let then = match id >= self.next {
            false => then,
            true => match self.foresee(id, HandleUse::Lend(donate, then)) {
                Err(HandleUse::Lend(_, then)) => then,
                _ => return,
            },
        };
        let settled = match self.handles.get_mut(&id).map(|h| &mut h.state) {
            Some(HandleState::Pending { waiters, dropped }) => {
                *dropped |= donate;
                return waiters.push(Waiter::Step(then));
            }
            Some(HandleState::Ready(value)) => Ok(value.clone()),
            Some(HandleState::Failed(failure)) => Err(failure.error.clone()),
            None => Err(Arc::new(unknown(id))),
        };
        if donate {
            self.handles.remove(&id);
        }
        self.effects.push_back(Effect::Step(then, settled));
    }

    /// A handle's tensor, if it is there, and in the host's memory.
    pub fn value(&self, id: Id) -> Option<Tensor> {
        match &self.handles.get(&id)?.state {
            HandleState::Ready(Value::Host(tensor)) => Some(tensor.clone()),
            HandleState::Ready(Value::Device(value)) => value.host(),
            _ => None,
        }
    }

    /// Whether there is anything to report to the client.
    pub fn has_reports(&self) -> bool {
        self.resolved > 0 || !self.reports.is_empty()
    }

    /// Takes the reports for the client.
    pub fn reports(&mut self) -> Vec<Report> {
        let mut reports = std::mem::take(&mut self.reports);
        self.failures = 0;
        self.kept -= std::mem::take(&mut self.reported);
        if self.resolved > 0 {
            reports.push(Report::Resolved(std::mem::take(&mut self.resolved)));
        }
        reports
    }

    /// Adds a report for the client.
    pub fn report(&mut self, report: Report) {
        if let Report::Failed { error, .. } | Report::Undelivered { error, .. } = &report {
            let bytes = failure::footprint(error);
            self.kept += bytes;
            self.reported += bytes;
        }
        self.reports.push(report);
    }

    /// Number of handles and bytes of their tensors, by the place in the client's program that issued them.
    pub fn held(&self) -> BTreeMap<u32, (u64, u64)> {
        let mut held: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for handle in self.handles.values() {
            let entry = held.entry(handle.origin).or_default();
            entry.0 += 1;
            if let HandleState::Ready(value) = &handle.state {
                entry.1 += value.byte_len() as u64;
            }
        }
        held
    }
}

fn unknown(id: Id) -> Error {
    let msg = format!("handle {id} is not there: it was dropped, or is of another session");
    Error::new(Code::NotFound, msg)
}
