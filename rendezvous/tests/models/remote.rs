//! What stands at the place of the lane below shared memory: it passes on what the peer is told.

use tokio::sync::mpsc;

use crate::frame::Frame;
use crate::link::CarryResult;

pub(crate) struct LaneSender {
    told: mpsc::UnboundedSender<Frame>,
}

impl LaneSender {
    /// The sending end, and what the peer is told.
    pub(crate) fn new() -> (LaneSender, mpsc::UnboundedReceiver<Frame>) {
        let (told, peer) = mpsc::unbounded_channel();
        (LaneSender { told }, peer)
    }

    pub(crate) fn send(&self, frame: &Frame) {
        // The peer may be gone.
        let _ = self.told.send(frame.clone());
    }

    /// Takes a tensor for the wire; the models of staging send none there.
    pub(crate) fn carry(&self, carried: CarryResult) {
        assert!(carried.is_ok(), "a tensor goes over the wire");
    }
}
