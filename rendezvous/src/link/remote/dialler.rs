//! Dials workers, one dial to each at a time, and links to them.
//!
//! Invariants
//! 1. Whoever needs a link to a worker while it is dialled waits for that dial, and shares the link.
//! 2. A dial that has begun is completed, even where nobody waits for it any more: the worker may count on the link as
//!    soon as it has it.
//! 3. Nothing is kept for a worker that is not being dialled.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use convoke_common::admission::{JoinFailure, reach};
use convoke_common::detection::{Detector, WatchedConnection};
use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_common::identity::Role;
use convoke_common::world::{Endpoint, World};

use super::errors::refused;
use super::greeting::dial_lane;
use crate::hub::Hub;
use crate::lease::Peer;
use crate::link::Link;

/// A member's way to the workers that it needs.
pub struct Dialler {
    world: World,
    hub: Arc<Hub>,
    endpoint: Endpoint,
    detector: Detector,
    turns: Turns,
}

/// By worker name, the lock that is held while the worker is dialled.
#[derive(Default)]
struct Turns(Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    fn of(&self, worker: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Locks that no task holds or waits for are dropped.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(worker.to_owned()).or_default().clone()
    }
}

impl Dialler {
    /// Makes the dialler of the member that this hub belongs to. It dials from `endpoint`.
    pub fn new(
        world: World,
        hub: Arc<Hub>,
        endpoint: Endpoint,
        detector: Detector,
    ) -> Arc<Dialler> {
        Arc::new(Dialler {
            world,
            hub,
            endpoint,
            detector,
            turns: Turns::default(),
        })
    }

    /// Returns the link to a worker, after dialling it if there is none. `serve` is called with the new connection and
    /// the worker's name before the link is made: it serves the streams that the worker opens.
    pub async fn link(
        self: &Arc<Self>,
        worker: &Participant,
        serve: impl FnOnce(WatchedConnection, String) + Send + 'static,
    ) -> Result<Arc<Link>> {
        let peer = Peer::of(worker, Role::Worker);
        if let Some(link) = self.hub.link(&peer) {
            return Ok(link);
        }
        let (me, worker) = (self.clone(), worker.clone());
        let dial = async move {
            let turn = me.turns.of(&worker.name);
            let _mine = turn.lock().await;
            match me.hub.link(&peer) {
                Some(link) => Ok(link),
                None => me.dial(&worker, &peer, serve).await,
            }
        };
        self.world.complete(dial).await
    }

    async fn dial(
        &self,
        worker: &Participant,
        peer: &Peer,
        serve: impl FnOnce(WatchedConnection, String),
    ) -> Result<Arc<Link>> {
        let dialled = reach(&self.world, &self.endpoint, &worker.address, Role::Worker).await;
        let failed = |e: JoinFailure| self.unreachable(worker, &e.into_error());
        let dialled = dialled.map_err(failed)?;
        let name = dialled.identity.name.as_str().to_owned();
        if name != worker.name {
            let (address, wanted) = (&worker.address, &worker.name);
            let msg = format!("{address} is answered by worker {name}, not {wanted}");
            return Err(Error::unreachable(Some(wanted), msg));
        }
        if let Some(link) = self.hub.link(peer) {
            // The worker dialled as well, and was first.
            dialled.connection.close(0u32.into(), b"linked already");
            return Ok(link);
        }
        let watched = self.detector.watch(dialled.connection);
        serve(watched.clone(), name.clone());
        let link = dial_lane(&self.world, &self.hub, watched, name).await?;
        if link.peer() != peer {
            let msg = format!("worker {} was restarted meanwhile", worker.name);
            let error = Error::new(Code::PeerLost, msg).about(&worker.name);
            return Err(error.advise("try again: it is there under a new incarnation"));
        }
        Ok(link)
    }

    /// The error of a dial that failed for `cause`. A worker that refused for lack of memory is there, so that its
    /// address is not doubted.
    fn unreachable(&self, worker: &Participant, cause: &Error) -> Error {
        let Participant { name, address, .. } = worker;
        if cause.code == Code::OutOfMemory {
            return refused(cause.code, name, format!("{name}: {}", cause.message));
        }
        let cause = &cause.message;
        let (msg, advice) = match self.hub.me.role {
            Role::Client => (
                format!("cannot reach worker {name} at {address}: {cause}"),
                "start the worker with --advertise HOST:PORT, an address that this machine can reach, \
                 or run the client inside the cluster's network"
                    .to_owned(),
            ),
            Role::Worker | Role::Coordinator => (
                format!(
                    "worker {} cannot reach {name} at {address}: {cause}",
                    self.hub.me.name
                ),
                format!(
                    "start {name} with --advertise HOST:PORT, an address that the others can reach"
                ),
            ),
        };
        Error::unreachable(Some(name), msg).advise(advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_for_a_worker_that_nobody_dials() {
        let turns = Turns::default();
        let len = || turns.0.lock().unwrap().len();
        let (a, again) = (turns.of("a"), turns.of("a"));
        assert!(Arc::ptr_eq(&a, &again));
        drop(a);
        let b = turns.of("b");
        assert_eq!(len(), 2);
        drop((again, b));
        for n in 0..100 {
            drop(turns.of(&format!("w{n}")));
        }
        assert_eq!(len(), 1);
    }
}
