//! The join service, which exchanges a token for a certificate.
//!
//! Invariants
//! 1. A connection gets one answer; a newcomer that wants another one dials again.
//! 2. Text of newcomers reaches the log shortened and escaped, and a flood of refusals writes a few lines.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use convoke_common::identity::{Budget, PeerName, Role};
use convoke_common::mutant;
use convoke_common::rpc::{JoinAnswer, JoinRequest, Joining};
use convoke_common::{Code, Error, Result};
use tarpc::context::Context;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::members::same_release;
use crate::audit::{Entry, Event};
use crate::membership::{Fingerprint, events};
use crate::service::Service;

/// The prefix of clients' names, which no other member's name has.
const CLIENTS: &str = "client-";

/// How many characters of a requested name the log shows.
const SHOWN: usize = 64;

/// Serves a peer that has no certificate.
#[derive(Clone)]
pub struct JoiningPeer {
    service: Arc<Service>,
    /// The peer's address as the coordinator sees it.
    remote: SocketAddr,
    asked: Arc<AtomicBool>,
    answered: CancellationToken,
}

impl JoiningPeer {
    /// Returns the service of a newcomer that has not asked for anything yet.
    pub fn new(service: Arc<Service>, remote: SocketAddr) -> JoiningPeer {
        JoiningPeer {
            service,
            remote,
            asked: Arc::default(),
            answered: CancellationToken::new(),
        }
    }

    /// Returns a token that is cancelled once the newcomer was answered.
    pub fn answered(&self) -> CancellationToken {
        self.answered.clone()
    }
}

impl Joining for JoiningPeer {
    async fn join(self, _: Context, request: JoinRequest) -> Result<JoinAnswer> {
        if self.asked.swap(true, Ordering::Relaxed) {
            let e = Error::new(Code::ProtocolViolation, "one join for each connection");
            return Err(e.advise("dial again to join anew"));
        }
        // The guard cancels `answered` even if the caller stopped waiting.
        let _answered = self.answered.drop_guard();
        let (role, asked) = (request.role, shown(&request.name));
        // A token id is bounded in length and characters, so the log may show it unescaped, even an invented one.
        let (token, address) = (request.token_id.clone(), self.remote);
        let entry = |event| Entry::of(event).role(role).address(address).token(&token);
        let joined = self.service.join(request).await;
        let Service {
            audit,
            refused,
            refused_joins,
            ..
        } = &*self.service;
        match &joined {
            Ok(JoinAnswer { name, .. }) => {
                tracing::info!(name, %role, %address, %token, "joined");
                audit.record(entry(Event::Joined).name(name));
            }
            Err(error) => {
                refused.count("join_refused");
                if let Some(others) = refused_joins.admit(Instant::now()) {
                    tracing::warn!(
                        name = asked, %role, %address, %token, %error, others,
                        "a join was refused"
                    );
                    let entry = entry(Event::JoinRefused).name(&asked);
                    audit.record(entry.refused(error, others));
                }
            }
        }
        joined
    }
}

/// Returns a name that a newcomer gave, shortened and escaped.
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

/// Parses the name that a worker asks for; `None` if the coordinator shall choose one.
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
    async fn join(&self, request: JoinRequest) -> Result<JoinAnswer> {
        let JoinRequest {
            token_id,
            secret,
            role,
            name,
            csr,
            former,
            version,
        } = request;
        // A newcomer's name is not verified, so the error does not repeat it.
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
            // A client's name is unique whatever it asks for, since drivers are known by their names.
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
            let issued = events::IssuedCertificate {
                name,
                fingerprint,
                former: former.map(|f| f.fingerprint),
            };
            self.core.apply(issued).await?;
        }
        Ok(joined)
    }

    /// Claims a name for a worker, which may have held it with the certificate `former`. The name of a holder that does
    /// not answer any more is free, once the drivers that it served have noticed its loss.
    async fn claim(&self, wanted: Option<PeerName>, former: Option<Fingerprint>) -> Result<String> {
        Ok(self
            .once_free(events::NameClaim { wanted, former })
            .await??)
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
}
