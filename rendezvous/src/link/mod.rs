//! A link: the way to one peer for frames and tensors.
//!
//! A *local* link hands over frames by a call and tensors by pointer, on the sender's thread. A *remote* link is a QUIC
//! connection with an ordered lane and a stream for each large tensor; on one host it uses shared memory instead of
//! these streams. Both kinds obey one contract:
//! 1. Frames arrive in the order in which they were sent; a tensor may overtake a frame or be overtaken.
//! 2. Nothing that is sent on a closed link arrives; the hub tells the sender of that, not the call.
//! 3. `sent` runs once, when the link no longer holds the tensor: written, copied, refused, reset, or returned.

mod batches;
mod id;
mod outgoing;
pub mod remote;

use std::sync::{Arc, Weak};

use convoke_common::error::Error;
use convoke_common::identity::{PeerIdentity, TokenId};
use convoke_common::rpc::LinkStatus;
use tokio_util::sync::CancellationToken;

use crate::eager::{Batches, DirectSession, bodies};
use crate::frame::{Frame, TensorHeader};
use crate::hub::Hub;
use crate::lease::Peer;
use crate::remote::Remote;
use crate::sharing::SharingSender;

pub use batches::LocalBatches;
pub use id::LinkId;
pub(crate) use outgoing::CarryResult;
pub use outgoing::{Outgoing, SentCallback};

/// The way to one peer.
pub enum Link {
    /// A link to a hub of the same process: another one, or the very same.
    Local {
        me: Peer,
        peer: Peer,
        /// The hub of this end, for answers to what is sent.
        own: Weak<Hub>,
        hub: Weak<Hub>,
        closed: CancellationToken,
        batches: LocalBatches,
    },
    /// A link to another process.
    Remote(Remote),
}

impl Link {
    /// Links two hubs of one process, in both directions.
    pub fn join_local(a: &Arc<Hub>, b: &Arc<Hub>) {
        let closed = CancellationToken::new();
        for (me, to) in [(a, b), (b, a)] {
            // Adding the link cannot fail: two hubs of one process need no certificate.
            let _ = me.add_link(Arc::new(Link::Local {
                me: me.me.clone(),
                peer: to.me.clone(),
                own: Arc::downgrade(me),
                hub: Arc::downgrade(to),
                closed: closed.clone(),
                batches: LocalBatches::default(),
            }));
        }
    }

    /// A link of a hub to itself, for a worker that drives a lease in which it takes part. The hub does not list it, and a
    /// start whose lease is gone is answered on the sender's thread, as over every local link.
    pub fn to_itself(hub: &Arc<Hub>) -> Arc<Link> {
        Arc::new(Link::Local {
            me: hub.me.clone(),
            peer: hub.me.clone(),
            own: Arc::downgrade(hub),
            hub: Arc::downgrade(hub),
            closed: CancellationToken::new(),
            batches: LocalBatches::default(),
        })
    }

    /// The peer at the other end.
    pub fn peer(&self) -> &Peer {
        match self {
            Link::Local { peer, .. } => peer,
            Link::Remote(r) => r.peer(),
        }
    }

    /// What tells it from other links; `None` for a local link.
    pub fn id(&self) -> Option<LinkId> {
        self.connection().map(LinkId::of)
    }

    /// The identity in the peer's certificate; `None` for a local link.
    pub fn identity(&self) -> Option<&PeerIdentity> {
        match self {
            Link::Local { .. } => None,
            Link::Remote(r) => r.identity(),
        }
    }

    /// The token with which the peer joined.
    pub(crate) fn token(&self) -> Option<&TokenId> {
        self.identity().map(|identity| &identity.token_id)
    }

    /// Sends a frame that carries no tensor.
    pub fn send(&self, frame: Frame) {
        match self {
            Link::Local {
                me,
                peer,
                own,
                hub,
                closed,
                ..
            } => {
                let there = hub.upgrade().filter(|_| !closed.is_cancelled());
                // The answer is taken after the peer has returned, not from within its call.
                if let Some(answer) = there.and_then(|hub| hub.frame(me, frame))
                    && let Some(own) = own.upgrade()
                {
                    own.frame(peer, answer);
                }
            }
            Link::Remote(r) => r.lane().send(&frame),
        }
    }

    /// Announces batches of eager work: the link asks `source` for them once it can send them.
    pub fn ready(&self, source: &Arc<dyn Batches>) {
        match self {
            Link::Local {
                me,
                hub,
                closed,
                batches,
                ..
            } => {
                batches.announce(source, |source| {
                    let mut frames = Vec::new();
                    source.take(&mut frames);
                    let there = hub.upgrade().filter(|_| !closed.is_cancelled());
                    for body in bodies(&frames) {
                        let Some(hub) = &there else { break };
                        if let Err(e) = hub.batch(me, None, body) {
                            tracing::error!(peer = me.name, "{e}");
                            closed.cancel();
                        }
                    }
                });
            }
            Link::Remote(r) => r.lane().ready(source.clone()),
        }
    }

    /// The direct execution of brief ops on the calling thread, over a local link to a worker.
    pub fn direct(&self) -> Option<Arc<dyn DirectSession>> {
        match self {
            Link::Local { me, hub, .. } => hub.upgrade()?.direct(me),
            Link::Remote(_) => None,
        }
    }

    /// Sends a tensor.
    pub fn send_tensor(&self, out: Outgoing) {
        match self {
            Link::Local {
                me, hub, closed, ..
            } => {
                if let Some(hub) = hub.upgrade().filter(|_| !closed.is_cancelled()) {
                    let h = TensorHeader::of(out.key, out.slot, &out.tensor);
                    hub.deliver(me, &h, out.tensor);
                }
                (out.sent)();
            }
            Link::Remote(r) => r.send_tensor(out),
        }
    }

    /// What this end shares with the peer, if both may be on one host.
    fn shared(&self) -> Option<&SharingSender> {
        match self {
            Link::Local { .. } => None,
            Link::Remote(r) => r.shared(),
        }
    }

    /// Whether the peer, on this very host, reads memory of this process. Returns once that is known.
    pub async fn shares(&self) -> bool {
        match self.shared() {
            Some(shared) => shared.settled().await,
            None => false,
        }
    }

    /// Runs `task` until it ends, or the link does.
    pub(crate) async fn until_ended(&self, task: impl Future<Output = ()>) {
        match self {
            Link::Local { closed, .. } => drop(closed.run_until_cancelled(task).await),
            Link::Remote(r) => r.until_ended(task).await,
        }
    }

    /// Whether the link has ended.
    pub fn is_closed(&self) -> bool {
        match self {
            Link::Local { closed, hub, .. } => closed.is_cancelled() || hub.strong_count() == 0,
            Link::Remote(r) => r.is_closed(),
        }
    }

    /// Whether the peer ended the link in an orderly way.
    pub fn left(&self) -> bool {
        match self {
            Link::Local { .. } => false,
            Link::Remote(r) => r.left(),
        }
    }

    /// The error for a caller that needs the link after it has ended.
    pub fn lost(&self) -> Error {
        let ended = match self {
            Link::Local { .. } => None,
            Link::Remote(r) => r.watched().ended(),
        };
        let why = ended.unwrap_or_else(|| "the connection ended".to_owned());
        Error::lost(&self.peer().name, why)
    }

    /// Why it ended, where the peer refused what was asked of it.
    pub fn refusal(&self) -> Option<Error> {
        match self {
            Link::Local { .. } => None,
            Link::Remote(r) => r.refusal(),
        }
    }

    /// Ends it once the peer has all that was sent; returns then. The caller bounds the wait.
    pub async fn finish(&self) {
        match self {
            // A local link has nothing that waits.
            Link::Local { closed, .. } => closed.cancel(),
            Link::Remote(r) => r.finish().await,
        }
    }

    /// Ends the link at once; a remote peer is told `why`.
    pub fn close(&self, why: &str) {
        match self {
            Link::Local { closed, .. } => closed.cancel(),
            Link::Remote(r) => r.close(why),
        }
    }

    /// The QUIC connection; `None` for a local link.
    pub fn connection(&self) -> Option<&quinn::Connection> {
        match self {
            Link::Local { .. } => None,
            Link::Remote(r) => Some(r.connection()),
        }
    }

    /// The link's entry in `status`.
    pub fn status(&self) -> LinkStatus {
        let peer = self.peer().name.clone();
        match self {
            Link::Local { .. } => LinkStatus {
                peer,
                address: String::new(),
                path: "local".into(),
                round_trip: 0,
                tripwire: false,
                sent: 0,
                received: 0,
                sent_datagrams: 0,
                received_datagrams: 0,
                queued_bytes: 0,
            },
            Link::Remote(r) => {
                let s = r.connection().stats();
                LinkStatus {
                    peer,
                    address: r.connection().remote_address().to_string(),
                    path: match self.shared().is_some_and(SharingSender::reaches) {
                        true => "shm",
                        false => "quic",
                    }
                    .into(),
                    round_trip: s.path.rtt.as_nanos() as u64,
                    tripwire: r.watched().tripwire(),
                    sent: s.udp_tx.bytes,
                    received: s.udp_rx.bytes,
                    sent_datagrams: s.udp_tx.datagrams,
                    received_datagrams: s.udp_rx.datagrams,
                    queued_bytes: r.queued_bytes(),
                }
            }
        }
    }
}
