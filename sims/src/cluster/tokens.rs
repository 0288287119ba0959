//! Join tokens, as the coordinator's owner hands them to the owners of workers and clients: one token for each role,
//! and further tokens for the hosts that have their own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::error::Result;
use convoke_common::identity::{Budget, JoinToken, Role, TokenId};
use tokio::sync::watch;

use super::process::CoordinatorHandle;
use super::{Cluster, Task};
use crate::world::Host;

#[derive(Default)]
struct IssuedTokens {
    /// The token of all workers, and the token of all clients.
    of_roles: Option<(JoinToken, JoinToken)>,
    own: BTreeMap<Host, JoinToken>,
}

/// The tokens that the processes of a cluster start with; clones share them.
#[derive(Clone)]
pub(super) struct Tokens(Arc<watch::Sender<IssuedTokens>>);

impl Default for Tokens {
    fn default() -> Tokens {
        Tokens(Arc::new(watch::Sender::new(IssuedTokens::default())))
    }
}

impl Tokens {
    /// Publishes the token of each role, which the coordinator wrote to its token folder.
    pub fn give(&self, worker: JoinToken, client: JoinToken) {
        self.0
            .send_modify(|given| given.of_roles = Some((worker, client)));
    }

    /// Waits for the tokens of the roles. Returns the host's own token if it has one, else that of its role.
    pub async fn wait(&self, host: Host) -> Option<JoinToken> {
        let mut seen = self.0.subscribe();
        let given = seen.wait_for(|given| given.of_roles.is_some()).await.ok()?;
        let (worker, client) = given.of_roles.as_ref()?;
        let of_role = match host {
            Host::Client(_) => client,
            Host::Worker(_) | Host::Coordinator => worker,
        };
        Some(given.own.get(&host).unwrap_or(of_role).clone())
    }

    /// Has the coordinator make a token for this host, which expires after `ttl` and replaces any that the host has.
    pub async fn make(
        &self,
        coordinator: &convoke_coordinator::RunningCoordinator,
        host: Host,
        ttl: Option<Duration>,
        budget: Budget,
    ) -> Result<()> {
        let role = match host {
            Host::Client(_) => Role::Client,
            Host::Worker(_) | Host::Coordinator => Role::Worker,
        };
        let token = coordinator.create_token_with(role, ttl, budget).await?;
        self.0
            .send_modify(|given| drop(given.own.insert(host, token)));
        Ok(())
    }

    /// The id of the host's own token, if it has one.
    pub fn own(&self, host: Host) -> Option<TokenId> {
        self.0.borrow().own.get(&host).map(|token| token.id.clone())
    }
}

impl Cluster {
    /// The id of the host's own token, if it has one.
    pub fn own_token(&self, host: Host) -> Option<TokenId> {
        self.tokens.own(host)
    }

    /// Has the coordinator revoke a token.
    pub fn revoke(&self, token: TokenId) -> Task<Result<()>> {
        self.on_coordinator(|c: CoordinatorHandle| async move { c.revoke_token(&token).await })
    }

    /// Has the coordinator make another token for a host that has its own, which expires after `ttl`. The host's next process
    /// starts with it.
    pub fn renew_token(&self, host: Host, ttl: Option<Duration>) -> Task<Result<()>> {
        let tokens = self.tokens.clone();
        let budget = self.setup.own.get(&host).copied().unwrap_or_default();
        self.on_coordinator(move |c: CoordinatorHandle| async move {
            tokens.make(&c, host, ttl, budget).await
        })
    }
}
