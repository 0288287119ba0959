//! One window entry of an executor: what a step has, what it waits for, and what follows from an event.
//!
//! Plain state under the entry's lock. Nothing here sends or runs anything: [`After`] says what to do once the
//! lock is released.

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
    /// A thread.
    Active,
}

/// One window entry.
pub(super) struct Run {
    pub(super) n: u64,
    pub(super) phase: Phase,
    pub(super) pending: Vec<u32>,
    pub(super) uses: Vec<u32>,
    pub(super) values: Vec<Option<Tensor>>,
    pub(super) ready: BinaryHeap<(u64, Reverse<u32>)>,
    pub(super) nodes_left: usize,
    pub(super) recvs_left: usize,
    /// Tensors that links still hold, and how many of them by participant.
    pub(super) sending: usize,
    pub(super) unsent: Vec<u32>,
    pub(super) runner: Runner,
    /// The step node that a thread has, or had last.
    pub(super) node: Option<u32>,
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

impl Run {
    pub(super) fn new(n: u64) -> Run {
        Run {
            n,
            phase: Phase::Waiting,
            pending: vec![],
            uses: vec![],
            values: vec![],
            ready: BinaryHeap::new(),
            nodes_left: 0,
            recvs_left: 0,
            sending: 0,
            unsent: vec![],
            runner: Runner::None,
            node: None,
            watched: false,
            error: None,
            flag: Arc::default(),
            cancel: CancellationToken::new(),
            span: tracing::Span::none(),
        }
    }

    pub(super) fn stop(&mut self, error: Error) {
        self.error = Some(error);
        self.flag.store(true, Ordering::Relaxed);
        self.cancel.cancel();
        self.ready.clear();
        if self.runner == Runner::Queued {
            self.runner = Runner::None;
        }
    }

    /// The operands of a ready node, moved where this is their last use.
    pub(super) fn operands(&mut self, installed: &Installed, node: u32) -> Inputs {
        let ids = &installed.nodes()[node as usize].inputs;
        ids.iter()
            .map(|v| {
                if *v == NO_OPERAND {
                    None
                } else {
                    self.read(installed, *v)
                }
            })
            .collect()
    }

    pub(super) fn read(&mut self, installed: &Installed, v: u32) -> Option<Tensor> {
        let i = v as usize;
        if let Some(c) = &installed.constants[i] {
            return Some(c.clone());
        }
        self.uses[i] -= 1;
        if self.uses[i] == 0 {
            self.values[i].take()
        } else {
            self.values[i].clone()
        }
    }

    /// A value is there: readies its consumers and sends it.
    pub(super) fn produce(
        &mut self,
        installed: &Installed,
        v: u32,
        tensor: Tensor,
        after: &mut After,
    ) {
        let i = v as usize;
        let mut uses = self.uses[i];
        if uses == 0 {
            return;
        }
        for node in installed.consumers.row(v) {
            let p = &mut self.pending[*node as usize];
            *p -= 1;
            if *p == 0 {
                self.make_ready(installed, *node, after);
            }
        }
        let most = [usize::MAX, 1][usize::from(mutant!("fan-out-once"))];
        for send in installed.sends.row(v).iter().take(most) {
            uses -= 1;
            self.sending += 1;
            after.sends.push((*send, tensor.clone()));
        }
        self.uses[i] = uses;
        if uses > 0 {
            self.values[i] = Some(tensor);
        }
    }

    pub(super) fn make_ready(&mut self, installed: &Installed, node: u32, after: &mut After) {
        self.ready
            .push((installed.nodes()[node as usize].priority, Reverse(node)));
        if self.runner == Runner::None {
            self.runner = Runner::Queued;
            after.start_runner = true;
        }
    }

    /// Whether the step has quiesced.
    pub(super) fn settle(&mut self, after: &mut After) {
        let quiet =
            self.phase == Phase::Running && self.runner == Runner::None && self.sending == 0;
        let complete = self.nodes_left == 0 && self.recvs_left == 0;
        if quiet && after.sends.is_empty() && (self.error.is_some() || complete) {
            after.retire = true;
        }
    }
}
