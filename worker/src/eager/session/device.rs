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
mod operands;
mod work;

pub(super) use self::work::{DeviceWork, SessionDevice};

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use convoke_common::error::{Error, Result, Site};
use convoke_common::memory::Purpose;
use convoke_graph::ops::{ConcreteOperand, ConcreteOutputs};
use convoke_graph::{DType, Shape, Tensor};
use smallvec::SmallVec;

use self::work::{LaunchedOp, MOST_AHEAD, node_of};
use super::{Session, gone};
use crate::compute::Crew;
use crate::cpu::{KernelFailure, Outputs, is_host};
use crate::device::{
    AHEAD, DeviceLaunch, DeviceOperand, DeviceStep, KernelWatch, Side, SideFacts, is_arithmetic,
    read_shape, side,
};
use crate::eager::core::Run;
use crate::eager::prepared::{CORE, PreparedOp};
use crate::eager::value::DeviceValue;
use crate::executor::{Engine, NO_FUNCTION};

/// The predicted time of enqueued work after which the device is asked to say when it has come so far. It is less than the
/// most, so that the device has work while the session learns of it.
const EVENT_AFTER: Duration = Duration::from_nanos(AHEAD / 4);

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
