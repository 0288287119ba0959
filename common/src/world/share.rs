//! On whose behalf work runs: compute is divided between accounts first, then between the leases and sessions of each.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::identity::Weight;
use crate::ids::LeaseId;

/// Who is charged for work: a client, or the token that several clients came with.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AccountId(Arc<str>);

impl AccountId {
    /// The account of this name.
    pub fn named(name: &str) -> AccountId {
        AccountId(name.into())
    }

    /// Its name.
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
    /// Work of `lease`, for an account that has one member, and weight 1.
    pub fn new(account: AccountId, lease: LeaseId) -> Share {
        let member = account.0.clone();
        Share::of_member(account, &member, Weight::default(), lease)
    }

    /// As [`Share::new`], for one of several members that share the account, which gets `weight` times as much compute as an
    /// account of weight 1.
    pub fn of_member(account: AccountId, member: &str, weight: Weight, lease: LeaseId) -> Share {
        Share(Arc::new(Inner {
            account,
            member: member.into(),
            weight,
            lease,
        }))
    }

    /// The account.
    pub fn account(&self) -> &AccountId {
        &self.0.account
    }

    /// The client that the work is for, for messages.
    pub fn member(&self) -> &str {
        &self.0.member
    }

    /// How much the account gets, compared with others.
    pub fn weight(&self) -> u32 {
        self.0.weight.times()
    }

    /// The lease, or the session.
    pub fn lease(&self) -> LeaseId {
        self.0.lease
    }
}
