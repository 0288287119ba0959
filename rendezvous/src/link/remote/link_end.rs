//! One end of a remote link, as those who send see it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use convoke_common::detection::WatchedConnection;
use convoke_common::error::Error;
use convoke_common::identity::{PeerIdentity, peer_identity};
use quinn::Connection;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::lane::LaneSender;
use super::queue::{Queue, QueueItem};
use crate::frame::LANE_LIMIT;
use crate::lease::Peer;
use crate::link::Outgoing;
use crate::sharing::SharingSender;

/// One end of a remote link.
pub struct Remote {
    peer: Peer,
    /// The identity in the peer's certificate.
    identity: Option<PeerIdentity>,
    lane: LaneSender,
    /// Whether the peer ended the link in an orderly way.
    pub(super) left: AtomicBool,
    /// Cancelled when the link has ended, for tasks that wait for that.
    pub(super) ended: CancellationToken,
    /// Why the link ended, if the peer refused what was asked of it.
    pub(super) refused: OnceLock<Box<Error>>,
    /// Bytes of tensors that arrived by streams and through shared memory.
    pub(super) received: Arc<AtomicU64>,
    /// Tasks that send tensors which the peer has not acknowledged.
    pub(super) sending: TaskTracker,
    /// What this end shares with the peer, if the peer may be on this host.
    shared: Option<Arc<SharingSender>>,
}

impl Remote {
    /// The end of a link to `peer`, over which nothing was sent.
    pub(super) fn new(
        peer: Peer,
        watched: WatchedConnection,
        received: Arc<AtomicU64>,
        shared: Option<Arc<SharingSender>>,
    ) -> Remote {
        Remote {
            peer,
            identity: peer_identity(watched.connection()),
            lane: LaneSender::new(watched),
            left: AtomicBool::new(false),
            ended: CancellationToken::new(),
            refused: OnceLock::new(),
            received,
            sending: TaskTracker::new(),
            shared,
        }
    }

    /// The sending end of the lane.
    pub(crate) fn lane(&self) -> &LaneSender {
        &self.lane
    }

    /// What waits to be sent.
    pub(super) fn queue(&self) -> &Arc<Queue> {
        self.lane.queue()
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn identity(&self) -> Option<&PeerIdentity> {
        self.identity.as_ref()
    }

    pub(crate) fn shared(&self) -> Option<&SharingSender> {
        self.shared.as_deref()
    }

    pub(crate) fn left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    pub(crate) fn refusal(&self) -> Option<Error> {
        self.refused.get().map(|refused| (**refused).clone())
    }

    pub(crate) fn watched(&self) -> &WatchedConnection {
        self.lane.watched()
    }

    pub(crate) fn connection(&self) -> &Connection {
        self.watched().connection()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queue().is_ended()
    }

    pub(crate) fn close(&self, why: &str) {
        self.lane.close(why);
    }

    /// Bytes of frames that wait to be sent, and of tensors that the link holds.
    pub(crate) fn queued_bytes(&self) -> u64 {
        let (frames, tensors) = (&self.queue().frames, &self.queue().tensors);
        (frames.load(Ordering::Relaxed) + tensors.load(Ordering::Relaxed)) as u64
    }

    /// Ends the link once the peer has received everything that was sent, and returns then. The caller bounds the wait.
    pub(crate) async fn finish(&self) {
        if let Some(shared) = &self.shared {
            self.until_ended(shared.crossed()).await;
        }
        self.queue().push(QueueItem::End);
        self.ended.cancelled().await;
    }

    /// Runs `task` until it ends, or the link does.
    pub(crate) async fn until_ended(&self, task: impl Future<Output = ()>) {
        self.ended.run_until_cancelled(task).await;
    }

    pub(crate) fn send_tensor(&self, mut out: Outgoing) {
        let bytes = out.tensor.byte_len();
        // Any task may hold the tensor when the link ends: dropping this value reports the release as well.
        let told = self.queue().hold(bytes, out.sent);
        out.sent = Box::new(move || drop(told));
        let large = bytes > LANE_LIMIT;
        let carried = match self.shared.as_ref().filter(|_| large) {
            Some(shared) => shared.lend(out),
            None => Some(Err(out)),
        };
        if let Some(carried) = carried {
            self.lane.carry(carried);
        }
    }
}
