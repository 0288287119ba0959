//! The coordinator's book of join tokens: a plain value without locks or I/O; its owner stores it.
//!
//! Invariants:
//! 1. No secret is kept, only its hash.
//! 2. A wrong secret and an unknown id give the same error, and comparing takes the same time however much of the
//!    secret is right.
//! 3. Revocation is for ever; a revoked or expired token stays in the book, so that errors can say which token it was.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::identity::certificate::subject::{CaHash, Role, TokenId};
use crate::identity::token::budget::Budget;
use crate::identity::token::{ID_LENGTH, JoinToken, SECRET_LENGTH, TokenSecret, base32};
use crate::world::Rng;

/// The BLAKE3 context that separates hashes of token secrets from all other hashes.
const HASH_CONTEXT: &str = "convoke 2026-11-21 join token secret";

/// Why a token does not let its bearer in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum TokenError {
    /// The book has no token with this id, or the secret is not the token's.
    #[error("the join token is unknown here: make one with `convoke token create`")]
    Unknown,
    /// The token's time is over.
    #[error("the join token has expired: make a new one with `convoke token create`")]
    Expired,
    /// The token was revoked.
    #[error("the join token was revoked: make a new one with `convoke token create`")]
    Revoked,
    /// The token is for another role than the one that its bearer asks for.
    #[error(
        "the join token is for the role {token}, not {wanted}: make one with `--role {wanted}`"
    )]
    WrongRole {
        /// The role that the token grants.
        token: Role,
        /// The role that the bearer asks for.
        wanted: Role,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    role: Role,
    secret_hash: [u8; 32],
    created: u64,
    expires: Option<u64>,
    revoked: bool,
}

/// The public facts about a token; times are in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenInfo {
    /// The token's public half.
    pub id: TokenId,
    /// The role that the token grants.
    pub role: Role,
    /// When the token was made.
    pub created: u64,
    /// The time from which nobody can join with the token; `None` if it never expires.
    pub expires: Option<u64>,
    /// Whether the token was revoked.
    pub revoked: bool,
    /// What the members that joined with the token may use together.
    #[serde(default)]
    pub budget: Budget,
    /// For how many seconds a member that joins with the token may stay; `None` for no bound.
    #[serde(default)]
    pub member_ttl: Option<u64>,
}

/// The coordinator's book of join tokens.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TokenStore {
    tokens: BTreeMap<TokenId, Record>,
    /// The budgets of the tokens that have one. They are stored apart from the tokens, see [`TokenStore::budgets`].
    #[serde(skip)]
    budgets: BTreeMap<TokenId, Budget>,
    /// The bounds of membership, in seconds. They are stored apart from the tokens, see [`TokenStore::member_ttls`].
    #[serde(skip)]
    member_ttls: BTreeMap<TokenId, u64>,
}

fn hash(secret: &TokenSecret) -> [u8; 32] {
    blake3::derive_key(HASH_CONTEXT, &secret.0)
}

impl TokenStore {
    /// Makes a token for the cluster whose CA has this hash. It expires at `now + ttl` (`now` in Unix seconds), or
    /// never without `ttl`. The returned value is the only copy of its secret.
    pub fn create(
        &mut self,
        rng: &dyn Rng,
        ca: CaHash,
        role: Role,
        ttl: Option<Duration>,
        now: u64,
    ) -> JoinToken {
        let id = loop {
            let id = base32(&rng.bytes::<ID_LENGTH>());
            // Base32 keeps to the characters of an id; an id that is taken already, once in 2^40, is drawn again.
            if let Ok(id) = id.parse::<TokenId>()
                && !self.tokens.contains_key(&id)
            {
                break id;
            }
        };
        let secret = TokenSecret(rng.bytes::<SECRET_LENGTH>());
        let record = Record {
            role,
            secret_hash: hash(&secret),
            created: now,
            expires: ttl.map(|ttl| now.saturating_add(ttl.as_secs())),
            revoked: false,
        };
        self.tokens.insert(id.clone(), record);
        JoinToken {
            role,
            id,
            secret,
            ca,
        }
    }

    /// Sets what the members that joined with a token may use together. Certificates that were issued before keep the
    /// former budget until they are renewed.
    pub fn set_budget(&mut self, id: &TokenId, budget: Budget) {
        match budget.is_default() {
            true => self.budgets.remove(id),
            false => self.budgets.insert(id.clone(), budget),
        };
    }

    /// What the members that joined with a token may use together.
    pub fn budget(&self, id: &TokenId) -> Budget {
        self.budgets.get(id).copied().unwrap_or_default()
    }

    /// The budgets that differ from the default, by token.
    pub fn budgets(&self) -> &BTreeMap<TokenId, Budget> {
        &self.budgets
    }

    /// Bounds for how many seconds the members that join with a token from now on may stay.
    pub fn set_member_ttl(&mut self, id: &TokenId, seconds: u64) {
        self.member_ttls.insert(id.clone(), seconds);
    }

    /// For how many seconds a member that joins with this token may stay; `None` for no bound.
    pub fn member_ttl(&self, id: &TokenId) -> Option<u64> {
        self.member_ttls.get(id).copied()
    }

    /// The tokens that bound membership, with their bounds in seconds.
    pub fn member_ttls(&self) -> &BTreeMap<TokenId, u64> {
        &self.member_ttls
    }

    /// All tokens, in the order of their ids.
    pub fn list(&self) -> Vec<TokenInfo> {
        let info = |(id, record): (&TokenId, &Record)| TokenInfo {
            id: id.clone(),
            role: record.role,
            created: record.created,
            expires: record.expires,
            revoked: record.revoked,
            budget: self.budget(id),
            member_ttl: self.member_ttl(id),
        };
        self.tokens.iter().map(info).collect()
    }

    /// The ids of all revoked tokens: a [`RevocationList`](crate::identity::RevocationList) starts with them.
    pub fn revoked(&self) -> Vec<TokenId> {
        let revoked = self.tokens.iter().filter(|(_, record)| record.revoked);
        revoked.map(|(id, _)| id.clone()).collect()
    }

    /// Whether a token was revoked; `None` if there is no such token.
    pub fn is_revoked(&self, id: &TokenId) -> Option<bool> {
        self.tokens.get(id).map(|record| record.revoked)
    }

    /// Revokes a token; revoking it twice is no error.
    pub fn revoke(&mut self, id: &TokenId) -> Result<(), TokenError> {
        let record = self.tokens.get_mut(id).ok_or(TokenError::Unknown)?;
        record.revoked = true;
        Ok(())
    }

    /// Checks whether the bearer of this id and secret may join as a `role` at `now` (Unix seconds).
    pub fn check(
        &self,
        id: &TokenId,
        secret: &TokenSecret,
        role: Role,
        now: u64,
    ) -> Result<(), TokenError> {
        let record = self.tokens.get(id);
        let expected = record.map_or([0; 32], |record| record.secret_hash);
        // blake3::Hash compares in constant time; plain arrays do not.
        let right = blake3::Hash::from(hash(secret)) == blake3::Hash::from(expected);
        let Some(record) = record.filter(|_| right) else {
            return Err(TokenError::Unknown);
        };
        if record.revoked {
            return Err(TokenError::Revoked);
        }
        if record.expires.is_some_and(|expires| now >= expires) {
            return Err(TokenError::Expired);
        }
        if record.role != role {
            return Err(TokenError::WrongRole {
                token: record.role,
                wanted: role,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::SystemRng;

    const NOW: u64 = 1_800_000_000;
    const HOUR: Duration = Duration::from_secs(3600);

    fn create(store: &mut TokenStore, role: Role, ttl: Option<Duration>) -> JoinToken {
        let ca = CaHash::from_bytes([1; 32]);
        store.create(&SystemRng::default(), ca, role, ttl, NOW)
    }

    fn check(
        store: &TokenStore,
        token: &JoinToken,
        role: Role,
        now: u64,
    ) -> Result<(), TokenError> {
        store.check(&token.id, &token.secret, role, now)
    }

    #[test]
    fn each_reason_has_its_own_error() {
        let mut store = TokenStore::default();
        let timed = create(&mut store, Role::Worker, Some(HOUR));
        let endless = create(&mut store, Role::Client, None);
        assert_eq!(check(&store, &timed, Role::Worker, NOW + 3599), Ok(()));
        assert_eq!(
            check(&store, &timed, Role::Worker, NOW + 3600),
            Err(TokenError::Expired)
        );
        assert_eq!(check(&store, &endless, Role::Client, u64::MAX), Ok(()));
        assert_eq!(
            check(&store, &endless, Role::Worker, NOW),
            Err(TokenError::WrongRole {
                token: Role::Client,
                wanted: Role::Worker
            })
        );
        let mut forged = timed.clone();
        forged.secret.0[19] ^= 1;
        assert_eq!(
            check(&store, &forged, Role::Worker, NOW),
            Err(TokenError::Unknown)
        );
        forged = timed.clone();
        forged.id = "zzzzzzzz".parse().expect("id");
        assert_eq!(
            check(&store, &forged, Role::Worker, NOW),
            Err(TokenError::Unknown)
        );
        store.revoke(&timed.id).expect("known");
        store.revoke(&timed.id).expect("twice is fine");
        assert_eq!(
            check(&store, &timed, Role::Worker, NOW + 7200),
            Err(TokenError::Revoked)
        );
        assert_eq!(store.revoke(&forged.id), Err(TokenError::Unknown));
        assert_eq!(store.revoked(), [timed.id]);
    }

    #[test]
    fn the_book_keeps_no_secret_and_reads_back() {
        let mut store = TokenStore::default();
        let token = create(&mut store, Role::Worker, Some(HOUR));
        let json = serde_json::to_string(&store).expect("serialises");
        let secret = serde_json::to_string(&token.secret).expect("serialises");
        assert!(!json.contains(secret.trim_matches(['[', ']'])));
        let back: TokenStore = serde_json::from_str(&json).expect("reads back");
        assert_eq!(check(&back, &token, Role::Worker, NOW), Ok(()));
        let expected = TokenInfo {
            id: token.id,
            role: Role::Worker,
            created: NOW,
            expires: Some(NOW + 3600),
            revoked: false,
            budget: Budget::default(),
            member_ttl: None,
        };
        assert_eq!(back.list(), [expected]);
    }
}
