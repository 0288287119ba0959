//! The tensors that a session sends to peers: each leaves over a link, which is made where there is none.
//!
//! Invariant: a transfer that was given to a link ends with the tensor's arrival, or with a report that it does not
//! come.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, Weak};

use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_common::identity::Role;
use convoke_common::ids::StepKey;
use convoke_common::memory::Reservation;
use convoke_rendezvous::eager::wire::Report;
use convoke_rendezvous::frame::Frame;
use convoke_rendezvous::{Link, Outgoing, Peer};

use super::super::core::{CountedBytes, Effect, MOST_EARLY};
use super::{Session, SessionState};

/// A peer that the client has announced to the session.
pub(super) struct NamedPeer {
    participant: Participant,
    /// Tensors that wait for a link to the peer; `None` unless a link is being made.
    waiting: Option<Vec<Delivery>>,
    /// The latest transfers that were given to a link, as many as may be under way, each with its link.
    given: VecDeque<(u64, Weak<Link>)>,
    /// The reservation for the peer's description.
    _charge: Reservation,
}

/// A tensor for a peer.
struct Delivery {
    transfer: u64,
    tensor: convoke_graph::Tensor,
    counted: CountedBytes,
}

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
        let (Some(named), Some(holdings)) = (state.peers.get_mut(&peer), self.holdings.upgrade())
        else {
            return self.undelivered(state, peer, &[transfer], &no_such_peer());
        };
        if let Some(waiting) = &mut named.waiting {
            return waiting.push(delivery);
        }
        let participant = named.participant.clone();
        let to = Peer::of(&participant, Role::Worker);
        if let Some(link) = holdings.hub.link(&to) {
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
        // The task ends with the bounds of dialling.
        holdings.world.clone().spawn(async move {
            let linked = holdings.link_to(&participant, Role::Worker, true).await;
            if let Some(me) = me.upgrade() {
                me.linked(peer, linked);
            }
        });
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
        let holdings = self.holdings.upgrade();
        if holdings.is_none_or(|n| n.hub.link(peer).is_none()) {
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

impl NamedPeer {
    pub fn new(participant: Participant, charge: Reservation) -> NamedPeer {
        NamedPeer {
            _charge: charge,
            participant,
            waiting: None,
            given: VecDeque::new(),
        }
    }

    /// Lists a transfer as given to a link.
    fn give(&mut self, transfer: u64, link: &Arc<Link>) {
        if self.given.len() >= MOST_EARLY {
            self.given.pop_front();
        }
        self.given.push_back((transfer, Arc::downgrade(link)));
    }
}

fn no_such_peer() -> Error {
    Error::new(Code::ProtocolViolation, "no such peer")
}
