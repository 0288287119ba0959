//! One window entry of an executor: the data of its step, the events that the step waits for, and their effects.
//!
//! ```text
//! Run, under the entry's lock     phase, error, runner, tensors that links hold, mail
//! Flow                            registers, counts, ready sequences: under the lock as well, except while a thread
//!                                 interprets the step and owns them
//! ```
//! The thread that interprets a step runs sequence after sequence without the lock, the most urgent first: a sequence that
//! becomes ready and is more urgent than the next instruction interrupts the current one. Tensors from peers and
//! handles that come meanwhile are mail. The thread takes its mail when it is told that there is some, and before it
//! ends.
//!
//! In a *partial* step an instruction that fails takes its dependents along, and nothing else. A lost value has an
//! empty register. From the first loss on each instruction is checked before it runs, and left out if it lacks an
//! operand. Before the first loss nothing is checked.
//!
//! This is plain state: nothing here sends or runs anything. [`FollowUp`] says what to do once the lock is released.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use convoke_common::error::Error;
use convoke_common::mutant;
use convoke_graph::Tensor;
use convoke_rendezvous::Delivery;
use smallvec::SmallVec;
use tokio_util::sync::CancellationToken;

use crate::cpu::{OperandPlace, Outputs, Register};
use crate::device::{DeviceStep, DeviceTensor};
use crate::program::code::{LoweredProgram, NONE};
use crate::program::installed::InstalledProgram;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Step `n` may start next.
    Waiting,
    Running,
}

/// The state of a step's runner.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Runner {
    /// No thread interprets the step, and none is about to.
    None,
    /// A job that no thread has begun: it owns nothing of the step, and a step that ends does not wait for it.
    Queued,
    /// A thread, which owns the flow.
    Active,
    /// None for now: the step has enqueued so much work that it waits for the device.
    Ahead,
}

/// The data that a step computes with: registers, counts and ready sequences.
#[derive(Default)]
pub(super) struct Flow {
    pub(super) registers: Vec<Register>,
    /// The registers of values on the worker's device, which have numbers of their own among those of `registers`; empty
    /// for a program that uses no device.
    pub(super) device: Vec<Option<DeviceTensor>>,
    /// Whether work was enqueued at the device since the last event, and its predicted nanoseconds.
    enqueued: Option<u64>,
    /// By sequence, the number of values that it still waits for.
    missing: Vec<u32>,
    /// By sequence, the instruction that it begins or goes on with.
    next: Vec<u32>,
    /// By counted value, the number of sequences that have yet to read it.
    counts: Vec<u32>,
    /// Sequences that can run, by the priority of their next instruction.
    ready: BinaryHeap<(u64, Reverse<u32>)>,
    /// The sequence that runs; its next instruction is `at`, and it ends before `end`.
    sequence: u32,
    at: u32,
    end: u32,
    /// Whether the next instruction must be chosen anew: a more urgent sequence may be ready, or an operand may be lost.
    woken: bool,
    /// Number of instructions and arrivals that have yet to end.
    left: usize,
    /// The failed values of a partial step in which something has failed.
    failed_values: Option<Box<FailedValues>>,
}

/// The lost values of a partial step.
#[derive(Default)]
struct FailedValues {
    /// By register, the error that explains why it is empty. It has no meaning for a register that has a tensor.
    because: BTreeMap<u32, Arc<Error>>,
    /// Send slots whose values are lost, until their peers are told.
    untold: Vec<FailedSend>,
}

/// A send slot whose value is lost, and why.
pub(super) type FailedSend = (u32, Arc<Error>);

/// A value that came while a thread interpreted the step.
pub(super) struct Mail {
    /// The value; `None` where no instruction needs it.
    value: Option<u32>,
    delivered: Delivery,
}

/// The state of one window entry, and of the step that uses it.
pub(super) struct Run {
    pub(super) n: u64,
    pub(super) phase: Phase,
    /// Whether a failure ends only what depends on it.
    pub(super) partial: bool,
    pub(super) flow: Flow,
    mail: Vec<Mail>,
    /// Number of tensors that links still hold and of failed values that peers have yet to be told; `unsent` counts the
    /// tensors by participant.
    pub(super) sending: usize,
    pub(super) unsent: Vec<u32>,
    pub(super) runner: Runner,
    /// The step's work on the worker's device; `None` for a program that uses none.
    pub(super) device: Option<Arc<DeviceStep>>,
    /// Number of device events that have yet to come.
    pub(super) events: u32,
    /// If it is measured, a bound on the time that the step takes on one thread.
    pub(super) spent: Duration,
    /// Whether the step has ended without quiescing, and is watched.
    pub(super) watched: bool,
    pub(super) error: Option<Error>,
    pub(super) flag: Arc<AtomicBool>,
    pub(super) cancel: CancellationToken,
    pub(super) span: tracing::Span,
}

/// The actions that follow once the lock is released: links may call straight into their peers.
#[derive(Default)]
pub(super) struct FollowUp {
    pub(super) sends: Vec<(u32, Tensor)>,
    pub(super) untold: Vec<FailedSend>,
    pub(super) start_runner: bool,
    pub(super) retire: bool,
    pub(super) tell: Option<Error>,
}

impl FollowUp {
    /// Number of tensors and failed values that go out to peers.
    pub(super) fn outgoing(&self) -> usize {
        self.sends.len() + self.untold.len()
    }
}

impl Flow {
    /// Begins a step: no value is there yet. The buffers of the step before are used again.
    pub(super) fn start(&mut self, code: &LoweredProgram) {
        self.clear();
        self.registers.resize(code.registers, None);
        if code.uses_device() {
            self.device.resize(code.registers, None);
        }
        self.missing.extend_from_slice(&code.missing);
        self.counts.extend_from_slice(&code.counts);
        self.next.extend(code.sequences.iter().map(|r| r.first));
        self.left = code.events;
        for (sequence, missing) in code.missing.iter().enumerate() {
            if *missing == 0 {
                self.make_ready(code, sequence as u32);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.registers.clear();
        self.device.clear();
        self.missing.clear();
        self.counts.clear();
        self.next.clear();
        self.failed_values = None;
        self.stop();
    }

    /// Drops all ready sequences, so that no instruction runs any more.
    fn stop(&mut self) {
        self.ready.clear();
        self.end = self.at;
    }

    fn make_ready(&mut self, code: &LoweredProgram, sequence: u32) {
        let next = self.next[sequence as usize];
        self.ready.push((code.priority(next), Reverse(sequence)));
        self.woken = true;
    }

    /// The priority and number of the instruction that would run next, without taking it.
    pub(super) fn peek(&self, code: &LoweredProgram) -> Option<(u64, u32)> {
        let going = (self.at < self.end).then(|| (code.priority(self.at), self.at));
        let first = self.ready.peek();
        let first = first.map(|(p, Reverse(sequence))| (*p, self.next[*sequence as usize]));
        match (going, first) {
            (Some(going), Some(first)) if first.0 > going.0 => Some(first),
            (going, first) => going.or(first),
        }
    }

    /// Whether no instruction can run now.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.at == self.end && self.ready.is_empty()
    }

    /// Takes the next instruction to run.
    #[inline]
    pub(super) fn next(&mut self, code: &LoweredProgram) -> Option<u32> {
        if self.at == self.end || self.woken {
            self.choose(code);
        }
        if self.at == self.end {
            return None;
        }
        self.at += 1;
        Some(self.at - 1)
    }

    /// Goes on with the most urgent sequence; instructions that lack an operand are left out.
    #[cold]
    fn choose(&mut self, code: &LoweredProgram) {
        self.advance(code);
        if self.failed_values.is_some() {
            self.skip_lost(code);
        }
    }

    /// Leaves out the next instructions as long as they lack an operand.
    fn skip_lost(&mut self, code: &LoweredProgram) {
        while let Some(error) = self.lacking(code) {
            self.at += 1;
            self.lose(code, self.at - 1, &error);
            self.advance(code);
        }
        // The instruction after these must be checked as well.
        self.woken = true;
    }

    #[inline(always)]
    fn advance(&mut self, code: &LoweredProgram) {
        self.woken = false;
        if self.at < self.end {
            let going = code.priority(self.at);
            if self.ready.peek().is_none_or(|(first, _)| *first <= going) {
                return;
            }
            self.next[self.sequence as usize] = self.at;
            self.ready.push((going, Reverse(self.sequence)));
        }
        if let Some((_, Reverse(sequence))) = self.ready.pop() {
            self.sequence = sequence;
            self.at = self.next[sequence as usize];
            self.end = code.sequences[sequence as usize].end;
        }
    }

    /// The error of the first lost operand of the next instruction, if it lacks one.
    fn lacking(&self, code: &LoweredProgram) -> Option<Arc<Error>> {
        let failed_values = self.failed_values.as_ref().filter(|_| self.at < self.end)?;
        let lost = |register: u32| match self.registers.get(register as usize) {
            Some(None) if !self.is_on_device(register) => {
                failed_values.because.get(&register).cloned()
            }
            _ => None,
        };
        let mut operands = code.operands(self.at).iter();
        operands.find_map(|slot| match slot.place() {
            OperandPlace::Read(register) | OperandPlace::Last(register) => lost(register),
            OperandPlace::Nothing | OperandPlace::Constant(_) => None,
        })
    }

    /// Ends an instruction of a partial step without results.
    #[cold]
    pub(super) fn lose(&mut self, code: &LoweredProgram, i: u32, error: &Arc<Error>) {
        self.free(code, i);
        for result in code.results(i) {
            self.lost(code, result.value, result.register, error);
        }
        // Nothing will answer, so what would have arrived is lost now.
        for (_, value) in code.later(i) {
            self.left -= 1;
            self.lost(code, *value, code.home(*value).unwrap_or(NONE), error);
        }
    }

    /// Marks a value as lost: instructions that wait for it go on without it, and peers that wait for it are to be
    /// told.
    #[cold]
    fn lost(&mut self, code: &LoweredProgram, value: u32, register: u32, error: &Arc<Error>) {
        self.wake(code, value);
        let failed_values = self.failed_values.get_or_insert_default();
        let sends = code.sends.row(value).iter();
        failed_values
            .untold
            .extend(sends.map(|s| (*s, error.clone())));
        if register != NONE {
            failed_values.because.insert(register, error.clone());
        }
        self.woken = true;
    }

    /// Whether any value was lost.
    pub(super) fn has_failed_values(&self) -> bool {
        self.failed_values.is_some()
    }

    /// Ends an instruction: the registers that it reads last are freed.
    #[inline(always)]
    fn free(&mut self, code: &LoweredProgram, i: u32) {
        self.left -= 1;
        for end in code.ends(i) {
            if end.count != NONE {
                let count = &mut self.counts[end.count as usize];
                *count -= 1;
                if *count > 0 {
                    continue;
                }
            }
            self.registers[end.register as usize] = None;
            if !self.device.is_empty() {
                self.device[end.register as usize] = None;
            }
        }
    }

    /// Whether a register has a value on the device.
    fn is_on_device(&self, register: u32) -> bool {
        matches!(self.device.get(register as usize), Some(Some(_)))
    }

    /// Notes work that was enqueued at the device, with its predicted nanoseconds.
    pub(super) fn enqueued(&mut self, cost: u64) {
        self.enqueued = Some(self.enqueued.unwrap_or(0).saturating_add(cost));
    }

    /// The predicted nanoseconds of the work that was enqueued since the last event.
    #[inline]
    pub(super) fn ahead(&self) -> u64 {
        self.enqueued.unwrap_or(0)
    }

    /// Whether work was enqueued since this was asked last.
    pub(super) fn take_enqueued(&mut self) -> bool {
        self.enqueued.take().is_some()
    }

    /// Ends an instruction that made these results on the device, in their order.
    pub(super) fn ended_on_device(
        &mut self,
        code: &LoweredProgram,
        i: u32,
        made: SmallVec<[DeviceTensor; 2]>,
    ) {
        self.free(code, i);
        for (result, tensor) in code.results(i).iter().zip(made) {
            self.wake(code, result.value);
            if result.register != NONE {
                self.device[result.register as usize] = Some(tensor);
            }
        }
    }

    /// Ends an instruction that made these results, in their order.
    #[inline]
    pub(super) fn ended(
        &mut self,
        code: &LoweredProgram,
        i: u32,
        mut made: Outputs,
        after: &mut FollowUp,
    ) {
        self.free(code, i);
        let crosses = code.instr(i).crosses;
        let results = code.results(i);
        if let ([result], false) = (results, crosses)
            && let Some(tensor) = made.pop_only()
        {
            return self.keep(result.register, tensor);
        }
        // Outputs that no one asked for come last, and are dropped.
        for (result, tensor) in results.iter().zip(made) {
            if crosses {
                self.tell(code, result.value, &tensor, after);
            }
            self.keep(result.register, tensor);
        }
    }

    #[inline]
    fn keep(&mut self, register: u32, tensor: Tensor) {
        if register != NONE {
            self.registers[register as usize] = Some(tensor);
        }
    }

    /// A result is there: sequences that wait for it may run, and it is sent.
    fn tell(&mut self, code: &LoweredProgram, value: u32, tensor: &Tensor, after: &mut FollowUp) {
        self.wake(code, value);
        let most = [usize::MAX, 1][usize::from(mutant!("fan-out-once"))];
        for send in code.sends.row(value).iter().take(most) {
            after.sends.push((*send, tensor.clone()));
        }
    }

    /// Counts a value as there for the sequences that wait for it.
    #[inline(always)]
    fn wake(&mut self, code: &LoweredProgram, value: u32) {
        for sequence in code.waits.row(value) {
            let missing = &mut self.missing[*sequence as usize];
            *missing -= 1;
            if *missing == 0 {
                self.make_ready(code, *sequence);
            }
        }
    }

    /// Takes a tensor from outside; `value` is `None` where no instruction needs it.
    pub(super) fn arrive(
        &mut self,
        code: &LoweredProgram,
        value: Option<u32>,
        tensor: Tensor,
        after: &mut FollowUp,
    ) {
        self.left -= 1;
        if let Some(value) = value {
            self.tell(code, value, &tensor, after);
            if let Some(home) = code.home(value) {
                self.registers[home as usize] = Some(tensor);
            }
        }
    }

    /// Takes the delivery for a value: a tensor as in [`Flow::arrive`], or, in a partial step, an error.
    fn take(
        &mut self,
        code: &LoweredProgram,
        value: Option<u32>,
        delivered: Delivery,
        after: &mut FollowUp,
    ) {
        match delivered {
            Ok(tensor) => self.arrive(code, value, tensor, after),
            Err(error) => {
                self.left -= 1;
                if let Some(value) = value {
                    self.lost(code, value, code.home(value).unwrap_or(NONE), &error);
                }
            }
        }
    }

    /// Hands the failed values to `after`, so that peers are told.
    fn report(&mut self, after: &mut FollowUp) {
        if let Some(failed_values) = &mut self.failed_values {
            after.untold.append(&mut failed_values.untold);
        }
    }

    /// Whether all instructions and arrivals have ended.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0
    }
}

impl Run {
    pub(super) fn new(n: u64) -> Run {
        Run {
            n,
            phase: Phase::Waiting,
            partial: false,
            flow: Flow::default(),
            mail: vec![],
            sending: 0,
            unsent: vec![],
            runner: Runner::None,
            device: None,
            events: 0,
            spent: Duration::ZERO,
            watched: false,
            error: None,
            flag: Arc::default(),
            cancel: CancellationToken::new(),
            span: tracing::Span::none(),
        }
    }

    /// Prepares the entry for the next step that uses it, with the buffers of this one.
    pub(super) fn follow(&mut self, n: u64) {
        let mut flow = std::mem::take(&mut self.flow);
        flow.clear();
        *self = Run {
            flow,
            ..Run::new(n)
        };
    }

    /// Starts the step.
    pub(super) fn start(&mut self, installed: &InstalledProgram, after: &mut FollowUp) {
        self.flow.start(&installed.code);
        self.wake(after);
    }

    /// Ends the step by an error. Its tensors are dropped at once, or by the runner where one is active: peers wait for
    /// the tensors that they lent, as this step waits for those that it lends.
    pub(super) fn stop(&mut self, error: Error) {
        self.error = Some(error);
        self.flag.store(true, Ordering::Relaxed);
        self.cancel.cancel();
        self.mail.clear();
        if self.runner != Runner::Active {
            self.runner = Runner::None;
            self.flow.clear();
        }
    }

    /// A value came from outside or, in a partial step, the error that explains its absence. True where a thread
    /// interprets the step, which must then look for its mail.
    pub(super) fn came(
        &mut self,
        installed: &InstalledProgram,
        value: Option<u32>,
        delivered: Delivery,
        after: &mut FollowUp,
    ) -> bool {
        if self.runner == Runner::Active {
            self.mail.push(Mail { value, delivered });
            return true;
        }
        let before = after.outgoing();
        self.flow.take(&installed.code, value, delivered, after);
        self.flow.report(after);
        self.sending += after.outgoing() - before;
        self.wake(after);
        false
    }

    pub(super) fn wake(&mut self, after: &mut FollowUp) {
        if self.runner == Runner::None && !self.flow.is_idle() {
            self.runner = Runner::Queued;
            after.start_runner = true;
        }
    }

    /// The runner takes its mail; false where the step has ended.
    pub(super) fn look(
        &mut self,
        installed: &InstalledProgram,
        flow: &mut Flow,
        after: &mut FollowUp,
    ) -> bool {
        let mail = std::mem::take(&mut self.mail);
        if self.error.is_some() {
            return false;
        }
        for each in mail {
            flow.take(&installed.code, each.value, each.delivered, after);
        }
        flow.report(after);
        true
    }

    /// The runner gives the flow back; the data of a step that ended is dropped.
    pub(super) fn rest(&mut self, flow: Flow, runner: Runner) {
        self.flow = flow;
        self.runner = runner;
        if self.error.is_some() {
            self.flow.clear();
        }
    }

    /// Retires the step once it has quiesced: no runner, no tensor on a link, no work on the device, and either an error or nothing left to
    /// do.
    pub(super) fn settle(&mut self, after: &mut FollowUp) {
        let quiet =
            self.phase == Phase::Running && self.runner == Runner::None && self.sending == 0;
        let quiet = quiet && self.events == 0;
        let complete = self.flow.is_over();
        if quiet && after.outgoing() == 0 && (self.error.is_some() || complete) {
            after.retire = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoke_common::error::Code;

    /// A running step that holds `tensor`, and has one tensor on a link.
    fn running(tensor: &Tensor, runner: Runner) -> Run {
        let mut run = Run::new(3);
        run.phase = Phase::Running;
        run.runner = runner;
        run.sending = 1;
        run.flow.registers = vec![Some(tensor.clone())];
        let (value, tensor) = (Some(0), tensor.clone());
        let delivered = Ok(tensor);
        run.mail = vec![Mail { value, delivered }];
        run
    }

    #[test]
    fn a_step_that_ends_keeps_nothing_while_its_links_do() {
        for runner in [Runner::None, Runner::Queued] {
            let tensor = Tensor::scalar(1f32);
            let mut run = running(&tensor, runner);
            run.stop(Error::new(Code::KernelFailed, "x"));
            assert!(tensor.is_unique() && run.runner == Runner::None);
        }
        // While a thread interprets the step, the flow is taken out; it is dropped when it comes back.
        let tensor = Tensor::scalar(1f32);
        let mut run = running(&tensor, Runner::Active);
        let flow = std::mem::take(&mut run.flow);
        run.stop(Error::new(Code::KernelFailed, "x"));
        assert!(!tensor.is_unique());
        run.rest(flow, Runner::None);
        assert!(tensor.is_unique());
    }
}
