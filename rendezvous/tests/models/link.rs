//! What stands at the place of a link to another process: it notes what it is told.

use convoke_common::identity::TokenId;
pub(crate) use convoke_rendezvous::link::{Outgoing, SentCallback};

use crate::frame::Frame;
use crate::lease::Peer;
use crate::primitives::{AtomicBool, Mutex, Ordering};

/// How a tensor travels, as in `src/link/outgoing.rs`.
pub(crate) type CarryResult = Result<Frame, Outgoing>;

pub(crate) struct Link {
    peer: Peer,
    token: Option<TokenId>,
    closed: AtomicBool,
    told: Mutex<Vec<Frame>>,
}

impl Link {
    pub(crate) fn new(peer: Peer, token: Option<TokenId>) -> Link {
        Link {
            peer,
            token,
            closed: AtomicBool::new(false),
            told: Mutex::default(),
        }
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn token(&self) -> Option<&TokenId> {
        self.token.as_ref()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn close(&self, _why: &str) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn send(&self, frame: Frame) {
        self.told.lock().unwrap().push(frame);
    }

    /// The frames that were sent since this was last called.
    pub(crate) fn told(&self) -> Vec<Frame> {
        std::mem::take(&mut self.told.lock().unwrap())
    }
}
