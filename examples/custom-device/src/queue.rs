//! A queue of the device: a thread that runs one task after the other.
//!
//! Everything happens in the order in which it was enqueued, so that a buffer is written before it is read, and a range of
//! the memory is used again only after the last task that reads it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke::devices::{
    CopiedCallback, DeviceFailure, DeviceLaunch, DeviceOperand, DeviceQueue, DeviceStep,
    DeviceTensor, EventCallback, Ledger, Pool, Purpose, Reservation,
};
use convoke::{Code, DType, Error, HostTensor, Result};

use crate::kernels::{Array, FileKernel};
use crate::memory::{FileMemory, FileRange};

/// The contents of a buffer.
enum Contents {
    /// Nothing yet: a task that has its turn before any reader writes it.
    Unwritten,
    Written(Stored),
    Failed(Arc<DeviceFailure>),
}

/// The bytes of a tensor, and the memory that is counted for them.
struct Stored {
    range: FileRange,
    _charge: Charge,
}

/// The buffer of a device tensor.
struct Buffer(Mutex<Contents>);

impl Buffer {
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device memory that a queue has reserved, and how much of it is in use.
struct Share {
    ledger: Ledger,
    purpose: Purpose,
    _reserved: Reservation,
    free: Mutex<u64>,
}

/// Bytes in use: of those that the queue has reserved, and beyond them.
struct Charge {
    share: Arc<Share>,
    reserved: u64,
    _beyond: Option<Reservation>,
}

impl Share {
    fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge> {
        let reserved = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let reserved = bytes.min(*free);
            *free -= reserved;
            reserved
        };
        let mut charge = Charge {
            share: self.clone(),
            reserved,
            _beyond: None,
        };
        if bytes > reserved {
            charge._beyond = Some(self.ledger.reserve(self.purpose, bytes - reserved)?);
        }
        Ok(charge)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let free = self.share.free.lock();
        *free.unwrap_or_else(PoisonError::into_inner) += self.reserved;
    }
}

/// An operand of a task.
enum TaskOperand {
    Host(HostTensor),
    Buffer(Vec<usize>, Arc<Buffer>),
    /// Another device's tensor, or none.
    Missing,
}

enum Work {
    CopyIn(HostTensor),
    Launch(Option<FileKernel>, Vec<TaskOperand>, Vec<usize>),
}

enum Task {
    /// Writes a buffer.
    Make {
        step: Arc<DeviceStep>,
        node: u32,
        work: Work,
        into: Arc<Buffer>,
    },
    CopyOut {
        step: Arc<DeviceStep>,
        node: u32,
        dtype: DType,
        shape: Vec<usize>,
        from: Option<Arc<Buffer>>,
        pool: Pool,
        then: CopiedCallback,
    },
    Event(EventCallback),
}

/// A queue, whose thread ends after the last task once the queue is dropped.
pub struct FileQueue {
    tasks: Mutex<Sender<Task>>,
}

impl FileQueue {
    /// Starts a queue that reserves `bytes` of device memory.
    pub fn start(
        memory: Arc<FileMemory>,
        ledger: &Ledger,
        purpose: Purpose,
        bytes: u64,
    ) -> Result<FileQueue> {
        let share = Arc::new(Share {
            ledger: ledger.clone(),
            purpose,
            _reserved: ledger.reserve(purpose, bytes)?,
            free: Mutex::new(bytes),
        });
        let (tasks, enqueued) = channel::<Task>();
        let run = move || {
            enqueued
                .into_iter()
                .for_each(|task| task.run(&memory, &share))
        };
        let thread = std::thread::Builder::new().name("file-device".into());
        #[expect(
            clippy::disallowed_methods,
            reason = "the device has a thread of its own"
        )]
        thread
            .spawn(run)
            .map_err(|e| Error::new(Code::Io, format!("no thread for the device: {e}")))?;
        Ok(FileQueue {
            tasks: Mutex::new(tasks),
        })
    }

    fn enqueue(&self, task: Task) {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // The thread takes tasks as long as this end is there.
        let _ = tasks.send(task);
    }

    fn make(
        &self,
        (step, node): (&Arc<DeviceStep>, u32),
        work: Work,
        dtype: DType,
        shape: &[usize],
    ) -> DeviceTensor {
        let into = Arc::new(Buffer(Mutex::new(Contents::Unwritten)));
        self.enqueue(Task::Make {
            step: step.clone(),
            node,
            work,
            into: into.clone(),
        });
        DeviceTensor {
            dtype,
            shape: shape.into(),
            buffer: into,
        }
    }
}

impl DeviceQueue for FileQueue {
    fn copy_in(&self, step: &Arc<DeviceStep>, node: u32, tensor: HostTensor) -> DeviceTensor {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        self.make((step, node), Work::CopyIn(tensor), dtype, &shape)
    }

    fn launch(&self, launch: DeviceLaunch<'_>) -> convoke::devices::LaunchResults {
        let operands = launch.operands.into_iter().map(|operand| match operand {
            DeviceOperand::Nothing => TaskOperand::Missing,
            DeviceOperand::Host(tensor) => TaskOperand::Host(tensor),
            DeviceOperand::Device(tensor) => match tensor.buffer.downcast() {
                Ok(buffer) => TaskOperand::Buffer(tensor.shape.to_vec(), buffer),
                Err(_) => TaskOperand::Missing,
            },
        });
        let operands: Vec<TaskOperand> = operands.collect();
        let kernel = launch.kernel.downcast_ref::<FileKernel>().copied();
        // Each kernel of this device has one result.
        let made = launch.outputs.first().map(|(dtype, shape)| {
            let work = Work::Launch(kernel, operands, shape.to_vec());
            self.make((launch.step, launch.node), work, *dtype, shape)
        });
        made.into_iter().collect()
    }

    fn copy_out(
        &self,
        step: &Arc<DeviceStep>,
        node: u32,
        tensor: DeviceTensor,
        pool: &Pool,
        then: CopiedCallback,
    ) {
        self.enqueue(Task::CopyOut {
            step: step.clone(),
            node,
            dtype: tensor.dtype,
            shape: tensor.shape.to_vec(),
            from: tensor.buffer.downcast().ok(),
            pool: pool.clone(),
            then,
        });
    }

    fn event(&self, then: EventCallback) {
        self.enqueue(Task::Event(then));
    }
}

fn failed(node: u32, error: Option<Error>) -> Arc<DeviceFailure> {
    Arc::new(DeviceFailure { node, error })
}

fn internal(node: u32, why: impl Into<String>) -> Arc<DeviceFailure> {
    failed(node, Some(Error::new(Code::Internal, why.into())))
}

/// The bytes in a buffer that `node` reads.
fn read(node: u32, buffer: &Buffer) -> Result<Vec<u8>, Arc<DeviceFailure>> {
    match &*buffer.lock() {
        Contents::Written(stored) => {
            let bytes = stored.range.read();
            bytes.map_err(|e| failed(node, Some(Error::new(Code::Io, e.to_string()))))
        }
        Contents::Failed(failure) => Err(failure.clone()),
        Contents::Unwritten => Err(internal(node, "memory was read before it was written")),
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let each = bytes.chunks_exact(4);
    each.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

fn launched(
    step: &DeviceStep,
    node: u32,
    kernel: Option<FileKernel>,
    operands: &[TaskOperand],
    shape: &[usize],
) -> Result<Vec<u8>, Arc<DeviceFailure>> {
    let kernel = kernel.ok_or_else(|| internal(node, "a kernel of another device"))?;
    let operands = operands.iter().map(|operand| match operand {
        TaskOperand::Host(t) => Ok(Array {
            shape: t.shape().to_vec(),
            elements: floats(t.bytes()),
        }),
        TaskOperand::Buffer(shape, buffer) => Ok(Array {
            shape: shape.clone(),
            elements: floats(&read(node, buffer)?),
        }),
        TaskOperand::Missing => Err(internal(node, "an operand is another device's")),
    });
    let operands: Vec<Array> = operands.collect::<Result<_, _>>()?;
    let mut made = Ok(vec![]);
    step.works_at(Some(node));
    // A kernel that panics fails its launch, and the thread goes on with the next task.
    let run = catch_unwind(AssertUnwindSafe(|| {
        step.watch
            .around(node, &mut || made = kernel.run(&operands, shape));
    }));
    step.works_at(None);
    let panicked = |_| Error::new(Code::KernelPanicked, "the kernel panicked");
    run.map_err(|panic| failed(node, Some(panicked(panic))))?;
    let made = made.map_err(|why| failed(node, Some(Error::new(Code::KernelFailed, why))))?;
    Ok(made.iter().flat_map(|x| x.to_le_bytes()).collect())
}

impl Task {
    fn run(self, memory: &Arc<FileMemory>, share: &Arc<Share>) {
        match self {
            Task::Make {
                step,
                node,
                work,
                into,
            } => {
                let made = match (step.is_cancelled(), &work) {
                    (true, _) => Err(failed(node, None)),
                    (false, Work::CopyIn(tensor)) => Ok(tensor.bytes().to_vec()),
                    (false, Work::Launch(kernel, operands, shape)) => {
                        launched(&step, node, *kernel, operands, shape)
                    }
                };
                // Release the operands before the result takes memory.
                drop(work);
                let stored = made.and_then(|bytes| {
                    let charge = share.charge(bytes.len() as u64);
                    let charge = charge.map_err(|e| failed(node, Some(e)))?;
                    let range = memory.store(&bytes);
                    let range = range
                        .map_err(|e| failed(node, Some(Error::new(Code::Io, e.to_string()))))?;
                    Ok(Stored {
                        range,
                        _charge: charge,
                    })
                });
                *into.lock() = match stored {
                    Ok(stored) => Contents::Written(stored),
                    Err(failure) => {
                        step.fail(&failure);
                        Contents::Failed(failure)
                    }
                };
            }
            Task::CopyOut {
                step,
                node,
                dtype,
                shape,
                from,
                pool,
                then,
            } => {
                let bytes = match (&from, step.is_cancelled()) {
                    (None, _) => Err(internal(node, "a tensor of another device")),
                    (Some(_), true) => Err(failed(node, None)),
                    (Some(from), false) => read(node, from),
                };
                // The device's memory is free before the copy is known.
                drop(from);
                let copied = bytes.and_then(|bytes| {
                    let mut copy = pool
                        .tensor(dtype, &shape)
                        .map_err(|e| failed(node, Some(e)))?;
                    let into = copy.bytes_mut();
                    let into = into.ok_or_else(|| internal(node, "a new tensor is shared"))?;
                    into.copy_from_slice(&bytes);
                    Ok(copy)
                });
                then(copied);
            }
            Task::Event(then) => then(),
        }
    }
}
