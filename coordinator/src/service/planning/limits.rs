//! The bounds on planning: how many requests wait and are computed, of all clients and of each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use convoke_common::identity::TokenId;
use convoke_common::rpc::transport::Charge;
use convoke_common::{Code, Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::membership::ConnectionId;

/// How many plans are computed at once; each takes a core.
const AT_ONCE: usize = 2;

/// Most plans that are computed or wait: of all clients, of those of one token, and of one client. Each holds a
/// function of up to one frame.
const WAITING: usize = 64;
const OF_TOKEN: usize = 48;
const OF_ONE: usize = 16;

/// The permits of a plan that is computed or waits: one of the client's share, one of its token's, and one of all.
pub type Place = [OwnedSemaphorePermit; 3];

/// Resources of a request for a plan until the plan is computed: its place, and the charge for its bytes.
pub type RequestGuard = (Place, Charge);

/// The owner of a share of the places.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Sharer {
    Client(ConnectionId),
    Token(TokenId),
}

/// The bounds on planning.
pub struct PlanningLimits {
    places: Arc<Semaphore>,
    /// The shares of the clients that plan, and of their tokens.
    shares: Mutex<BTreeMap<Sharer, Weak<Semaphore>>>,
    turns: Arc<Semaphore>,
}

impl Default for PlanningLimits {
    fn default() -> PlanningLimits {
        PlanningLimits {
            places: Arc::new(Semaphore::new(WAITING)),
            shares: Mutex::default(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }
}

impl PlanningLimits {
    /// Returns how many plans are computed or wait.
    pub fn len(&self) -> usize {
        WAITING - self.places.available_permits()
    }

    /// Waits for a turn to compute.
    pub async fn turn(&self) -> Result<OwnedSemaphorePermit> {
        let turn = self.turns.clone().acquire_owned().await;
        turn.map_err(|_| Error::internal("the planner is closed"))
    }

    fn share(&self, sharer: Sharer, places: usize) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        shares.retain(|_, share| share.strong_count() > 0);
        let known = shares.get(&sharer).and_then(Weak::upgrade);
        let share = known.unwrap_or_else(|| Arc::new(Semaphore::new(places)));
        shares.insert(sharer, Arc::downgrade(&share));
        share
    }

    /// Takes a place among the plans that are computed or wait, within the shares of the client and its token. The
    /// place is held until the plan is made.
    pub fn enter(&self, client: ConnectionId, token: &TokenId) -> Result<Place> {
        let busy = |msg: String| Error::new(Code::Busy, msg).advise("try again in a moment");
        let own = self
            .share(Sharer::Client(client), OF_ONE)
            .try_acquire_owned();
        let own = own.map_err(|_| busy(format!("{OF_ONE} plans of this client are being made")))?;
        let of_token = self.share(Sharer::Token(token.clone()), OF_TOKEN);
        let of_token = of_token.try_acquire_owned().map_err(|_| {
            busy(format!(
                "{OF_TOKEN} plans of the holders of token {token} are being made"
            ))
        })?;
        let place = self.places.clone().try_acquire_owned();
        let place = place.map_err(|_| busy(format!("{WAITING} plans are being made already")))?;
        Ok([own, of_token, place])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_and_one_token_take_no_more_than_their_shares_of_the_places() {
        let planning = PlanningLimits::default();
        let [a, b] = ["aaaa", "bbbb"].map(|t| t.parse::<TokenId>().unwrap());
        let mut held: Vec<_> = (0..OF_ONE)
            .map(|_| planning.enter(ConnectionId(1), &a).unwrap())
            .collect();
        let refused = planning.enter(ConnectionId(1), &a).unwrap_err();
        assert_eq!(refused.code, Code::Busy);
        for n in OF_ONE..OF_TOKEN {
            held.push(planning.enter(ConnectionId(2 + n as u64), &a).unwrap());
        }
        let refused = planning.enter(ConnectionId(0), &a).unwrap_err();
        assert!(refused.message.contains("token aaaa"), "{refused}");
        for n in OF_TOKEN..WAITING {
            held.push(planning.enter(ConnectionId(2 + n as u64), &b).unwrap());
        }
        assert!(planning.enter(ConnectionId(0), &b).is_err());
        drop(held.remove(0));
        held.push(planning.enter(ConnectionId(1), &a).unwrap());
        held.clear();
        assert!(planning.enter(ConnectionId(0), &a).is_ok());
        assert_eq!(planning.shares.lock().unwrap().len(), 2);
    }
}
