//! The executor: runs an installed program's steps on the compute threads.
//!
//! ```text
//! Start ──> slots registered ──> ready sequences (by priority) ──> instructions ──> values ──> registers, sends
//! tensor arrives ──> value ──┘                     last instruction, recv and send ──> retire ──> Done
//! ```
//! A step is interpreted by at most one compute job at a time, its *runner*: a plain loop over the instructions of
//! ready sequences (see [`crate::code`]). The runner owns the step's registers and counts meanwhile, counts nothing
//! within a sequence, and takes no lock between two instructions. Arrivals make sequences ready and start a runner; while
//! one is active, they are its mail. Kernels split themselves over the pool's threads. A waiting step occupies no
//! thread. The steps of a brief program run on the thread that delivers their operands, since waking another takes
//! longer than the work: brief by prediction, and by measurement.
//!
//! Invariants
//! 1. `Done` is sent once per step, after the last kernel has returned and the links have released its tensors; by then
//!    the table has retired the step here.
//! 2. A step's first error of this worker goes to every participant at once; an abort from elsewhere is not repeated.
//! 3. An aborted step launches no further kernel once its runner learns of the abort, and its running kernel sees the
//!    cancel flag.
//! 4. A runner, and a tensor that a link holds, keep the lease alive: a step ends with `Done` even when its
//!    lease is released meanwhile.
//! 5. A step that ended waits for no thread: a job that no thread has yet is forgotten, and finds nothing to do later.
//! 6. A step that ended and has not quiesced is watched until it has.
//! 7. In a partial step a node's failure ends only what depends on the node (`partial`).

mod device;
mod direct;
mod ended;
mod failures;
mod handles;
mod launch;
mod pace;
mod partial;
mod run;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use convoke_common::device_spec::DeviceId;
use convoke_common::error::{Code, Error};
use convoke_common::ids::StepKey;
use convoke_common::memory::Pool;
use convoke_common::mutant;
use convoke_common::telemetry::{self, TraceIds};
use convoke_common::world::{Compute, Share};
use convoke_graph::Tensor;
use convoke_graph::ids::{FunctionId, ParticipantIx};
use convoke_kernels::Exec;
use convoke_rendezvous::frame::Frame;
use convoke_rendezvous::slot::RegisterOutcome;
use convoke_rendezvous::step_events::checksum;
use convoke_rendezvous::{Lease, Link, Outgoing, StepHandler, step_event};

use self::device::{AHEAD, Enqueued};
pub use self::failures::Failures;
pub use self::handles::HandleAccess;
use self::pace::{Pace, Stopwatch};
use self::run::{Flow, FollowUp, Phase, Run, Runner};
use crate::blackbox::{BlackBox, NoteGuard};
use crate::code::InstrKind;
use crate::compute::Crew;
use crate::cpu::{Operands, Outputs};
use crate::device::{DeviceQueue, OwnedDevice};
use crate::drain::Gate;
use crate::eager::Sessions;
use crate::installed::InstalledProgram;
use crate::wedge::{Watch, Work};

/// The state that all steps of a worker share.
pub struct Engine {
    pub worker: String,
    pub host: String,
    pub compute: Arc<dyn Compute>,
    pub steps_done: AtomicU64,
    pub failures: Failures,
    /// Whether the worker takes new work, and the count of live steps.
    pub gate: Gate,
    /// The watch over work that ended and still runs.
    pub watch: Watch,
    /// The black box that notes running kernels, for a worker in a process of its own.
    pub black_box: Option<BlackBox>,
    /// The device of the worker, where it is not the host itself.
    pub device: Option<OwnedDevice>,
    /// The kind and number of the device, such as `cpu:0`.
    pub device_name: String,
    /// Whether compute wants to hear of every node that is launched.
    hears_launches: bool,
}

impl Engine {
    /// An engine that takes work and has run nothing yet.
    pub fn new(
        worker: &str,
        host: &str,
        compute: Arc<dyn Compute>,
        black_box: Option<BlackBox>,
    ) -> Engine {
        Engine {
            worker: worker.to_owned(),
            host: host.to_owned(),
            hears_launches: compute.hears_launches(),
            compute,
            steps_done: AtomicU64::new(0),
            failures: Failures::default(),
            gate: Gate::default(),
            watch: Watch::default(),
            black_box,
            device: None,
            device_name: DeviceId::default().to_string(),
        }
    }

    /// The engine of a worker that owns this device; `owned` is `None` where it is the host itself.
    pub fn with_device(self, device: &DeviceId, owned: Option<OwnedDevice>) -> Engine {
        Engine {
            device: owned,
            device_name: device.to_string(),
            ..self
        }
    }

    /// Notes in the black box that this thread runs a kernel, until the note is dropped.
    pub fn note(&self, function: &FunctionId, node: &str) -> Option<NoteGuard<'_>> {
        self.black_box.as_ref()?.note(function, node)
    }
}

/// The node index that stands for no node.
const NO_NODE: u32 = u32::MAX;

/// One entry of the window, used by one step at a time.
struct Entry {
    run: Mutex<Run>,
    /// Makes the thread that interprets the step look at `run`: there is mail, or the step has ended. A flag left over
    /// from an earlier step does no harm.
    stirred: AtomicBool,
    /// The step node that a thread runs, or ran last.
    node: AtomicU32,
}

impl Entry {
    fn new(n: u64) -> Entry {
        Entry {
            run: Mutex::new(Run::new(n)),
            stirred: AtomicBool::new(false),
            node: AtomicU32::new(NO_NODE),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The window entries whose steps have started and not retired.
fn live(runs: &[Entry]) -> impl Iterator<Item = MutexGuard<'_, Run>> {
    let all = runs.iter().map(Entry::lock);
    all.filter(|r| r.phase == Phase::Running)
}

/// Runs the steps of one lease at one worker.
pub struct Executor {
    engine: Arc<Engine>,
    installed: Arc<InstalledProgram>,
    /// Decides whether steps run as compute jobs or on the delivering thread.
    pace: Pace,
    /// The share that is charged for the steps.
    share: Share,
    pool: Pool,
    lease: OnceLock<Weak<Lease>>,
    /// The links by participant index; `None` for this worker itself and for peers without a common edge.
    links: Vec<Option<Arc<Link>>>,
    runs: Box<[Entry]>,
    /// The buffers of the last step that ran on its caller's thread, to be used again.
    spare: Mutex<Option<Flow>>,
    me: Weak<Executor>,
    /// The sessions that hold the driver's handles.
    handles: OnceLock<Arc<Sessions>>,
    /// The lease's queue at the worker's device, for a program that uses it.
    queue: OnceLock<Arc<dyn DeviceQueue>>,
    /// Drops the lease; called when its driver is done with it or lost.
    driver_gone: Box<dyn Fn() + Send + Sync>,
}

impl Executor {
    /// Makes an executor that runs up to `in_flight` steps at once.
    pub fn new(
        engine: Arc<Engine>,
        installed: Arc<InstalledProgram>,
        share: Share,
        pool: Pool,
        links: Vec<Option<Arc<Link>>>,
        in_flight: u32,
        driver_gone: Box<dyn Fn() + Send + Sync>,
    ) -> Arc<Executor> {
        let wake = engine.compute.wake();
        Arc::new_cyclic(|me| Executor {
            pace: Pace::new(installed.predicted, wake),
            engine,
            installed,
            share,
            pool,
            lease: OnceLock::new(),
            links,
            runs: (0..u64::from(in_flight.max(1))).map(Entry::new).collect(),
            spare: Mutex::default(),
            me: me.clone(),
            handles: OnceLock::new(),
            queue: OnceLock::new(),
            driver_gone,
        })
    }

    /// Ties the executor to its lease.
    pub fn attach(&self, lease: &Arc<Lease>) {
        let _ = self.lease.set(Arc::downgrade(lease));
    }

    /// Gives the executor the sessions whose handles its steps read and fill.
    pub fn serve_handles(&self, sessions: Arc<Sessions>) {
        let _ = self.handles.set(sessions);
    }

    fn lease(&self) -> Option<Arc<Lease>> {
        self.lease.get()?.upgrade()
    }

    fn entry(&self, n: u64) -> &Entry {
        &self.runs[(n % self.runs.len() as u64) as usize]
    }

    /// Makes the thread that interprets a step look at its entry.
    fn stir(&self, n: u64) {
        self.entry(n).stirred.store(true, Ordering::Release);
    }

    fn run(&self, n: u64) -> MutexGuard<'_, Run> {
        self.entry(n).lock()
    }

    /// Ends a step because of what the participant `from` found, and tells its runner. Called under the step's lock.
    fn stop(&self, lease: &Lease, run: &mut Run, error: Error, from: ParticipantIx) {
        self.tell_failure(lease, run, &error, from);
        run.stop(error);
        self.stir(run.n);
    }

    /// Number of nodes of the step part.
    pub fn nodes(&self) -> u32 {
        self.installed.nodes().len() as u32
    }

    /// Bytes of the program's constants that others use as well.
    pub fn shared_bytes(&self) -> u64 {
        self.installed.shared_bytes()
    }

    /// Number of steps that have started and not retired.
    pub fn live_steps(&self) -> u64 {
        live(&self.runs).count() as u64
    }

    /// Ends every step in flight with `error`.
    pub fn abort_all(&self, error: &Error) {
        let live: Vec<u64> = live(&self.runs).map(|r| r.n).collect();
        live.into_iter().for_each(|n| self.fail(n, error.clone()));
    }

    /// Ends a step by this worker's own error, which is sent to every participant.
    fn fail(&self, n: u64, error: Error) {
        let Some(lease) = self.lease() else { return };
        let mut after = FollowUp::default();
        {
            let mut run = self.run(n);
            // A step may fail before its `Start` is here: a tensor that overtook `Start` did not fit.
            if run.n != n || run.error.is_some() {
                return;
            }
            self.stop(&lease, &mut run, error.clone(), lease.me);
            after.tell = Some(error);
            run.settle(&mut after);
            self.watch(&mut run, &after);
        }
        self.finish(n, after);
        self.recall();
    }

    fn finish(&self, n: u64, after: FollowUp) {
        let Some(lease) = self.lease() else { return };
        if let Some(error) = after.tell {
            let key = StepKey { lease: lease.id, n };
            step_event!("abort", key, code = error.code.name());
            lease.table.abort(n);
            let frame = Frame::Abort {
                key,
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
        if !after.untold.is_empty() {
            self.tell_failed_values(&lease, n, after.untold);
        }
        if after.start_runner {
            self.start_runner(n);
        }
        if after.retire {
            self.retire(&lease, n);
        }
    }

    /// Does what follows from an instruction, outside of the measured time: links may call straight into their peers,
    /// whose time is not the step's.
    fn finish_within(&self, n: u64, after: &mut FollowUp, time: &mut Option<Stopwatch>) {
        time.iter_mut().for_each(Stopwatch::stop);
        self.finish(n, std::mem::take(after));
        time.iter_mut().for_each(Stopwatch::go_on);
    }

    fn send(&self, lease: &Arc<Lease>, n: u64, send: u32, tensor: Tensor) {
        let s = &self.installed.program.sends[send as usize];
        let cancel = {
            let mut run = self.run(n);
            if let Some(count) = run.unsent.get_mut(usize::from(s.to)) {
                *count += 1;
            }
            run.cancel.clone()
        };
        let to = s.to;
        let held = self.me.upgrade().map(|me| (me, lease.clone()));
        let sent: convoke_rendezvous::link::SentCallback = Box::new(move || {
            if let Some((me, _lease)) = &held {
                me.sent(n, to);
            }
        });
        let Some(Some(link)) = self.links.get(usize::from(s.to)) else {
            return sent();
        };
        let key = StepKey { lease: lease.id, n };
        step_event!(
            "sent",
            key,
            slot = s.slot,
            peer = s.to,
            checksum = checksum(&tensor)
        );
        link.send_tensor(Outgoing {
            key,
            slot: s.slot,
            tensor,
            priority: s.priority,
            cancel,
            sent,
        });
    }

    fn sent(&self, n: u64, to: ParticipantIx) {
        let mut after = FollowUp::default();
        {
            let mut run = self.run(n);
            if run.n != n {
                return;
            }
            run.sending -= 1;
            if let Some(count) = run.unsent.get_mut(usize::from(to)) {
                *count -= 1;
            }
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
            if run.watched {
                let key = StepKey { lease: lease.id, n };
                self.engine.watch.quiesced(Work::Step(key));
            }
            if run.error.is_none() && !run.flow.has_failed_values() && self.pace.listens(n) {
                self.pace.took(run.spent);
            }
            run.follow(n + self.runs.len() as u64);
        }
        let key = StepKey { lease: lease.id, n };
        step_event!("done", key);
        lease.table.retire(n);
        self.engine.gate.quiesced();
        self.engine.steps_done.fetch_add(1, Ordering::Relaxed);
        if let Some(Some(driver)) = self.links.get(usize::from(lease.driver())) {
            driver.send(Frame::Done { key });
        }
    }

    fn start_runner(&self, n: u64) {
        let Some(me) = self.me.upgrade() else { return };
        if self.runs_here() {
            me.begun(n);
            return me.interpret(n, true);
        }
        let priority = {
            let next = self.run(n).flow.peek(&self.installed.code);
            next.map_or(0, |(p, _)| p.min(i64::MAX as u64) as i64)
        };
        let (lease, runner) = (self.lease(), me.clone());
        let begin = Box::new(move || runner.begun(n));
        let job = Box::new(move || {
            let _lease = lease;
            me.interpret(n, false);
        });
        let submitted = self
            .engine
            .compute
            .submit_begun(&self.share, priority, begin, job);
        if let Err(refused) = submitted {
            let mut run = self.run(n);
            if run.n == n {
                run.runner = Runner::None;
            }
            drop(run);
            let why = format!(
                "the compute threads take no further work ({:?})",
                refused.reason
            );
            self.fail(n, Error::new(Code::Busy, why).at(self.place()));
            // A step that had failed already waited only for this runner.
            self.settle(n);
        }
    }

    /// Whether a step runs on the thread that has its operands: the step is brief, and takes no compute time from
    /// others who wait.
    fn runs_here(&self) -> bool {
        self.pace.is_brief() && self.engine.compute.admits(&self.share, self.pace.usual())
    }

    /// A thread has begun a step's job.
    fn begun(&self, n: u64) {
        let mut run = self.run(n);
        if run.n == n && run.runner == Runner::Queued {
            run.runner = Runner::Active;
            let code = &self.installed.code;
            let next = run.flow.peek(code);
            let node = next.map_or(NO_NODE, |(_, i)| code.instr(i).node);
            self.entry(n).node.store(node, Ordering::Relaxed);
        }
    }

    fn settle(&self, n: u64) {
        let mut after = FollowUp::default();
        {
            let mut run = self.run(n);
            if run.n == n {
                run.settle(&mut after);
            }
        }
        self.finish(n, after);
    }

    /// Fails where the worker takes no new work, or where a link has ended: the lease keeps the links that it was
    /// installed with. Checked after the step counts as running, so that whatever ends later finds the step and aborts
    /// it.
    fn usable(&self) -> Result<(), Error> {
        if let Some(refusal) = self.engine.gate.refusal() {
            return Err(refusal.clone());
        }
        match self.links.iter().flatten().find(|l| l.is_closed()) {
            None => Ok(()),
            Some(l) => Err(l.lost()),
        }
    }

    fn place(&self) -> convoke_common::Site {
        self.engine.place()
    }

    /// The runner: interprets ready instructions until there are none, or its time slice is over. With `brief` it runs
    /// outside of a compute job.
    fn interpret(&self, n: u64, brief: bool) {
        let mut slice = match brief {
            true => usize::MAX,
            false => self.engine.compute.slice(),
        };
        let mut time = self.pace.listens(n).then(Stopwatch::start);
        let (entry, x) = (self.entry(n), &*self.installed);
        let (span, flag, partial, device, mut flow) = {
            let mut run = entry.lock();
            if run.n != n || run.runner != Runner::Active {
                // The step ended before a thread had the job.
                return;
            }
            // The runner looks at the entry below, whatever has set the flag.
            entry.stirred.store(true, Ordering::Relaxed);
            let flow = std::mem::take(&mut run.flow);
            let device = run.device.clone();
            (
                run.span.clone(),
                run.flag.clone(),
                run.partial,
                device,
                flow,
            )
        };
        let _entered = span.enter();
        // A brief step may run within the job of another worker of this process, or under a lock, and so takes no
        // turns.
        let crew = if brief { None } else { Crew::current() };
        let exec = match &crew {
            Some(crew) => crew.exec(&flag),
            None => Exec::single(&flag),
        };
        let mut after = FollowUp::default();
        loop {
            let ahead = flow.ahead() > AHEAD;
            if flow.is_idle() || slice == 0 || ahead || entry.stirred.load(Ordering::Acquire) {
                let mut run = entry.lock();
                entry.stirred.store(false, Ordering::Relaxed);
                let goes_on = run.look(x, &mut flow, &mut after);
                run.sending += after.outgoing();
                if !goes_on || flow.is_idle() || ahead {
                    run.spent += time.map_or(Duration::ZERO, |t| t.read());
                    let enqueued = flow.take_enqueued();
                    run.events += u32::from(enqueued);
                    let waits = goes_on && !flow.is_idle();
                    run.rest(flow, [Runner::None, Runner::Ahead][usize::from(waits)]);
                    if run.error.is_none() || !mutant!("quiesce-lost") {
                        run.settle(&mut after);
                    }
                    self.watch(&mut run, &after);
                    drop(run);
                    if enqueued {
                        self.await_device(n);
                    }
                    if !goes_on {
                        self.recall();
                    }
                    return self.finish(n, after);
                }
                if slice == 0 {
                    run.spent += time.map_or(Duration::ZERO, |t| t.read());
                    run.rest(flow, Runner::Queued);
                    drop(run);
                    self.finish(n, after);
                    // This thread is still the step's only runner: the job that follows goes on from here.
                    return self.start_runner(n);
                }
                drop(run);
                self.finish_within(n, &mut after, &mut time);
            }
            let code = &x.code;
            let Some(i) = flow.next(code) else { continue };
            slice = slice.saturating_sub(1);
            let instr = code.instr(i);
            entry.node.store(instr.node, Ordering::Relaxed);
            let launched = match instr.kind {
                InstrKind::Kernel => self.launch(n, i, &mut flow.registers, exec),
                InstrKind::Handle(op) => {
                    let slots = code.operands(i);
                    let operands = Operands::at(slots, &mut flow.registers, &code.constants);
                    let done = match op {
                        HandleAccess::Lend { donate } => {
                            self.lend(n, instr.node, &operands, donate);
                            Ok(Outputs::new())
                        }
                        HandleAccess::Fill => self.fill(n, instr.node, &operands).map(Into::into),
                    };
                    done.map_err(|e| Some(Box::new(e.at(self.site_of(instr.node)))))
                }
                InstrKind::Device(op) => match self.enqueue(n, i, op, &mut flow, device.as_ref()) {
                    Ok(Enqueued::OnHost(made)) => Ok(made),
                    Ok(Enqueued::OnDevice(made)) => {
                        flow.ended_on_device(code, i, made);
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            match launched {
                Ok(made) => {
                    flow.ended(code, i, made, &mut after);
                    if after.sends.is_empty() {
                        continue;
                    }
                    let mut run = entry.lock();
                    if run.error.is_some() {
                        after.sends.clear();
                        continue;
                    }
                    run.sending += after.sends.len();
                    drop(run);
                    self.finish_within(n, &mut after, &mut time);
                }
                Err(Some(error)) if partial && partial::is_of_node(&error) => {
                    if !flow.has_failed_values() {
                        self.note_first_failure(n, &error);
                    }
                    flow.lose(code, i, &Arc::new(*error));
                    // Peers that wait for the lost results are told at the next look.
                    entry.stirred.store(true, Ordering::Relaxed);
                }
                Err(Some(error)) => self.fail(n, *error),
                // The step has ended; the runner learns of that at the next look.
                Err(None) => entry.stirred.store(true, Ordering::Relaxed),
            }
        }
    }
}

impl StepHandler for Executor {
    fn start(&self, n: u64, axes: Vec<i64>, trace: TraceIds, partial: bool) -> bool {
        let Some(lease) = self.lease() else {
            return true;
        };
        let (mut after, mut unexpected) = (FollowUp::default(), None);
        {
            let mut run = self.run(n);
            if run.n != n || run.phase != Phase::Waiting {
                return false;
            }
            let x = &self.installed;
            let key = StepKey { lease: lease.id, n };
            let span = tracing::debug_span!(
                "step",
                %key,
                worker = %self.engine.worker,
                otel.status_code = tracing::field::Empty,
                otel.status_description = tracing::field::Empty,
            );
            telemetry::set_parent(&span, trace);
            run.span = span;
            step_event!("start", key);
            (run.phase, run.partial) = (Phase::Running, partial);
            run.device = self.device_step(&run.flag);
            run.unsent = vec![0; self.links.len()];
            self.engine.gate.started();
            if run.error.is_some() {
                // A peer aborted the step before the driver's `Start` arrived.
                run.settle(&mut after);
            } else if let Err(e) = self.usable().and_then(|()| lease.bind(n, &axes)) {
                let e = e.at(self.place());
                self.stop(&lease, &mut run, e.clone(), lease.me);
                after.tell = Some(e);
                run.settle(&mut after);
            } else {
                run.start(x, &mut after);
                run.sending += x.constant_sends.len();
                after.sends.extend_from_slice(&x.constant_sends);
                for (slot, recv) in x.program.recvs.iter().enumerate() {
                    if let Ok(s) = lease.table.slot(n, slot as u32)
                        && let RegisterOutcome::Ready(delivered) = s.register(n)
                    {
                        match delivered {
                            Err(error) if !partial => unexpected = Some(error),
                            delivered => {
                                if delivered.is_ok() {
                                    step_event!("taken", key, slot = slot as u32);
                                }
                                run.came(x, Some(recv.value), delivered, &mut after);
                            }
                        }
                    }
                }
                run.settle(&mut after);
            }
        }
        self.finish(n, after);
        if let Some(error) = unexpected {
            self.fail(n, Arc::unwrap_or_clone(error));
        }
        true
    }

    fn arrived(&self, n: u64, slot: u32) {
        let Some(lease) = self.lease() else { return };
        let mut after = FollowUp::default();
        {
            let mut run = self.run(n);
            if run.n != n || run.phase != Phase::Running || run.error.is_some() {
                return;
            }
            let taken = lease.table.slot(n, slot).ok().and_then(|s| s.take(n));
            let delivered = match taken {
                None => return,
                Some(Err(error)) if !run.partial => {
                    // The sender takes the step for one that is not partial: the tensor does not come.
                    drop(run);
                    return self.fail(n, Arc::unwrap_or_clone(error));
                }
                Some(delivered) => delivered,
            };
            if delivered.is_ok() {
                step_event!("taken", StepKey { lease: lease.id, n }, slot = slot);
            }
            let value = Some(self.installed.program.recvs[slot as usize].value);
            if run.came(&self.installed, value, delivered, &mut after) {
                self.stir(n);
            }
            run.settle(&mut after);
        }
        self.finish(n, after);
    }

    fn abort(&self, n: u64, error: Error, from: ParticipantIx) {
        let Some(lease) = self.lease() else { return };
        if from == lease.me {
            return self.fail(n, error.at(self.place()));
        }
        let mut after = FollowUp::default();
        {
            let mut run = self.run(n);
            if run.n != n || run.error.is_some() {
                return;
            }
            step_event!(
                "abort",
                StepKey { lease: lease.id, n },
                code = error.code.name()
            );
            self.waited(&run, &error);
            self.stop(&lease, &mut run, error, from);
            lease.table.abort(n);
            run.settle(&mut after);
            self.watch(&mut run, &after);
        }
        self.finish(n, after);
        self.recall();
    }

    fn done(&self, n: u64, from: ParticipantIx) {
        tracing::warn!(n, from, "a worker was told that a step is done");
    }

    fn released(&self) {
        (self.driver_gone)();
    }

    fn peer_lost(&self, peer: ParticipantIx, error: &Error) {
        let Some(lease) = self.lease() else { return };
        let link = self.links.get(usize::from(peer)).and_then(Option::as_ref);
        // The link that ended may have been a second one to the same peer.
        if link.is_some_and(|l| !l.is_closed()) {
            return;
        }
        self.abort_all(error);
        if peer == lease.driver() {
            (self.driver_gone)();
        }
    }
}
