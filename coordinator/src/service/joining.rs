//! The join service: a token for a certificate.

use std::sync::Arc;

use convoke_common::identity::{PeerName, Role};
use convoke_common::rpc::{JoinRequest, Joined, Joining};
use convoke_common::{Code, Error, Result};
use tarpc::context::Context;

use super::Service;
use crate::membership::MembershipError;

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
        let wanted = Some(name)
            .filter(|n| !n.is_empty())
            .map(PeerName::try_from)
            .transpose();
        let wanted = wanted.map_err(|e| {
            let e = Error::new(
                Code::InvalidArgument,
                format!("the name cannot be used: {e}"),
            );
            e.advise("choose another with --name")
        })?;
        let name = match (role, wanted) {
            (Role::Worker, wanted) => self.claim(wanted).await?,
            (_, Some(wanted)) => wanted.to_string(),
            (_, None) => format!("client-{:08x}", u32::from_le_bytes(self.world.rng.bytes())),
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
