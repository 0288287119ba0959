//! The frames and tensors that wait to be sent on a link, and their sizes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use convoke_common::mutant;
use tokio::sync::Notify;

use crate::eager::Batches;
use crate::link::{Outgoing, SentCallback};

pub(super) enum QueueItem {
    Frame(Vec<u8>),
    Tensor(Outgoing),
    /// A source of batches of eager work, which is asked for them when they can be sent.
    Batches(Arc<dyn Batches>),
    /// The end of the lane: nothing follows it.
    End,
}

#[derive(Default)]
pub(super) struct Queue {
    pub items: Mutex<VecDeque<QueueItem>>,
    pub filled: Notify,
    /// Bytes of frames that are not written yet.
    pub frames: AtomicUsize,
    /// Bytes of tensors that the link holds.
    pub tensors: AtomicUsize,
}

/// A tensor that the link holds. When it is dropped, its bytes are no longer counted and `sent` is called, once.
pub(super) struct QueuedTensor {
    pub queue: Arc<Queue>,
    pub bytes: usize,
    pub sent: Option<SentCallback>,
}

impl Drop for QueuedTensor {
    fn drop(&mut self) {
        if !mutant!("sent-still-counted") {
            self.queue.tensors.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        if let Some(sent) = self.sent.take() {
            sent();
        }
    }
}
