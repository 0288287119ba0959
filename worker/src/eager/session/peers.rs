//! The tensors that a session sends to peers: each leaves over a link, which is made where there is none.
//!
//! Invariant: a transfer that was given to a link ends with the tensor's arrival, or with a report that it does not
//! come.

use std::sync::{Arc, MutexGuard, Weak};

use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::Role;
use convoke_common::ids::StepKey;
use convoke_rendezvous::eager::wire::Report;
use convoke_rendezvous::frame::Frame;
use convoke_rendezvous::{Link, Outgoing, Peer};

use super::super::core::Effect;
use super::Session;
use super::state::{Delivery, SessionState};

impl Session {
    pub(super) fn peer(&self, state: &SessionState, index: u32) -> Result<Peer> {
        if index == 0 {
            return Ok(self.owner.clone());
        }
        let named = state.peers.get(&index).ok_or_else(no_such_peer)?;
        Ok(Peer::of(&named.participant, Role::Worker))
    }

    pub(super) fn perform(&self, effect: Effect) {
        match effect {
            Effect::Send {
                peer,
                transfer,
                value,
                counted,
            } => self.bring(value, move |me, brought| match brought {
                Ok(tensor) => me.deliver(
                    peer,
                    Delivery {
                        transfer,
                        tensor,
                        counted,
                    },
                ),
                Err(error) => me.perform(Effect::Abort {
                    peer,
                    transfer,
                    error,
                }),
            }),
            Effect::Abort {
                peer: 0,
                transfer,
                error,
            } => self.abort(&self.link, transfer, &error),
            Effect::Step(then, Ok(value)) => self.bring(value, |_, brought| {
                then(brought.map_err(|failure| failure.error.clone()));
            }),
            Effect::Step(then, Err(error)) => then(Err(error)),
            // The client passes the error on: it may not have announced the transfer to the peer yet.
            Effect::Abort {
                peer,
                transfer,
                error,
            } => self.undelivered(self.state(), peer, &[transfer], &error),
        }
    }

    fn deliver(&self, peer: u32, delivery: Delivery) {
        match peer {
            0 => self.send(&self.link, delivery),
            _ => self.send_to(peer, delivery),
        }
    }

    fn send(&self, link: &Link, delivery: Delivery) {
        let key = StepKey {
            lease: self.id,
            n: delivery.transfer,
        };
        let counted = delivery.counted;
        link.send_tensor(Outgoing {
            key,
            slot: 0,
            tensor: delivery.tensor,
            priority: 0,
            cancel: self.sending.clone(),
            sent: Box::new(move || drop(counted)),
        });
    }

    fn abort(&self, link: &Link, transfer: u64, error: &Error) {
        let key = StepKey {
            lease: self.id,
            n: transfer,
        };
        let error = Box::new(error.clone());
        link.send(Frame::Abort { key, error });
    }

    /// Sends a tensor to another worker; a link is made where there is none.
    fn send_to(&self, peer: u32, delivery: Delivery) {
        let transfer = delivery.transfer;
        let mut state = self.state();
        let (Some(named), Some(worker)) = (state.peers.get_mut(&peer), self.worker.upgrade())
        else {
            return self.undelivered(state, peer, &[transfer], &no_such_peer());
        };
        if let Some(waiting) = &mut named.waiting {
            return waiting.push(delivery);
        }
        let participant = named.participant.clone();
        let to = Peer::of(&participant, Role::Worker);
        if let Some(link) = worker.hub().link(&to) {
            named.give(transfer, &link);
            drop(state);
            self.send(&link, delivery);
            // The link may have ended, and reported that, before the transfer was listed.
            if link.is_closed() {
                self.lost(&to, link.lost());
            }
            return;
        }
        named.waiting = Some(vec![delivery]);
        drop(state);
        let me = self.me.clone();
        let then = move |linked| {
            if let Some(me) = me.upgrade() {
                me.linked(peer, linked);
            }
        };
        worker.link(participant, Box::new(then));
    }

    /// Sends the tensors that wait for a link to a peer, or reports that no link can be made.
    fn linked(&self, peer: u32, linked: Result<Arc<Link>>) {
        let mut state = self.state();
        let named = state.peers.get_mut(&peer);
        let waiting = named.and_then(|n| n.waiting.take());
        let waiting = waiting.unwrap_or_default();
        match linked {
            Ok(link) => {
                if let Some(named) = state.peers.get_mut(&peer) {
                    waiting.iter().for_each(|d| named.give(d.transfer, &link));
                }
                drop(state);
                // The link may have ended, and reported that, before the transfers were listed.
                if link.is_closed() {
                    self.lost(link.peer(), link.lost());
                }
                waiting.into_iter().for_each(|d| self.send(&link, d));
            }
            Err(error) => {
                let transfers: Vec<u64> = waiting.into_iter().map(|d| d.transfer).collect();
                let error = error.at(self.engine.place());
                self.undelivered(state, peer, &transfers, &error);
            }
        }
    }

    fn undelivered(
        &self,
        mut state: MutexGuard<'_, SessionState>,
        peer: u32,
        transfers: &[u64],
        error: &Error,
    ) {
        for transfer in transfers {
            state.core.report(Report::Undelivered {
                peer,
                transfer: *transfer,
                error: Box::new(error.clone()),
            });
        }
        self.settle(state);
    }

    /// Reports the transfers that are lost with a link to a peer.
    pub fn lost(&self, peer: &Peer, mut error: Error) {
        // The message names this worker: the client, which gets it, may still reach the peer.
        if let Some(me) = self.engine.place().worker {
            error.message = format!("{me} {}", error.message);
        }
        let mut state = self.state();
        // Transfers that come over another link to the peer go on; their sender reports the rest.
        let worker = self.worker.upgrade();
        if worker.is_none_or(|worker| worker.hub().link(peer).is_none()) {
            state.core.lost(peer, &error);
        }
        // Sent tensors may not have arrived, and the peer may not know that they come; the client knows.
        let named = state.peers.iter_mut();
        let mut lost = Vec::new();
        for (index, named) in named.filter(|(_, n)| Peer::of(&n.participant, Role::Worker) == *peer)
        {
            let gone = |link: &Weak<Link>| link.upgrade().is_none_or(|l| l.is_closed());
            named.given.retain(|(transfer, link)| {
                let gone = gone(link);
                if gone {
                    lost.push((*index, *transfer));
                }
                !gone
            });
        }
        for (peer, transfer) in lost {
            let error = Box::new(error.clone());
            state.core.report(Report::Undelivered {
                peer,
                transfer,
                error,
            });
        }
        self.settle(state);
    }
}

fn no_such_peer() -> Error {
    Error::new(Code::ProtocolViolation, "no such peer")
}
