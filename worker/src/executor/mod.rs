//! The executor: runs an installed program's steps on the compute pool.
//!
//! ```text
//! Start ──> slots registered ──> ready nodes (by priority) ──> kernel ──> values ──> consumers, sends
//! tensor arrives ──> value ──┘                       last node, recv and send ──> retire ──> Done
//! ```
//! A step is interpreted by at most one compute job at a time, its *runner*: a plain loop over ready
//! nodes. Arrivals add ready nodes and start a runner where none is active; kernels split themselves over
//! the pool's threads. A waiting step occupies no thread. A brief program's steps run on the thread that
//! delivers their operands, since waking another takes longer than the work.
//!
//! Invariants
//! 1. `Done` is sent once per step, after the last kernel returned and the links let go of its tensors; by
//!    then the table has retired the step here.
//! 2. A step's first own error goes to every participant at once; an abort from elsewhere is not repeated.
//! 3. An aborted step launches no further kernel, and its running kernel sees the cancel flag.
//! 4. A runner, and a tensor that a link holds, keep the lease alive: a step ends with `Done` even when its
//!    lease is released meanwhile.

mod run;

use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use convoke_common::Tensor;
use convoke_common::error::{Code, Error};
use convoke_common::ids::{ParticipantIx, StepKey};
use convoke_common::memory::Pool;
use convoke_common::telemetry::{self, TraceIds};
use convoke_common::world::Compute;
use convoke_kernels::Exec;
use convoke_rendezvous::frame::Frame;
use convoke_rendezvous::slot::Registered;
use convoke_rendezvous::{Lease, Link, Outgoing, StepHandler};

use self::run::{After, Phase, Run};
use crate::cpu::{Inputs, KernelFailure, Launch};
use crate::installed::{Installed, site};

/// What all steps of a worker share.
pub struct Engine {
    pub worker: String,
    pub host: String,
    pub compute: Arc<dyn Compute>,
    /// Threads that a kernel splits over; none where kernels run on the runner's own thread.
    pub threads: Option<Arc<rayon::ThreadPool>>,
    pub steps_done: AtomicU64,
}

/// Runs the steps of one lease at one worker.
pub struct Executor {
    engine: Arc<Engine>,
    installed: Arc<Installed>,
    pool: Pool,
    lease: OnceLock<Weak<Lease>>,
    /// By participant index; none for this worker itself and for peers without a common edge.
    links: Vec<Option<Arc<Link>>>,
    runs: Box<[Mutex<Run>]>,
    me: Weak<Executor>,
    /// Told when the driver is gone: the lease is to be dropped.
    driver_lost: Box<dyn Fn() + Send + Sync>,
}

impl Executor {
    /// An executor of `in_flight` steps at once.
    pub fn new(
        engine: Arc<Engine>,
        installed: Arc<Installed>,
        pool: Pool,
        links: Vec<Option<Arc<Link>>>,
        in_flight: u32,
        driver_lost: Box<dyn Fn() + Send + Sync>,
    ) -> Arc<Executor> {
        Arc::new_cyclic(|me| Executor {
            engine,
            installed,
            pool,
            lease: OnceLock::new(),
            links,
            runs: (0..u64::from(in_flight.max(1)))
                .map(|n| Mutex::new(Run::new(n)))
                .collect(),
            me: me.clone(),
            driver_lost,
        })
    }

    /// Ties the executor to its lease.
    pub fn attach(&self, lease: &Arc<Lease>) {
        let _ = self.lease.set(Arc::downgrade(lease));
    }

    fn lease(&self) -> Option<Arc<Lease>> {
        self.lease.get()?.upgrade()
    }

    fn run(&self, n: u64) -> MutexGuard<'_, Run> {
        let entry = &self.runs[(n % self.runs.len() as u64) as usize];
        entry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Step nodes.
    pub fn nodes(&self) -> u32 {
        self.installed.nodes().len() as u32
    }

    /// Steps that have started and not retired.
    pub fn live_steps(&self) -> u64 {
        let live = |r: &&Mutex<Run>| {
            r.lock().unwrap_or_else(PoisonError::into_inner).phase == Phase::Running
        };
        self.runs.iter().filter(live).count() as u64
    }

    /// Ends every step in flight with `error`.
    pub fn abort_all(&self, error: &Error) {
        let live: Vec<u64> = self
            .runs
            .iter()
            .map(|r| r.lock().unwrap_or_else(PoisonError::into_inner))
            .filter(|r| r.phase == Phase::Running)
            .map(|r| r.n)
            .collect();
        live.into_iter().for_each(|n| self.fail(n, error.clone()));
    }

    /// This worker's own error: everybody is told.
    fn fail(&self, n: u64, error: Error) {
        let mut after = After::default();
        {
            let mut run = self.run(n);
            // A step may fail before its `Start` is here: a tensor that overtook it did not fit.
            if run.n != n || run.error.is_some() {
                return;
            }
            run.stop(error.clone());
            after.tell = Some(error);
            run.settle(&mut after);
        }
        self.finish(n, after);
    }

    fn finish(&self, n: u64, after: After) {
        let Some(lease) = self.lease() else { return };
        if let Some(error) = after.tell {
            lease.table.abort(n);
            let frame = Frame::Abort {
                key: StepKey { lease: lease.id, n },
                error: Box::new(error),
            };
            self.links
                .iter()
                .flatten()
                .for_each(|l| l.send(frame.clone()));
        }
        for (slot, tensor) in after.sends {
            self.send(&lease, n, slot, tensor);
        }
        if after.start_runner {
            self.start_runner(n);
        }
        if after.retire {
            self.retire(&lease, n);
        }
    }

    fn send(&self, lease: &Arc<Lease>, n: u64, send: u32, tensor: Tensor) {
        let s = &self.installed.program.sends[send as usize];
        let cancel = self.run(n).cancel.clone();
        let held = self.me.upgrade().map(|me| (me, lease.clone()));
        let sent: convoke_rendezvous::link::Sent = Box::new(move || {
            if let Some((me, _lease)) = &held {
                me.sent(n);
            }
        });
        let Some(Some(link)) = self.links.get(usize::from(s.to)) else {
            return sent();
        };
        link.send_tensor(Outgoing {
            key: StepKey { lease: lease.id, n },
            slot: s.slot,
            tensor,
            priority: s.priority,
            cancel,
            sent,
        });
    }

    fn sent(&self, n: u64) {
        let mut after = After::default();
        {
            let mut run = self.run(n);
            if run.n != n {
                return;
            }
            run.sending -= 1;
            run.settle(&mut after);
        }
        self.finish(n, after);
    }

    fn retire(&self, lease: &Lease, n: u64) {
        {
            let mut run = self.run(n);
            if run.n != n || run.phase != Phase::Running {
                return;
            }
            *run = Run::new(n + self.runs.len() as u64);
        }
        lease.table.retire(n);
        self.engine.steps_done.fetch_add(1, Ordering::Relaxed);
        if let Some(Some(driver)) = self.links.get(usize::from(lease.driver())) {
            driver.send(Frame::Done {
                key: StepKey { lease: lease.id, n },
            });
        }
    }

    fn start_runner(&self, n: u64) {
        let Some(me) = self.me.upgrade() else { return };
        if self.installed.brief {
            return me.interpret(n);
        }
        let priority = {
            let run = self.run(n);
            run.ready
                .peek()
                .map_or(0, |(p, _)| (*p).min(i64::MAX as u64) as i64)
        };
        let lease = self.lease();
        let job = Box::new(move || {
            let _lease = lease;
            me.interpret(n);
        });
        let submitted = self.engine.compute.submit(priority, job);
        if let Err(refused) = submitted {
            self.run(n).runner = false;
            let why = format!(
                "the compute pool takes no further work ({:?})",
                refused.reason
            );
            self.fail(n, Error::new(Code::Busy, why).at(self.place()));
            // Where it had failed already, it waited only for this runner.
            self.settle(n);
        }
    }

    fn settle(&self, n: u64) {
        let mut after = After::default();
        {
            let mut run = self.run(n);
            if run.n == n {
                run.settle(&mut after);
            }
        }
        self.finish(n, after);
    }

    /// Fails where a link has ended: the lease keeps the links that it was installed with. Looked at once the
    /// step runs, so that a link that ends later finds it to abort.
    fn reachable(&self) -> Result<(), Error> {
        match self.links.iter().flatten().find(|l| l.is_closed()) {
            None => Ok(()),
            Some(l) => {
                let msg = format!("lost contact with {}", l.peer().name);
                Err(Error::new(Code::PeerLost, msg))
            }
        }
    }

    fn place(&self) -> convoke_common::Site {
        convoke_common::Site {
            worker: Some(self.engine.worker.clone()),
            host: Some(self.engine.host.clone()),
            device: Some("cpu:0".into()),
            ..Default::default()
        }
    }

    /// The runner: launches ready nodes until none is left.
    fn interpret(&self, n: u64) {
        let span = self.run(n).span.clone();
        let _entered = span.enter();
        loop {
            let mut after = After::default();
            let next = {
                let mut run = self.run(n);
                let next = if run.n == n && run.error.is_none() {
                    run.ready.pop()
                } else {
                    None
                };
                match next {
                    Some((_, Reverse(node))) => {
                        Some((node, run.operands(&self.installed, node), run.flag.clone()))
                    }
                    None => {
                        if run.n == n {
                            run.runner = false;
                            run.settle(&mut after);
                        }
                        None
                    }
                }
            };
            let Some((node, inputs, flag)) = next else {
                return self.finish(n, after);
            };
            match self.launch(node, inputs, &flag) {
                Ok(outputs) => {
                    let mut run = self.run(n);
                    run.nodes_left -= 1;
                    if run.error.is_none() {
                        let ids = &self.installed.nodes()[node as usize].outputs;
                        for (v, t) in ids.iter().zip(outputs) {
                            run.produce(&self.installed, *v, t, &mut after);
                        }
                    }
                    // This loop is the runner, and settles when it ends.
                    after.start_runner = false;
                }
                Err(error) => self.run_failed(n, error),
            }
            self.finish(n, after);
        }
    }

    fn run_failed(&self, n: u64, error: Option<Error>) {
        self.run(n).nodes_left -= 1;
        if let Some(error) = error {
            self.fail(n, error);
        }
    }

    /// Runs one kernel. `Err(None)`: cancelled.
    fn launch(
        &self,
        node: u32,
        inputs: Inputs,
        flag: &AtomicBool,
    ) -> Result<crate::cpu::Outputs, Option<Error>> {
        let exec = match &self.engine.threads {
            Some(pool) if !self.installed.brief => Exec::pooled(pool, flag),
            _ => Exec::single(flag),
        };
        let describe =
            |inputs: &[String]| site(&self.installed.nodes()[node as usize], inputs.to_vec());
        let operands: Vec<Option<(convoke_common::DType, convoke_common::Shape)>> = inputs
            .iter()
            .map(|t| t.as_ref().map(|t| (t.dtype(), t.shape().into())))
            .collect();
        let kernel = &self.installed.kernels[node as usize];
        let results = self.installed.nodes()[node as usize].outputs.len();
        let launch = Launch {
            inputs,
            exec,
            pool: &self.pool,
        };
        let result = catch_unwind(AssertUnwindSafe(|| kernel.launch(launch)));
        let error = match result {
            Ok(Ok(outputs)) if outputs.len() >= results => return Ok(outputs),
            Ok(Ok(_)) => Error::internal("a kernel left results out"),
            Ok(Err(KernelFailure::Cancelled)) => return Err(None),
            Ok(Err(KernelFailure::Error(e))) => e,
            Err(panic) => {
                let why = panic
                    .downcast_ref::<&str>()
                    .map(|s| s.to_string())
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_else(|| "no message".into());
                Error::new(Code::KernelPanicked, format!("the kernel panicked: {why}"))
            }
        };
        let names: Vec<String> = operands
            .iter()
            .flatten()
            .map(|(d, s)| format!("{d}{:?}", s.as_slice()))
            .collect();
        let mut place = self.place();
        let node = describe(&names);
        place.node = node.node;
        place.op = node.op;
        place.operands = node.operands;
        Err(Some(error.at(place)))
    }
}

impl StepHandler for Executor {
    fn start(&self, n: u64, axes: Vec<i64>, trace: TraceIds) {
        let Some(lease) = self.lease() else { return };
        let mut after = After::default();
        {
            let mut run = self.run(n);
            if run.n != n || run.phase != Phase::Waiting {
                return;
            }
            let x = &self.installed;
            let span = tracing::info_span!("step", key = %StepKey { lease: lease.id, n });
            telemetry::set_parent(&span, trace);
            run.span = span;
            run.phase = Phase::Running;
            run.nodes_left = x.nodes().len();
            if run.error.is_some() {
                // Aborted by a peer before the driver's word arrived.
                run.settle(&mut after);
            } else if let Err(e) = self.reachable().and_then(|()| lease.bind(n, &axes)) {
                run.stop(e.clone());
                after.tell = Some(e.at(self.place()));
                run.settle(&mut after);
            } else {
                run.pending = x.ready.clone();
                run.uses = x.uses.clone();
                run.values = vec![None; x.program.values.len()];
                run.recvs_left = x.program.recvs.len();
                for (i, r) in x.ready.iter().enumerate() {
                    if *r == 0 {
                        run.make_ready(x, i as u32, &mut after);
                    }
                }
                for send in &x.constant_sends {
                    let v = x.program.sends[*send as usize].value;
                    if let Some(t) = &x.constants[v as usize] {
                        run.sending += 1;
                        after.sends.push((*send, t.clone()));
                    }
                }
                for (slot, recv) in x.program.recvs.iter().enumerate() {
                    if let Ok(s) = lease.table.slot(n, slot as u32)
                        && let Registered::Ready(t) = s.register(n)
                    {
                        run.recvs_left -= 1;
                        run.produce(x, recv.value, t, &mut after);
                    }
                }
                run.settle(&mut after);
            }
        }
        self.finish(n, after);
    }

    fn arrived(&self, n: u64, slot: u32) {
        let Some(lease) = self.lease() else { return };
        let mut after = After::default();
        {
            let mut run = self.run(n);
            if run.n != n || run.phase != Phase::Running || run.error.is_some() {
                return;
            }
            let Some(t) = lease.table.slot(n, slot).ok().and_then(|s| s.take(n)) else {
                return;
            };
            run.recvs_left -= 1;
            let value = self.installed.program.recvs[slot as usize].value;
            run.produce(&self.installed, value, t, &mut after);
            run.settle(&mut after);
        }
        self.finish(n, after);
    }

    fn abort(&self, n: u64, error: Error, from: ParticipantIx) {
        let Some(lease) = self.lease() else { return };
        if from == lease.me {
            return self.fail(n, error.at(self.place()));
        }
        let mut after = After::default();
        {
            let mut run = self.run(n);
            if run.n != n || run.error.is_some() {
                return;
            }
            run.stop(error);
            lease.table.abort(n);
            run.settle(&mut after);
        }
        self.finish(n, after);
    }

    fn done(&self, n: u64, from: ParticipantIx) {
        tracing::warn!(n, from, "a worker was told that a step is done");
    }

    fn peer_lost(&self, peer: ParticipantIx, error: &Error) {
        let Some(lease) = self.lease() else { return };
        let link = self.links.get(usize::from(peer)).and_then(Option::as_ref);
        // It may have been a second link to the same peer.
        if link.is_some_and(|l| !l.is_closed()) {
            return;
        }
        self.abort_all(error);
        if peer == lease.driver() {
            (self.driver_lost)();
        }
    }
}
