//! The promises of every device, as a suite that the tests of a device run.
//!
//! ```text
//! values     copies there and back; each op that the device has a kernel for, beside the CPU's kernel
//! order      a chain of launches in little memory; a copy to the host in the midst of it
//! failures   memory that runs out, a tensor of another device, an index beyond its axis: they surface late, and reach what
//!            depends on them, also in other steps
//! ends       cancelled steps, dropped queues: every callback is called once, and all memory is given back
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use convoke_common::error::{Code, Error, Result};
use convoke_common::ids::LeaseId;
use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_common::world::{AccountId, Share};
use convoke_graph::graph::Attrs;
use convoke_graph::ops::{self, ConcreteOutputs, Op, OpDef};
use convoke_graph::{DType, Tensor};
use convoke_kernels::Exec;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    Device, DeviceFailure, DeviceKernel, DeviceLaunch, DeviceOp, DeviceOperand, DeviceQueue,
    DeviceStep, DeviceTensor, KernelWatch,
};
use crate::cpu::{self, Inputs, Launch, Operands};

/// How long the suite waits for a callback.
const BOUND: Duration = Duration::from_secs(30);

/// Elements of the tensors that are to fill memory.
const ELEMENTS: usize = 16 << 10;
const BYTES: u64 = 4 * ELEMENTS as u64;

/// How the results of a device's kernels are compared with those of the CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Comparison {
    /// The bits are the same: the device has the numerics profile of the CPU.
    Bits,
    /// Each element differs by at most this part of the larger of 1 and itself.
    Within(f32),
}

/// Counts of what the suite has checked.
#[derive(Debug, Clone, Default)]
pub struct SuiteReport {
    /// The ops whose results were compared with those of the CPU.
    pub ops: Vec<&'static str>,
}

type Copied = std::result::Result<Tensor, Arc<DeviceFailure>>;

struct NoWatch;

impl KernelWatch for NoWatch {
    fn around(&self, _: u32, run: &mut dyn FnMut()) {
        run();
    }
}

/// A queue of the device, with memory of its own.
struct Rig {
    queue: Arc<dyn DeviceQueue>,
    memory: Ledger,
    step: Arc<DeviceStep>,
    host: Pool,
}

fn broken(promise: String) -> Error {
    Error::internal(format!("the device breaks a promise: {promise}"))
}

fn ensure(kept: bool, promise: impl Into<String>) -> Result<()> {
    match kept {
        true => Ok(()),
        false => Err(broken(promise.into())),
    }
}

fn new_step() -> Arc<DeviceStep> {
    Arc::new(DeviceStep::new(
        Arc::new(AtomicBool::new(false)),
        Arc::new(NoWatch),
    ))
}

fn open(device: &dyn Device, memory: &Ledger, reserved: u64) -> Result<Arc<dyn DeviceQueue>> {
    let share = Share::new(AccountId::named("suite"), LeaseId(1));
    device.open(&share, memory, Purpose::Leases, reserved)
}

impl Rig {
    /// A queue at a device with `limit` bytes of memory, of which the queue reserves `reserved`.
    fn new(device: &dyn Device, limit: u64, reserved: u64) -> Result<Rig> {
        let memory = Ledger::new("device", limit);
        Ok(Rig {
            queue: open(device, &memory, reserved)?,
            memory,
            step: new_step(),
            host: Pool::new(&Ledger::new("host", 1 << 32), Purpose::Leases, 0)?,
        })
    }

    /// The same queue, for another step.
    fn in_new_step(&self) -> Rig {
        Rig {
            queue: self.queue.clone(),
            memory: self.memory.clone(),
            step: new_step(),
            host: self.host.clone(),
        }
    }

    fn put(&self, tensor: &Tensor) -> DeviceTensor {
        self.queue.copy_in(&self.step, 0, tensor.clone())
    }

    fn launch(
        &self,
        kernel: &DeviceKernel,
        node: u32,
        operands: &[DeviceTensor],
        outputs: &ConcreteOutputs,
    ) -> SmallVec<[DeviceTensor; 2]> {
        let operands = operands.iter().cloned().map(DeviceOperand::Device);
        self.queue.launch(DeviceLaunch {
            kernel,
            step: &self.step,
            node,
            operands: operands.collect(),
            outputs,
        })
    }

    /// Begins a copy to the host.
    fn begin(&self, node: u32, tensor: DeviceTensor) -> Receiver<Copied> {
        let (told, copied) = channel();
        let then = move |copy| drop(told.send(copy));
        self.queue
            .copy_out(&self.step, node, tensor, &self.host, Box::new(then));
        copied
    }

    fn fetch(&self, tensor: DeviceTensor) -> Result<Tensor> {
        let copied = self.begin(0, tensor);
        let copied = hear(&copied, "calls back with every copy to the host")?;
        copied.map_err(|failure| match &failure.error {
            Some(error) => error.clone(),
            None => broken("cancels nothing by itself".into()),
        })
    }

    /// Waits until everything that was enqueued has ended.
    fn settle(&self) -> Result<()> {
        let (told, ended) = channel();
        self.queue.event(Box::new(move || {
            let _ = told.send(());
        }));
        hear(&ended, "calls back at every event")
    }

    fn used(&self) -> u64 {
        self.memory.total_and_peak().0
    }
}

fn hear<T>(from: &Receiver<T>, promise: &str) -> Result<T> {
    let heard = from.recv_timeout(BOUND);
    heard.map_err(|_| broken(promise.into()))
}

/// Runs the whole suite at a device.
///
/// # Errors
/// `internal` with the first promise that the device breaks, in words.
pub fn check(device: &dyn Device, comparison: Comparison) -> Result<SuiteReport> {
    copies(device)?;
    let compared = each_op(device, comparison)?;
    let (op, kernel) = compared.unary.as_ref().ok_or_else(|| {
        broken(
            "has a kernel for at least one op that takes one f32 tensor and keeps its shape".into(),
        )
    })?;
    order(device, op, kernel)?;
    failures(device, kernel)?;
    indices(device, kernel)?;
    cancellation(device, kernel)?;
    ends(device, kernel)?;
    Ok(SuiteReport { ops: compared.ops })
}

fn copies(device: &dyn Device) -> Result<()> {
    let rig = Rig::new(device, 1 << 24, 0)?;
    // Strings stay on the host.
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::Str) {
        for shape in [&[][..], &[0, 3], &[3, 5], &[ELEMENTS]] {
            let bytes = Tensor::size_of(dtype, shape).unwrap_or(0);
            let pattern: Vec<u8> = (0..bytes).map(|i| (i % 2) as u8).collect();
            let tensor = Tensor::from_bytes(dtype, shape, &pattern);
            let tensor = tensor.map_err(|e| Error::internal(e.to_string()))?;
            let there = rig.put(&tensor);
            let same = there.dtype == dtype && there.shape.as_slice() == shape;
            ensure(same, "gives a copy the dtype and shape of what it copies")?;
            let back = rig.fetch(there)?;
            let what = tensor.signature();
            ensure(
                back == tensor,
                format!("copies {what} there and back without a change"),
            )?;
        }
    }
    rig.settle()?;
    ensure(
        rig.used() == 0,
        "gives back the memory of copies that nobody holds",
    )
}

/// The ops that were compared, and a kernel for one f32 tensor, that keeps the shape.
struct Compared {
    ops: Vec<&'static str>,
    unary: Option<(&'static str, DeviceKernel)>,
}

/// Matrices whose elements are between 0.1 and 0.9, which every op of floats takes.
fn matrix(seed: u32) -> Result<Tensor> {
    let element =
        |i: u32| 0.1 + 0.8 * (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32;
    let elements: Vec<f32> = (0..16).map(|i| element(seed * 16 + i)).collect();
    Tensor::from_slice(&[4, 4], &elements).map_err(|e| Error::internal(e.to_string()))
}

/// Results of the CPU's kernel; `None` where the op takes other operands, or needs attributes.
fn on_cpu(def: &'static OpDef, given: &[Tensor]) -> Option<Vec<Tensor>> {
    let dtypes: Vec<Option<DType>> = given.iter().map(|t| Some(t.dtype())).collect();
    let kernel = cpu::resolve(def.name, &Attrs::default(), &dtypes, 1).ok()?;
    let mut inputs: Inputs = given.iter().cloned().map(Some).collect();
    let cancel = AtomicBool::new(false);
    let pool = Pool::new(&Ledger::new("host", 1 << 30), Purpose::Leases, 0).ok()?;
    let made = kernel.launch(&mut Launch {
        inputs: Operands::given(&mut inputs),
        sizes: None,
        exec: Exec::single(&cancel),
        pool: &pool,
    });
    Some(made.ok()?.into_iter().collect())
}

fn is_close(a: &Tensor, b: &Tensor, comparison: Comparison) -> bool {
    let Comparison::Within(part) = comparison else {
        return a == b;
    };
    let (Ok(x), Ok(y)) = (a.as_slice::<f32>(), b.as_slice::<f32>()) else {
        return a == b;
    };
    let near = |(x, y): (&f32, &f32)| {
        (x - y).abs() <= part * x.abs().max(1.0) || x == y || (x.is_nan() && y.is_nan())
    };
    a.shape() == b.shape() && x.iter().zip(y).all(near)
}

fn each_op(device: &dyn Device, comparison: Comparison) -> Result<Compared> {
    let rig = Rig::new(device, 1 << 24, 0)?;
    let kernels = device.kernels();
    let mut compared = Compared {
        ops: vec![],
        unary: None,
    };
    for def in ops::all() {
        let of_host = matches!(def.op, Op::Control(_) | Op::Handle(_) | Op::Custom);
        for count in 1..=3 {
            if of_host || def.sized_by_data || count > def.operands.len() {
                break;
            }
            let given = (0..count)
                .map(|i| matrix(i as u32))
                .collect::<Result<Vec<_>>>()?;
            let dtypes = vec![Some(DType::F32); count];
            let resolved = device.resolve(&DeviceOp {
                def,
                attrs: &Attrs::default(),
                operands: &dtypes,
                outputs: 1,
            });
            if resolved.is_some() {
                let promise = format!("names {} among its kernels", def.name);
                ensure(kernels.contains(def.name, dtypes[0]), promise)?;
            }
            let on_host = (0..count).any(|i| def.operands[i].memory == ops::Memory::Host);
            let (Some(kernel), false) = (resolved, on_host) else {
                continue;
            };
            let Some(want) = on_cpu(def, &given) else {
                continue;
            };
            let outputs = want.iter().map(|t| (t.dtype(), t.shape().into()));
            let operands: Vec<DeviceTensor> = given.iter().map(|t| rig.put(t)).collect();
            let made = rig.launch(&kernel, 1, &operands, &outputs.collect());
            let made = made.into_iter().next();
            let made =
                rig.fetch(made.ok_or_else(|| broken("returns a tensor per result".into()))?)?;
            let promise = format!(
                "computes {} as the CPU does: {made:?}, not {:?}",
                def.name, want[0]
            );
            ensure(is_close(&made, &want[0], comparison), promise)?;
            compared.ops.push(def.name);
            let keeps = count == 1 && want[0].dtype() == DType::F32 && want[0].shape() == [4, 4];
            if keeps && compared.unary.is_none() {
                compared.unary = Some((def.name, kernel));
            }
        }
    }
    compared.ops.dedup();
    Ok(compared)
}

fn large(x: f32) -> Result<Tensor> {
    Tensor::from_slice(&[ELEMENTS], &vec![x; ELEMENTS]).map_err(|e| Error::internal(e.to_string()))
}

fn of_large() -> ConcreteOutputs {
    [(DType::F32, [ELEMENTS].as_slice().into())].into()
}

fn one(made: SmallVec<[DeviceTensor; 2]>) -> Result<DeviceTensor> {
    let made = made.into_iter().next();
    made.ok_or_else(|| broken("returns a tensor for each result".into()))
}

fn order(device: &dyn Device, op: &str, kernel: &DeviceKernel) -> Result<()> {
    // Three tensors fit: the one that is read, the one that is made, and one that is being copied to the host.
    let rig = Rig::new(device, 3 * BYTES, 3 * BYTES)?;
    let mut want = large(0.5)?;
    let mut there = rig.put(&want);
    let def = ops::lookup(op).ok_or_else(|| Error::internal("an op without a definition"))?;
    for node in 0..40 {
        let next = one(rig.launch(kernel, node, std::slice::from_ref(&there), &of_large()))?;
        let copied = rig.begin(node, there);
        let copy = hear(&copied, "calls back with every copy to the host")?;
        let copy =
            copy.map_err(|f| broken(format!("runs a chain in the memory reserved: {f:?}")))?;
        ensure(
            is_close(&copy, &want, Comparison::Within(1e-3)),
            "keeps the order of its queue",
        )?;
        want = on_cpu(def, &[want])
            .and_then(|made| made.into_iter().next())
            .ok_or_else(|| Error::internal("the CPU lost a kernel"))?;
        there = next;
    }
    let last = rig.fetch(there)?;
    ensure(
        is_close(&last, &want, Comparison::Within(1e-3)),
        "keeps the order of its queue",
    )?;
    rig.settle()?;
    ensure(
        rig.used() == 3 * BYTES,
        "uses what its queue has reserved, and no more",
    )?;
    let memory = rig.memory.clone();
    drop(rig);
    emptied(&memory)
}

fn failures(device: &dyn Device, kernel: &DeviceKernel) -> Result<()> {
    let memory = Ledger::new("device", 4 * BYTES);
    let refused = open(device, &memory, 5 * BYTES).err().map(|e| e.code);
    let promise = "refuses a queue for which there is no memory, as out_of_memory";
    ensure(refused == Some(Code::OutOfMemory), promise)?;
    let rig = Rig::new(device, 4 * BYTES, 0)?;
    let held = [
        rig.put(&large(1.)?),
        rig.put(&large(2.)?),
        rig.put(&large(3.)?),
        rig.put(&large(4.)?),
    ];
    rig.settle()?;
    let failed = one(rig.launch(kernel, 5, &held[..1], &of_large()))?;
    let after = one(rig.launch(kernel, 6, &[failed], &of_large()))?;
    let copied = hear(
        &rig.begin(7, after),
        "calls back with a copy that cannot be made",
    )?;
    let cause = copied
        .err()
        .map(|f| (f.node, f.error.as_ref().map(|e| e.code)));
    let promise =
        format!("says that node 5 ran out of memory, to whatever depends on it: {cause:?}");
    ensure(cause == Some((5, Some(Code::OutOfMemory))), promise)?;
    ensure(
        rig.step.failure().is_some_and(|f| f.node == 5),
        "notes the first failure in the step",
    )?;
    let again = Rig {
        step: new_step(),
        ..rig
    };
    let [first, ..] = held;
    ensure(again.fetch(first)? == large(1.)?, "goes on after a failure")?;
    let foreign = DeviceTensor {
        dtype: DType::F32,
        shape: [ELEMENTS].as_slice().into(),
        buffer: Arc::new(()),
    };
    let made = one(again.launch(kernel, 8, std::slice::from_ref(&foreign), &of_large()))?;
    for tensor in [made, foreign] {
        let copied = hear(
            &again.begin(8, tensor),
            "calls back with a tensor of another device",
        )?;
        ensure(copied.is_err(), "refuses a tensor of another device")?;
    }
    again.settle()
}

/// A kernel meets an index beyond its axis, and others read what it made: each launch and copy is a step of its own, as those
/// of ops that are issued one by one are.
fn indices(device: &dyn Device, kernel: &DeviceKernel) -> Result<()> {
    let def = ops::lookup("Gather").ok_or_else(|| Error::internal("an op without a definition"))?;
    let gather = device.resolve(&DeviceOp {
        def,
        attrs: &Attrs::default(),
        operands: &[Some(DType::F32), Some(DType::I64)],
        outputs: 1,
    });
    let Some(gather) = gather else { return Ok(()) };
    let rig = Rig::new(device, 16 * BYTES, 0)?;
    let beyond = vec![ELEMENTS as i64; ELEMENTS];
    let beyond = Tensor::from_slice(&[ELEMENTS], &beyond);
    let beyond = beyond.map_err(|e| Error::internal(e.to_string()))?;
    let (x, at) = (rig.put(&large(1.)?), rig.put(&beyond));
    let taken = one(rig.launch(&gather, 5, &[x.clone(), at], &of_large()))?;
    let reader = rig.in_new_step();
    let read = one(reader.launch(kernel, 6, &[taken], &of_large()))?;
    let copy = rig.in_new_step().begin(7, read.clone());
    let promise = "calls back with a copy of what depends on an index beyond its axis";
    let cause = hear(&copy, promise)?.err().map(|f| f.node);
    let promise = format!("says that node 5 failed, to a copy in another step: {cause:?}");
    ensure(cause == Some(5), promise)?;
    rig.settle()?;
    let late = rig.in_new_step();
    let read = one(late.launch(kernel, 8, &[read], &of_large()))?;
    let cause = hear(
        &late.begin(9, read),
        "calls back with a copy of what failed before",
    )?
    .err();
    ensure(
        cause.is_some_and(|f| f.node == 5),
        "says that node 5 failed, also once that is known",
    )?;
    rig.settle()?;
    for step in [&rig.step, &reader.step, &late.step] {
        ensure(
            step.failure().is_some_and(|f| f.node == 5),
            "notes a failure in the step of each launch that depends on it",
        )?;
    }
    ensure(
        rig.fetch(x)? == large(1.)?,
        "keeps what does not depend on a failure",
    )?;
    rig.settle()
}

fn cancellation(device: &dyn Device, kernel: &DeviceKernel) -> Result<()> {
    let rig = Rig::new(device, 1 << 24, 0)?;
    let mut there = rig.put(&large(1.)?);
    let mut copies = vec![];
    for node in 0..20 {
        there = one(rig.launch(kernel, node, &[there], &of_large()))?;
        copies.push(rig.begin(node, there.clone()));
    }
    rig.step.cancel.store(true, Ordering::Relaxed);
    rig.queue.recall();
    for copied in copies {
        let copied = hear(&copied, "calls back with every copy of a cancelled step")?;
        let cancelled = copied.is_ok() || copied.is_err_and(|f| f.error.is_none());
        ensure(cancelled, "calls no error what was cancelled")?;
    }
    drop(there);
    rig.settle()?;
    let next = Rig {
        step: new_step(),
        ..rig
    };
    let there = next.put(&large(1.)?);
    next.fetch(there)?;
    next.settle()?;
    ensure(
        next.used() == 0,
        "gives back the memory of a cancelled step",
    )
}

fn ends(device: &dyn Device, kernel: &DeviceKernel) -> Result<()> {
    let rig = Rig::new(device, 1 << 24, BYTES)?;
    let mut there = rig.put(&large(1.)?);
    for node in 0..20 {
        there = one(rig.launch(kernel, node, &[there], &of_large()))?;
    }
    let copied = rig.begin(20, there);
    let (told, ended) = channel();
    rig.queue.event(Box::new(move || {
        let _ = told.send(());
    }));
    let memory = rig.memory.clone();
    drop(rig);
    let _either = hear(
        &copied,
        "calls back with a copy of a queue that was dropped",
    )?;
    hear(&ended, "calls back at an event of a queue that was dropped")?;
    emptied(&memory)
}

/// Waits until a queue that was dropped has given back its memory. Enqueued work may hold memory a little longer than
/// until its callbacks.
fn emptied(memory: &Ledger) -> Result<()> {
    let until = Instant::now() + BOUND;
    while memory.total_and_peak().0 > 0 {
        ensure(
            Instant::now() < until,
            "gives back the memory of a queue that was dropped",
        )?;
        std::thread::yield_now();
    }
    Ok(())
}
