//! The join service: a token for a certificate.
//!
//! Invariants
//! 1. A connection brings one answer; a newcomer that wants another dials again.
//! 2. What strangers say reaches the log shortened and escaped, and a flood of refusals writes a few lines.
//! 3. A token lets in so many in a minute.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::identity::{Budget, PeerName, Role, TokenId};
use convoke_common::mutant;
use convoke_common::rpc::{JoinRequest, Joined, Joining};
use convoke_common::{Code, Error, Result};
use tarpc::context::Context;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Service;
use super::members::same_release;
use crate::membership::{Fingerprint, Membership};

/// How the names of clients begin, and of nobody else.
const CLIENTS: &str = "client-";

/// Characters of a name that was asked for, in the log.
const SHOWN: usize = 64;

/// Lines about refused joins within [`LINES_PERIOD`]; further ones are counted.
const LINES: u32 = 10;
const LINES_PERIOD: Duration = Duration::from_secs(10);

/// For which joins of a token are counted.
const MINUTE: Duration = Duration::from_secs(60);

/// Serves one peer that has no certificate.
#[derive(Clone)]
pub struct Newcomer {
    service: Arc<Service>,
    asked: Arc<AtomicBool>,
    answered: CancellationToken,
}

impl Newcomer {
    /// One that has asked nothing yet.
    pub fn new(service: Arc<Service>) -> Newcomer {
        Newcomer {
            service,
            asked: Arc::default(),
            answered: CancellationToken::new(),
        }
    }

    /// Cancelled once it is answered.
    pub fn answered(&self) -> CancellationToken {
        self.answered.clone()
    }
}

impl Joining for Newcomer {
    async fn join(self, _: Context, request: JoinRequest) -> Result<Joined> {
        if self.asked.swap(true, Ordering::Relaxed) {
            let e = Error::new(Code::ProtocolViolation, "one join for each connection");
            return Err(e.advise("dial again to join anew"));
        }
        // Also where the caller no longer waits.
        let _answered = self.answered.drop_guard();
        let (role, asked) = (request.role, shown(&request.name));
        let joined = self.service.join(request).await;
        match &joined {
            Ok(joined) => tracing::info!(name = joined.name, %role, "joined"),
            Err(error) => {
                self.service.refused.count("join_refused");
                if let Some(others) = self.service.joins.line(Instant::now()) {
                    tracing::warn!(name = asked, %role, %error, others, "a join was refused");
                }
            }
        }
        joined
    }
}

/// A name that a stranger gave, as it may be written.
fn shown(name: &str) -> String {
    let mut shown: String = name
        .chars()
        .take(SHOWN)
        .flat_map(char::escape_debug)
        .collect();
    if name.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// How many joined or were refused of late.
#[derive(Debug, Default)]
pub struct Joins(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Of tokens that somebody joined with in the last minute: since when, and how many.
    tokens: BTreeMap<TokenId, (Instant, u32)>,
    /// Since when lines are counted, how many there were, and how many were left out.
    lines: Option<(Instant, u32)>,
    left_out: u64,
}

impl Joins {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a join with a token that is good, or refuses it.
    fn enter(&self, now: Instant, token: &TokenId, most: u32) -> Result<()> {
        let tokens = &mut self.counts().tokens;
        tokens.retain(|_, (since, _)| now.duration_since(*since) < MINUTE);
        let (_, count) = tokens.entry(token.clone()).or_insert((now, 0));
        if *count >= most {
            let msg = format!("{most} members joined with the token {token} within a minute");
            return Err(Error::new(Code::Busy, msg).advise(
                "try again in a minute, or use a token made with `convoke token create --joins`",
            ));
        }
        *count += 1;
        Ok(())
    }

    /// Whether a line about a refused join may be written; then how many were left out before.
    fn line(&self, now: Instant) -> Option<u64> {
        let counts = &mut *self.counts();
        let recent = counts
            .lines
            .filter(|(since, _)| now.duration_since(*since) < LINES_PERIOD);
        let (since, written) = recent.unwrap_or((now, 0));
        if written >= LINES {
            counts.left_out += 1;
            return None;
        }
        counts.lines = Some((since, written + 1));
        Some(std::mem::take(&mut counts.left_out))
    }
}

/// The name that a worker asks for; none where it leaves the choice.
fn wanted(name: String) -> Result<Option<PeerName>> {
    let unusable = |why: String| {
        let e = Error::new(
            Code::InvalidArgument,
            format!("the name cannot be used: {why}"),
        );
        Err(e.advise("choose another with --name"))
    };
    if name.is_empty() {
        return Ok(None);
    }
    if name.starts_with(CLIENTS) {
        return unusable(format!("'{CLIENTS}' begins the names of clients"));
    }
    PeerName::try_from(name)
        .map(Some)
        .or_else(|e| unusable(e.to_string()))
}

impl Service {
    async fn join(&self, request: JoinRequest) -> Result<Joined> {
        let JoinRequest {
            token_id,
            secret,
            role,
            name,
            csr,
            former,
            version,
        } = request;
        // A newcomer's name is its own word: it is not repeated.
        same_release(role, "", &version)?;
        let budget = self.authority.check(&token_id, &secret, role).await?;
        let most = budget.joins.unwrap_or(Budget::JOINS);
        self.joins.enter(Instant::now(), &token_id, most)?;
        if mutant!("join-unanswered") {
            std::future::pending::<()>().await;
        }
        let former = self.authority.former_holder(role, &former, &csr);
        let name = match (role, &former) {
            (Role::Worker, _) => {
                let fingerprint = former.as_ref().map(|f| f.fingerprint);
                let wanted = match (name.is_empty(), &former) {
                    (true, Some(former)) => Some(former.name.clone()),
                    _ => wanted(name)?,
                };
                self.claim(wanted, fingerprint).await?
            }
            (_, Some(former)) => former.name.to_string(),
            // Nobody else's, whatever it asks for: drivers are known by their names.
            (_, None) => format!(
                "{CLIENTS}{:016x}",
                u64::from_le_bytes(self.world.rng.bytes())
            ),
        };
        let holder =
            PeerName::try_from(name.clone()).map_err(|e| Error::internal(e.to_string()))?;
        let issued = self
            .authority
            .issue(role, holder, token_id, budget, &csr, None);
        let (joined, fingerprint) = issued.await?;
        if role == Role::Worker {
            let (name, former) = (name.clone(), former.map(|f| f.fingerprint));
            self.core
                .call(move |core, _| core.issued(&name, fingerprint, former))
                .await?;
        }
        Ok(joined)
    }

    /// A name for a worker, which may have held it with this certificate. One whose holder does not answer any more is free,
    /// once the drivers that it served have given it up.
    async fn claim(&self, wanted: Option<PeerName>, former: Option<Fingerprint>) -> Result<String> {
        let claim = move |core: &mut Membership, now| core.claim(now, wanted.as_ref(), former);
        Ok(self.once_free(claim).await??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_names_are_shortened_and_escaped() {
        assert_eq!(shown("w-1"), "w-1");
        assert_eq!(shown("a\x1b[2J\n"), "a\\u{1b}[2J\\n");
        assert_eq!(
            shown(&"n".repeat(16 << 10)),
            format!("{}…", "n".repeat(SHOWN))
        );
    }

    #[test]
    fn a_flood_of_refusals_writes_a_few_lines() {
        let (joins, start) = (Joins::default(), Instant::now());
        let lines = (0..1000).filter_map(|_| joins.line(start)).count();
        assert_eq!(lines, LINES as usize);
        let later = joins.line(start + LINES_PERIOD);
        assert_eq!(later, Some(1000 - u64::from(LINES)));
        assert_eq!(joins.line(start + LINES_PERIOD), Some(0));
    }

    #[test]
    fn a_token_lets_in_so_many_in_a_minute() {
        let (joins, start) = (Joins::default(), Instant::now());
        let [a, b] = ["aaaa", "bbbb"].map(|t| t.parse::<TokenId>().unwrap());
        assert!((0..3).all(|_| joins.enter(start, &a, 3).is_ok()));
        assert_eq!(joins.enter(start, &a, 3).unwrap_err().code, Code::Busy);
        assert!(joins.enter(start, &b, 3).is_ok());
        assert!(joins.enter(start + MINUTE, &a, 3).is_ok());
        assert_eq!(joins.counts().tokens.len(), 1);
    }
}
