//! A model checker tries every interleaving of a step's arrivals, its runner and its abort. It drives `executor/run.rs`
//! itself, as the executor does, under the checker's lock and with the checker's atomic flag that stirs the runner.

#![allow(clippy::unwrap_used)]

mod cpu {
    pub use convoke_worker::cpu::{OperandPlace, Outputs, Register};
}

mod device {
    pub use convoke_worker::device::{DeviceStep, DeviceTensor};
}

mod program {
    pub mod code {
        pub use convoke_worker::program::code::{LoweredProgram, NONE};
    }
    pub mod installed {
        pub use convoke_worker::program::installed::InstalledProgram;
    }
}

// The executor's shell uses items that this test does not.
#[allow(dead_code)]
#[path = "../src/executor/run.rs"]
mod run;

use std::sync::Arc;
use std::sync::atomic::Ordering as Std;

use convoke_common::error::{Code, Error};
use convoke_graph::graph::{Attrs, TensorType, Value};
use convoke_graph::program::{NUMERICS_PROFILE, Program, ProgramNode, RecvSlot, SendEdge};
use convoke_graph::{DType, Tensor};
use convoke_worker::cpu::Operands;
use convoke_worker::program::installed::InstalledProgram;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread::{self, JoinHandle};
use run::{FollowUp, Phase, Run, Runner};

/// The program: receives `x` and `y`; `a = -x`, `b = a + y`, `c = a + b`; `b` and `c` are sent.
fn program() -> Program {
    let value = |name: &str| Value {
        name: name.into(),
        ty: TensorType::fixed(DType::F32, &[1]),
    };
    let node = |name: &str, op: &str, inputs: &[u32], output: u32| ProgramNode {
        name: name.into(),
        op: op.into(),
        attrs: Attrs::default(),
        inputs: inputs.to_vec(),
        outputs: vec![output],
        priority: 1,
        cost: 1,
    };
    let send = |value| SendEdge {
        value,
        to: 1,
        slot: value,
        priority: 1,
    };
    Program {
        name: "model".into(),
        function: Default::default(),
        profile: NUMERICS_PROFILE.into(),
        values: ["x", "y", "a", "b", "c"].map(value).into(),
        literals: vec![],
        artifacts: vec![],
        nodes: vec![
            node("a", "Neg", &[0], 2),
            node("b", "Add", &[2, 1], 3),
            node("c", "Add", &[2, 3], 4),
        ],
        init_nodes: 0,
        recvs: [0, 1].map(|value| RecvSlot { value, from: 1 }).into(),
        sends: [3, 4].map(send).into(),
    }
}

/// The events of a step, in the order of the lock.
#[derive(Default)]
struct Record {
    launched: Vec<u32>,
    sent: Vec<u32>,
    /// Sends of which peers were told that nothing comes.
    told: Vec<u32>,
    retired: u32,
    /// Number of instructions whose kernels had been launched before the abort; kernels launched later see the flag and
    /// do nothing.
    before_abort: Option<usize>,
}

/// The failure in a step, which is partial if there is one.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Instr(u32),
    /// A value does not arrive.
    Arrival(u32),
}

impl Fault {
    /// The instructions that are launched, and the sends that are made.
    fn expected(self) -> (&'static [u32], &'static [u32]) {
        match self {
            Fault::None => (&[0, 1, 2], &[0, 1]),
            Fault::Arrival(0) => (&[], &[]),
            Fault::Instr(0) | Fault::Arrival(_) => (&[0], &[]),
            Fault::Instr(1) => (&[0, 1], &[]),
            Fault::Instr(_) => (&[0, 1, 2], &[0]),
        }
    }
}

fn failed() -> Arc<Error> {
    Arc::new(Error::new(Code::KernelFailed, "model"))
}

/// A step under the checker's lock, with the record of its events.
struct Step {
    installed: Arc<InstalledProgram>,
    state: Mutex<(Run, Record)>,
    stirred: AtomicBool,
    /// Whether runners are threads of their own, or run where the operands arrive.
    threads: bool,
    fault: Fault,
    runners: Mutex<Vec<JoinHandle<()>>>,
}

fn tensor() -> Tensor {
    Tensor::scalar(1f32).reshape(&[1]).unwrap()
}

impl Step {
    fn started(installed: Arc<InstalledProgram>, threads: bool, fault: Fault) -> Arc<Step> {
        let mut run = Run::new(0);
        (run.phase, run.partial) = (Phase::Running, fault != Fault::None);
        let mut after = FollowUp::default();
        run.start(&installed, &mut after);
        assert!(!after.start_runner, "nothing is ready before it arrives");
        Arc::new(Step {
            installed,
            state: Mutex::new((run, Record::default())),
            stirred: AtomicBool::new(false),
            threads,
            fault,
            runners: Mutex::new(vec![]),
        })
    }

    fn arrived(self: &Arc<Self>, value: u32) {
        let mut after = FollowUp::default();
        {
            let (run, _) = &mut *self.state.lock().unwrap();
            if run.n != 0 || run.error.is_some() {
                return;
            }
            let delivered = match self.fault == Fault::Arrival(value) {
                true => Err(failed()),
                false => Ok(tensor()),
            };
            if run.came(&self.installed, Some(value), delivered, &mut after) {
                self.stirred.store(true, Ordering::Release);
            }
            run.settle(&mut after);
        }
        self.finish(after);
    }

    fn abort(self: &Arc<Self>) {
        let mut after = FollowUp::default();
        {
            let (run, record) = &mut *self.state.lock().unwrap();
            if run.n != 0 || run.error.is_some() {
                return;
            }
            run.stop(Error::new(Code::Cancelled, "model"));
            self.stirred.store(true, Ordering::Release);
            record.before_abort = Some(record.launched.len());
            run.settle(&mut after);
        }
        self.finish(after);
    }

    fn finish(self: &Arc<Self>, after: FollowUp) {
        for (send, _) in after.sends {
            let mut after = FollowUp::default();
            {
                let (run, record) = &mut *self.state.lock().unwrap();
                record.sent.push(send);
                run.sending -= 1;
                run.settle(&mut after);
            }
            self.finish(after);
        }
        if !after.untold.is_empty() {
            let (count, untold) = (after.untold.len(), after.untold.into_iter());
            let mut after = FollowUp::default();
            {
                let (run, record) = &mut *self.state.lock().unwrap();
                record.told.extend(untold.map(|(send, _)| send));
                run.sending -= count;
                run.settle(&mut after);
            }
            self.finish(after);
        }
        if after.start_runner {
            match self.threads {
                false => self.interpret(),
                true => {
                    let step = self.clone();
                    let runner = thread::spawn(move || step.interpret());
                    self.runners.lock().unwrap().push(runner);
                }
            }
        }
        if after.retire {
            let (run, record) = &mut *self.state.lock().unwrap();
            if run.n == 0 {
                run.follow(1);
                record.retired += 1;
            }
        }
    }

    fn interpret(self: &Arc<Self>) {
        let (flag, mut flow) = {
            let (run, _) = &mut *self.state.lock().unwrap();
            if run.n == 0 && run.runner == Runner::Queued {
                run.runner = Runner::Active;
            }
            if run.n != 0 || run.runner != Runner::Active {
                return;
            }
            self.stirred.store(true, Ordering::Relaxed);
            (run.flag.clone(), std::mem::take(&mut run.flow))
        };
        loop {
            let mut after = FollowUp::default();
            if flow.is_idle() || self.stirred.load(Ordering::Acquire) {
                let goes_on = {
                    let (run, _) = &mut *self.state.lock().unwrap();
                    self.stirred.store(false, Ordering::Relaxed);
                    let goes_on = run.look(&self.installed, &mut flow, &mut after);
                    run.sending += after.outgoing();
                    let goes_on = goes_on && !flow.is_idle();
                    if !goes_on {
                        run.rest(std::mem::take(&mut flow), Runner::None);
                        run.settle(&mut after);
                    }
                    goes_on
                };
                self.finish(std::mem::take(&mut after));
                if !goes_on {
                    return;
                }
            }
            let code = &self.installed.code;
            let Some(i) = flow.next(code) else { continue };
            let operands = Operands::at(code.operands(i), &mut flow.registers, &code.constants);
            assert!(operands.iter().all(|t| t.is_some()), "{i} lacks an operand");
            {
                let (_, record) = &mut *self.state.lock().unwrap();
                if flag.load(Std::Relaxed) {
                    // The kernel sees the flag, and gives nothing.
                    self.stirred.store(true, Ordering::Relaxed);
                    continue;
                }
                record.launched.push(i);
            }
            if self.fault == Fault::Instr(i) {
                flow.lose(code, i, &failed());
                self.stirred.store(true, Ordering::Relaxed);
                continue;
            }
            let made = tensor().into();
            flow.ended(code, i, made, &mut after);
            if after.sends.is_empty() {
                continue;
            }
            {
                let (run, _) = &mut *self.state.lock().unwrap();
                if run.error.is_some() {
                    continue;
                }
                run.sending += after.sends.len();
            }
            self.finish(after);
        }
    }
}

impl Step {
    fn check_end(&self) {
        let (run, record) = &*self.state.lock().unwrap();
        assert_eq!(record.retired, 1, "a step retires once");
        assert_eq!((run.n, run.sending), (1, 0));
        match record.before_abort {
            // An abort that came too late changes nothing.
            None => {
                let (launched, made) = self.fault.expected();
                assert_eq!(record.launched, launched, "each once, in order");
                let sorted = |sends: &Vec<u32>| {
                    let mut sends = sends.clone();
                    sends.sort_unstable();
                    sends
                };
                assert_eq!(sorted(&record.sent), made, "each send once");
                let lost: Vec<u32> = (0..2).filter(|s| !made.contains(s)).collect();
                assert_eq!(sorted(&record.told), lost, "each loss is told of once");
            }
            Some(before) => assert_eq!(record.launched.len(), before, "a launch after the abort"),
        }
    }
}

/// Runs a step in which `x` and `y` arrive at the same time; with `abort` the step is aborted meanwhile.
fn check(threads: bool, abort: bool) {
    check_with(threads, abort, Fault::None);
}

fn check_with(threads: bool, abort: bool, fault: Fault) {
    let program = Arc::new(program());
    let constants = vec![None; program.values.len()];
    let installed = Arc::new(InstalledProgram::new(program, constants, None).unwrap());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let step = Step::started(installed.clone(), threads, fault);
        let other = step.clone();
        let arrival = thread::spawn(move || other.arrived(1));
        let end = step.clone();
        let end = abort.then(|| thread::spawn(move || end.abort()));
        step.arrived(0);
        arrival.join().unwrap();
        if let Some(end) = end {
            end.join().unwrap();
        }
        loop {
            let runner = step.runners.lock().unwrap().pop();
            match runner {
                Some(runner) => runner.join().unwrap(),
                None => break,
            }
        }
        step.check_end();
    });
}

#[test]
fn arrivals_and_an_inline_runner() {
    check(false, false);
}

#[test]
fn arrivals_and_runners_on_threads() {
    check(true, false);
}

#[test]
fn arrivals_an_inline_runner_and_an_abort() {
    check(false, true);
}

#[test]
fn arrivals_runners_on_threads_and_an_abort() {
    check(true, true);
}

#[test]
fn instructions_that_fail_in_a_partial_step() {
    for fault in (0..3).map(Fault::Instr) {
        check_with(false, false, fault);
        check_with(true, false, fault);
    }
}

#[test]
fn arrivals_that_are_lost_in_a_partial_step() {
    for fault in (0..2).map(Fault::Arrival) {
        check_with(false, false, fault);
        check_with(true, false, fault);
    }
}

#[test]
fn losses_and_an_abort() {
    check_with(false, true, Fault::Instr(1));
    check_with(true, true, Fault::Arrival(1));
}
