//! Which tokens' certificates are no longer welcome.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};

use super::subject::TokenId;

/// A set of token ids, shared by a process's TLS settings: an entry takes effect on the next handshake. Connections
/// that stand are for their owner to close.
#[derive(Debug, Default)]
pub struct RevocationList(RwLock<BTreeSet<TokenId>>);

impl RevocationList {
    /// A list that starts with these.
    pub fn new(ids: impl IntoIterator<Item = TokenId>) -> Self {
        Self(RwLock::new(ids.into_iter().collect()))
    }

    /// Adds entries; none is ever taken off.
    pub fn extend(&self, ids: impl IntoIterator<Item = TokenId>) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(ids);
    }

    /// Whether certificates of this token are refused.
    pub fn contains(&self, id: &TokenId) -> bool {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(id)
    }

    /// All entries, in order.
    pub fn list(&self) -> Vec<TokenId> {
        let ids = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ids.iter().cloned().collect()
    }
}
