//! The frames and tensors that wait to be sent on a link, and their sizes.
//!
//! Invariants
//! 1. Frames are taken in the order in which they were pushed.
//! 2. An item that is pushed is taken by the writer, is left when the queue ends, or is refused.
//! 3. A tensor's `sent` is called once, by whoever drops the tensor last.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use convoke_common::mutant;

use crate::eager::Batches;
use crate::link::{Outgoing, SentCallback};
use crate::primitives::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Notify, Ordering};

pub(super) enum QueueItem {
    Frame(Vec<u8>),
    Tensor(Outgoing),
    /// A source of batches of eager work, which is asked for them when they can be sent.
    Batches(Arc<dyn Batches>),
    /// The end of the lane: nothing follows it.
    End,
}

impl QueueItem {
    /// Reports that the item is not sent.
    fn let_go(self) {
        if let QueueItem::Tensor(out) = self {
            out.let_go();
        }
    }
}

#[derive(Default)]
pub(super) struct Queue {
    items: Mutex<VecDeque<QueueItem>>,
    filled: Notify,
    /// Whether the link has ended. It is set under the lock of `items`.
    ended: AtomicBool,
    /// Bytes of frames that are not written yet.
    pub frames: AtomicUsize,
    /// Bytes of tensors that the link holds.
    pub tensors: AtomicUsize,
}

impl Queue {
    fn items(&self) -> MutexGuard<'_, VecDeque<QueueItem>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the link has ended.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Queues an item, or lets it go if the link has ended.
    pub fn push(&self, item: QueueItem) {
        let mut items = self.items();
        if self.is_ended() {
            drop(items);
            return item.let_go();
        }
        items.push_back(item);
        drop(items);
        self.filled.notify_one();
    }

    /// Waits for items, and moves all of them to `batch`, which is empty. There is one taker.
    pub async fn take(&self, batch: &mut VecDeque<QueueItem>) {
        loop {
            std::mem::swap(&mut *self.items(), batch);
            if !batch.is_empty() {
                return;
            }
            self.filled.notified().await;
        }
    }

    /// Ends the queue because the link has ended; returns the items that were not taken.
    pub fn end(&self) -> UnsentItems {
        let mut items = self.items();
        self.ended.store(true, Ordering::Release);
        UnsentItems(std::mem::take(&mut *items))
    }

    /// Counts the bytes of a tensor that the link takes, until the result is dropped.
    pub fn hold(self: &Arc<Self>, bytes: usize, sent: SentCallback) -> QueuedTensor {
        self.tensors.fetch_add(bytes, Ordering::Relaxed);
        QueuedTensor {
            queue: self.clone(),
            bytes,
            sent: Some(sent),
        }
    }
}

/// The items that were queued when the link ended.
#[must_use]
pub(super) struct UnsentItems(VecDeque<QueueItem>);

impl UnsentItems {
    /// Reports that the items are not sent.
    pub fn let_go(self) {
        self.0.into_iter().for_each(QueueItem::let_go);
    }
}

/// A tensor that the link holds. When it is dropped, its bytes are no longer counted and `sent` is called, once.
pub(super) struct QueuedTensor {
    queue: Arc<Queue>,
    bytes: usize,
    sent: Option<SentCallback>,
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
