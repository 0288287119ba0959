//! The runner of a step: the compute job, or the delivering thread, that interprets its instructions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use convoke_common::error::{Code, Error};
use convoke_common::mutant;
use convoke_kernels::Exec;
use tracing::Span;

use super::device::InstrResults;
use super::pace::Stopwatch;
use super::run::{FollowUp, Runner};
use super::{Executor, NO_NODE, partial};
use crate::compute::{self, Crew};
use crate::cpu::{Operands, Outputs};
use crate::device::AHEAD;
use crate::program::code::{HandleAccess, InstrKind};

/// Work that a runner leaves for after its end.
struct Remainder {
    span: Span,
    after: FollowUp,
    /// Whether the time slice is over, so that another job goes on. Until then the step has no other runner.
    goes_on: bool,
}

impl Remainder {
    fn run(self, executor: &Executor, n: u64) {
        let _entered = self.span.enter();
        executor.finish(n, self.after);
        if self.goes_on {
            executor.start_runner(n);
        }
    }
}

impl Executor {
    pub(super) fn start_runner(&self, n: u64) {
        let Some(me) = self.me.upgrade() else { return };
        if self.runs_here() {
            if me.begun(n) {
                me.interpret(n, true).run(&me, n);
            }
            return;
        }
        let priority = {
            let next = self.run(n).flow.peek(&self.installed.code);
            next.map_or(0, |(p, _)| p.min(i64::MAX as u64) as i64)
        };
        let (lease, runner) = (self.lease(), me.clone());
        let begin = Box::new(move || runner.begun(n));
        let job = Box::new(move || {
            let last = me.interpret(n, false);
            // Its client may begin the next step at once, for which the threads are to be free.
            compute::afterwards(move || {
                let _lease = lease;
                last.run(&me, n);
            });
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
    pub(super) fn runs_here(&self) -> bool {
        self.pace.is_brief() && self.engine.compute.admits(&self.share, self.pace.usual())
    }

    /// A thread has begun a step's job. Returns whether the step still waits for it.
    fn begun(&self, n: u64) -> bool {
        let mut run = self.run(n);
        let waits = run.n == n && run.runner == Runner::Queued;
        if waits {
            run.runner = Runner::Active;
            let code = &self.installed.code;
            let next = run.flow.peek(code);
            let node = next.map_or(NO_NODE, |(_, i)| code.instr(i).node);
            self.entry(n).node.store(node, Ordering::Relaxed);
        }
        waits
    }

    /// The runner: interprets ready instructions until there are none, or its time slice is over. With `brief` it runs
    /// outside of a compute job. Returns what remains to be done, without compute threads.
    fn interpret(&self, n: u64, brief: bool) -> Remainder {
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
                return Remainder {
                    span: Span::none(),
                    after: FollowUp::default(),
                    goes_on: false,
                };
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
        let entered = span.enter();
        // A brief step may run within the job of another worker of this process, or under a lock, and so takes no
        // turns.
        let crew = if brief { None } else { Crew::current() };
        let exec = match &crew {
            Some(crew) => crew.exec(&flag),
            None => Exec::single(&flag),
        };
        // A kernel may have been split over all threads.
        let threads = crew.as_ref().map_or(1, |_| self.engine.compute.threads());
        let threads = u32::try_from(threads).unwrap_or(u32::MAX);
        let mut after = FollowUp::default();
        loop {
            let ahead = flow.ahead() > AHEAD;
            if flow.is_idle() || slice == 0 || ahead || entry.stirred.load(Ordering::Acquire) {
                let mut run = entry.lock();
                entry.stirred.store(false, Ordering::Relaxed);
                let goes_on = run.look(x, &mut flow, &mut after);
                if !goes_on {
                    after.sends.clear();
                }
                run.sending += after.outgoing();
                if !goes_on || flow.is_idle() || ahead {
                    run.spent += time.map_or(Duration::ZERO, |t| t.read()) * threads;
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
                    drop(entered);
                    return Remainder {
                        span,
                        after,
                        goes_on: false,
                    };
                }
                if slice == 0 {
                    run.spent += time.map_or(Duration::ZERO, |t| t.read()) * threads;
                    run.rest(flow, Runner::Queued);
                    drop((run, entered));
                    return Remainder {
                        span,
                        after,
                        goes_on: true,
                    };
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
                InstrKind::Partitioned => {
                    let slots = code.operands(i);
                    let mut operands = Operands::at(slots, &mut flow.registers, &code.constants);
                    self.drive(n, instr.node, &mut operands);
                    Ok(Outputs::new())
                }
                InstrKind::Device(op) => match self.enqueue(n, i, op, &mut flow, device.as_ref()) {
                    Ok(InstrResults::OnHost(made)) => Ok(made),
                    Ok(InstrResults::OnDevice(made)) => {
                        flow.ended_on_device(code, i, made);
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            match launched {
                Ok(made) => {
                    flow.ended(code, i, made, &mut after);
                    // The last sends wait until the job is over.
                    if after.sends.is_empty() || flow.is_idle() {
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
