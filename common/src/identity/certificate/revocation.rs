//! The revoked tokens, whose members' certificates are refused.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};

use crate::identity::certificate::subject::TokenId;

/// A set of token ids that a process's TLS settings share: an entry takes effect on the next handshake. Closing the
/// connections that exist is up to their owners.
#[derive(Debug, Default)]
pub struct RevocationList(RwLock<BTreeSet<TokenId>>);

impl RevocationList {
    /// Makes a list that holds these ids.
    pub fn new(ids: impl IntoIterator<Item = TokenId>) -> Self {
        Self(RwLock::new(ids.into_iter().collect()))
    }

    /// Adds token ids; an id is never removed.
    pub fn extend(&self, ids: impl IntoIterator<Item = TokenId>) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(ids);
    }

    /// Whether certificates of members that joined with this token are refused.
    pub fn contains(&self, id: &TokenId) -> bool {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(id)
    }

    /// All revoked token ids, in order.
    pub fn list(&self) -> Vec<TokenId> {
        let ids = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ids.iter().cloned().collect()
    }
}
