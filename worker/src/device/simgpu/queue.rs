//! A queue of the simulated GPU: two streams, whose tasks are compute jobs.
//!
//! ```text
//! compute   copy in, launch, launch, ...     in order; each task a job; a result is written when its task has run
//! copy      copy out, ...                    in order; each waits for the event of the task that writes what it copies
//! ```
//! Invariants
//! 1. At most one task of each stream runs at a time, in the order of the stream.
//! 2. A task holds its operands until it has run, so that their memory is freed after the last reader.
//! 3. Where the compute threads take no further job, every waiting task fails as busy.
//! 4. A task that needs more memory than the queue has reserved first waits for the copies that hold some.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use convoke_common::error::{Code, Error};
use convoke_common::memory::Pool;
use convoke_common::mutant;
use convoke_common::world::{Compute, Share};
use convoke_graph::ops::ConcreteOutputs;
use convoke_graph::{DType, Tensor};
use convoke_kernels::Exec;
use smallvec::SmallVec;

use super::super::{
    CopiedCallback, DeviceFailure, DeviceLaunch, DeviceOperand, DeviceQueue, DeviceStep,
    DeviceTensor, EventCallback,
};
use crate::compute::Crew;
use crate::cpu::{Inputs, Kernel, KernelFailure, Launch, Operands, Outputs, caught};

/// The contents of a buffer.
enum Contents {
    /// The task that writes the buffer has yet to run.
    Unwritten,
    Written(Tensor),
    Failed(Arc<DeviceFailure>),
}

/// A buffer in the device's memory.
struct Buffer {
    contents: Mutex<Contents>,
    /// The number of the compute task that writes the buffer: the buffer's event.
    written_by: u64,
}

impl Buffer {
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, contents: Contents) {
        *self.lock() = contents;
    }

    /// Why there is nothing in the buffer, where its task has failed.
    fn failure(&self) -> Option<Arc<DeviceFailure>> {
        match &*self.lock() {
            Contents::Failed(failure) => Some(failure.clone()),
            Contents::Unwritten | Contents::Written(_) => None,
        }
    }

    /// The tensor in the buffer, which `node` reads.
    fn read(&self, node: u32) -> Result<Tensor, Arc<DeviceFailure>> {
        match &*self.lock() {
            Contents::Written(tensor) => Ok(tensor.clone()),
            Contents::Failed(failure) => Err(failure.clone()),
            Contents::Unwritten => Err(unwritten(node)),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let contents = self.contents.get_mut();
        let contents = contents.unwrap_or_else(PoisonError::into_inner);
        // A launch that reads the memory again before it is written finds NaN.
        if let Contents::Written(tensor) = contents
            && let Some(bytes) = tensor.bytes_mut()
        {
            bytes.fill(0xff);
        }
    }
}

/// A failure at `node`; `None` stands for a cancelled step.
fn failed(node: u32, error: Option<Error>) -> Arc<DeviceFailure> {
    Arc::new(DeviceFailure { node, error })
}

fn kernel_failed(node: u32, failure: KernelFailure) -> Arc<DeviceFailure> {
    match failure {
        KernelFailure::Cancelled => failed(node, None),
        KernelFailure::Error(error) => failed(node, Some(*error)),
    }
}

fn unwritten(node: u32) -> Arc<DeviceFailure> {
    let why = "simgpu: memory was read before it was written";
    failed(node, Some(Error::internal(why)))
}

fn foreign(node: u32) -> Arc<DeviceFailure> {
    let why = "simgpu: an operand is another device's";
    failed(node, Some(Error::internal(why)))
}

/// The buffer of a device tensor; `None` where another device made it.
fn buffer_of(tensor: &DeviceTensor) -> Option<Arc<Buffer>> {
    tensor.buffer.clone().downcast().ok()
}

/// An operand of a task.
enum TaskOperand {
    Nothing,
    Host(Tensor),
    Buffer(Arc<Buffer>),
    /// A tensor of another device.
    Foreign,
}

enum Work {
    CopyIn {
        tensor: Tensor,
    },
    Launch {
        kernel: Option<Arc<dyn Kernel>>,
        operands: SmallVec<[TaskOperand; 4]>,
        /// Bytes of the results.
        bytes: u64,
    },
}

/// A task of the compute stream.
struct ComputeTask {
    step: Arc<DeviceStep>,
    node: u32,
    work: Work,
    results: SmallVec<[Arc<Buffer>; 2]>,
}

impl ComputeTask {
    fn needs(&self) -> u64 {
        match &self.work {
            Work::CopyIn { tensor } => tensor.byte_len() as u64,
            Work::Launch { bytes, .. } => *bytes,
        }
    }

    fn fail(&self, failure: &Arc<DeviceFailure>) {
        self.step.fail(failure);
        for result in &self.results {
            result.set(Contents::Failed(failure.clone()));
        }
    }
}

/// A task of the copy stream.
struct CopyTask {
    step: Arc<DeviceStep>,
    node: u32,
    /// The number of compute tasks that must have ended before.
    after: u64,
    source: Option<Arc<Buffer>>,
    pool: Pool,
    then: CopiedCallback,
}

/// A stream: its tasks, and how many it has ever got and ended.
struct Stream<T> {
    tasks: VecDeque<T>,
    /// Whether there is a job that runs, or will run, the first task.
    begun: bool,
    /// Whether a task runs, which is in `tasks` no more.
    running: bool,
    /// The task that a thread has taken and is about to run.
    taken: Option<T>,
    enqueued: u64,
    ended: u64,
}

impl<T> Default for Stream<T> {
    fn default() -> Stream<T> {
        Stream {
            tasks: VecDeque::new(),
            begun: false,
            running: false,
            taken: None,
            enqueued: 0,
            ended: 0,
        }
    }
}

impl<T> Stream<T> {
    fn push(&mut self, task: T) {
        self.tasks.push_back(task);
        self.enqueued += 1;
    }

    /// The task that a job is to run.
    fn next(&mut self) -> Option<T> {
        let next = match self.running {
            true => None,
            false => self.tasks.pop_front(),
        };
        self.begun = next.is_some();
        self.running |= next.is_some();
        next
    }

    fn end(&mut self) {
        self.begun = false;
        self.running = false;
        self.ended += 1;
    }

    /// Takes the first task out without a job, where none runs and `recalled` holds for it.
    fn recall(&mut self, recalled: impl FnOnce(&T) -> bool) -> Option<T> {
        let takes = !self.running && self.tasks.front().is_some_and(recalled);
        let task = takes.then(|| self.tasks.pop_front()).flatten();
        self.running |= task.is_some();
        task
    }

    /// Ends a task that was recalled; a job of the stream may be on its way.
    fn end_recalled(&mut self) {
        self.running = false;
        self.ended += 1;
    }

    /// Ends a task; returns the one that follows it where the same job is to run that as well.
    fn end_unless(&mut self, goes_on: impl FnOnce(&T) -> bool) -> Option<T> {
        self.end();
        let next = self.tasks.front().is_some_and(goes_on);
        next.then(|| self.next()).flatten()
    }
}

impl Stream<CopyTask> {
    /// Whether the first copy runs, or could run once this many compute tasks have ended.
    fn can_run(&self, ended: u64) -> bool {
        self.begun || self.tasks.front().is_some_and(|t| t.after <= ended)
    }
}

/// An event: it is due once this many tasks of each stream have ended.
struct Event {
    compute: u64,
    copy: u64,
    then: EventCallback,
}

#[derive(Default)]
struct Streams {
    compute: Stream<ComputeTask>,
    copy: Stream<CopyTask>,
    events: VecDeque<Event>,
}

impl Streams {
    /// The copy that a job is to run. The one that the job was submitted for may have been recalled; the next one may still
    /// wait for its tensor, and gets a job of its own.
    fn next_copy(&mut self) -> Option<CopyTask> {
        let ended = self.compute.ended;
        if self.copy.tasks.front().is_some_and(|t| t.after > ended) {
            self.copy.begun = false;
            return None;
        }
        self.copy.next()
    }

    fn due(&mut self) -> Vec<EventCallback> {
        let mut due = vec![];
        while let Some(event) = self.events.front() {
            if event.compute > self.compute.ended || event.copy > self.copy.ended {
                break;
            }
            due.extend(self.events.pop_front().map(|event| event.then));
        }
        due
    }
}

/// The stream that a job works for.
#[derive(Clone, Copy)]
enum Which {
    Compute,
    Copy,
}

pub(super) struct SimQueue {
    me: Weak<SimQueue>,
    compute: Arc<dyn Compute>,
    share: Share,
    /// The device's memory.
    pool: Pool,
    /// Bytes of device memory that the queue has reserved.
    reserved: u64,
    streams: Mutex<Streams>,
}

impl SimQueue {
    pub(super) fn new(
        compute: Arc<dyn Compute>,
        share: Share,
        pool: Pool,
        reserved: u64,
    ) -> Arc<SimQueue> {
        Arc::new_cyclic(|me| SimQueue {
            me: me.clone(),
            compute,
            share,
            pool,
            reserved,
            streams: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues a task of the compute stream that makes these results.
    fn enqueue(
        &self,
        step: &Arc<DeviceStep>,
        node: u32,
        work: Work,
        types: impl Iterator<Item = (DType, convoke_graph::Shape)>,
    ) -> SmallVec<[DeviceTensor; 2]> {
        let mut streams = self.lock();
        let written_by = streams.compute.enqueued + 1;
        let mut buffers: SmallVec<[Arc<Buffer>; 2]> = SmallVec::new();
        let results = types.map(|(dtype, shape)| {
            let buffer = Arc::new(Buffer {
                contents: Mutex::new(Contents::Unwritten),
                written_by,
            });
            buffers.push(buffer.clone());
            DeviceTensor {
                dtype,
                shape,
                buffer,
            }
        });
        let results = results.collect();
        streams.compute.push(ComputeTask {
            step: step.clone(),
            node,
            work,
            results: buffers,
        });
        drop(streams);
        self.go_on();
        results
    }

    /// Begins the first task of each stream that can begin.
    fn go_on(&self) {
        for which in [Which::Compute, Which::Copy] {
            let begins = {
                let streams = &mut *self.lock();
                let (begun, can) = match which {
                    Which::Compute => {
                        let first = streams.compute.tasks.front();
                        let fits =
                            |t: &ComputeTask| self.pool.live_bytes() + t.needs() <= self.reserved;
                        // Copies that could run hold memory that the plan counts as free.
                        let copies = streams.copy.can_run(streams.compute.ended);
                        let can = first.is_some_and(|t| !copies || fits(t));
                        (&mut streams.compute.begun, can)
                    }
                    Which::Copy => {
                        let can = streams.copy.can_run(streams.compute.ended);
                        (&mut streams.copy.begun, can)
                    }
                };
                let begins = can && !*begun;
                *begun |= begins;
                begins
            };
            if begins {
                self.submit(which);
            }
        }
    }

    fn submit(&self, which: Which) {
        let Some(me) = self.me.upgrade() else { return };
        let taker = me.clone();
        let begin = Box::new(move || taker.take(which));
        let job = Box::new(move || me.run(which));
        if self
            .compute
            .submit_begun(&self.share, 0, begin, job)
            .is_err()
        {
            self.refused(which);
        }
    }

    /// Takes the first task of a stream for the thread that is about to run it, unless that task was failed since the job was
    /// submitted. From here on a thread that is stuck holds the task's step up. Returns whether there is a task.
    fn take(&self, which: Which) -> bool {
        let is_taken = {
            let streams = &mut *self.lock();
            match which {
                Which::Compute => {
                    let task = streams.compute.next();
                    if let Some(task) = &task {
                        task.step.works_at(Some(task.node));
                    }
                    streams.compute.taken = task;
                    streams.compute.taken.is_some()
                }
                Which::Copy => {
                    let task = streams.next_copy();
                    if let Some(task) = &task {
                        task.step.copies_at(Some(task.node));
                    }
                    streams.copy.taken = task;
                    streams.copy.taken.is_some()
                }
            }
        };
        if !is_taken {
            self.settle();
        }
        is_taken
    }

    /// Calls the events that are due, and begins what can begin.
    fn settle(&self) {
        let due = self.lock().due();
        due.into_iter().for_each(|then| then());
        self.go_on();
    }

    /// Fails every task that waits, because the job of this stream was refused.
    fn refused(&self, which: Which) {
        let busy = Error::new(Code::Busy, "the compute threads take no further work");
        let (compute, copy) = {
            let mut streams = self.lock();
            let compute = std::mem::take(&mut streams.compute.tasks);
            let copy = std::mem::take(&mut streams.copy.tasks);
            // A job of the other stream may run, or wait for its turn.
            match which {
                Which::Compute => streams.compute.begun = false,
                Which::Copy => streams.copy.begun = false,
            }
            (compute, copy)
        };
        let (computes, copies) = (compute.len() as u64, copy.len() as u64);
        for task in compute {
            task.fail(&failed(task.node, Some(busy.clone())));
        }
        for task in copy {
            let source = task.source.as_ref().and_then(|source| source.failure());
            let busy = || failed(task.node, Some(busy.clone()));
            (task.then)(Err(source.unwrap_or_else(busy)));
        }
        let due = {
            let mut streams = self.lock();
            streams.compute.ended += computes;
            streams.copy.ended += copies;
            streams.due()
        };
        due.into_iter().for_each(|then| then());
    }

    /// The job of a stream: runs the task that was taken.
    fn run(&self, which: Which) {
        match which {
            Which::Compute => {
                let task = self.lock().compute.taken.take();
                if let Some(task) = task {
                    self.compute(task);
                    // The remaining tasks of a cancelled step take no time, so they need no jobs of their own.
                    let next = || self.lock().compute.end_unless(|t| t.step.is_cancelled());
                    while let Some(task) = next() {
                        self.compute(task);
                    }
                }
            }
            Which::Copy => {
                let task = self.lock().copy.taken.take();
                if let Some(task) = task {
                    let copied = self.copied(&task);
                    task.step.copies_at(None);
                    // The device's memory is free before the copy is known.
                    drop(task.source);
                    (task.then)(copied);
                    self.lock().copy.end();
                }
            }
        }
        self.settle();
    }

    /// Runs a task of the compute stream.
    fn compute(&self, task: ComputeTask) {
        let step = task.step.clone();
        step.works_at(Some(task.node));
        self.finish(task);
        step.works_at(None);
    }

    fn finish(&self, mut task: ComputeTask) {
        let made = match &mut task.work {
            Work::CopyIn { tensor } => self.moved(&self.pool, tensor).map(Outputs::from),
            Work::Launch {
                kernel, operands, ..
            } => match operands_of(task.node, std::mem::take(operands)) {
                Ok(inputs) => self.launched(&task.step, task.node, kernel.as_deref(), inputs),
                Err(failure) => return task.fail(&failure),
            },
        };
        match made {
            Ok(made) => {
                for (result, tensor) in task.results.iter().zip(made) {
                    result.set(Contents::Written(tensor));
                }
            }
            Err(failure) => task.fail(&kernel_failed(task.node, failure)),
        }
    }

    fn launched(
        &self,
        step: &DeviceStep,
        node: u32,
        kernel: Option<&dyn Kernel>,
        mut inputs: Inputs,
    ) -> Result<Outputs, KernelFailure> {
        let kernel = kernel.ok_or_else(|| Error::internal("a kernel of another device"))?;
        if step.is_cancelled() {
            return Err(KernelFailure::Cancelled);
        }
        let crew = Crew::current();
        let exec = match &crew {
            Some(crew) => crew.exec(&step.cancel),
            None => Exec::single(&step.cancel),
        };
        caught(|| {
            let mut made = Ok(Outputs::new());
            step.watch.around(node, &mut || {
                made = kernel.launch(&mut Launch {
                    inputs: Operands::given(&mut inputs),
                    sizes: None,
                    exec,
                    pool: &self.pool,
                });
            });
            made
        })
    }

    /// A copy of a tensor in the memory of `pool`.
    fn moved(&self, pool: &Pool, tensor: &Tensor) -> Result<Tensor, KernelFailure> {
        let mut copy = pool.alike(tensor)?;
        let bytes = copy.bytes_mut();
        let bytes = bytes.ok_or_else(|| Error::internal("a new tensor is shared"))?;
        bytes.copy_from_slice(tensor.bytes());
        Ok(copy)
    }

    fn copied(&self, task: &CopyTask) -> Result<Tensor, Arc<DeviceFailure>> {
        let source = task.source.as_ref().ok_or_else(|| foreign(task.node))?;
        let tensor = source.read(task.node)?;
        if task.step.is_cancelled() {
            return Err(failed(task.node, None));
        }
        let copied = self.moved(&task.pool, &tensor);
        copied.map_err(|failure| kernel_failed(task.node, failure))
    }
}

/// The tensors of a task's operands. One that nobody else holds may be overwritten by the kernel.
fn operands_of(
    node: u32,
    operands: SmallVec<[TaskOperand; 4]>,
) -> Result<Inputs, Arc<DeviceFailure>> {
    let operands = operands.into_iter().map(|operand| {
        Ok(match operand {
            TaskOperand::Nothing => None,
            TaskOperand::Host(tensor) => Some(tensor),
            TaskOperand::Foreign => return Err(foreign(node)),
            TaskOperand::Buffer(mut buffer) => match Arc::get_mut(&mut buffer) {
                Some(own) => {
                    let contents = own.contents.get_mut();
                    let contents = contents.unwrap_or_else(PoisonError::into_inner);
                    match std::mem::replace(contents, Contents::Unwritten) {
                        Contents::Written(tensor) => Some(tensor),
                        Contents::Failed(failure) => return Err(failure),
                        Contents::Unwritten => return Err(unwritten(node)),
                    }
                }
                None => Some(buffer.read(node)?),
            },
        })
    });
    operands.collect()
}

impl DeviceQueue for SimQueue {
    fn copy_in(&self, step: &Arc<DeviceStep>, node: u32, tensor: Tensor) -> DeviceTensor {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().into());
        let work = Work::CopyIn { tensor };
        let mut made = self.enqueue(step, node, work, std::iter::once((dtype, shape)));
        made.remove(0)
    }

    fn launch(&self, launch: DeviceLaunch<'_>) -> SmallVec<[DeviceTensor; 2]> {
        let operands = launch.operands.into_iter().map(|operand| match operand {
            DeviceOperand::Nothing => TaskOperand::Nothing,
            DeviceOperand::Host(tensor) => TaskOperand::Host(tensor),
            DeviceOperand::Device(tensor) => match tensor.buffer.downcast() {
                Ok(buffer) => TaskOperand::Buffer(buffer),
                Err(_) => TaskOperand::Foreign,
            },
        });
        let kernel = launch.kernel.downcast_ref::<Arc<dyn Kernel>>().cloned();
        let work = Work::Launch {
            kernel,
            operands: operands.collect(),
            bytes: bytes_of(launch.outputs),
        };
        let types = launch.outputs.iter().cloned();
        self.enqueue(launch.step, launch.node, work, types)
    }

    fn copy_out(
        &self,
        step: &Arc<DeviceStep>,
        node: u32,
        tensor: DeviceTensor,
        pool: &Pool,
        then: CopiedCallback,
    ) {
        let source = buffer_of(&tensor);
        let written = source.as_ref().map_or(0, |buffer| buffer.written_by);
        let task = CopyTask {
            step: step.clone(),
            node,
            after: [written, 0][usize::from(mutant!("event-wait-skipped"))],
            source,
            pool: pool.clone(),
            then,
        };
        drop(tensor);
        self.lock().copy.push(task);
        self.go_on();
    }

    fn event(&self, then: EventCallback) {
        let due = {
            let mut streams = self.lock();
            let (compute, copy) = (streams.compute.enqueued, streams.copy.enqueued);
            streams.events.push_back(Event {
                compute,
                copy,
                then,
            });
            streams.due()
        };
        due.into_iter().for_each(|then| then());
    }

    fn recall(&self) {
        loop {
            let task = self.lock().compute.recall(|t| t.step.is_cancelled());
            let Some(task) = task else { break };
            task.fail(&failed(task.node, None));
            self.lock().compute.end_recalled();
        }
        loop {
            let task = self.lock().copy.recall(|t| t.step.is_cancelled());
            let Some(task) = task else { break };
            drop(task.source);
            (task.then)(Err(failed(task.node, None)));
            self.lock().copy.end_recalled();
        }
        self.settle();
    }
}

fn bytes_of(outputs: &ConcreteOutputs) -> u64 {
    let sizes = outputs.iter();
    let sizes = sizes.map(|(dtype, shape)| Tensor::size_of(*dtype, shape).unwrap_or(usize::MAX));
    sizes.fold(0, |sum, bytes| sum.saturating_add(bytes as u64))
}
