//! Tests of what a program may rely on with the simulated GPU. Its compute threads run a job when the test says so.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use convoke_common::error::Code;
use convoke_common::ids::LeaseId;
use convoke_common::world::{AccountId, Job, Refusal, RefusedJob};
use convoke_graph::graph::Attrs;
use convoke_graph::ops::{ConcreteOutputs, lookup};
use convoke_graph::{DType, Tensor};
use smallvec::SmallVec;

use super::*;
use crate::device::{
    DeviceFailure, DeviceLaunch, DeviceOperand, DeviceStep, DeviceTensor, KernelWatch,
};

/// Compute threads that hold jobs until a test runs them.
#[derive(Default)]
struct ManualCompute {
    jobs: Mutex<VecDeque<Job>>,
    closed: AtomicBool,
}

impl Compute for ManualCompute {
    fn threads(&self) -> usize {
        1
    }
    fn speed(&self) -> (f64, f64) {
        (1.0, 1.0)
    }
    fn submit(&self, _: &Share, _: i64, job: Job) -> std::result::Result<(), RefusedJob> {
        if self.closed.load(Ordering::Relaxed) {
            let reason = Refusal::Closed;
            return Err(RefusedJob { job, reason });
        }
        self.jobs.lock().unwrap().push_back(job);
        Ok(())
    }
}

/// Lists the nodes whose kernels have run.
#[derive(Default)]
struct Listed(Mutex<Vec<u32>>);

impl KernelWatch for Listed {
    fn around(&self, node: u32, run: &mut dyn FnMut()) {
        self.0.lock().unwrap().push(node);
        run();
    }
}

/// The completions so far: copies by their value or the failure's node, events by a name.
type Log = Arc<Mutex<Vec<String>>>;

struct Bench {
    compute: Arc<ManualCompute>,
    device: SimGpu,
    memory: Ledger,
    queue: Arc<dyn DeviceQueue>,
    listed: Arc<Listed>,
    step: Arc<DeviceStep>,
    host: Pool,
    log: Log,
}

/// Elements of each tensor of the tests: so many that it has memory of its own.
const ELEMENTS: usize = 4096;
const BYTES: u64 = 4 * ELEMENTS as u64;

fn filled(x: f32) -> Tensor {
    Tensor::from_slice(&[ELEMENTS], &[x; ELEMENTS]).unwrap()
}

impl Bench {
    /// A device with `limit` bytes of memory, of which its queue reserves `reserved`.
    fn new(limit: u64, reserved: u64) -> Bench {
        let compute = Arc::new(ManualCompute::default());
        let device = SimGpu::new(compute.clone());
        let memory = Ledger::new("w0", limit);
        let share = Share::new(AccountId::named("c"), LeaseId(1));
        let queue = device
            .open(&share, &memory, Purpose::Leases, reserved)
            .unwrap();
        let listed = Arc::<Listed>::default();
        let step = Arc::new(DeviceStep::new(Arc::default(), listed.clone()));
        let host = Pool::new(&Ledger::new("host", 1 << 30), Purpose::Leases, 0).unwrap();
        Bench {
            compute,
            device,
            memory,
            queue,
            listed,
            step,
            host,
            log: Log::default(),
        }
    }

    fn kernel(&self, op: &str) -> DeviceKernel {
        let operands = vec![Some(DType::F32); lookup(op).unwrap().operands.len()];
        let found = self.device.resolve(&DeviceOp {
            def: lookup(op).unwrap(),
            attrs: &Attrs::default(),
            operands: &operands,
            outputs: 1,
        });
        found.unwrap()
    }

    fn put(&self, x: f32) -> DeviceTensor {
        self.queue.copy_in(&self.step, 0, filled(x))
    }

    fn launch(&self, node: u32, op: &str, operands: Vec<DeviceOperand>) -> DeviceTensor {
        let outputs: ConcreteOutputs = [(DType::F32, [ELEMENTS].as_slice().into())].into();
        let kernel = self.kernel(op);
        let made = self.queue.launch(DeviceLaunch {
            kernel: &kernel,
            step: &self.step,
            node,
            operands: SmallVec::from_vec(operands),
            outputs: &outputs,
        });
        made.into_iter().next().unwrap()
    }

    fn fetch(&self, node: u32, tensor: DeviceTensor) {
        let log = self.log.clone();
        let then = move |copied: std::result::Result<Tensor, Arc<DeviceFailure>>| {
            let line = match copied {
                Ok(t) => {
                    let all = t.as_slice::<f32>().unwrap();
                    assert!(all.iter().all(|x| *x == all[0]));
                    all[0].to_string()
                }
                Err(failure) => {
                    let error = failure.error.as_ref();
                    let code = error.map_or("cancelled".into(), |e| e.code.name());
                    format!("node {}: {code}", failure.node)
                }
            };
            log.lock().unwrap().push(line);
        };
        self.queue
            .copy_out(&self.step, node, tensor, &self.host, Box::new(then));
    }

    fn event(&self, name: &str) {
        let (log, name) = (self.log.clone(), name.to_owned());
        self.queue
            .event(Box::new(move || log.lock().unwrap().push(name)));
    }

    /// Runs jobs until there is none, the last that was submitted first: no order between streams may be relied on.
    fn run(&self) {
        while let Some(job) = {
            let mut jobs = self.compute.jobs.lock().unwrap();
            jobs.pop_back()
        } {
            job();
        }
    }

    #[track_caller]
    fn check(&self, want: &[&str]) {
        assert_eq!(*self.log.lock().unwrap(), want);
    }

    fn used(&self) -> u64 {
        self.memory.total_and_peak().0
    }
}

fn read(t: &DeviceTensor) -> DeviceOperand {
    DeviceOperand::Device(t.clone())
}

#[test]
fn work_runs_later_and_in_order() {
    let b = Bench::new(1 << 20, 0);
    let (x, y) = (b.put(2.), b.put(3.));
    let sum = b.launch(1, "Add", vec![read(&x), read(&y)]);
    let product = b.launch(2, "Mul", vec![read(&sum), read(&x)]);
    b.fetch(3, product);
    b.event("all");
    b.check(&[]);
    assert_eq!(b.used(), 0, "nothing is allocated before its turn");
    b.run();
    b.check(&["10", "all"]);
    assert_eq!(*b.listed.0.lock().unwrap(), [1, 2]);
    // An event behind nothing is there at once.
    b.event("none");
    b.check(&["10", "all", "none"]);
    drop((x, y, sum));
    assert_eq!(b.used(), 0);
}

#[test]
fn a_copy_waits_for_what_it_copies_and_for_nothing_else() {
    let b = Bench::new(1 << 20, 0);
    let x = b.put(1.);
    let first = b.launch(1, "Neg", vec![read(&x)]);
    b.fetch(2, first.clone());
    let second = b.launch(3, "Neg", vec![read(&first)]);
    b.fetch(4, second);
    b.run();
    b.check(&["-1", "1"]);
}

#[test]
fn memory_is_used_again_in_the_order_of_the_queue() {
    // Two tensors at a time fit: each launch overwrites its operand, or follows the one that frees it.
    let b = Bench::new(3 * BYTES, 2 * BYTES);
    let mut x = b.put(1.);
    for node in 0..20 {
        let next = b.launch(node, "Neg", vec![read(&x)]);
        b.fetch(node, x);
        x = next;
    }
    b.fetch(20, x);
    b.event("all");
    b.run();
    let log = b.log.lock().unwrap().clone();
    assert_eq!(log.last().map(String::as_str), Some("all"));
    assert!(
        log.iter().take(21).all(|l| l == "1" || l == "-1"),
        "{log:?}"
    );
    assert_eq!(b.used(), 2 * BYTES, "only what the queue has reserved");
}

#[test]
fn a_failure_surfaces_later_and_reaches_what_depends_on_it() {
    let b = Bench::new(4 * BYTES, 0);
    let x = b.put(1.);
    let keep = [b.put(2.), b.put(3.), b.put(4.)];
    // There is no memory for this one.
    let failed = b.launch(5, "Neg", vec![read(&x)]);
    let after = b.launch(6, "Abs", vec![read(&failed)]);
    let own = b.launch(7, "Neg", vec![DeviceOperand::Device(x)]);
    b.fetch(8, after);
    b.fetch(9, own);
    assert!(b.step.failure().is_none());
    b.run();
    b.check(&["node 5: out_of_memory", "-1"]);
    assert_eq!(b.step.failure().map(|f| f.node), Some(5));
    assert_eq!(*b.listed.0.lock().unwrap(), [5, 7]);
    drop(keep);
}

#[test]
fn a_cancelled_step_launches_no_further_kernel() {
    let b = Bench::new(1 << 20, 0);
    let x = b.put(1.);
    let y = b.launch(1, "Neg", vec![read(&x)]);
    b.fetch(2, y);
    b.event("all");
    b.step.cancel.store(true, Ordering::Relaxed);
    b.run();
    b.check(&["node 1: cancelled", "all"]);
    assert!(b.listed.0.lock().unwrap().is_empty());
}

#[test]
fn what_is_recalled_waits_for_no_thread() {
    let b = Bench::new(1 << 20, 0);
    let x = b.put(1.);
    let y = b.launch(1, "Neg", vec![read(&x)]);
    b.fetch(2, y);
    b.event("all");
    // A step beside it goes on.
    let other = Arc::new(DeviceStep::new(Arc::default(), b.listed.clone()));
    let z = b.queue.copy_in(&other, 0, filled(5.));
    b.step.cancel.store(true, Ordering::Relaxed);
    b.queue.recall();
    b.check(&["node 2: cancelled", "all"]);
    let log = b.log.clone();
    let then = move |copied: std::result::Result<Tensor, Arc<DeviceFailure>>| {
        let first = copied.ok().map(|t| t.as_slice::<f32>().unwrap()[0]);
        log.lock().unwrap().push(format!("{first:?}"));
    };
    b.queue.copy_out(&other, 3, z, &b.host, Box::new(then));
    b.run();
    b.check(&["node 2: cancelled", "all", "Some(5.0)"]);
}

#[test]
fn the_job_of_a_copy_that_was_recalled_runs_no_copy_before_its_tensor_is_written() {
    let b = Bench::new(1 << 20, 0);
    let x = b.put(1.);
    b.run();
    b.fetch(2, x);
    let other = Arc::new(DeviceStep::new(Arc::default(), b.listed.clone()));
    let z = b.queue.copy_in(&other, 0, filled(5.));
    let log = b.log.clone();
    let then = move |copied: std::result::Result<Tensor, Arc<DeviceFailure>>| {
        let first = copied.ok().map(|t| t.as_slice::<f32>().unwrap()[0]);
        log.lock().unwrap().push(format!("{first:?}"));
    };
    b.queue.copy_out(&other, 3, z, &b.host, Box::new(then));
    b.step.cancel.store(true, Ordering::Relaxed);
    b.queue.recall();
    b.check(&["node 2: cancelled"]);
    // The first job is that of the copy.
    let job = b.compute.jobs.lock().unwrap().pop_front().unwrap();
    job();
    b.check(&["node 2: cancelled"]);
    b.run();
    b.check(&["node 2: cancelled", "Some(5.0)"]);
}

#[test]
fn without_threads_everything_fails_as_busy() {
    let b = Bench::new(1 << 20, 0);
    let x = b.put(1.);
    b.compute.closed.store(true, Ordering::Relaxed);
    let y = b.launch(1, "Neg", vec![read(&x)]);
    b.fetch(2, y);
    b.event("all");
    b.run();
    b.check(&["node 1: busy", "all"]);
    let error = b.step.failure().unwrap().error.clone().unwrap();
    assert_eq!(error.code, Code::Busy);
}

#[test]
fn freed_memory_is_poisoned() {
    let b = Bench::new(1 << 20, 0);
    let pool = Pool::new(&b.memory, Purpose::Leases, BYTES).unwrap();
    let share = Share::new(AccountId::named("c"), LeaseId(2));
    let queue = SimQueue::new(b.compute.clone(), share, pool.clone(), BYTES);
    let x = queue.copy_in(&b.step, 0, filled(1.));
    b.run();
    drop(x);
    let next = pool.tensor(DType::F32, &[ELEMENTS]).unwrap();
    let all = next.as_slice::<f32>().unwrap();
    assert!(all.iter().all(|x| x.is_nan()));
}

#[test]
fn a_tensor_of_another_device_is_refused() {
    let b = Bench::new(1 << 20, 0);
    let foreign = DeviceTensor {
        dtype: DType::F32,
        shape: [ELEMENTS].as_slice().into(),
        buffer: Arc::new(7u32),
    };
    let y = b.launch(1, "Neg", vec![read(&foreign)]);
    b.fetch(2, y);
    b.fetch(3, foreign);
    b.run();
    b.check(&["node 1: internal", "node 3: internal"]);
}
