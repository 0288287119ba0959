//! A queue of the device: three streams, and a thread that calls back.
//!
//! ```text
//! inward    memory, copy in           ┄┄ event ┄┐
//! compute   memory, launch, launch, ...         └> waits before the next launch ┄┄ event ┄┐
//! outward   copy out                                                                      └> waits before the copy
//! thread    events in the order of the queue ──> callbacks
//! ```
//! Invariants
//! 1. A launch is enqueued behind every copy to the device and every launch of the queue that came before it; a copy to the
//!    host behind every launch. A tensor of another queue is read once an event of that queue has come.
//! 2. Memory is freed on a stream that is ordered behind all users of the memory (`memory`).
//! 3. Callbacks are called by the thread alone, in order, and never under the queue's lock.
//! 4. A call that the driver refuses fails at once. A failure on the GPU is found at the next event; the error names
//!    the nodes that were launched since the last one. A lost context fails everything from then on.
//! 5. A result fails where a launch that it depends on was refused or met elements that it cannot use, or where the GPU is
//!    lost; another failure of its step leaves it as it is.
//! 6. Pinned memory is used again only once an event behind its last use has come. A GPU that records no event is lost, and
//!    the pinned memory of a lost GPU is never used again.

mod completion;
mod faults;
mod memory;
pub(crate) mod staging;

use std::sync::atomic::Ordering;
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::error::{Code, Error, Result};
use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_graph::{DType, Shape, Tensor};
use convoke_worker::device::{
    CopiedCallback, DeviceFailure, DeviceLaunch, DeviceOperand, DeviceQueue, DeviceStep,
    DeviceTensor, EventCallback, LaunchResults,
};
use smallvec::SmallVec;

use self::completion::{Behind, Completion, Copy, Region, Then};
use self::faults::{CheckedLaunch, Fate, FaultWord, Faults, failed};
use self::memory::{Allowance, Buffer, Lanes, Memory};
use self::staging::StagingBlock;
use crate::driver::{DriverResult, EventId, FunctionId, StreamId};
use crate::gpu::{CudaKernel, Gpu};
use crate::kernels::{Call, LaunchSignature, OperandView, Place, Work};

type QueueResult<T> = std::result::Result<T, Arc<DeviceFailure>>;

/// State that is locked while anything is enqueued, so that streams and completions have one order.
struct State {
    completions: Sender<Completion>,
    /// Launches since the last event.
    behind: Behind,
}

/// A queue.
pub(crate) struct CudaQueue {
    gpu: Arc<Gpu>,
    lanes: Arc<Lanes>,
    allowance: Arc<Allowance>,
    faults: Arc<Faults>,
    state: Mutex<State>,
}

/// The operands of a launch: those in device memory with their buffers, which are held until the launch is enqueued.
struct Operands {
    given: SmallVec<[LaunchOperand; 4]>,
}

enum LaunchOperand {
    Nothing,
    Host(Tensor),
    Device(DType, Shape, Arc<Buffer>),
}

impl Operands {
    /// Fails where an operand is another device's, or was not made.
    fn of(node: u32, operands: SmallVec<[DeviceOperand; 4]>) -> QueueResult<Operands> {
        let given = operands.into_iter().map(|operand| {
            Ok(match operand {
                DeviceOperand::Nothing => LaunchOperand::Nothing,
                DeviceOperand::Host(tensor) => LaunchOperand::Host(tensor),
                DeviceOperand::Device(tensor) => {
                    let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
                    LaunchOperand::Device(dtype, shape, buffer_of(node, tensor)?)
                }
            })
        });
        Ok(Operands {
            given: given.collect::<QueueResult<_>>()?,
        })
    }

    fn planned(&self) -> SmallVec<[OperandView<'_>; 4]> {
        let each = self.given.iter().map(|operand| match operand {
            LaunchOperand::Nothing => OperandView::Nothing,
            LaunchOperand::Host(tensor) => OperandView::Host(tensor),
            LaunchOperand::Device(dtype, shape, _) => OperandView::Device(*dtype, shape),
        });
        each.collect()
    }

    /// The fates of the operands that are not known to be good.
    fn fates(&self) -> SmallVec<[Arc<Fate>; 2]> {
        let buffers = self.given.iter().filter_map(|operand| match operand {
            LaunchOperand::Device(_, _, buffer) => Some(buffer),
            LaunchOperand::Nothing | LaunchOperand::Host(_) => None,
        });
        let fates = buffers.filter_map(|buffer| match &**buffer {
            Buffer::Memory(memory) => memory.fate.clone(),
            Buffer::Failed(_) => None,
        });
        fates.filter(|fate| !fate.is_good()).collect()
    }

    /// The memory of operand `i`, which a plan names only where it is in device memory.
    fn memory(&self, i: usize) -> Option<(DType, &Memory)> {
        match self.given.get(i) {
            Some(LaunchOperand::Device(dtype, _, buffer)) => match &**buffer {
                Buffer::Memory(memory) => Some((*dtype, memory)),
                Buffer::Failed(_) => None,
            },
            _ => None,
        }
    }
}

/// The buffer of a tensor that `node` reads. Fails where another device made it, or where nothing did.
fn buffer_of(node: u32, tensor: DeviceTensor) -> QueueResult<Arc<Buffer>> {
    let buffer: Arc<Buffer> = tensor.buffer.downcast().map_err(|_| {
        let error = Error::internal("cuda: an operand is another device's");
        failed(node, Some(error))
    })?;
    match &*buffer {
        Buffer::Failed(failure) => Err(failure.clone()),
        Buffer::Memory(_) => Ok(buffer),
    }
}

/// The address of a place in a tensor's memory.
fn address(base: u64, dtype: DType, place: Place) -> u64 {
    let size = Tensor::size_of(dtype, &[1]).unwrap_or(0) as u64;
    base.wrapping_add((place.elements as u64).wrapping_mul(size))
}

fn tensor(dtype: DType, shape: Shape, buffer: Arc<Buffer>) -> DeviceTensor {
    DeviceTensor {
        dtype,
        shape,
        buffer,
    }
}

impl Drop for CudaQueue {
    fn drop(&mut self) {
        self.lanes.close();
    }
}

impl CudaQueue {
    /// Opens a queue that reserves `bytes` of device memory.
    pub fn open(gpu: Arc<Gpu>, ledger: &Ledger, purpose: Purpose, bytes: u64) -> Result<CudaQueue> {
        let allowance = Arc::new(Allowance::new(ledger, purpose, bytes)?);
        let lanes = Arc::new(Lanes::new(gpu.clone()).map_err(|e| gpu.error(&e))?);
        let (sender, completions) = channel();
        let of_thread = (gpu.clone(), lanes.clone());
        let thread = std::thread::Builder::new().name("cuda-events".into());
        #[expect(
            clippy::disallowed_methods,
            reason = "the thread sleeps in the driver; it ends with the queue's last work"
        )]
        thread
            .spawn(move || completion::run(&of_thread.0, of_thread.1, &completions))
            .map_err(|e| Error::new(Code::Io, format!("no thread for a queue of the GPU: {e}")))?;
        Ok(CudaQueue {
            gpu,
            lanes,
            allowance,
            faults: Arc::default(),
            state: Mutex::new(State {
                completions: sender,
                behind: Behind::default(),
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The failure of a call that the driver refused.
    fn refused<T>(&self, node: u32, result: DriverResult<T>) -> QueueResult<T> {
        result.map_err(|e| failed(node, Some(self.gpu.error(&e))))
    }

    /// Fails where the step is cancelled or the GPU is lost.
    fn begins(&self, step: &DeviceStep, node: u32) -> QueueResult<()> {
        if let Some(lost) = self.gpu.lost() {
            return Err(failed(node, Some(lost.clone())));
        }
        match step.is_cancelled() {
            true => Err(failed(node, None)),
            false => Ok(()),
        }
    }

    fn allocate(
        &self,
        node: u32,
        stream: StreamId,
        dtype: DType,
        shape: &[usize],
    ) -> QueueResult<Memory> {
        let bytes = Tensor::size_of(dtype, shape)
            .map_err(|e| failed(node, Some(Error::internal(e.to_string()))))?;
        let charge = self.allowance.charge(bytes as u64);
        let charge = charge.map_err(|e| failed(node, Some(e)))?;
        self.refused(node, Memory::allocate(&self.lanes, stream, bytes, charge))
    }

    /// Hands a completion to the thread, in the order of the queue.
    fn complete(&self, state: MutexGuard<'_, State>, completion: Completion) {
        let handed = state.completions.send(completion);
        drop(state);
        if let Err(SendError(completion)) = handed {
            self.gpu.lose("the thread of its queue has ended");
            completion.complete(&self.gpu);
        }
    }

    fn copied_in(&self, step: &DeviceStep, node: u32, tensor: &Tensor) -> QueueResult<Memory> {
        self.begins(step, node)?;
        let bytes = tensor.bytes();
        let mut block = self.refused(node, self.gpu.staging.block(bytes.len()))?;
        block.contents(bytes.len()).copy_from_slice(bytes);
        let state = self.lock();
        let driver = &self.gpu.driver;
        let mut memory = self.allocate(node, self.lanes.inward, tensor.dtype(), tensor.shape())?;
        if !bytes.is_empty() {
            // SAFETY: both sides have as many bytes; the block is held until the event behind the copy has come, and the
            // memory is freed behind it.
            let copied = unsafe {
                driver.copy_in(
                    self.lanes.inward,
                    memory.address,
                    block.address(),
                    bytes.len(),
                )
            };
            self.refused(node, copied)?;
        }
        let event = self.gpu.record(self.lanes.inward);
        let ordered = match &event {
            Ok(event) => driver.order(self.lanes.compute, *event),
            Err(e) => Err(e.clone()),
        };
        let completion = Completion {
            event: event.ok(),
            behind: Behind::default(),
            then: Then::Release(block),
        };
        self.complete(state, completion);
        self.refused(node, ordered)?;
        memory.ordered();
        Ok(memory)
    }

    fn launched(&self, launch: DeviceLaunch<'_>) -> QueueResult<LaunchResults> {
        let node = launch.node;
        self.begins(launch.step, node)?;
        let kernel: &CudaKernel = launch.kernel.downcast_ref().ok_or_else(|| {
            failed(
                node,
                Some(Error::internal("cuda: a kernel of another device")),
            )
        })?;
        let operands = Operands::of(node, launch.operands)?;
        let work = kernel.template.plan(&LaunchSignature {
            operands: &operands.planned(),
            outputs: launch.outputs,
        });
        let calls = match work.map_err(|e| failed(node, Some(e)))? {
            Work::Share => {
                let mut state = self.lock();
                let reads = operands.fates();
                state.behind.checks(launch.step, SmallVec::new(), reads);
                drop(state);
                return self.shared(node, &operands, launch.outputs);
            }
            Work::Calls(calls) => calls,
        };
        let functions = match &kernel.functions {
            Some(functions) => self.refused(node, functions.clone())?,
            None => {
                return Err(failed(
                    node,
                    Some(Error::internal("cuda: a kernel without a function")),
                ));
            }
        };
        let mut words: SmallVec<[FaultWord; 1]> = SmallVec::new();
        let mut word_of: SmallVec<[Option<u64>; 2]> = SmallVec::new();
        for call in &calls {
            let word = self.fault_word(call, node)?;
            word_of.push(word.as_ref().map(FaultWord::address));
            words.extend(word);
        }
        let mut state = self.lock();
        let fate = state.behind.checks(launch.step, words, operands.fates());
        let mut made: SmallVec<[Memory; 2]> = SmallVec::new();
        for (dtype, shape) in launch.outputs {
            let mut memory = self.allocate(node, self.lanes.compute, *dtype, shape)?;
            memory.fate.clone_from(&fate);
            made.push(memory);
        }
        let types: SmallVec<[DType; 2]> = launch.outputs.iter().map(|(dtype, _)| *dtype).collect();
        state.behind.note(launch.step, node);
        for (call, word) in calls.into_iter().zip(word_of) {
            self.call(node, &functions, call, &operands, (&types, &made), word)?;
        }
        drop(state);
        let results = made
            .into_iter()
            .zip(launch.outputs)
            .map(|(memory, (dtype, shape))| {
                tensor(*dtype, shape.clone(), Arc::new(Buffer::Memory(memory)))
            });
        Ok(results.collect())
    }

    /// The result that is operand 0 under another shape.
    fn shared(
        &self,
        node: u32,
        operands: &Operands,
        outputs: &convoke_graph::ops::ConcreteOutputs,
    ) -> QueueResult<LaunchResults> {
        match (operands.given.first(), outputs.first()) {
            (Some(LaunchOperand::Device(_, _, buffer)), Some((dtype, shape))) => {
                Ok([tensor(*dtype, shape.clone(), buffer.clone())]
                    .into_iter()
                    .collect())
            }
            _ => Err(failed(
                node,
                Some(Error::internal("cuda: a view of nothing")),
            )),
        }
    }

    fn fault_word(&self, call: &Call, node: u32) -> QueueResult<Option<FaultWord>> {
        if !call.faults {
            return Ok(None);
        }
        let word = self.faults.take(&self.gpu.staging, node);
        self.refused(node, word).map(Some)
    }

    /// Enqueues a call, with the addresses of its operands and result.
    fn call(
        &self,
        node: u32,
        functions: &[FunctionId],
        call: Call,
        operands: &Operands,
        (types, made): (&[DType], &[Memory]),
        word: Option<u64>,
    ) -> QueueResult<()> {
        let mut arguments = call.arguments;
        for (input, place) in arguments.inputs.iter_mut().zip(call.inputs) {
            let Some(place) = place else { continue };
            let (dtype, memory) = operands.memory(place.tensor).ok_or_else(|| {
                failed(
                    node,
                    Some(Error::internal("cuda: a plan reads what is not there")),
                )
            })?;
            memory.read_by(&self.lanes);
            *input = address(memory.address, dtype, place);
        }
        let function = *functions.get(call.function).ok_or_else(|| {
            failed(
                node,
                Some(Error::internal("cuda: a plan calls what is not there")),
            )
        })?;
        let out = call.output;
        let (dtype, memory) = types
            .get(out.tensor)
            .zip(made.get(out.tensor))
            .ok_or_else(|| {
                failed(
                    node,
                    Some(Error::internal("cuda: a plan writes what is not there")),
                )
            })?;
        arguments.output = address(memory.address, *dtype, out);
        arguments.fault = word.unwrap_or(0);
        // SAFETY: the function is of the source that the plan belongs to; operands and results are memory of the types and
        // shapes that were planned for, and are freed behind this launch.
        let launched = unsafe {
            self.gpu
                .driver
                .launch(self.lanes.compute, function, call.blocks, &arguments)
        };
        self.refused(node, launched)
    }

    /// The buffer of a tensor that is copied out, and pinned memory for it.
    fn block_for(
        &self,
        step: &DeviceStep,
        node: u32,
        tensor: DeviceTensor,
    ) -> QueueResult<(Arc<Buffer>, usize, StagingBlock)> {
        self.begins(step, node)?;
        let bytes = Tensor::size_of(tensor.dtype, &tensor.shape)
            .map_err(|e| failed(node, Some(Error::internal(e.to_string()))))?;
        let buffer = buffer_of(node, tensor)?;
        let block = self.refused(node, self.gpu.staging.block(bytes))?;
        Ok((buffer, bytes, block))
    }

    /// Enqueues the copy of a buffer into pinned memory; returns the event behind the copy.
    fn staged(
        &self,
        node: u32,
        buffer: &Buffer,
        bytes: usize,
        block: &StagingBlock,
    ) -> QueueResult<EventId> {
        let (driver, lanes) = (&self.gpu.driver, &self.lanes);
        self.refused(node, lanes.order(lanes.compute, lanes.outward))?;
        if let (Buffer::Memory(memory), true) = (buffer, bytes > 0) {
            memory.read_by(lanes);
            memory.copied_out.store(true, Ordering::Relaxed);
            // SAFETY: both sides have as many bytes; the block is held until the event behind the copy has come, and the
            // memory is freed behind it.
            let copied =
                unsafe { driver.copy_out(lanes.outward, block.address(), memory.address, bytes) };
            self.refused(node, copied)?;
        }
        self.refused(node, self.gpu.record(lanes.outward))
    }
}

impl Behind {
    /// Notes a launch with these words, which reads what launches with these fates made. Returns its own fate, if it has one.
    fn checks(
        &mut self,
        step: &Arc<DeviceStep>,
        words: SmallVec<[FaultWord; 1]>,
        reads: SmallVec<[Arc<Fate>; 2]>,
    ) -> Option<Arc<Fate>> {
        if words.is_empty() && reads.is_empty() {
            return None;
        }
        let fate = Arc::<Fate>::default();
        self.checked.push(CheckedLaunch {
            step: step.clone(),
            words,
            reads,
            fate: fate.clone(),
        });
        Some(fate)
    }

    /// Notes a launch.
    fn note(&mut self, step: &Arc<DeviceStep>, node: u32) {
        let known = self.regions.iter_mut().find(|r| Arc::ptr_eq(&r.step, step));
        match known {
            Some(region) => region.last = node,
            None => self.regions.push(Region {
                step: step.clone(),
                first: node,
                last: node,
            }),
        }
    }
}

/// Notes a failure in the step, and returns a tensor that carries it.
fn carrying(
    step: &DeviceStep,
    failure: &Arc<DeviceFailure>,
    dtype: DType,
    shape: Shape,
) -> DeviceTensor {
    step.fail(failure);
    tensor(dtype, shape, Arc::new(Buffer::Failed(failure.clone())))
}

impl DeviceQueue for CudaQueue {
    fn copy_in(&self, step: &Arc<DeviceStep>, node: u32, given: Tensor) -> DeviceTensor {
        let (dtype, shape) = (given.dtype(), Shape::from_slice(given.shape()));
        match self.copied_in(step, node, &given) {
            Ok(memory) => tensor(dtype, shape, Arc::new(Buffer::Memory(memory))),
            Err(failure) => carrying(step, &failure, dtype, shape),
        }
    }

    fn launch(&self, launch: DeviceLaunch<'_>) -> LaunchResults {
        let (step, outputs) = (launch.step, launch.outputs);
        match self.launched(launch) {
            Ok(results) => results,
            Err(failure) => {
                let each = outputs.iter();
                each.map(|(dtype, shape)| carrying(step, &failure, *dtype, shape.clone()))
                    .collect()
            }
        }
    }

    fn copy_out(
        &self,
        step: &Arc<DeviceStep>,
        node: u32,
        tensor: DeviceTensor,
        pool: &Pool,
        then: CopiedCallback,
    ) {
        let mut copy = Box::new(Copy {
            step: step.clone(),
            node,
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            pool: pool.clone(),
            then,
            fate: None,
            staged: Err(failed(node, None)),
        });
        let found = self.block_for(step, node, tensor);
        if let Ok((buffer, ..)) = &found
            && let Buffer::Memory(memory) = &**buffer
        {
            copy.fate.clone_from(&memory.fate);
        }
        let mut state = self.lock();
        let mut event = None;
        copy.staged = found.and_then(|(buffer, bytes, block)| {
            match self.staged(node, &buffer, bytes, &block) {
                Ok(recorded) => event = Some(recorded),
                Err(failure) => {
                    // A copy that is enqueued without an event may never be known to have ended.
                    if self.gpu.lost().is_some() {
                        std::mem::forget(block);
                    }
                    return Err(failure);
                }
            }
            Ok(block)
        });
        // Without an event nothing is known about the launches so far, and the next one answers for them.
        let behind = match event {
            Some(_) => std::mem::take(&mut state.behind),
            None => Behind::default(),
        };
        let then = Then::Copied(copy);
        self.complete(
            state,
            Completion {
                event,
                behind,
                then,
            },
        );
    }

    fn event(&self, then: EventCallback) {
        let mut state = self.lock();
        let event = self.gpu.record(self.lanes.compute).ok();
        let behind = std::mem::take(&mut state.behind);
        let then = Then::Call(then);
        self.complete(
            state,
            Completion {
                event,
                behind,
                then,
            },
        );
    }
}
