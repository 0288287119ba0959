//! The join service: a token for a certificate.

use std::sync::Arc;

use convoke_common::identity::{PeerName, Role};
use convoke_common::mutant;
use convoke_common::rpc::{JoinRequest, Joined, Joining};
use convoke_common::{Code, Error, Result};
use tarpc::context::Context;

use super::Service;
use crate::membership::MembershipError;

/// How the names of clients begin, and of nobody else.
const CLIENTS: &str = "client-";

/// Serves one peer that has no certificate.
#[derive(Clone)]
pub struct Newcomer {
    pub service: Arc<Service>,
}

impl Joining for Newcomer {
    async fn join(self, _: Context, request: JoinRequest) -> Result<Joined> {
        let (role, asked) = (request.role, request.name.clone());
        let joined = self.service.join(request).await;
        match &joined {
            Ok(joined) => tracing::info!(name = joined.name, %role, "joined"),
            Err(error) => tracing::warn!(name = asked, %role, %error, "a join was refused"),
        }
        joined
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
        } = request;
        self.authority.check(&token_id, &secret, role).await?;
        if mutant!("join-unanswered") {
            std::future::pending::<()>().await;
        }
        let name = match role {
            Role::Worker => self.claim(wanted(name)?).await?,
            // Nobody else's, whatever it asks for: drivers are known by their names.
            _ => format!(
                "{CLIENTS}{:016x}",
                u64::from_le_bytes(self.world.rng.bytes())
            ),
        };
        let holder =
            PeerName::try_from(name.clone()).map_err(|e| Error::internal(e.to_string()))?;
        let (certificate, fingerprint) = self.authority.issue(role, holder, token_id, &csr)?;
        if role == Role::Worker {
            let name = name.clone();
            self.core
                .call(move |core, _| core.issued(&name, fingerprint))
                .await?;
        }
        Ok(Joined { name, certificate })
    }

    /// A name for a worker. One whose holder does not answer any more is free.
    async fn claim(&self, wanted: Option<PeerName>) -> Result<String> {
        let again = wanted.clone();
        match self
            .core
            .call(move |core, now| core.claim(now, wanted.as_ref()))
            .await?
        {
            Err(MembershipError::NameTaken {
                holder: Some(holder),
                ..
            }) if self.gives_up_name(holder).await => Ok(self
                .core
                .call(move |core, now| core.claim(now, again.as_ref()))
                .await??),
            claimed => Ok(claimed?),
        }
    }
}
