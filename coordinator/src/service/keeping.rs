//! The coordinator's state on disk at run time: its health, backups, and retries of writes that failed.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::identity::Role;
use convoke_common::{Code, Error, Result};

use super::Service;
use crate::audit::{Entry, Event};
use crate::blocking::blocking;
use crate::membership::events;
use crate::state::State;
use crate::state_dir;

/// How often a disk that failed is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// An audit entry of an action of the owner on a worker.
pub(super) fn of_worker(event: Event, name: &str) -> Entry {
    Entry::of(event).role(Role::Worker).name(name)
}

impl Service {
    /// Runs `work` on the state in a thread that may block; returns `None` if the coordinator has no state folder.
    async fn with_state<T: Send + 'static>(
        &self,
        work: impl FnOnce(&State) -> Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        let Some(state) = self.state.clone() else {
            return Ok(None);
        };
        blocking(&self.world, move || work(&state)).await?.map(Some)
    }

    /// Checks that state and audit log can be written. The error gives the reason if they cannot.
    pub async fn health(&self) -> Result<()> {
        let checked = self.with_state(|state| Ok(state.check()?)).await;
        checked.map(drop).map_err(|e| {
            e.advise("make room on the disk of --state-dir: until then nothing that must be kept is changed")
        })?;
        self.audit.check().await.map_err(|e| {
            e.advise("make room on the disk of --state-dir: until then joins and revocations are not recorded")
        })
    }

    /// Returns a backup of state and authority; see [`state_dir::backup`].
    pub async fn backup(&self) -> Result<String> {
        let world = self.world.clone();
        let copied = self.with_state(move |state| state_dir::backup(&world, state));
        let copy = copied
            .await?
            .ok_or_else(|| Error::new(Code::InvalidArgument, "this coordinator keeps no state"))?;
        self.audit.record(Entry::of(Event::BackedUp));
        Ok(copy)
    }

    /// Forgets a worker that is gone, and returns once that is on disk. Fails if the disk does not take writes.
    pub async fn forget(&self, name: String) -> Result<()> {
        let forgotten = events::ForgottenName { name: name.clone() };
        self.core.apply(forgotten).await??;
        tracing::info!(worker = name, "forgotten");
        self.audit.record(of_worker(Event::Forgotten, &name));
        // The core takes this query only after it has removed the name from the disk. Removing it here might remove a
        // worker that was given the name since.
        self.core.query(|_, _| ()).await?;
        let Some(state) = self.state.as_ref().filter(|state| state.is_in_trouble()) else {
            return Ok(());
        };
        let path = state.path().display();
        let msg = format!("'{name}' is forgotten, but {path} cannot be written");
        let advice =
            "make room on the disk of --state-dir, and forget it again if a restart brings it back";
        Err(Error::new(Code::Io, msg).advise(advice))
    }

    /// From time to time tries a disk that failed again. Once it works, this writes which certificates hold the names
    /// of living workers, which the disk may have refused.
    pub(super) async fn mend_state(self: Arc<Self>) {
        loop {
            tokio::time::sleep(TRY_AGAIN).await;
            if !self.state.as_ref().is_some_and(|s| s.is_in_trouble()) {
                continue;
            }
            let mended = async {
                self.with_state(|state| Ok(state.check()?)).await?;
                let names = self.core.query(|core, _| core.holders()).await?;
                self.with_state(move |state| {
                    for (name, fingerprints) in &names {
                        state.put_member(name, fingerprints)?;
                    }
                    Ok(())
                })
                .await
            };
            match mended.await {
                Ok(_) => tracing::info!("the state is written again"),
                Err(error) => tracing::error!(%error, "the state still cannot be written"),
            }
        }
    }
}
