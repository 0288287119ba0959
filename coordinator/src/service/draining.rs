//! Takes workers out of service and back, and lifts quarantines, as the admin socket requests.

use std::sync::Arc;

use convoke_common::admission::call;
use convoke_common::rpc::answer;
use convoke_common::{Error, Result};
use tokio::sync::oneshot;

use super::Service;
use super::keeping::of_worker;
use crate::audit::{Entry, Event};
use crate::blocking::blocking;
use crate::membership::{ConnectionId, events};
use crate::state::State;

impl Service {
    /// Takes a worker out of service until [`Service::undrain`]. Returns whether it is connected and was told to end.
    pub async fn drain(self: &Arc<Self>, name: &str) -> Result<bool> {
        let there = self.change(name, true).await?;
        tracing::info!(worker = name, there, "out of service");
        self.audit.record(of_worker(Event::Drained, name));
        Ok(there)
    }

    /// Puts a worker back into service. Returns whether plans use it from now on.
    pub async fn undrain(self: &Arc<Self>, name: &str) -> Result<bool> {
        let serves = self.change(name, false).await?;
        tracing::info!(worker = name, serves, "back in service");
        self.audit.record(of_worker(Event::Undrained, name));
        Ok(serves)
    }

    /// Makes one change after the other, each in a task of its own: the state then holds what the core was told last,
    /// even if the caller stopped waiting.
    async fn change(self: &Arc<Self>, name: &str, drained: bool) -> Result<bool> {
        let (answer, answered) = oneshot::channel();
        let (service, name) = (self.clone(), name.to_owned());
        self.tasks.spawn(async move {
            let _turn = service.draining.lock().await;
            // The caller may have stopped waiting.
            drop(answer.send(service.change_in_turn(name, drained).await));
        });
        let stopped = |_| Error::internal("the coordinator is stopping");
        answered.await.map_err(stopped)?
    }

    async fn change_in_turn(&self, name: String, drained: bool) -> Result<bool> {
        let changed = name.clone();
        let answer = match drained {
            true => self.core.apply(events::Drain { name: changed }).await,
            false => self.core.apply(events::Undrain { name: changed }).await,
        };
        let answer = answer??;
        self.keep_drained(&name, drained).await?;
        Ok(answer)
    }

    /// Saves whether a name is out of service, and returns once that is on disk.
    async fn keep_drained(&self, name: &str, drained: bool) -> Result<()> {
        let Some(state) = self.state.clone() else {
            return Ok(());
        };
        let name = name.to_owned();
        let keep = move |state: &State| state.put_drained(&name, drained);
        Ok(blocking(&self.world, move || keep(&state)).await??)
    }

    /// Lifts the quarantine of the nodes of this name. Returns the number of functions in which one was lifted.
    pub async fn lift(self: &Arc<Self>, node: String) -> Result<u32> {
        let lift = events::QuarantineLift { node: node.clone() };
        let lifted = self.core.apply(lift).await??;
        tracing::info!(node, functions = lifted, "quarantine lifted");
        self.audit
            .record(Entry::of(Event::QuarantineLifted).name(&node));
        Ok(lifted)
    }

    /// Tells a worker to finish its steps and to end.
    pub(super) async fn drain_at(self: Arc<Self>, connection: ConnectionId) {
        let name = self.name_of(connection);
        let told = async {
            let worker = self.worker(&name, connection).await?;
            answer(Some(&name), worker.drain(call()).await)
        };
        if let Err(error) = told.await {
            tracing::warn!(worker = name, %error, "could not be told to end");
        }
    }
}
