//! Partial steps: a node's failure ends only what depends on the node, and everything else goes on.
//!
//! ```text
//! node fails ──> its results are lost ──> instructions that read them are left out ──> their results are lost ...
//!                      └──> sends of them: Failed ── lane ──> recv of a peer, or of the driver, is lost as well
//! ```
//! A lost value carries the error of the node that failed. A failure that is not a node's ends the step, as it ends one
//! that is not partial: the loss of a participant, a deadline, memory refused to an arriving tensor, a cancelled call.

use std::sync::Arc;

use convoke_common::error::Error;
use convoke_graph::ids::ParticipantIx;
use convoke_rendezvous::Lease;
use convoke_rendezvous::frame::{Frame, MAX_FAILED};

use super::Executor;
use super::run::{FailedSend, FollowUp};

/// Whether an error is a node's own, and does not report the loss of a participant or a lease.
pub(super) fn is_of_node(error: &Error) -> bool {
    !error.code.is_secondary()
}

impl Executor {
    /// Counts and reports the step as failed. Called at the first failure in it that this worker knows of.
    pub(super) fn note_first_failure(&self, n: u64, error: &Error) {
        let Some(lease) = self.lease() else { return };
        let run = self.run(n);
        if run.n == n && run.error.is_none() {
            self.tell_failure(&lease, &run, error, lease.me);
        }
    }

    /// Tells peers and the driver which tensors of the step will not come, and why.
    pub(super) fn tell_failed_values(&self, lease: &Lease, n: u64, untold: Vec<FailedSend>) {
        let count = untold.len();
        let mut by_peer: Vec<Option<(Arc<Error>, Vec<u32>)>> = vec![None; self.links.len()];
        let tell = |to: usize, (error, slots): (Arc<Error>, Vec<u32>)| {
            if let Some(Some(link)) = self.links.get(to) {
                let key = lease.key_at(to as ParticipantIx, n);
                link.send(Frame::Failed { key, slots, error });
            }
        };
        for (send, error) in untold {
            let send = &self.installed.program.sends[send as usize];
            let to = usize::from(send.to);
            let Some(waiting) = by_peer.get_mut(to) else {
                continue;
            };
            match waiting {
                // Slots that failed because of one error share a frame.
                Some((because, slots))
                    if Arc::ptr_eq(because, &error) && slots.len() < MAX_FAILED =>
                {
                    slots.push(send.slot);
                }
                _ => {
                    let before = waiting.replace((error, vec![send.slot]));
                    before.into_iter().for_each(|before| tell(to, before));
                }
            }
        }
        for (to, waiting) in by_peer.into_iter().enumerate() {
            waiting.into_iter().for_each(|waiting| tell(to, waiting));
        }
        let mut after = FollowUp::default();
        {
            let mut run = self.run(n);
            if run.n != n {
                return;
            }
            run.sending -= count;
            run.settle(&mut after);
        }
        self.finish(n, after);
    }
}
