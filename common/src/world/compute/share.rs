//! Shares: on whose behalf work runs. Compute is divided between accounts first, then between the leases and sessions
//! of each.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::identity::Weight;
use crate::ids::LeaseId;

/// The account that is charged for work: a client, or the token with which several clients joined.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AccountId(Arc<str>);

impl AccountId {
    /// The account of this name.
    pub fn named(name: &str) -> AccountId {
        AccountId(name.into())
    }

    /// The account's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A lease or an eager session, with the account that pays for its work. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share(Arc<Inner>);

#[derive(Debug, PartialEq, Eq)]
struct Inner {
    account: AccountId,
    member: Arc<str>,
    weight: Weight,
    lease: LeaseId,
}

impl Share {
    /// The share of `lease` in an account that has one member, and weight 1.
    pub fn new(account: AccountId, lease: LeaseId) -> Share {
        let member = account.0.clone();
        Share::of_member(account, &member, Weight::default(), lease)
    }

    /// Like [`Share::new`], for one of several members of an account that gets `weight` times as much compute as an
    /// account of weight 1.
    pub fn of_member(account: AccountId, member: &str, weight: Weight, lease: LeaseId) -> Share {
        Share(Arc::new(Inner {
            account,
            member: member.into(),
            weight,
            lease,
        }))
    }

    /// The account that pays for the work.
    pub fn account(&self) -> &AccountId {
        &self.0.account
    }

    /// The name of the client for which the work is done, for messages.
    pub fn member(&self) -> &str {
        &self.0.member
    }

    /// How many times as much compute the account gets as one of weight 1.
    pub fn weight(&self) -> u32 {
        self.0.weight.times()
    }

    /// The lease, or the eager session, to which the work belongs.
    pub fn lease(&self) -> LeaseId {
        self.0.lease
    }
}

/// A lease, or an eager session, that has jobs at compute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeUse {
    /// The account that is charged: the client's token, or the client if it joined without one.
    pub account: AccountId,
    /// The name of the client.
    pub member: String,
    pub lease: LeaseId,
    /// Whether one of its jobs runs now.
    pub runs: bool,
    /// How many jobs wait that have not begun.
    pub waiting: u32,
    /// How many jobs wait that have begun and gave way.
    pub paused: u32,
    /// For how many milliseconds the oldest waiting job has waited since it arrived or gave way; if none waits, how
    /// long the running job has had its turn.
    pub since_ms: u64,
}
