//! Who is let in: join tokens, the certificate authority, and the list of the revoked.
//!
//! Invariants
//! 1. What a caller is told has been kept: a token exists, and a revocation holds, after a crash too.
//! 2. A certificate is made only for the bearer of a valid token, or for a member that renews its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::chain;
use convoke_common::identity::{
    CERTIFICATE_LIFE, CaHash, ClusterCa, Grant, JoinToken, PeerName, RevocationList, Role,
    TokenError, TokenId, TokenInfo, TokenSecret, TokenStore,
};
use convoke_common::world::{FileMode, World};
use convoke_common::{Code, Error, Result};
use tokio::sync::Mutex;

use crate::membership::Fingerprint;
use crate::state::State;
use crate::tasks::blocking;

/// Tokens that the book holds, the void ones included: it is one entry on disk.
const TOKENS: usize = 4096;

/// The book, the authority, and where they are kept.
pub struct Authority {
    world: World,
    ca: ClusterCa,
    revoked: Arc<RevocationList>,
    book: Mutex<TokenStore>,
    state: Option<Arc<State>>,
}

/// A role's folder beneath the token folder: its own, so that it can be mounted where that role runs and nowhere else.
fn role_dir(token_dir: &Path, role: Role) -> PathBuf {
    token_dir.join(role.to_string())
}

/// Where a coordinator with this [`token_dir`](crate::CoordinatorConfig::token_dir) leaves the token of a role.
pub fn token_file(token_dir: &Path, role: Role) -> PathBuf {
    role_dir(token_dir, role).join("token")
}

fn refused(e: TokenError) -> Error {
    let text = e.to_string();
    match text.split_once(": ") {
        Some((what, advice)) => Error::new(Code::Unauthorized, what).advise(advice),
        None => Error::new(Code::Unauthorized, text),
    }
}

impl Authority {
    /// An authority with this book, kept in `state` where there is one.
    pub fn new(
        world: World,
        ca: ClusterCa,
        book: TokenStore,
        state: Option<Arc<State>>,
    ) -> Authority {
        let revoked = Arc::new(RevocationList::new(book.revoked()));
        Authority {
            world,
            ca,
            revoked,
            book: Mutex::new(book),
            state,
        }
    }

    /// The authority itself.
    pub fn ca(&self) -> &ClusterCa {
        &self.ca
    }

    /// What tokens name this cluster by.
    pub fn ca_hash(&self) -> CaHash {
        self.ca.hash()
    }

    /// Tokens that no longer count.
    pub fn revoked(&self) -> &Arc<RevocationList> {
        &self.revoked
    }

    /// Makes a change that counts only once it is kept.
    async fn change<T>(&self, change: impl FnOnce(&mut TokenStore) -> Result<T>) -> Result<T> {
        let mut book = self.book.lock().await;
        let mut next = book.clone();
        let value = change(&mut next)?;
        if let Some(state) = self.state.clone() {
            let kept = next.clone();
            blocking(&self.world, move || state.put_tokens(&kept)).await??;
        }
        *book = next;
        Ok(value)
    }

    /// A new token, void after `ttl`.
    pub async fn create(&self, role: Role, ttl: Option<Duration>) -> Result<JoinToken> {
        if role == Role::Coordinator {
            let e = Error::new(Code::InvalidArgument, "nobody joins as a coordinator");
            return Err(e.advise("give --role worker or --role client"));
        }
        let now = self.world.wall.unix_seconds();
        self.change(|book| {
            if book.list().len() >= TOKENS {
                let e = Error::new(
                    Code::Busy,
                    format!("there are {TOKENS} join tokens already"),
                );
                return Err(
                    e.advise("use one of them again: a token lets in any number of members")
                );
            }
            Ok(book.create(self.world.rng.as_ref(), self.ca.hash(), role, ttl, now))
        })
        .await
    }

    /// All tokens, without their secrets.
    pub async fn list(&self) -> Vec<TokenInfo> {
        self.book.lock().await.list()
    }

    /// Revokes a token: its certificates count no longer at the next handshake. Open connections are the caller's.
    pub async fn revoke(&self, id: &TokenId) -> Result<()> {
        self.change(|book| {
            book.revoke(id).map_err(|_| {
                let e = Error::new(Code::NotFound, format!("there is no join token '{id}'"));
                e.advise("`convoke token list` shows those that there are")
            })
        })
        .await?;
        self.revoked.extend([id.clone()]);
        Ok(())
    }

    /// Whether the bearer may join as a `role`.
    pub async fn check(&self, id: &TokenId, secret: &TokenSecret, role: Role) -> Result<()> {
        let now = self.world.wall.unix_seconds();
        self.book
            .lock()
            .await
            .check(id, secret, role, now)
            .map_err(refused)
    }

    /// Signs a certificate for the key of `csr`.
    pub fn issue(
        &self,
        role: Role,
        name: PeerName,
        token_id: TokenId,
        csr: &[u8],
    ) -> Result<(Vec<u8>, Fingerprint)> {
        let now = self.world.wall.unix_seconds();
        let grant = Grant {
            role,
            name,
            token_id,
            life: CERTIFICATE_LIFE,
        };
        let certificate = self
            .ca
            .issue(csr, &grant, now, self.world.rng.as_ref())?
            .to_vec();
        let fingerprint = *blake3::hash(&certificate).as_bytes();
        Ok((certificate, fingerprint))
    }

    /// Leaves a token without expiry for each role beneath `token_dir`, at its [`token_file`]. Those of an earlier
    /// start stay while they are good, so that members keep their identities.
    pub async fn leave_tokens(&self, token_dir: &Path) -> Result<()> {
        let io = |e: convoke_common::world::StoreError| Error::new(Code::Io, chain(&e));
        let store = self.world.store.clone();
        for role in [Role::Worker, Role::Client] {
            let (at, there) = (role_dir(token_dir, role), store.clone());
            blocking(&self.world, move || there.create_dir(&at, FileMode::Shared))
                .await?
                .map_err(io)?;
            let path = token_file(token_dir, role);
            let (at, there) = (path.clone(), store.clone());
            let found = blocking(&self.world, move || {
                JoinToken::from_file(there.as_ref(), &at)
            })
            .await?;
            if let Ok(token) = found
                && token.ca == self.ca_hash()
                && self.check(&token.id, &token.secret, role).await.is_ok()
            {
                continue;
            }
            let line = format!("{}\n", self.create(role, None).await?);
            let there = store.clone();
            blocking(&self.world, move || {
                there.write_atomic(&path, line.as_bytes(), FileMode::Secret)
            })
            .await?
            .map_err(io)?;
        }
        Ok(())
    }
}
