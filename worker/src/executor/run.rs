//! One window entry of an executor: what a step has, what it waits for, and what follows from an event.
//!
//! ```text
//! Run, under the entry's lock     phase, error, who interprets, what links hold, mail
//! Flow                            values, counts, ready nodes: under the lock as well, but for while a thread
//!                                 interprets the step, whose own it is then
//! ```
//! A thread that interprets a step launches node after node without the lock. What comes meanwhile, tensors from peers and
//! from handles, is mail, which it looks for when it is told that there is some, and before it ends.
//!
//! Plain state: nothing here sends or runs anything. [`After`] says what to do once the lock is released.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use convoke_common::Tensor;
use convoke_common::error::Error;
use convoke_common::mutant;
use convoke_common::program::NO_OPERAND;
use tokio_util::sync::CancellationToken;

use crate::cpu::Inputs;
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
    /// By node: operands that are missing.
    pending: Vec<u32>,
    /// By value: reads and sends to come.
    uses: Vec<u32>,
    values: Vec<Option<Tensor>>,
    ready: BinaryHeap<(u64, Reverse<u32>)>,
    nodes_left: usize,
    recvs_left: usize,
}

/// Where a value of the step comes from that no kernel here makes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Recv,
    /// A node about a handle, which ends with it.
    Handle,
}

/// A value that came while the step was interpreted.
pub(super) struct Mail {
    source: Source,
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
    fn start(&mut self, installed: &Installed) {
        self.clear();
        self.pending.extend_from_slice(&installed.ready);
        self.uses.extend_from_slice(&installed.uses);
        self.values.resize(installed.program.values.len(), None);
        self.nodes_left = installed.nodes().len();
        self.recvs_left = installed.program.recvs.len();
        for (node, missing) in installed.ready.iter().enumerate() {
            if *missing == 0 {
                self.make_ready(installed, node as u32);
            }
        }
    }

    fn clear(&mut self) {
        self.pending.clear();
        self.uses.clear();
        self.values.clear();
        self.ready.clear();
    }

    /// The node to launch next.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.ready.pop().map(|(_, Reverse(node))| node)
    }

    /// Looks at it, and its priority.
    pub(super) fn peek(&self) -> Option<(u64, u32)> {
        self.ready.peek().map(|(p, Reverse(node))| (*p, *node))
    }

    /// The operands of a ready node, moved where this is their last use.
    pub(super) fn operands(&mut self, installed: &Installed, node: u32) -> Inputs {
        let ids = &installed.nodes()[node as usize].inputs;
        ids.iter()
            .map(|v| match *v == NO_OPERAND {
                true => None,
                false => self.read(installed, *v),
            })
            .collect()
    }

    fn read(&mut self, installed: &Installed, v: u32) -> Option<Tensor> {
        let i = v as usize;
        if let Some(c) = &installed.constants[i] {
            return Some(c.clone());
        }
        self.uses[i] -= 1;
        match self.uses[i] {
            0 => self.values[i].take(),
            _ => self.values[i].clone(),
        }
    }

    /// A kernel has ended.
    pub(super) fn launched(
        &mut self,
        installed: &Installed,
        node: u32,
        outputs: impl IntoIterator<Item = Tensor>,
        after: &mut After,
    ) {
        self.nodes_left -= 1;
        let ids = &installed.nodes()[node as usize].outputs;
        for (v, t) in ids.iter().zip(outputs) {
            self.produce(installed, *v, t, after);
        }
    }

    /// A value is there: readies its consumers and has it sent.
    fn produce(&mut self, installed: &Installed, v: u32, tensor: Tensor, after: &mut After) {
        let i = v as usize;
        let mut uses = self.uses[i];
        if uses == 0 {
            return;
        }
        for node in installed.consumers.row(v) {
            let p = &mut self.pending[*node as usize];
            *p -= 1;
            if *p == 0 {
                self.make_ready(installed, *node);
            }
        }
        let most = [usize::MAX, 1][usize::from(mutant!("fan-out-once"))];
        for send in installed.sends.row(v).iter().take(most) {
            uses -= 1;
            after.sends.push((*send, tensor.clone()));
        }
        self.uses[i] = uses;
        if uses > 0 {
            self.values[i] = Some(tensor);
        }
    }

    fn make_ready(&mut self, installed: &Installed, node: u32) {
        let priority = installed.nodes()[node as usize].priority;
        self.ready.push((priority, Reverse(node)));
    }

    fn came(&mut self, installed: &Installed, mail: Mail, after: &mut After) {
        match mail.source {
            Source::Recv => self.recvs_left -= 1,
            Source::Handle => self.nodes_left -= 1,
        }
        if let Some(v) = mail.value {
            self.produce(installed, v, mail.tensor, after);
        }
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
        self.flow.start(installed);
        self.wake(after);
    }

    pub(super) fn stop(&mut self, error: Error) {
        self.error = Some(error);
        self.flag.store(true, Ordering::Relaxed);
        self.cancel.cancel();
        self.flow.ready.clear();
        if self.runner == Runner::Queued {
            self.runner = Runner::None;
        }
    }

    /// A value came from outside. True where a thread interprets the step, which is to look for its mail.
    pub(super) fn came(
        &mut self,
        installed: &Installed,
        source: Source,
        value: Option<u32>,
        tensor: Tensor,
        after: &mut After,
    ) -> bool {
        let mail = Mail {
            source,
            value,
            tensor,
        };
        if self.runner == Runner::Active {
            self.mail.push(mail);
            return true;
        }
        let before = after.sends.len();
        self.flow.came(installed, mail, after);
        self.sending += after.sends.len() - before;
        self.wake(after);
        false
    }

    fn wake(&mut self, after: &mut After) {
        if self.runner == Runner::None && !self.flow.ready.is_empty() {
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
            flow.came(installed, each, after);
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
        let complete = self.flow.nodes_left == 0 && self.flow.recvs_left == 0;
        if quiet && after.sends.is_empty() && (self.error.is_some() || complete) {
            after.retire = true;
        }
    }
}
