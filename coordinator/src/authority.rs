//! Admission to the cluster: join tokens, the certificate authority, and the list of the revoked.
//!
//! Invariants
//! 1. The authority answers only after it has stored the change: a token that was returned exists, and a revocation
//!    that was confirmed holds, after a crash too.
//! 2. A certificate is made only for the bearer of a valid token, or for a member that renews its own.
//! 3. Every change of tokens and of the authority is in the audit log once it is kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::chain;
use convoke_common::identity::{
    Budget, CA_LIFE, CERTIFICATE_LIFE, CaHash, CertificateClaims, ClusterCa, JoinToken,
    PeerIdentity, PeerName, RevocationList, Role, TokenError, TokenId, TokenInfo, TokenSecret,
    TokenStore, former_holder, is_certified_by,
};
use convoke_common::rpc::JoinAnswer;
use convoke_common::world::quic::Connection;
use convoke_common::world::{FileMode, World};
use convoke_common::{Code, Error, Result};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use crate::audit::{Audit, Entry, Event};
use crate::blocking::blocking;
use crate::membership::Fingerprint;
use crate::state::State;
use crate::state_dir;

/// Most tokens in the book, invalid ones included: the book is a single entry on disk.
const TOKENS: usize = 4096;

/// How long the coordinator may take to present a certificate of a new authority.
const SHOWN_BOUND: Duration = Duration::from_secs(5);

/// The book of tokens, the certificate authority, and the state that both are saved to.
pub struct Authority {
    world: World,
    ca: watch::Sender<Arc<ClusterCa>>,
    /// Hashes of the authorities that the coordinator presents and trusts in handshakes.
    shown: watch::Sender<Vec<CaHash>>,
    revoked: Arc<RevocationList>,
    book: Mutex<TokenStore>,
    state: Option<Arc<State>>,
    audit: Audit,
}

/// Returns the role's folder below the token folder. Each role has its own, so that it can be mounted only where that
/// role runs.
fn role_dir(token_dir: &Path, role: Role) -> PathBuf {
    token_dir.join(role.to_string())
}

/// Returns where a coordinator with this [`token_dir`](crate::CoordinatorConfig::token_dir) leaves the token of a role.
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
    /// Returns an authority with this book, which is saved to `state` if there is one.
    pub fn new(
        world: World,
        ca: ClusterCa,
        book: TokenStore,
        state: Option<Arc<State>>,
        audit: Audit,
    ) -> Authority {
        let revoked = Arc::new(RevocationList::new(book.revoked()));
        let shown = watch::Sender::new(ca.hashes());
        Authority {
            world,
            ca: watch::Sender::new(Arc::new(ca)),
            shown,
            revoked,
            book: Mutex::new(book),
            state,
            audit,
        }
    }

    /// Returns the current certificate authority.
    pub fn ca(&self) -> Arc<ClusterCa> {
        self.ca.borrow().clone()
    }

    /// Returns a receiver that is notified when the authority is replaced.
    pub fn subscribe(&self) -> watch::Receiver<Arc<ClusterCa>> {
        self.ca.subscribe()
    }

    /// Notes that from the next handshake on the coordinator presents a certificate of this authority and trusts the
    /// authorities that the certificate comes with.
    pub fn shows(&self, ca: &ClusterCa) {
        self.shown.send_replace(ca.hashes());
    }

    /// Replaces the authority by the one that `next` makes of it, and saves the new one before it takes effect.
    async fn replace_ca(
        &self,
        next: impl FnOnce(&ClusterCa, &World) -> Result<ClusterCa>,
    ) -> Result<()> {
        // The lock makes changes to the saved state one after the other.
        let _book = self.book.lock().await;
        let next = Arc::new(next(&self.ca(), &self.world)?);
        if let Some(state) = self.state.clone() {
            let (kept, world) = (next.clone(), self.world.clone());
            let keep = move || state_dir::put_authority(&world, &state, &kept);
            blocking(&self.world, keep).await??;
        }
        let hashes = next.hashes();
        let mut shown = self.shown.subscribe();
        self.ca.send_replace(next);
        // A newcomer with a token of the new authority may dial as soon as this returns.
        let in_time = timeout(SHOWN_BOUND, shown.wait_for(|shown| *shown == hashes)).await;
        in_time
            .map(drop)
            .map_err(|_| Error::internal("the coordinator does not show the new authority"))
    }

    /// Creates a new authority. Members and tokens of the former one stay valid until [`Authority::retire`].
    pub async fn rotate(&self) -> Result<CaHash> {
        let rotated = self.replace_ca(|ca, world| {
            ca.rotated(world).map_err(|e| {
                let advice =
                    "`convoke ca retire` ends it, once members have renewed their certificates";
                Error::new(Code::InvalidArgument, e.to_string()).advise(advice)
            })
        });
        rotated.await?;
        self.audit.record(Entry::of(Event::CaRotated));
        Ok(self.ca_hash())
    }

    /// Invalidates what the former authority signed: certificates not renewed since, and tokens created before. Unless
    /// `at_once`, it fails until the life of a certificate has passed since the rotation.
    pub async fn retire(&self, at_once: bool) -> Result<()> {
        self.replace_ca(|ca, world| {
            let Some(since) = ca.replacing_since() else {
                let e = Error::new(Code::InvalidArgument, "there is no former authority to retire");
                return Err(e.advise("`convoke ca rotate` makes a new authority first"));
            };
            let age = world.wall.unix_seconds().saturating_sub(since);
            let left = CERTIFICATE_LIFE.as_secs().saturating_sub(age).div_ceil(3600);
            if left > 0 && !at_once {
                let msg = format!("certificates of the former authority may be good for {left} h more");
                return Err(Error::new(Code::Busy, msg).advise(
                    "wait until then, or end them now with --now: members that have not renewed theirs must join with a \
                     new token",
                ));
            }
            Ok(ca.without_former()?)
        })
        .await?;
        self.audit.record(Entry::of(Event::CaRetired));
        Ok(())
    }

    /// Returns the hash by which tokens identify this cluster.
    pub fn ca_hash(&self) -> CaHash {
        self.ca().hash()
    }

    /// Returns the list of revoked tokens.
    pub fn revoked(&self) -> &Arc<RevocationList> {
        &self.revoked
    }

    /// Changes the book; the change takes effect only once it is saved.
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

    /// Creates a token that admits members until `ttl` is over; `budget` bounds what all of its holders use together.
    pub async fn create(
        &self,
        role: Role,
        ttl: Option<Duration>,
        budget: Budget,
    ) -> Result<JoinToken> {
        if role == Role::Coordinator {
            let e = Error::new(Code::InvalidArgument, "nobody joins as a coordinator");
            return Err(e.advise("give --role worker or --role client"));
        }
        let now = self.world.wall.unix_seconds();
        let create = |book: &mut TokenStore| {
            if book.list().len() >= TOKENS {
                let e = Error::new(
                    Code::Busy,
                    format!("there are {TOKENS} join tokens already"),
                );
                return Err(
                    e.advise("use one of them again: a token lets in any number of members")
                );
            }
            let token = book.create(self.world.rng.as_ref(), self.ca().hash(), role, ttl, now);
            book.set_budget(&token.id, budget);
            Ok(token)
        };
        let token = self.change(create).await?;
        self.audit
            .record(Entry::of(Event::TokenCreated).role(role).token(&token.id));
        Ok(token)
    }

    /// Bounds how long those who join with a token may stay members.
    pub async fn bound_membership(&self, id: &TokenId, ttl: Duration) -> Result<()> {
        self.change(|book| {
            book.set_member_ttl(id, ttl.as_secs());
            Ok(())
        })
        .await
    }

    /// Returns for how many seconds those who join with a token may stay members, if the token bounds it.
    pub async fn member_ttl(&self, id: &TokenId) -> Option<u64> {
        self.book.lock().await.member_ttl(id)
    }

    /// Lists all tokens, without their secrets.
    pub async fn list(&self) -> Vec<TokenInfo> {
        self.book.lock().await.list()
    }

    /// Revokes a token: its certificates are refused from the next handshake on. The caller closes open connections.
    pub async fn revoke(&self, id: &TokenId) -> Result<()> {
        self.change(|book| {
            book.revoke(id).map_err(|_| {
                let e = Error::new(Code::NotFound, format!("there is no join token '{id}'"));
                e.advise("`convoke token list` shows those that there are")
            })
        })
        .await?;
        self.revoked.extend([id.clone()]);
        self.audit.record(Entry::of(Event::TokenRevoked).token(id));
        Ok(())
    }

    /// Checks that the bearer may join in this `role`, and returns the budget of the token.
    pub async fn check(&self, id: &TokenId, secret: &TokenSecret, role: Role) -> Result<Budget> {
        let now = self.world.wall.unix_seconds();
        let book = self.book.lock().await;
        book.check(id, secret, role, now).map_err(refused)?;
        Ok(book.budget(id))
    }

    /// Returns whether an authority of the cluster signed the certificate that the other end of a connection showed, or
    /// was given since by `renewed_by`. Such a certificate may have expired.
    pub fn vouches_for(&self, connection: &Connection, renewed_by: Option<CaHash>) -> bool {
        let ca = self.ca();
        renewed_by.is_some_and(|by| ca.answers_to(&by))
            || is_certified_by(connection, &ca.authorities())
    }

    /// Checks that those whom a token let in may renew their certificates, and returns the token's budget. The token may
    /// have expired. Members of an embedded cluster have no token.
    pub async fn renewable(&self, id: &TokenId) -> Result<Budget> {
        let book = self.book.lock().await;
        let why = match book.is_revoked(id) {
            Some(false) => return Ok(book.budget(id)),
            None if *id == TokenId::direct() => return Ok(book.budget(id)),
            None => "is not known to this coordinator",
            Some(true) => "was revoked",
        };
        let e = Error::new(Code::Unauthorized, format!("the join token '{id}' {why}"));
        Err(e.advise("join anew with another token: `convoke token create` makes one"))
    }

    /// Returns the identity in `certificate` if it is of this `role` and of a valid token, and if its key also signed
    /// `csr`.
    pub fn former_holder(
        &self,
        role: Role,
        certificate: &[u8],
        csr: &[u8],
    ) -> Option<PeerIdentity> {
        let authorities = self.ca().authorities();
        let mut holders = authorities.iter();
        holders
            .find_map(|ca| former_holder(ca, certificate, csr))
            .filter(|f| f.role == role && !self.revoked.contains(&f.token_id))
    }

    /// Signs a certificate for the key of `csr`. If the token bounds membership, the certificate ends with the
    /// membership: after a join when the token's time is over, and after a renewal at `until` (unix seconds), when the
    /// former certificate ends.
    pub async fn issue(
        &self,
        role: Role,
        name: PeerName,
        token_id: TokenId,
        budget: Budget,
        csr: &[u8],
        until: Option<u64>,
    ) -> Result<(JoinAnswer, Fingerprint)> {
        let ca = self.ca();
        let now = self.world.wall.unix_seconds();
        let ttl = self.member_ttl(&token_id).await;
        let life = match (ttl, until) {
            (None, _) => CERTIFICATE_LIFE,
            // No certificate is good for longer than its authority.
            (Some(ttl), None) => Duration::from_secs(ttl).min(CA_LIFE),
            (Some(_), Some(until)) => Duration::from_secs(until.saturating_sub(now)),
        };
        let budget = Budget {
            until: ttl.map(|_| now.saturating_add(life.as_secs())),
            ..budget
        };
        let claims = CertificateClaims {
            role,
            name: name.clone(),
            token_id,
            budget,
            life,
        };
        let certificate = ca
            .issue(csr, &claims, now, self.world.rng.as_ref())?
            .to_vec();
        let fingerprint = *blake3::hash(&certificate).as_bytes();
        let joined = JoinAnswer {
            name: name.to_string(),
            certificate,
            authorities: ca.authorities().iter().map(|ca| ca.to_vec()).collect(),
        };
        Ok((joined, fingerprint))
    }

    /// Writes a token without expiry for each role to its [`token_file`] below `token_dir`. Tokens of an earlier start
    /// stay while they are valid, so that members keep their identities.
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
                && self.ca().answers_to(&token.ca)
                && self.check(&token.id, &token.secret, role).await.is_ok()
            {
                continue;
            }
            let line = format!("{}\n", self.create(role, None, Budget::default()).await?);
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

#[cfg(test)]
mod tests {
    use super::*;
    use convoke_common::identity::{OwnIdentity, OwnKey};
    use convoke_common::world::NoCompute;

    #[tokio::test]
    async fn membership_ends_where_the_token_says_and_no_renewal_moves_that() {
        let world = World::real(Arc::new(NoCompute));
        let ca = ClusterCa::create(&world).unwrap();
        let authority = Authority::new(
            world.clone(),
            ca,
            TokenStore::default(),
            None,
            Audit::default(),
        );
        let bounded = authority
            .create(Role::Client, None, Budget::default())
            .await
            .unwrap();
        let hour = Duration::from_secs(3600);
        authority.bound_membership(&bounded.id, hour).await.unwrap();
        let free = authority
            .create(Role::Client, None, Budget::default())
            .await
            .unwrap();
        let end = async |token: &JoinToken, until| {
            let key = OwnKey::generate(world.rng.as_ref()).unwrap();
            let (csr, name) = (
                key.csr().unwrap(),
                PeerName::try_from("c".to_owned()).unwrap(),
            );
            let budget = Budget::default();
            let issued = authority.issue(Role::Client, name, token.id.clone(), budget, &csr, until);
            let joined = issued.await.unwrap().0;
            let issued = OwnIdentity::issued(key, joined.certificate, joined.authorities);
            issued.unwrap().not_after()
        };
        let now = world.wall.unix_seconds();
        let first = end(&bounded, None).await;
        assert!((now + 3600..now + 3660).contains(&first), "{first} {now}");
        assert_eq!(end(&bounded, Some(first)).await, first);
        let life = CERTIFICATE_LIFE.as_secs();
        assert!(end(&free, Some(now + 60)).await >= now + life);
        let listed = authority.list().await;
        let ttl = |id: &TokenId| listed.iter().find(|t| t.id == *id).unwrap().member_ttl;
        assert_eq!((ttl(&bounded.id), ttl(&free.id)), (Some(3600), None));
    }

    #[tokio::test]
    async fn certificates_of_tokens_that_are_unknown_or_revoked_are_not_renewed() {
        let world = World::real(Arc::new(NoCompute));
        let ca = ClusterCa::create(&world).unwrap();
        let book = TokenStore::default();
        let authority = Authority::new(world, ca, book, None, Audit::default());
        let made = authority.create(Role::Client, Some(Duration::ZERO), Budget::default());
        let token = made.await.unwrap();
        let check = async |id: &TokenId, why: Option<&str>| {
            let error = authority.renewable(id).await.map(drop).err();
            let said = error
                .as_ref()
                .map(|e| (e.code, e.message.contains(why.unwrap_or("-"))));
            assert_eq!(said, why.map(|_| (Code::Unauthorized, true)), "{error:?}");
        };
        check(&token.id, None).await;
        check(&TokenId::direct(), None).await;
        check(&"beef".parse().unwrap(), Some("not known")).await;
        authority.revoke(&token.id).await.unwrap();
        check(&token.id, Some("was revoked")).await;
    }
}
