//! On whose behalf work runs: compute is divided between accounts first, then between the leases and sessions of each.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

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
    weight: u32,
    lease: LeaseId,
}

impl Share {
    /// Work of `lease`, for an account that gets as much of compute as any other.
    pub fn new(account: AccountId, lease: LeaseId) -> Share {
        Share::weighted(account, 1, lease)
    }

    /// As [`Share::new`], for one of several members that share the account.
    pub fn of_member(account: AccountId, member: &str, lease: LeaseId) -> Share {
        Share(Arc::new(Inner {
            account,
            member: member.into(),
            weight: 1,
            lease,
        }))
    }

    /// As [`Share::new`], for an account that gets `weight` times as much as one of weight 1, at least once as much.
    pub fn weighted(account: AccountId, weight: u32, lease: LeaseId) -> Share {
        Share(Arc::new(Inner {
            member: account.0.clone(),
            account,
            weight: weight.max(1),
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
        self.0.weight
    }

    /// The lease, or the session.
    pub fn lease(&self) -> LeaseId {
        self.0.lease
    }
}
