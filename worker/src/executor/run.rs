//! One window entry of an executor: what a step has, what it waits for, and what follows from an event.
//!
//! ```text
//! Run, under the entry's lock     phase, error, who interprets, what links hold, mail
//! Flow                            registers, counts, ready regions: under the lock as well, but for while a thread
//!                                 interprets the step, whose own it is then
//! ```
//! A thread that interprets a step runs region after region without the lock, the most urgent first: one that becomes ready
//! and is more urgent than what comes next interrupts it. What comes meanwhile, tensors from peers and
//! from handles, is mail, which it looks for when it is told that there is some, and before it ends.
//!
//! Plain state: nothing here sends or runs anything. [`After`] says what to do once the lock is released.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use convoke_common::Tensor;
use convoke_common::error::Error;
use convoke_common::mutant;
use tokio_util::sync::CancellationToken;

use crate::code::{Lowered, NONE};
use crate::cpu::{Outputs, Register};
use crate::installed::Installed;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Step `n` may start next.
    Waiting,
    Running,
}

/// Who interprets a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Runner {
    /// Nobody.
    None,
    /// A job that no thread has yet: it holds nothing of the step, and a step that ends does not wait for it.
    Queued,
    /// A thread, which has the flow.
    Active,
}

/// What a step computes with.
#[derive(Default)]
pub(super) struct Flow {
    pub(super) registers: Vec<Register>,
    /// By region: values that are missing.
    missing: Vec<u32>,
    /// By region: the instruction that it begins or goes on with.
    next: Vec<u32>,
    /// By counted value: regions that have yet to read it.
    counts: Vec<u32>,
    /// Regions that can run, by the priority of what they go on with.
    ready: BinaryHeap<(u64, Reverse<u32>)>,
    /// The region that runs; what comes next of it, up to its end.
    region: u32,
    at: u32,
    end: u32,
    /// Whether a region became ready that may be more urgent.
    woken: bool,
    /// Instructions and arrivals that have yet to end.
    left: usize,
}

/// A value that came while the step was interpreted.
pub(super) struct Mail {
    /// None where nothing needs it.
    value: Option<u32>,
    tensor: Tensor,
}

/// One window entry.
pub(super) struct Run {
    pub(super) n: u64,
    pub(super) phase: Phase,
    pub(super) flow: Flow,
    mail: Vec<Mail>,
    /// Tensors that links still hold, and how many of them by participant.
    pub(super) sending: usize,
    pub(super) unsent: Vec<u32>,
    pub(super) runner: Runner,
    /// What threads took for it, where that is measured.
    pub(super) spent: Duration,
    /// Whether it has ended without quiescing, and is watched.
    pub(super) watched: bool,
    pub(super) error: Option<Error>,
    pub(super) flag: Arc<AtomicBool>,
    pub(super) cancel: CancellationToken,
    pub(super) span: tracing::Span,
}

/// What to do once the lock is released: links may call straight into their peers.
#[derive(Default)]
pub(super) struct After {
    pub(super) sends: Vec<(u32, Tensor)>,
    pub(super) start_runner: bool,
    pub(super) retire: bool,
    pub(super) tell: Option<Error>,
}

impl Flow {
    /// Before anything is there. The buffers of the step before are used again.
    pub(super) fn start(&mut self, code: &Lowered) {
        self.clear();
        self.registers.resize(code.registers, None);
        self.missing.extend_from_slice(&code.missing);
        self.counts.extend_from_slice(&code.counts);
        self.next.extend(code.regions.iter().map(|r| r.first));
        self.left = code.events;
        for (region, missing) in code.missing.iter().enumerate() {
            if *missing == 0 {
                self.make_ready(code, region as u32);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.registers.clear();
        self.missing.clear();
        self.counts.clear();
        self.next.clear();
        self.stop();
    }

    /// Nothing more of it is to run.
    fn stop(&mut self) {
        self.ready.clear();
        self.end = self.at;
    }

    fn make_ready(&mut self, code: &Lowered, region: u32) {
        let next = self.next[region as usize];
        self.ready.push((code.priority(next), Reverse(region)));
        self.woken = true;
    }

    /// Looks at the instruction that is to run next, and its priority.
    pub(super) fn peek(&self, code: &Lowered) -> Option<(u64, u32)> {
        let going = (self.at < self.end).then(|| (code.priority(self.at), self.at));
        let first = self.ready.peek();
        let first = first.map(|(p, Reverse(region))| (*p, self.next[*region as usize]));
        match (going, first) {
            (Some(going), Some(first)) if first.0 > going.0 => Some(first),
            (going, first) => going.or(first),
        }
    }

    /// Whether nothing can run now.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.at == self.end && self.ready.is_empty()
    }

    /// The instruction to run now.
    #[inline]
    pub(super) fn next(&mut self, code: &Lowered) -> Option<u32> {
        if self.at == self.end || self.woken {
            self.choose(code);
        }
        if self.at == self.end {
            return None;
        }
        self.at += 1;
        Some(self.at - 1)
    }

    /// Goes on with the region that is most urgent.
    #[cold]
    fn choose(&mut self, code: &Lowered) {
        self.woken = false;
        if self.at < self.end {
            let going = code.priority(self.at);
            if self.ready.peek().is_none_or(|(first, _)| *first <= going) {
                return;
            }
            self.next[self.region as usize] = self.at;
            self.ready.push((going, Reverse(self.region)));
        }
        if let Some((_, Reverse(region))) = self.ready.pop() {
            self.region = region;
            self.at = self.next[region as usize];
            self.end = code.regions[region as usize].end;
        }
    }

    /// An instruction has ended, and made its results, in their order.
    #[inline]
    pub(super) fn ended(&mut self, code: &Lowered, i: u32, mut made: Outputs, after: &mut After) {
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
        }
        let crosses = code.instr(i).crosses;
        let results = code.results(i);
        if let ([result], false) = (results, crosses)
            && let Some(tensor) = made.pop_only()
        {
            return self.keep(result.register, tensor);
        }
        // What nobody asked for is behind what somebody did.
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

    /// A value is there: others may run now, and it is sent.
    fn tell(&mut self, code: &Lowered, value: u32, tensor: &Tensor, after: &mut After) {
        for region in code.waits.row(value) {
            let missing = &mut self.missing[*region as usize];
            *missing -= 1;
            if *missing == 0 {
                self.make_ready(code, *region);
            }
        }
        let most = [usize::MAX, 1][usize::from(mutant!("fan-out-once"))];
        for send in code.sends.row(value).iter().take(most) {
            after.sends.push((*send, tensor.clone()));
        }
    }

    /// A value came from outside; none of the step's own where nothing needs it.
    pub(super) fn arrive(
        &mut self,
        code: &Lowered,
        value: Option<u32>,
        tensor: Tensor,
        after: &mut After,
    ) {
        self.left -= 1;
        if let Some(value) = value {
            self.tell(code, value, &tensor, after);
            if let Some(home) = code.home(value) {
                self.registers[home as usize] = Some(tensor);
            }
        }
    }

    /// Whether everything has ended.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0
    }
}

impl Run {
    pub(super) fn new(n: u64) -> Run {
        Run {
            n,
            phase: Phase::Waiting,
            flow: Flow::default(),
            mail: vec![],
            sending: 0,
            unsent: vec![],
            runner: Runner::None,
            spent: Duration::ZERO,
            watched: false,
            error: None,
            flag: Arc::default(),
            cancel: CancellationToken::new(),
            span: tracing::Span::none(),
        }
    }

    /// The step that follows in this entry, with the buffers of this one.
    pub(super) fn follow(&mut self, n: u64) {
        let mut flow = std::mem::take(&mut self.flow);
        flow.clear();
        *self = Run {
            flow,
            ..Run::new(n)
        };
    }

    /// The step begins.
    pub(super) fn start(&mut self, installed: &Installed, after: &mut After) {
        self.flow.start(&installed.code);
        self.wake(after);
    }

    /// The step ends. What it has is dropped, by the runner where one is active: peers lend tensors and wait for them, as this
    /// step does for those that it lends.
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

    /// A value came from outside. True where a thread interprets the step, which is to look for its mail.
    pub(super) fn came(
        &mut self,
        installed: &Installed,
        value: Option<u32>,
        tensor: Tensor,
        after: &mut After,
    ) -> bool {
        if self.runner == Runner::Active {
            self.mail.push(Mail { value, tensor });
            return true;
        }
        let before = after.sends.len();
        self.flow.arrive(&installed.code, value, tensor, after);
        self.sending += after.sends.len() - before;
        self.wake(after);
        false
    }

    fn wake(&mut self, after: &mut After) {
        if self.runner == Runner::None && !self.flow.is_idle() {
            self.runner = Runner::Queued;
            after.start_runner = true;
        }
    }

    /// The runner takes its mail; false where the step has ended.
    pub(super) fn look(
        &mut self,
        installed: &Installed,
        flow: &mut Flow,
        after: &mut After,
    ) -> bool {
        let mail = std::mem::take(&mut self.mail);
        if self.error.is_some() {
            return false;
        }
        for each in mail {
            flow.arrive(&installed.code, each.value, each.tensor, after);
        }
        true
    }

    /// The runner gives the flow back; what stays of a step that ended is dropped.
    pub(super) fn rest(&mut self, flow: Flow, runner: Runner) {
        self.flow = flow;
        self.runner = runner;
        if self.error.is_some() {
            self.flow.clear();
        }
    }

    /// Whether the step has quiesced.
    pub(super) fn settle(&mut self, after: &mut After) {
        let quiet =
            self.phase == Phase::Running && self.runner == Runner::None && self.sending == 0;
        let complete = self.flow.is_over();
        if quiet && after.sends.is_empty() && (self.error.is_some() || complete) {
            after.retire = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoke_common::error::Code;

    /// A step that has `tensor`, and one of its own on a link.
    fn running(tensor: &Tensor, runner: Runner) -> Run {
        let mut run = Run::new(3);
        run.phase = Phase::Running;
        run.runner = runner;
        run.sending = 1;
        run.flow.registers = vec![Some(tensor.clone())];
        let (value, tensor) = (Some(0), tensor.clone());
        run.mail = vec![Mail { value, tensor }];
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
        // One that is interpreted has its registers taken out, and drops them as they come back.
        let tensor = Tensor::scalar(1f32);
        let mut run = running(&tensor, Runner::Active);
        let flow = std::mem::take(&mut run.flow);
        run.stop(Error::new(Code::KernelFailed, "x"));
        assert!(!tensor.is_unique());
        run.rest(flow, Runner::None);
        assert!(tensor.is_unique());
    }
}
