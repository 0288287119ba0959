//! Instructions that concern the worker's device: launches and copies in are enqueued, copies out arrive later.
//!
//! The runner enqueues what its sequences say without waiting for the device. It stops where the work ahead of it is
//! predicted to take [`AHEAD`](crate::device::AHEAD), because enqueued work may be past recall, and goes on once the
//! device has come so far. A step quiesces only after an event behind all that it enqueued.

use std::sync::Arc;

use convoke_common::error::{Code, Error};
use convoke_graph::Tensor;
use convoke_graph::ops::{ConcreteOperand, ConcreteOutputs, lookup};
use smallvec::SmallVec;

use super::partial::is_of_node;
use super::run::{Flow, FollowUp, Phase, Runner};
use super::{Engine, Executor};
use crate::cpu::{KernelFailure, OperandPlace, Outputs};
use crate::device::{
    DeviceFailure, DeviceLaunch, DeviceOperand, DeviceQueue, DeviceStep, DeviceTensor, KernelWatch,
    read_shape,
};
use crate::program::code::DeviceInstr;
use crate::program::installed::{InstalledProgram, declared, site};

/// The results of an instruction that concerns the device.
pub(super) enum InstrResults {
    /// Tensors on the device, or to come there.
    OnDevice(SmallVec<[DeviceTensor; 2]>),
    /// Tensors of the host.
    OnHost(Outputs),
}

/// Notes the kernels of a device that runs them on compute threads, as those of the host are noted.
struct Notes {
    engine: Arc<Engine>,
    installed: Arc<InstalledProgram>,
}

impl KernelWatch for Notes {
    fn around(&self, node: u32, run: &mut dyn FnMut()) {
        let Some(node) = self.installed.nodes().get(node as usize) else {
            return run();
        };
        let function = &self.installed.program.function;
        let _noted = self.engine.note(function, &node.name);
        if self.engine.hears_launches {
            self.engine.compute.launching(function, &node.name);
        }
        run();
    }
}

impl Executor {
    /// Gives the executor the lease's queue at the worker's device.
    pub fn use_device(&self, queue: Arc<dyn DeviceQueue>) {
        let _ = self.queue.set(queue);
    }

    /// The lease's queue at the worker's device, where the program uses one.
    pub fn queue(&self) -> Option<&Arc<dyn DeviceQueue>> {
        self.queue.get()
    }

    /// A step's work on the device, for a program that uses one.
    pub(super) fn device_step(
        &self,
        cancel: &Arc<std::sync::atomic::AtomicBool>,
    ) -> Option<Arc<DeviceStep>> {
        self.installed.code.uses_device().then(|| {
            let watch = Notes {
                engine: self.engine.clone(),
                installed: self.installed.clone(),
            };
            Arc::new(DeviceStep::new(cancel.clone(), Arc::new(watch)))
        })
    }

    /// Runs one instruction that concerns the device.
    pub(super) fn enqueue(
        &self,
        n: u64,
        i: u32,
        instr: DeviceInstr,
        flow: &mut Flow,
        step: Option<&Arc<DeviceStep>>,
    ) -> Result<InstrResults, Option<Box<Error>>> {
        let enqueued = match (self.queue.get(), step) {
            (Some(queue), Some(step)) => self.enqueued(n, i, instr, flow, &**queue, step),
            _ => Err(Error::internal("a device instruction without a device").into()),
        };
        enqueued.map_err(|failure| match failure {
            KernelFailure::Cancelled => None,
            KernelFailure::Error(error) => {
                Some(Box::new(self.failed(n, i, &flow.registers, *error)))
            }
        })
    }

    fn enqueued(
        &self,
        n: u64,
        i: u32,
        instr: DeviceInstr,
        flow: &mut Flow,
        queue: &dyn DeviceQueue,
        step: &Arc<DeviceStep>,
    ) -> Result<InstrResults, KernelFailure> {
        let code = &self.installed.code;
        let node = code.instr(i).node;
        let only = code.operands(i).first().map(|slot| slot.place());
        match instr {
            DeviceInstr::Launch(at) => {
                let host = &code.device[at as usize].host;
                let found;
                let outputs = match code.sizes(i) {
                    Some(sizes) => sizes,
                    None => {
                        found = self.sizes(i, flow)?;
                        &found
                    }
                };
                let operands = code.operands(i).iter().enumerate();
                let operands = operands.map(|(o, slot)| {
                    let on_host = host.get(o).copied().unwrap_or(false);
                    self.operand(slot.place(), on_host, flow)
                });
                let operands = operands.collect::<Result<_, Error>>()?;
                flow.enqueued(self.installed.nodes()[node as usize].cost);
                Ok(InstrResults::OnDevice(queue.launch(DeviceLaunch {
                    kernel: &code.device[at as usize].kernel,
                    step,
                    node,
                    operands,
                    outputs,
                })))
            }
            DeviceInstr::CopyIn => {
                let tensor = only.and_then(|place| self.on_host(place, flow).cloned());
                let tensor = tensor.ok_or_else(missing)?;
                flow.enqueued(0);
                let copy = queue.copy_in(step, node, tensor);
                Ok(InstrResults::OnDevice(SmallVec::from_iter([copy])))
            }
            DeviceInstr::CopyOut => {
                let tensor = only.and_then(|place| self.on_device(place, flow).cloned());
                let tensor = tensor.ok_or_else(missing)?;
                flow.enqueued(0);
                // The callback does not keep the lease: the event that the step waits for does.
                let me = self.me.clone();
                let then = Box::new(move |copied| {
                    if let Some(me) = me.upgrade() {
                        me.copied(n, node, copied);
                    }
                });
                queue.copy_out(step, node, tensor, &self.pool, then);
                Ok(InstrResults::OnHost(Outputs::new()))
            }
            DeviceInstr::Shape => {
                let tensor = only.and_then(|place| self.on_device(place, flow));
                let shape = &tensor.ok_or_else(missing)?.shape;
                let node = &self.installed.nodes()[node as usize];
                let made = read_shape(lookup(&node.op), &node.attrs, shape, &self.pool)?;
                Ok(InstrResults::OnHost(Outputs::from(made)))
            }
        }
    }

    fn on_host<'f>(&'f self, place: OperandPlace, flow: &'f Flow) -> Option<&'f Tensor> {
        match place {
            OperandPlace::Nothing => None,
            OperandPlace::Constant(c) => self.installed.code.constants.get(c as usize),
            OperandPlace::Read(r) | OperandPlace::Last(r) => {
                flow.registers.get(r as usize)?.as_ref()
            }
        }
    }

    fn on_device<'f>(&'f self, place: OperandPlace, flow: &'f Flow) -> Option<&'f DeviceTensor> {
        match place {
            OperandPlace::Nothing => None,
            OperandPlace::Constant(c) => self.installed.device_constants.get(c as usize)?.as_ref(),
            OperandPlace::Read(r) | OperandPlace::Last(r) => flow.device.get(r as usize)?.as_ref(),
        }
    }

    fn operand(
        &self,
        place: OperandPlace,
        host: bool,
        flow: &mut Flow,
    ) -> Result<DeviceOperand, Error> {
        Ok(match (place, host) {
            (OperandPlace::Nothing, _) => DeviceOperand::Nothing,
            (place, true) => {
                let tensor = self.on_host(place, flow).cloned();
                DeviceOperand::Host(tensor.ok_or_else(missing)?)
            }
            (OperandPlace::Last(r), false) => {
                let register = flow.device.get_mut(r as usize);
                let tensor = register.and_then(Option::take);
                DeviceOperand::Device(tensor.ok_or_else(missing)?)
            }
            (place, false) => {
                let tensor = self.on_device(place, flow).cloned();
                DeviceOperand::Device(tensor.ok_or_else(missing)?)
            }
        })
    }

    /// The sizes of a launch's results, from the shapes of its operands.
    fn sizes(&self, i: u32, flow: &Flow) -> Result<ConcreteOutputs, KernelFailure> {
        let code = &self.installed.code;
        let operands = code.operands(i).iter().map(|slot| {
            let place = slot.place();
            let host = self.on_host(place, flow).map(|t| ConcreteOperand {
                dtype: t.dtype(),
                shape: t.shape(),
                host: Some(t),
            });
            let device = self.on_device(place, flow);
            host.or_else(|| {
                device.map(|t| ConcreteOperand {
                    dtype: t.dtype,
                    shape: &t.shape,
                    host: None,
                })
            })
        });
        let operands: SmallVec<[Option<ConcreteOperand<'_>>; 8]> = operands.collect();
        code.kernel(i).infer(&operands)
    }

    /// A copy from the device has come, or will not come.
    fn copied(&self, n: u64, node: u32, copied: Result<Tensor, Arc<DeviceFailure>>) {
        let value = self.installed.nodes()[node as usize]
            .outputs
            .first()
            .copied();
        let delivered = match copied {
            Ok(tensor) => Ok(tensor),
            Err(failure) => match self.device_error(&failure) {
                Some(error) => Err(error),
                // The step was cancelled.
                None => return,
            },
        };
        let partial = self.run(n).partial;
        let delivered = match delivered {
            Err(error) if !partial || !is_of_node(&error) => return self.fail(n, error),
            Err(error) => {
                self.note_first_failure(n, &error);
                Err(Arc::new(error))
            }
            Ok(tensor) => Ok(tensor),
        };
        let mut after = FollowUp::default();
        {
            let mut run = self.run(n);
            if run.n != n || run.phase != Phase::Running || run.error.is_some() {
                return;
            }
            if run.came(&self.installed, value, delivered, &mut after) {
                self.stir(n);
            }
            run.settle(&mut after);
        }
        self.finish(n, after);
    }

    /// The error of a failed launch or copy; `None` where it was cancelled.
    fn device_error(&self, failure: &DeviceFailure) -> Option<Error> {
        let error = self.engine.device_failed(failure.error.clone()?);
        let Some(node) = self.installed.nodes().get(failure.node as usize) else {
            return Some(error.at(self.place()));
        };
        let operands = declared(&self.installed.program, node);
        Some(self.engine.placed(error, site(node, operands)))
    }

    /// Asks to be called back once the device has come as far as this step has enqueued work. The step counts the event.
    pub(super) fn await_device(&self, n: u64) {
        let (Some(queue), Some(me), Some(lease)) =
            (self.queue.get(), self.me.upgrade(), self.lease())
        else {
            return self.device_came(n);
        };
        queue.event(Box::new(move || {
            let _lease = lease;
            me.device_came(n);
        }));
    }

    /// Lets enqueued work of cancelled steps end without its turn. Called without the step's lock.
    pub(super) fn recall(&self) {
        if let Some(queue) = self.queue.get() {
            queue.recall();
        }
    }

    /// The device has come as far as step `n` had enqueued work.
    fn device_came(&self, n: u64) {
        let failure = {
            let run = self.run(n);
            let failure = run.device.as_ref().and_then(|step| step.failure());
            failure
                .filter(|_| !run.partial && run.error.is_none())
                .cloned()
        };
        if let Some(error) = failure.and_then(|failure| self.device_error(&failure)) {
            self.fail(n, error);
        }
        let mut after = FollowUp::default();
        {
            let mut run = self.run(n);
            run.events -= 1;
            if run.runner == Runner::Ahead {
                run.runner = Runner::None;
                run.wake(&mut after);
            }
            run.settle(&mut after);
        }
        self.finish(n, after);
    }
}

fn missing() -> Error {
    Error::new(
        Code::Internal,
        "an operand of a device instruction is missing",
    )
}
