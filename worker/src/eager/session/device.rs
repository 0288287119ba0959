//! Ops of a session whose worker has a device with memory of its own.
//!
//! ```text
//! ready op ──runs on the host──> its operands are copied there ──> kernel, as at any worker
//!    └──────runs on the device─> copies in, launch ──> its handles have values, at once ──┄ event ┄──> it has ended
//! ```
//! Invariants
//! 1. No call into the device's queue is made while the session is locked, since a device may call back at once.
//! 2. An op counts as resolved only once the device has ended it, so that a client that has seen all of its ops resolved has
//!    seen their errors.
//! 3. Work that is enqueued ahead of the device is bounded by its predicted time, as that of steps is.
//! 4. The gate counts the session as live from a launch until an event behind it, and while a value is copied to the host.
//! 5. The bytes of copies to the host that are under way are bounded, and a value has at most one such copy.

mod copies;
mod ends;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use convoke_common::error::{Error, Result, Site};
use convoke_common::memory::Purpose;
use convoke_graph::ops::{ConcreteOperand, ConcreteOutputs};
use convoke_graph::{DType, Shape, Tensor};
use smallvec::SmallVec;

use super::super::core::{Failure, Id, Run};
use super::super::gone;
use super::super::prepared::{CORE, PreparedOp};
use super::super::value::{DeviceValue, Value};
use super::{Session, SessionState};
use crate::compute::Crew;
use crate::cpu::{KernelFailure, Outputs, is_host};
use crate::device::{
    DeviceFailure, DeviceLaunch, DeviceOperand, DeviceQueue, DeviceStep, KernelWatch, OwnedDevice,
    Side, SideFacts, UnwatchedKernels, is_arithmetic, read_shape, side,
};
use crate::executor::{AHEAD, Engine, NO_FUNCTION};
use crate::health::wedge::Work;

/// Most predicted time of work that is enqueued ahead of the device.
const MOST_AHEAD: Duration = Duration::from_nanos(AHEAD);
/// The predicted time of enqueued work after which the device is asked to say when it has come so far. It is less than the
/// most, so that the device has work while the session learns of it.
const EVENT_AFTER: Duration = Duration::from_nanos(AHEAD / 4);

/// Most bytes of copies to the host that are under way at once, unless one has more: a device may keep as many in memory of
/// the host that nobody counts.
const COPYING: u64 = 64 << 20;

/// What a session has of its worker's device.
pub(super) struct SessionDevice {
    owned: OwnedDevice,
    /// The session's queue, opened for its first op that the device runs.
    queue: OnceLock<Arc<dyn DeviceQueue>>,
    /// Set when the session ends.
    stopped: Arc<AtomicBool>,
    /// The work of copying values to the host.
    copies: Arc<DeviceStep>,
}

impl SessionDevice {
    pub fn new(owned: OwnedDevice) -> SessionDevice {
        let stopped = Arc::<AtomicBool>::default();
        SessionDevice {
            owned,
            queue: OnceLock::new(),
            copies: Arc::new(DeviceStep::new(stopped.clone(), Arc::new(UnwatchedKernels))),
            stopped,
        }
    }

    /// Ends all work that has not begun.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Lets the device end work at once that it has not begun, after [`SessionDevice::stop`].
    pub fn recall(&self) {
        if let Some(queue) = self.queue.get() {
            queue.recall();
        }
    }

    /// Whether a kernel of the session runs, or a value is copied to the host.
    pub fn at_work(&self, work: &DeviceWork) -> bool {
        work.runs_kernel() || self.copies.at_work().is_some()
    }

    pub fn device(&self) -> &dyn crate::device::Device {
        &*self.owned.device
    }
}

/// An op that the device has.
struct LaunchedOp {
    first: Id,
    prepared: Arc<PreparedOp>,
    step: Arc<DeviceStep>,
    /// The shapes of the operands, for errors.
    shapes: SmallVec<[Option<Shape>; 4]>,
    /// The values that it makes.
    made: SmallVec<[Weak<DeviceValue>; 2]>,
    /// The values that were copied to the device for it.
    copied: SmallVec<[Weak<DeviceValue>; 2]>,
    predicted: Duration,
    /// Bytes that it counts for.
    kept: u64,
    /// Its failure, where one of its readers met it before the op was known to have ended.
    failure: Option<Arc<Failure>>,
}

/// A launch that has failed, until all launches have ended that may have read its results.
struct FailedLaunch {
    number: u64,
    failure: Arc<Failure>,
    /// One more than the number of the last launch that may depend on its results.
    until: u64,
}

/// Called with a value in the host's memory, or with the failure of the launch that should have made it.
type BroughtCallback = Box<dyn FnOnce(&Session, Result<Tensor, Arc<Failure>>) + Send>;

/// A copy of a value to the host.
pub(super) struct HostCopy {
    value: Arc<DeviceValue>,
    bytes: u64,
    /// Whether an op on the host reads the value.
    is_read: bool,
    then: SmallVec<[BroughtCallback; 1]>,
}

/// The work of a session that its worker's device has.
#[derive(Default)]
pub(super) struct DeviceWork {
    /// How many launches and copies have got a number.
    numbered: u64,
    launched: BTreeMap<u64, LaunchedOp>,
    /// The copies to the host that are under way, or wait until fewer are.
    copies: BTreeMap<u64, HostCopy>,
    /// Numbers of the copies that wait.
    waiting: VecDeque<u64>,
    /// Number of the copies that are under way, and their bytes.
    under_way: usize,
    copying: u64,
    /// Whether a thread begins those that wait, until none can begin.
    begins: bool,
    failed: Vec<FailedLaunch>,
    /// Predicted time of what is launched.
    ahead: Duration,
    /// Predicted time of what is launched and has no event behind it.
    unmarked: Option<Duration>,
}

impl DeviceWork {
    /// Whether no further op may be enqueued before some have ended.
    pub fn is_full(&self) -> bool {
        self.ahead >= MOST_AHEAD
    }

    /// Whether the device has neither an op nor a copy of the session.
    pub fn is_idle(&self) -> bool {
        self.launched.is_empty() && self.under_way == 0
    }

    /// Whether a kernel of the session runs on the device.
    pub fn runs_kernel(&self) -> bool {
        let mut all = self.launched.values();
        all.any(|op| op.step.at_work().is_some())
    }

    /// The session has ended: what its ops took is counted no more, and copies that wait are not made. Returns these, to be
    /// dropped without the session's lock.
    pub fn end(&mut self) -> Vec<HostCopy> {
        self.launched.values_mut().for_each(|op| op.kept = 0);
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let copies = waiting.filter_map(|number| self.copies.remove(&number));
        copies.collect()
    }

    /// The number of the next copy that may begin.
    fn next_copy(&mut self) -> Option<u64> {
        let next = *self.waiting.front()?;
        let bytes = self.copies.get(&next).map_or(0, |copy| copy.bytes);
        if self.copying > 0 && self.copying.saturating_add(bytes) > COPYING {
            return None;
        }
        self.copying += bytes;
        self.under_way += 1;
        self.waiting.pop_front()
    }

    fn number(&mut self) -> u64 {
        self.numbered += 1;
        self.numbered - 1
    }

    /// The number of the launch or copy that devices know as `node`: the latest one.
    fn number_of(&self, node: u32) -> Option<u64> {
        let latest = self.numbered.checked_sub(1)?;
        let number = latest - latest % NODES + u64::from(node);
        match number > latest {
            true => number.checked_sub(NODES),
            false => Some(number),
        }
    }
}

/// How many launches and copies devices can tell apart.
const NODES: u64 = u32::MAX as u64;

fn node_of(number: u64) -> u32 {
    (number % NODES) as u32
}

/// Notes the kernels of a device that runs them on compute threads, as those of the host are noted.
struct OpWatch {
    engine: Arc<Engine>,
    op: &'static str,
    origin: Option<Arc<str>>,
}

impl KernelWatch for OpWatch {
    fn around(&self, _: u32, run: &mut dyn FnMut()) {
        let place = self.origin.as_deref().unwrap_or(self.op);
        let _noted = self.engine.note(&NO_FUNCTION, place);
        self.engine.compute.launching(&NO_FUNCTION, self.op);
        run();
    }
}

impl Run {
    /// The value of an operand that is a handle's.
    fn value(&self, operand: usize) -> Option<&Arc<DeviceValue>> {
        self.values.get(operand)?.as_ref()
    }

    /// The tensor of an operand in the host's memory, if it is there.
    fn on_host(&self, operand: usize) -> Option<Tensor> {
        let given = self.inputs[operand].clone();
        given.or_else(|| self.value(operand)?.host())
    }

    /// Whether an operand is given, and not in the host's memory.
    fn is_elsewhere(&self, operand: usize) -> bool {
        self.inputs[operand].is_none() && self.value(operand).is_some_and(|v| v.host().is_none())
    }

    /// Takes these operands from the host's memory; returns those that are not there. Each is looked at once, since a copy to
    /// the device that ends meanwhile may end that of the host.
    fn take_to_host(&mut self, operands: impl Iterator<Item = usize>) -> SmallVec<[usize; 4]> {
        let mut missing = SmallVec::new();
        for operand in operands {
            self.inputs[operand] = self.on_host(operand);
            if self.inputs[operand].is_none() && self.value(operand).is_some() {
                missing.push(operand);
            }
        }
        missing
    }

    fn shape(&self, operand: usize) -> Option<&[usize]> {
        let given = self.inputs[operand].as_ref().map(Tensor::shape);
        given.or_else(|| self.value(operand).map(|v| &v.shape[..]))
    }

    /// Why an operand has no value.
    fn failure(&self) -> Option<Arc<Failure>> {
        let mut values = self.values.iter().flatten();
        values.find_map(|value| value.failure())
    }
}

impl Session {
    /// Opens the session's queue at the device, where it has none.
    pub(super) fn open_queue(&self) -> Result<()> {
        let Some(device) = self.device.as_ref().filter(|d| d.queue.get().is_none()) else {
            return Ok(());
        };
        let owned = &device.owned;
        let opened = owned
            .device
            .open(&self.share, &owned.memory, Purpose::Handles, 0);
        let _ = device
            .queue
            .set(opened.map_err(|e| self.engine.device_failed(e))?);
        Ok(())
    }

    /// Does what is next for a ready op: lets it wait for copies of its operands, launches it on the device, or runs it on
    /// the host. Returns false where the session has ended.
    pub(super) fn advance(
        &self,
        device: &SessionDevice,
        mut run: Run,
        crew: Option<&Crew>,
    ) -> bool {
        if self.ended.load(Ordering::Relaxed) {
            return false;
        }
        let prepared = run.prepared.clone();
        if let Some(failure) = run.failure() {
            let mut state = self.state();
            state
                .core
                .fail_outputs(run.first, prepared.outputs, failure);
            self.settle(state);
            return true;
        }
        let all = 0..run.inputs.len();
        let mut facts = SideFacts {
            text: prepared.has_text(),
            on_host: !all.clone().any(|i| run.is_elsewhere(i)),
            arithmetic: false,
        };
        let mut place = side(prepared.op, &facts);
        if place == Side::Device && prepared.device.is_none() {
            place = Side::Host;
        }
        if place == Side::Device {
            let hosts = all.clone().filter(|i| is_host(prepared.op, *i));
            let missing = run.take_to_host(hosts);
            if !missing.is_empty() {
                self.await_copies(device, run, &missing);
                return true;
            }
            let (predicted, sizes) = self.facts(&run);
            if let Some(sizes) = sizes {
                let mut made = sizes.iter();
                facts.arithmetic = made.all(|(dtype, shape)| is_arithmetic(*dtype, shape.len()));
                facts.text = sizes.iter().any(|(dtype, _)| *dtype == DType::Str);
                if side(prepared.op, &facts) == Side::Device {
                    self.launch_on(device, run, &sizes, predicted);
                    return true;
                }
            }
            place = Side::Host;
        }
        if place == Side::Shape {
            let made = self.shape_of(&run);
            return self.finished(&run, Some(made));
        }
        let first = run.first;
        let missing = run.take_to_host(all);
        if !missing.is_empty() {
            self.await_copies(device, run, &missing);
            return true;
        }
        run.values.clear();
        let seen = run.seen();
        let origin = self.state().origin(prepared.origin);
        let result = self.launch(run, origin, crew, &seen);
        let Some(result) = result else { return false };
        let mut state = self.state();
        state.core.finished(first, &prepared, result);
        self.settle(state);
        true
    }

    fn finished(&self, run: &Run, result: Option<Result<Outputs>>) -> bool {
        let Some(result) = result else { return false };
        let mut state = self.state();
        state.core.finished(run.first, &run.prepared, result);
        self.settle(state);
        true
    }

    /// The result of an op that reads nothing but the shape of its operand.
    fn shape_of(&self, run: &Run) -> Result<Outputs> {
        let prepared = &run.prepared;
        let shape = run.shape(0).unwrap_or(&[]);
        match read_shape(Some(prepared.op), prepared.attrs(), shape, &self.pool) {
            Ok(made) => Ok(Outputs::from(made)),
            Err(KernelFailure::Error(error)) => Err(self.located(*error, run)),
            Err(KernelFailure::Cancelled) => Err(gone()),
        }
    }

    /// Adds to an error the op that failed.
    fn located(&self, error: Error, run: &Run) -> Error {
        let shapes = (0..run.inputs.len()).map(|i| run.shape(i));
        let operands = run.prepared.signatures(shapes);
        let origin = self.state().place(run.prepared.origin);
        self.engine
            .placed(error, site(&run.prepared, origin, operands))
    }

    /// The predicted time of an op on the device, and the dtypes and shapes of its results where they are known before it runs.
    fn facts(&self, run: &Run) -> (Duration, Option<ConcreteOutputs>) {
        let prepared = &run.prepared;
        let hosts =
            (0..run.inputs.len()).map(|i| run.on_host(i).filter(|_| is_host(prepared.op, i)));
        let hosts: SmallVec<[Option<Tensor>; 4]> = hosts.collect();
        let operands = hosts.iter().enumerate().map(|(i, host)| {
            let dtype = match (&run.inputs[i], run.value(i)) {
                (Some(given), _) => given.dtype(),
                (None, Some(value)) => value.dtype,
                (None, None) => return None,
            };
            Some(ConcreteOperand {
                dtype,
                shape: run.shape(i)?,
                host: host.as_ref().filter(|t| prepared.decides(i, t)),
            })
        });
        let operands: SmallVec<[_; 8]> = operands.collect();
        let sizes = prepared.kernel.sizes(&operands);
        let speed = self.engine.device_speed.get().map_or(CORE, |speed| {
            (speed.flops / 1e9, speed.memory_bandwidth / 1e9)
        });
        (prepared.predicted(&operands, speed), sizes)
    }

    /// Enqueues an op, and hands its results on.
    fn launch_on(
        &self,
        device: &SessionDevice,
        mut run: Run,
        sizes: &ConcreteOutputs,
        predicted: Duration,
    ) {
        let prepared = run.prepared.clone();
        let (Some(kernel), Some(queue)) = (&prepared.device, device.queue.get()) else {
            let error = Error::internal("an op of a device without its queue");
            self.finished(&run, Some(Err(self.located(error, &run))));
            return;
        };
        if let Some(refusal) = self.engine.gate.refusal() {
            self.finished(&run, Some(Err(self.engine.refused(refusal))));
            return;
        }
        let mut state = self.state();
        // Looked at under the lock under which values fail: what a later number reads has not failed.
        if let Some(failure) = run.failure() {
            state
                .core
                .fail_outputs(run.first, prepared.outputs, failure);
            return self.settle(state);
        }
        if state.work.launched.is_empty() {
            self.engine.gate.started();
        }
        let (number, first) = (state.work.number(), run.first);
        let node = node_of(number);
        let watch = OpWatch {
            engine: self.engine.clone(),
            op: prepared.op.name,
            origin: state.origin(prepared.origin),
        };
        let step = Arc::new(DeviceStep::new(device.stopped.clone(), Arc::new(watch)));
        let shapes = (0..run.inputs.len()).map(|i| run.shape(i).map(Shape::from));
        let predicted = predicted.min(MOST_AHEAD);
        let kept = match self.ended.load(Ordering::Relaxed) {
            true => 0,
            false => run.kept(),
        };
        state.core.keep(kept);
        state.work.ahead += predicted;
        *state.work.unmarked.get_or_insert_default() += predicted;
        let launched = LaunchedOp {
            first,
            prepared: prepared.clone(),
            step: step.clone(),
            shapes: shapes.collect(),
            made: SmallVec::new(),
            copied: SmallVec::new(),
            predicted,
            kept,
            failure: None,
        };
        state.work.launched.insert(number, launched);
        drop(state);

        let mut copied = SmallVec::new();
        let count = run.inputs.len();
        let operands = (0..count).map(|i| {
            if is_host(prepared.op, i) {
                let given = run.inputs[i].take();
                return given.map_or(DeviceOperand::Nothing, DeviceOperand::Host);
            }
            let copy = |tensor: Tensor| queue.copy_in(&step, node, tensor);
            let value = run.values.get_mut(i).and_then(Option::take);
            let tensor = match value.map(Arc::try_unwrap) {
                None => run.inputs[i].take().map(copy),
                Some(Ok(own)) => {
                    let host = own.host();
                    own.into_device().or_else(|| host.map(copy))
                }
                Some(Err(shared)) => shared.device().or_else(|| {
                    let there = copy(shared.host()?);
                    shared.copies_in(there.clone());
                    copied.push(Arc::downgrade(&shared));
                    Some(there)
                }),
            };
            tensor.map_or(DeviceOperand::Nothing, DeviceOperand::Device)
        });
        let operands = operands.collect();
        let made = queue.launch(DeviceLaunch {
            kernel,
            step: &step,
            node,
            operands,
            outputs: sizes,
        });
        let made = made.into_iter().map(DeviceValue::of_device).map(Arc::new);
        let made: SmallVec<[Arc<DeviceValue>; 2]> = made.collect();
        let mut state = self.state();
        if let Some(launched) = state.work.launched.get_mut(&number) {
            launched.made = made.iter().map(Arc::downgrade).collect();
            launched.copied = copied;
        }
        state.core.launched(first, &prepared, &made);
        let marks = state.work.unmarked.is_some_and(|time| time >= EVENT_AFTER);
        self.settle(state);
        // Values whose handles were dropped before are freed here, without the lock.
        drop(made);
        if marks {
            self.mark(device);
        }
    }

    /// Asks to be called back once the device has ended what was launched so far, unless that was asked for.
    pub(super) fn mark(&self, device: &SessionDevice) {
        let mut state = self.state();
        let (Some(_), Some(queue)) = (state.work.unmarked.take(), device.queue.get()) else {
            return;
        };
        let until = state.work.numbered;
        drop(state);
        // The session stays until its launches have ended: the gate counts them.
        if let Some(me) = self.me.upgrade() {
            queue.event(Box::new(move || me.device_came(until)));
        }
    }
}

fn site(prepared: &PreparedOp, origin: Option<String>, operands: Vec<String>) -> Site {
    Site {
        op: Some(prepared.op.name.to_owned()),
        origin,
        operands,
        ..Site::default()
    }
}
