//! The task that owns the membership core, and performs its commands.

use std::sync::Arc;

use convoke_common::actor::{self, Core as _};

use super::Service;
use super::core::Mailbox;
use super::leases::ReleaseGuard;
use crate::blocking::blocking;
use crate::membership::{Command, Membership, events};
use crate::state::State;

/// Runs the core until its task is stopped.
pub async fn run(service: Arc<Service>, mut core: Membership, mailbox: Mailbox) {
    let Mailbox { mut calls, clock } = mailbox;
    loop {
        let due = core.poll_timeout().map(|at| clock.instant(at));
        tokio::select! {
            biased;
            call = calls.recv() => match call {
                Some(call) => call(&mut core, clock.now()),
                None => return,
            },
            () = actor::due(due) => core.apply(clock.now(), events::Timeout {}),
        }
        while let Some(command) = core.next_command() {
            service.perform(command).await;
        }
        service.freed.send_if_modified(|known| {
            let freed = core.freed();
            std::mem::replace(known, freed) != freed
        });
    }
}

impl Service {
    /// Performs a command of the core. It waits only for writes to disk, so that they are made in order.
    async fn perform(self: &Arc<Self>, command: Command) {
        match command {
            Command::Close {
                connection,
                code,
                reason,
            } => self.connections.close(connection, code, reason),
            Command::Release { lease, at } => {
                tracing::info!(%lease, workers = at.len(), "lease ends");
                for connection in at {
                    let releasing = ReleaseGuard::begin(&self.releases, lease);
                    let told = self.clone().tell_end(lease, connection, releasing);
                    self.tasks.spawn(told);
                }
            }
            Command::Probe { connection, peers } => {
                self.tasks.spawn(self.clone().probe(connection, peers))
            }
            Command::Keep { name, fingerprints } => {
                self.keep(move |state| state.put_member(&name, &fingerprints))
                    .await;
            }
            Command::Gone { name, left } => {
                let at = self.world.wall.unix_seconds();
                self.keep(move |state| state.put_gone(&name, at, left))
                    .await;
            }
            Command::Forget { name } => self.keep(move |state| state.remove_member(&name)).await,
            Command::Drain { connection } => {
                self.tasks.spawn(self.clone().drain_at(connection));
            }
            Command::KeepDeaths(record) => self.keep(move |state| state.put_deaths(&record)).await,
            Command::ForgetDeaths { function, node } => {
                self.keep(move |state| state.remove_deaths(&function, &node))
                    .await;
            }
            Command::Population(serving) => {
                self.population.send_replace(serving);
            }
        }
    }

    /// Writes to the state. A failure is logged and does not stop the coordinator, although a restart forgets what
    /// could not be written, so that a name may be given twice, for instance. Once the disk works again, the names of
    /// living workers are written, see [`keeping`](super::keeping).
    async fn keep<E: Into<convoke_common::Error> + Send + 'static>(
        &self,
        work: impl FnOnce(&State) -> std::result::Result<(), E> + Send + 'static,
    ) {
        let Some(state) = self.state.clone() else {
            return;
        };
        let kept = blocking(&self.world, move || work(&state).map_err(Into::into)).await;
        if let Err(error) | Ok(Err(error)) = kept {
            tracing::error!(%error, "cannot keep who the members are");
        }
    }
}
