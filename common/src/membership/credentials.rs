//! A member's certificate over time. The member gets it for a token, keeps it in the state folder, renews it over the
//! connection to the coordinator, and gets another for the token after it was away for longer than the certificate
//! lived.
//!
//! Invariants
//! 1. A member keeps its name: when it joins again, it shows its former certificate and proves that it has the key.
//! 2. A certificate that a running member gets and cannot keep on disk is used nevertheless: the disk of a member must
//!    not end its membership.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::admission::{JoinFailure, call, chain, try_join};
use crate::error::{Error, Result};
use crate::identity::{
    IdentityFiles, JoinToken, OwnIdentity, OwnKey, RevocationList, Role, TlsConfigs,
};
use crate::mutant;
use crate::rpc::{CoordinatorClient, answer};
use crate::world::World;

/// How often a connected member looks at the calendar. A single timer until the renewal is due would miss a calendar
/// that was set, and a machine that slept.
pub const RENEWAL_CHECK: Duration = Duration::from_secs(1);

/// How long a member waits after a renewal that failed. It need not hurry, since a certificate lives for days after its
/// renewal is due.
const RENEWAL_PAUSE: Duration = Duration::from_secs(30);

/// A member's identity, and all that it needs to prove it and to renew it.
pub struct Credentials {
    world: World,
    /// `HOST:PORT` of the coordinator.
    coordinator: String,
    token: JoinToken,
    files: Option<IdentityFiles>,
    identity: OwnIdentity,
    tls: TlsConfigs,
    /// No renewal is tried before this.
    pause_until: Option<Instant>,
    /// The key is that of a former certificate, which proved the right to the name. A renewal with a fresh key is due
    /// at once.
    has_former_key: bool,
}

impl Credentials {
    /// Loads the identity that `state_dir` keeps if it is good for this token, role and name; otherwise joins with the
    /// token at `coordinator`, a `HOST:PORT`, and keeps the new identity. Without a `name`, the member has the name
    /// that is kept, or else one that the coordinator chooses.
    pub async fn obtain(
        world: &World,
        coordinator: &str,
        token: &JoinToken,
        role: Role,
        name: Option<&str>,
        state_dir: Option<PathBuf>,
        revoked: Arc<RevocationList>,
    ) -> Result<Credentials> {
        let files = state_dir.map(|d| IdentityFiles::new(world.store.clone(), d));
        let kept = match &files {
            Some(files) => files.load()?,
            None => None,
        };
        let kept = kept.filter(|k| {
            k.peer().role == role && name.is_none_or(|name| name == k.peer().name.as_str())
        });
        let now = world.wall.unix_seconds();
        let mut has_former_key = false;
        let is_good = |k: &OwnIdentity| !k.is_expired(now) && k.peer().token_id == token.id;
        let identity = match kept {
            Some(kept) if is_good(&kept) => kept,
            kept => {
                has_former_key = kept.is_some();
                let joined = try_join(
                    world,
                    coordinator,
                    token,
                    role,
                    name.unwrap_or_default(),
                    kept.as_ref(),
                );
                let joined = joined.await.map_err(JoinFailure::into_error)?;
                if let Some(files) = &files {
                    files.save(&joined)?;
                }
                joined
            }
        };
        let tls = TlsConfigs::cluster(&identity, revoked, world.wall.clone())?;
        Ok(Credentials {
            world: world.clone(),
            coordinator: coordinator.to_owned(),
            token: token.clone(),
            files,
            identity,
            tls,
            pause_until: None,
            has_former_key,
        })
    }

    /// The current identity.
    pub fn identity(&self) -> &OwnIdentity {
        &self.identity
    }

    /// The TLS settings of the member's endpoints. They show a renewed certificate from the next handshake on.
    pub fn tls(&self) -> &TlsConfigs {
        &self.tls
    }

    /// Notes that a connection to the coordinator is new: a renewal that failed may have failed with the former one, and is
    /// tried again at once.
    pub fn reconnected(&mut self) {
        self.pause_until = None;
    }

    /// Renews the certificate over a connection to the coordinator, if that is due. A failure is logged, and the
    /// renewal tried again later.
    pub async fn renew_if_due(&mut self, client: &CoordinatorClient) {
        let is_due = self.identity.needs_renewal(self.world.wall.unix_seconds())
            && !mutant!("renewal-skipped");
        let now = Instant::now();
        if !(is_due || self.has_former_key) || self.pause_until.is_some_and(|until| now < until) {
            return;
        }
        match self.renew(client).await {
            Ok(()) => self.pause_until = None,
            Err(e) => {
                tracing::warn!("cannot renew the certificate, which is tried again: {e}");
                self.pause_until = Some(now + RENEWAL_PAUSE);
            }
        }
    }

    async fn renew(&mut self, client: &CoordinatorClient) -> Result<()> {
        let key = OwnKey::generate(self.world.rng.as_ref())?;
        let joined = answer(None, client.renew(call(), key.csr()?).await)?;
        let identity = OwnIdentity::issued(key, joined.certificate, joined.authorities)?;
        self.adopt(identity)?;
        self.has_former_key = false;
        Ok(())
    }

    /// Joins again if the certificate has expired: no peer accepts it any more, so that no dial can succeed. As long as
    /// the certificate is good, this does nothing.
    pub async fn rejoin_if_expired(&mut self) -> Result<(), JoinFailure> {
        if !self.identity.is_expired(self.world.wall.unix_seconds()) {
            return Ok(());
        }
        let (role, name) = {
            let peer = self.identity.peer();
            (peer.role, peer.name.clone())
        };
        let joined = try_join(
            &self.world,
            &self.coordinator,
            &self.token,
            role,
            name.as_str(),
            Some(&self.identity),
        );
        let joined = joined.await.map_err(|failure| match failure {
            JoinFailure::Refused(e) => {
                let msg = format!(
                    "the certificate of {role} {name} has expired, and it cannot join again: {}",
                    e.message
                );
                JoinFailure::Refused(Error::new(e.code, msg).advise(format!(
                    "make a new token with `convoke token create --role {role}`, and start the {role} with it"
                )))
            }
            unreachable => unreachable,
        })?;
        if joined.peer().name != name {
            let msg = format!("the coordinator gave the name of {role} {name} away");
            return Err(JoinFailure::Refused(
                Error::new(crate::Code::Unauthorized, msg)
                    .advise(format!("start the {role} again")),
            ));
        }
        tracing::info!(%name, "joined again, after its certificate had expired");
        self.has_former_key = true;
        self.adopt(joined).map_err(JoinFailure::Unreachable)
    }

    /// Uses a new identity from now on, and keeps it where there is a state folder.
    fn adopt(&mut self, identity: OwnIdentity) -> Result<()> {
        self.tls.renew(&identity)?;
        if let Some(files) = &self.files
            && let Err(e) = files.save(&identity)
        {
            tracing::warn!(
                "the renewed certificate is used, but cannot be kept for the next start: {}",
                chain(&e)
            );
        }
        self.identity = identity;
        Ok(())
    }
}
