//! Calls to workers, each on a stream of its own on the connection that the worker keeps.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::call;
use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::grant::Participant;
use convoke_common::identity::TokenId;
use convoke_common::ids::Incarnation;
use convoke_common::rpc::transport::call_context;
use convoke_common::rpc::{
    LinkReport, RETURN_BOUND, WorkerClient, WorkerStatus, answer, close, connect_worker,
    connect_worker_within,
};
use convoke_common::{Code, Error, Result};
use convoke_graph::printable::Printable;
use tokio::time::{Instant, timeout, timeout_at};

use super::Service;
use super::connections::Peer;
use crate::membership::{ConnectionId, Input, MembershipError, events, shortened};

/// How long a worker may take to measure its links to all peers of a round.
const PROBE_BOUND: Duration = Duration::from_secs(60);

/// How long the workers may take to tell how much memory they use, before each plan.
const MEMORY_BOUND: Duration = Duration::from_millis(200);

/// How long all workers together may take to learn of a revoked token; the caller of the revocation waits for that.
const REVOKE_BOUND: Duration = Duration::from_secs(5);

/// Most bytes of a worker's report: of its state, of its memory, or of its links. Such answers are charged to nobody, and
/// workers send them whenever they are asked. A report about thousands of peers or tokens has less.
const REPORT_FRAME: usize = 4 << 20;

/// How long a worker may be silent before another worker may take its name.
const ALIVE_BOUND: Duration = Duration::from_secs(2);

/// Returns a worker's reports of its links to the peers that it was asked about, one for each, with short texts.
fn of_asked(mut links: Vec<LinkReport>, mut asked: BTreeSet<String>) -> Vec<LinkReport> {
    links.retain(|link| asked.remove(&link.peer));
    for link in &mut links {
        link.failure = link.failure.as_deref().map(shortened);
    }
    links
}

impl Service {
    /// Returns a client of the worker on this connection.
    pub(super) async fn worker(
        &self,
        name: &str,
        connection: ConnectionId,
    ) -> Result<WorkerClient> {
        let peer = self.peer_of(name, connection)?;
        let connected = connect_worker(&self.world, &peer.connection).await;
        connected.map_err(|e| e.about(name))
    }

    /// Returns the peer on the connection of a worker of this name.
    fn peer_of(&self, name: &str, connection: ConnectionId) -> Result<Peer> {
        let lost = || Error::new(Code::PeerLost, format!("worker '{name}' was lost")).about(name);
        self.connections.get(connection).ok_or_else(lost)
    }

    /// Returns a client of the worker on this connection, for calls that are answered by short reports.
    async fn reporter(&self, name: &str, connection: ConnectionId) -> Result<WorkerClient> {
        let peer = self.peer_of(name, connection)?;
        let connected = connect_worker_within(&self.world, &peer.connection, REPORT_FRAME).await;
        connected.map_err(|e| e.about(name))
    }

    /// Returns the name of the member on a connection, for messages.
    pub(super) fn name_of(&self, connection: ConnectionId) -> String {
        let identity = self
            .connections
            .get(connection)
            .and_then(|peer| peer.identity);
        identity.map_or("a lost worker".to_owned(), |i| i.name.to_string())
    }

    /// Asks a worker for its status.
    pub(super) async fn account(
        &self,
        connection: ConnectionId,
        bound: Duration,
    ) -> Result<WorkerStatus> {
        let asked = async {
            let name = self.name_of(connection);
            let worker = self.reporter(&name, connection).await?;
            answer(Some(&name), worker.status(call_context(bound)).await)
        };
        let late = || Error::new(Code::DeadlineExceeded, "a worker did not answer in time");
        let status = tokio::time::timeout(bound, asked)
            .await
            .map_err(|_| late())??;
        self.core.apply(events::SignOfLife { connection }).await?;
        Ok(status)
    }

    /// Asks the workers for the memory that they use, at most [`MEMORY_BOUND`]. The last report counts where a worker
    /// does not answer.
    pub(super) async fn ask_memory(&self, avoid: &[(String, Incarnation)]) -> Result<()> {
        let avoid = avoid.to_vec();
        let (workers, asked) = self
            .core
            .query(move |core, _| core.to_report(&avoid))
            .await?;
        let answers = workers.into_iter().map(async |(name, connection)| {
            let answered = async {
                let worker = self.reporter(&name, connection).await?;
                answer(Some(&name), worker.memory(call_context(MEMORY_BOUND)).await)
            };
            let used = timeout(MEMORY_BOUND, answered).await.ok()?.ok()?;
            Some((connection, used))
        });
        let answers = futures::future::join_all(answers).await;
        let reports = answers.into_iter().flatten().collect();
        self.core
            .apply(events::MemoryReports { asked, reports })
            .await
    }

    /// Checks that a worker answers a call whose answer is short.
    async fn is_alive(&self, connection: ConnectionId) -> Result<()> {
        let asked = async {
            let name = self.name_of(connection);
            let worker = self.reporter(&name, connection).await?;
            answer(Some(&name), worker.memory(call_context(ALIVE_BOUND)).await)
        };
        let late = |_| Error::new(Code::DeadlineExceeded, "a worker did not answer in time");
        timeout(ALIVE_BOUND, asked).await.map_err(late)??;
        self.core.apply(events::SignOfLife { connection }).await
    }

    /// Frees the name of the worker on this connection if the worker does not answer: it then counts as lost. Returns
    /// whether the name is free.
    pub(super) async fn gives_up_name(&self, connection: ConnectionId) -> bool {
        if self.is_alive(connection).await.is_ok() {
            return false;
        }
        tracing::info!(
            worker = self.name_of(connection),
            "does not answer; its name is wanted"
        );
        self.connections.close(connection, close::LOST, "no answer");
        self.core
            .apply(events::Disconnection { connection })
            .await
            .is_ok()
    }

    /// Gives the core an input that wants a name. If the holder of the name does not answer any more, or may still
    /// serve drivers that have yet to notice its loss, the input is repeated until they must have noticed.
    pub(super) async fn once_free<T>(
        &self,
        input: impl Input<Answer = Result<T, MembershipError>>,
    ) -> Result<Result<T, MembershipError>> {
        let until = Instant::now() + RETURN_BOUND;
        let mut freed = self.freed.subscribe();
        loop {
            // A lease that ends from here on ends the wait below; one that ended before does not.
            freed.mark_unchanged();
            let result = self.core.apply(input.clone()).await?;
            match &result {
                Err(MembershipError::NameTaken {
                    holder: Some(holder),
                    ..
                }) if self.gives_up_name(*holder).await => {}
                Err(MembershipError::NameReserved { .. }) => {
                    let _timer = Timer::arm(TimerKind::Return, until);
                    if timeout_at(until, freed.changed()).await.is_err() {
                        return Ok(result);
                    }
                }
                _ => return Ok(result),
            }
        }
    }

    /// Asks a worker to measure its links to these peers, and records the result.
    pub(super) async fn probe(self: Arc<Self>, connection: ConnectionId, peers: Vec<Participant>) {
        let name = self.name_of(connection);
        let asked: BTreeSet<String> = peers.iter().map(|p| p.name.clone()).collect();
        let measured = async {
            let worker = self.reporter(&name, connection).await?;
            answer(
                Some(&name),
                worker.probe(call_context(PROBE_BOUND), peers).await,
            )
        };
        let stored = match measured.await {
            Ok(links) => {
                let links = of_asked(links, asked);
                for LinkReport { peer, failure, .. } in &links {
                    let Some(failure) = failure else { continue };
                    if let Some(others) = self.unmeasured_links.admit(Instant::now()) {
                        tracing::warn!(
                            worker = name,
                            peer,
                            others,
                            "the link is not measured, plans assume one of 10 Gbit/s: {}",
                            Printable(failure)
                        );
                    }
                }
                let reported = events::LinkReports {
                    connection,
                    reports: links,
                };
                self.core.apply(reported).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = stored {
            tracing::debug!(worker = name, %error, "links were not measured");
        }
    }

    /// Informs all workers that a token was revoked, within [`REVOKE_BOUND`]. A worker that cannot be reached learns it
    /// when it registers.
    pub(super) async fn push_revoked(self: &Arc<Self>, id: TokenId) -> Result<()> {
        let workers = self.core.query(|core, _| core.connections()).await?;
        let tell = workers.into_iter().map(|(name, connection)| {
            let id = id.clone();
            async move {
                let told = async {
                    let worker = self.worker(&name, connection).await?;
                    answer(Some(&name), worker.revoke(call(), vec![id]).await)
                };
                let why = match timeout(REVOKE_BOUND, told).await {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => "it does not answer".to_owned(),
                };
                tracing::warn!(worker = name, why, "could not be told of a revoked token");
            }
        });
        futures::future::join_all(tell).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_peer_that_was_asked_about_one_short_report_is_taken() {
        let report = |peer: &str, failure: Option<&str>| LinkReport {
            peer: peer.into(),
            round_trip: 1,
            bandwidth: 1.0,
            failure: failure.map(Into::into),
        };
        let long = "x".repeat(1 << 20);
        let told = vec![
            report("a", Some(&long)),
            report(&long, Some("nobody asked")),
            report("a", Some("again")),
            report("b", None),
        ];
        let taken = of_asked(told, ["a", "b", "c"].map(String::from).into());
        let taken = taken
            .iter()
            .map(|link| (&*link.peer, link.failure.as_deref()));
        assert_eq!(
            taken.collect::<Vec<_>>(),
            [("a", long.get(..256)), ("b", None)]
        );
    }
}
