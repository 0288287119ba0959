//! The sending end of a lane: it queues what is to be sent, and ends the link with a peer that does not read.

use std::sync::Arc;

use convoke_common::detection::WatchedConnection;
use quinn::VarInt;

use super::queue::{Queue, QueueItem};
use crate::eager::Batches;
use crate::frame::Frame;
use crate::link::CarryResult;
use crate::primitives::Ordering;

/// The priority of the lane, above that of every tensor: the end of a step does not wait for another step's bytes.
pub(super) const LANE_PRIORITY: i32 = i32::MAX;
/// How many bytes of frames may wait for the peer to read them: far more than the steps in the windows of all leases of
/// a link can send, so that only a peer which does not read reaches this bound.
const FRAMES_QUEUED: usize = 16 << 20;

/// The sending end of a lane.
pub(crate) struct LaneSender {
    watched: WatchedConnection,
    queue: Arc<Queue>,
}

impl LaneSender {
    /// The sending end of the lane on this connection; nothing waits on it yet.
    pub(super) fn new(watched: WatchedConnection) -> LaneSender {
        let queue = Arc::default();
        LaneSender { watched, queue }
    }

    /// The connection that the lane is on.
    pub(super) fn watched(&self) -> &WatchedConnection {
        &self.watched
    }

    /// What waits to be sent.
    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Ends the connection at once; the peer is told `why`.
    pub(super) fn close(&self, why: &str) {
        let connection = self.watched.connection();
        connection.close(VarInt::from_u32(0), why.as_bytes());
    }

    /// Sends a frame.
    pub(crate) fn send(&self, frame: &Frame) {
        let mut bytes = Vec::with_capacity(128);
        frame.encode(&mut bytes);
        let more = bytes.len();
        if self.queue.frames.fetch_add(more, Ordering::Relaxed) + more > FRAMES_QUEUED {
            self.close("the peer does not read what it is told");
        }
        self.queue.push(QueueItem::Frame(bytes));
    }

    /// Announces a source of batches, which is asked for them once they can be sent.
    pub(crate) fn ready(&self, source: Arc<dyn Batches>) {
        self.queue.push(QueueItem::Batches(source));
    }

    /// Sends what says where a tensor lies, or the tensor itself.
    pub(crate) fn carry(&self, carried: CarryResult) {
        match carried {
            Ok(frame) => self.send(&frame),
            Err(out) => self.queue.push(QueueItem::Tensor(out)),
        }
    }
}
