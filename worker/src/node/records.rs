//! Memory for records, which a worker remembers besides tensors: prepared ops, names, handles, waiting ops, graphs of
//! programs.
//!
//! Records have a part of the worker's memory of their own, so that a worker whose memory is full of tensors still
//! understands commands, and commands take nothing from tensors that were planned. Beyond that part, records take the
//! worker's memory.

use std::sync::{Arc, Weak};

use convoke_common::error::Result;
use convoke_common::identity::PeerIdentity;
use convoke_common::ids::LeaseId;
use convoke_common::memory::{
    Charge, Ledger, Owner, Purpose, Reclaim, Reservation, SharedReservation, TokenHolding,
};
use convoke_common::mutant;
use convoke_common::world::{AccountId, Share};
use convoke_rendezvous::Link;

/// The divisor of the worker's memory that gives the part for records, which is at least [`LEAST`].
const PART: u64 = 16;
const LEAST: u64 = 4 << 20;

/// The least number of bytes by which [`GrowingRecords`] grows.
const STEP: u64 = 64 << 10;

/// The memory for records, charged to the worker or to a token; clones share it.
#[derive(Debug, Clone)]
pub struct Records {
    own: Ledger,
    all: Ledger,
}

/// The ledger account of the peer at the other end of a link: its token's, or the worker's own for a peer in this
/// process.
pub fn account_of(ledger: &Ledger, link: Option<&Arc<Link>>) -> Ledger {
    let identity = link.and_then(|link| link.identity());
    match identity.filter(|_| !mutant!("nobody-charged")) {
        None => ledger.clone(),
        Some(identity) => account_of_member(ledger, identity),
    }
}

/// The account of the token that let this member in.
pub fn account_of_member(ledger: &Ledger, member: &PeerIdentity) -> Ledger {
    ledger.of(Owner {
        token: member.token_id.clone(),
        member: member.name.to_string(),
        limit: member.memory_of(ledger.limit()),
    })
}

/// The share that pays for the compute of a client's lease or session: the account is the token that the client came
/// with, or the client itself where it is in this process.
pub fn share_of(link: Option<&Arc<Link>>, client: &str, lease: LeaseId) -> Share {
    let identity = link.and_then(|link| link.identity());
    let account = identity.map_or(client, |identity| identity.token_id.as_str());
    let weight = identity.and_then(|identity| identity.budget.weight);
    let account = AccountId::named(account);
    Share::of_member(account, client, weight.unwrap_or_default(), lease)
}

/// The fraction of `part` that `limit` is of `all`.
fn in_proportion(limit: u64, part: u64, all: u64) -> u64 {
    let share = u128::from(limit.min(all)) * u128::from(part) / u128::from(all.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

impl Records {
    /// The records of the worker `name`, beside its memory `all`.
    pub fn new(name: &str, all: &Ledger) -> Records {
        let part = (all.limit() / PART).max(LEAST);
        Records {
            own: Ledger::new(name, part),
            all: all.clone(),
        }
    }

    /// The records of the peer at the other end of a link.
    pub fn of(&self, link: Option<&Arc<Link>>) -> Records {
        match account_of(&self.all, link).owner() {
            None => self.clone(),
            Some(owner) => self.on_behalf_of(owner.clone()),
        }
    }

    /// The records of an owner of the worker's memory: its limit of them is in proportion to its limit of the memory.
    pub fn on_behalf_of(&self, owner: Owner) -> Records {
        let own = self.own.of(Owner {
            limit: in_proportion(owner.limit, self.own.limit(), self.all.limit()),
            ..owner.clone()
        });
        let all = self.all.of(owner);
        Records { own, all }
    }

    /// Bytes of the part of the worker's memory that is kept for records.
    pub fn own_part(&self) -> u64 {
        self.own.limit()
    }

    /// Bytes of that part that are in use.
    #[cfg(test)]
    pub fn own_used(&self) -> u64 {
        self.own.total_and_peak().0
    }

    /// Has `from` free memory of the records' own part where it is needed.
    pub fn reclaim_from(&self, from: Weak<dyn Reclaim>) {
        self.own.reclaim_from(from);
    }

    /// Reserves bytes of the records' own part, for what several owners may use at once. This owner is the first to be
    /// charged.
    pub fn share(&self, bytes: u64) -> Result<(SharedReservation, Charge)> {
        let reservation = self.own.reserve(Purpose::Definitions, bytes)?;
        Ok(reservation.shared(Purpose::Definitions))
    }

    /// Charges the owner for bytes of the records' own part that others use as well.
    pub fn charge(&self, shared: &SharedReservation) -> Result<Charge> {
        shared.charge(&self.own)
    }

    /// Reserves bytes for one record, first of the records' own part, then of the worker's memory.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation> {
        let own = self.own.reserve(Purpose::Definitions, bytes);
        own.or_else(|_| self.all.reserve(Purpose::Definitions, bytes))
    }

    /// Bytes that the members of each token hold, in memory and records together.
    pub fn holdings(&self) -> Vec<TokenHolding> {
        let mut all = self.all.holdings();
        for own in self.own.holdings() {
            match all.iter_mut().find(|holding| holding.token == own.token) {
                Some(holding) => {
                    for (account, bytes) in own.used {
                        *holding.used.entry(account).or_default() += bytes;
                    }
                }
                None => {
                    let limit = in_proportion(own.limit, self.all.limit(), self.own.limit());
                    all.push(TokenHolding { limit, ..own });
                }
            }
        }
        all.sort_by(|a, b| a.token.cmp(&b.token));
        all
    }
}

/// A reservation for records whose size changes.
pub struct GrowingRecords {
    records: Records,
    own: Reservation,
    beyond: Reservation,
}

impl GrowingRecords {
    /// A reservation of no bytes yet.
    pub fn new(records: Records) -> Result<GrowingRecords> {
        let own = records.own.reserve(Purpose::Definitions, 0)?;
        let beyond = records.all.reserve(Purpose::Definitions, 0)?;
        Ok(GrowingRecords {
            records,
            own,
            beyond,
        })
    }

    /// The records that the reservation is taken from.
    pub fn records(&self) -> &Records {
        &self.records
    }

    fn bytes(&self) -> u64 {
        self.own.bytes() + self.beyond.bytes()
    }

    /// Grows or shrinks the reservation so that it covers `needed` bytes, with a bounded surplus.
    pub fn cover(&mut self, needed: u64) -> Result<()> {
        let has = self.bytes();
        if needed > has {
            // Large reservations grow in larger steps, so that growing is rare.
            let step = (needed - has).max(STEP).max(has / 4);
            let grown = self.own.grow(step);
            return grown.or_else(|_| self.beyond.grow(needed - has));
        }
        if needed < has / 4 && has > 4 * STEP {
            self.shrink((2 * needed).max(STEP));
        }
        Ok(())
    }

    fn shrink(&mut self, to: u64) {
        let give = self.bytes().saturating_sub(to);
        let beyond = give.min(self.beyond.bytes());
        self.beyond.shrink(self.beyond.bytes() - beyond);
        self.own.shrink(self.own.bytes() - (give - beyond));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_a_part_of_their_own_and_then_the_memory() {
        let all = Ledger::new("w0", 128 << 20);
        let records = Records::new("w0", &all);
        let tensors = all.reserve(Purpose::Handles, 128 << 20).unwrap();
        let first = records.reserve(6 << 20).unwrap();
        assert!(records.reserve(4 << 20).is_err());
        drop(tensors);
        let second = records.reserve(4 << 20).unwrap();
        assert_eq!(all.used()[&Purpose::Definitions], 4 << 20);
        drop((first, second));

        let mut growing = GrowingRecords::new(records.clone()).unwrap();
        growing.cover(1).unwrap();
        assert_eq!((growing.bytes(), all.total_and_peak().0), (STEP, 0));
        growing.cover(8 << 20).unwrap();
        growing.cover(20 << 20).unwrap();
        assert_eq!(all.total_and_peak().0, 12 << 20);
        growing.cover(1 << 20).unwrap();
        assert_eq!((growing.bytes(), all.total_and_peak().0), (2 << 20, 0));
        assert!(growing.cover(1 << 30).is_err());
        drop(growing);
        assert_eq!(records.own.total_and_peak().0, 0);
    }

    #[test]
    fn a_token_has_of_the_records_what_it_has_of_the_memory() {
        assert_eq!(in_proportion(64, 16, 128), 8);
        assert_eq!(in_proportion(u64::MAX, 16, 128), 16);
        let all = Ledger::new("w0", 160 << 20);
        let records = Records::new("w0", &all).on_behalf_of(Owner {
            token: "aaaa".parse().unwrap(),
            member: "client-1".into(),
            limit: 80 << 20,
        });
        let held = records.reserve(4 << 20).unwrap();
        assert_eq!(records.holdings()[0].limit, 80 << 20);
        let more = records.reserve(4 << 20).unwrap();
        let holdings = records.holdings();
        assert_eq!((holdings.len(), holdings[0].total()), (1, 8 << 20));
        drop((held, more));
    }
}
