//! The executor: runs an installed program's steps on the compute threads.
//!
//! ```text
//! Start ──> slots registered ──> ready sequences (by priority) ──> instructions ──> values ──> registers, sends
//! tensor arrives ──> value ──┘                     last instruction, recv and send ──> retire ──> Done
//! ```
//! A step is interpreted by at most one compute job at a time, its *runner*: a plain loop over the instructions of
//! ready sequences (see [`crate::program::code`]). The runner owns the step's registers and counts meanwhile, counts nothing
//! within a sequence, and takes no lock between two instructions. Arrivals make sequences ready and start a runner; while
//! one is active, they are its mail. Kernels split themselves over the pool's threads. A waiting step occupies no
//! thread. The steps of a brief program run on the thread that delivers their operands, since handing them
//! to another takes longer than the work: brief by prediction, and by measurement.
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
//! 8. A step of a partitioned body belongs to the step that it is driven by: that one tells of its failure (`bodies`).

mod bodies;
mod device;
mod direct;
mod ended;
mod engine;
mod events;
mod failures;
mod handles;
mod launch;
mod pace;
mod partial;
mod run;
mod runner;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use convoke_common::error::{Code, Error};
use convoke_common::ids::{LeaseId, StepKey};
use convoke_common::memory::Pool;
use convoke_common::world::Share;
use convoke_graph::Tensor;
use convoke_graph::ids::ParticipantIx;
use convoke_rendezvous::frame::Frame;
use convoke_rendezvous::step_events::checksum;
use convoke_rendezvous::{Lease, Link, Outgoing, step_event};

pub use self::bodies::{DrivenBodies, DrivenBody};
pub use self::engine::Engine;
pub(crate) use self::engine::NO_FUNCTION;
use self::pace::{Pace, Stopwatch};
use self::run::{Flow, FollowUp, Phase, Run};
use crate::device::DeviceQueue;
use crate::eager::Sessions;
use crate::health::wedge::Work;
use crate::program::installed::InstalledProgram;

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
    /// The partitioned bodies that nodes of the program drive.
    bodies: OnceLock<DrivenBodies>,
    /// Drops the lease; called when its driver is done with it or lost.
    driver_gone: Box<dyn Fn() + Send + Sync>,
    /// Set once the lease was released.
    released: AtomicBool,
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
        let (brief, threads) = (engine.compute.brief(), engine.compute.threads());
        let predicted = installed.predicted.map(|p| p.alone(threads));
        Arc::new_cyclic(|me| Executor {
            pace: Pace::new(predicted, brief),
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
            bodies: OnceLock::new(),
            driver_gone,
            released: AtomicBool::new(false),
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

    /// Ends a step because of an error that participant `from` found, and tells its runner. Called under the step's
    /// lock.
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

    /// Ends every step in flight, and each whose start is still on its way, since the lease was released.
    pub fn release(&self, lease: LeaseId) {
        // A step that starts meanwhile is in flight first and looks at the flag then, so that one of the two finds it.
        self.released.store(true, Ordering::SeqCst);
        self.abort_all(&released(lease));
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
            for (to, link) in self.links.iter().enumerate() {
                let frame = || Frame::Abort {
                    key: lease.key_at(to as ParticipantIx, n),
                    error: Box::new(error.clone()),
                };
                link.iter().for_each(|l| l.send(frame()));
            }
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

    /// Carries out the effects of an instruction, outside of the measured time: links may call straight into their
    /// peers, whose time is not the step's.
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
            key: lease.key_at(s.to, n),
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
            let key = lease.key_at(lease.driver(), n);
            driver.send(Frame::Done { key });
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

    /// Fails where the worker takes no new work, the lease was released, or a link has ended: the lease keeps the links that it was
    /// installed with. Checked after the step counts as running, so that whatever ends later finds the step and aborts
    /// it.
    fn usable(&self, lease: &Lease) -> Result<(), Error> {
        // A step of a body is no new work: a worker that leaves finishes the step that it belongs to.
        let finishes = |e: &Error| lease.is_of_body() && e.code == Code::WorkerLeaving;
        if let Some(refusal) = self.engine.gate.refusal().filter(|e| !finishes(e)) {
            return Err(self.engine.refused(refusal));
        }
        if self.released.load(Ordering::SeqCst) {
            return Err(released(lease.id));
        }
        match self.links.iter().flatten().find(|l| l.is_closed()) {
            None => Ok(()),
            Some(l) => Err(l.lost()),
        }
    }

    fn place(&self) -> convoke_common::Site {
        self.engine.place()
    }
}

fn released(lease: LeaseId) -> Error {
    Error::new(Code::LeaseRetired, format!("{lease} was released"))
}
