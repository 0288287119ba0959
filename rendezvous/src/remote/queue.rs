//! What waits to be sent on a link, and how many bytes it is.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use convoke_common::mutant;
use tokio::sync::Notify;

use crate::eager::Batches;
use crate::link::{Outgoing, Sent};

pub(super) enum Out {
    Frame(Vec<u8>),
    Tensor(Outgoing),
    /// Batches of eager work, asked for when they can be sent.
    Batches(Arc<dyn Batches>),
    /// Nothing follows.
    End,
}

#[derive(Default)]
pub(super) struct Queue {
    pub items: Mutex<VecDeque<Out>>,
    pub filled: Notify,
    /// Bytes of frames that are not written.
    pub frames: AtomicUsize,
    /// Bytes of tensors that the link holds.
    pub tensors: AtomicUsize,
}

/// A tensor that the link holds. Tells, called or dropped, once.
pub(super) struct Held {
    pub queue: Arc<Queue>,
    pub bytes: usize,
    pub sent: Option<Sent>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !mutant!("sent-still-counted") {
            self.queue.tensors.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        if let Some(sent) = self.sent.take() {
            sent();
        }
    }
}
