//! The worker's connection to the coordinator: dial it, register, serve its streams until the connection ends, and dial
//! again.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::{JoinFailure, call, reach, warn_of_loopback};
use convoke_common::control_event;
use convoke_common::credentials::{Credentials, RENEWAL_CHECK};
use convoke_common::detection::WatchedConnection;
use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::Role;
use convoke_common::mutant;
use convoke_common::rpc::{self, CoordinatorClient, Registration, close};
use convoke_common::telemetry::LineLimit;
use convoke_common::world::quic::ConnectionError;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::health::drain::ServiceState;
use crate::node::holdings::Holdings;
use crate::node::service;

/// First and longest pause between attempts to dial an absent coordinator.
const REDIAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Pause before the worker's service state is reported again, where a report failed.
const TELL_AGAIN: Duration = Duration::from_millis(500);

/// Pause before a worker that cannot return logs that again.
const SAY_AGAIN: Duration = Duration::from_secs(300);

/// The error for a coordinator's reason to end a connection, where dialling again cannot help.
fn expulsion(me: &str, why: &ConnectionError) -> Option<Error> {
    let ConnectionError::ApplicationClosed(closed) = why else {
        return None;
    };
    match u32::try_from(closed.error_code.into_inner()).ok()? {
        close::REPLACED => {
            let msg = format!("another process took the place of worker {me}");
            Some(
                Error::new(Code::Unauthorized, msg)
                    .advise("give each worker a --state-dir and a --name of its own"),
            )
        }
        close::MEMBERSHIP_OVER => {
            let msg = format!("the time for which its token let worker {me} stay is over");
            Some(
                Error::new(Code::Unauthorized, msg)
                    .advise("start it again: it joins anew, if its token still lets it in"),
            )
        }
        close::REVOKED => {
            let msg = format!("the token of worker {me} was revoked");
            Some(
                Error::new(Code::Unauthorized, msg)
                    .advise("join anew with another token: convoke token create --role worker"),
            )
        }
        _ => None,
    }
}

/// Keeps the worker connected to its coordinator and registered.
pub struct CoordinatorLink {
    pub holdings: Arc<Holdings>,
    /// `HOST:PORT` of the coordinator.
    pub join: String,
    pub register: Registration,
    pub credentials: Credentials,
    pub away: AbsenceNotice,
}

/// A worker that does not reach its coordinator, or is not taken back by it.
pub struct AbsenceNotice(LineLimit);

impl Default for AbsenceNotice {
    fn default() -> AbsenceNotice {
        AbsenceNotice(LineLimit::new(1, SAY_AGAIN))
    }
}

impl AbsenceNotice {
    /// Says it at once, and then seldom.
    fn tell(&self, why: &Error) {
        if self.0.admit(Instant::now()).is_none() {
            return;
        }
        tracing::warn!(
            "this worker cannot return to its cluster, and tries again: {why}; next line in {} min",
            SAY_AGAIN.as_secs() / 60
        );
    }
}

/// Why the worker is not registered.
enum Refusal {
    /// Dialling again cannot help.
    Final(Error),
    /// The token does not admit the worker again.
    Token(Error),
    ForNow(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::ForNow(error)
    }
}

impl From<JoinFailure> for Refusal {
    fn from(failure: JoinFailure) -> Refusal {
        match failure {
            JoinFailure::Refused(error) => Refusal::Token(error),
            JoinFailure::Revoked(error) => Refusal::Final(error),
            JoinFailure::Unreachable(error) => Refusal::ForNow(error),
        }
    }
}

/// Where the session reports its state to the rest of the worker.
pub struct LinkSignals {
    /// The outcome of the first registration.
    pub registered: Option<oneshot::Sender<Result<()>>>,
    /// Why the coordinator cannot be reached at present.
    pub lost: watch::Sender<Option<Error>>,
    /// Why the coordinator has ended the membership for good.
    pub expelled: watch::Sender<Option<Error>>,
    /// Whether the coordinator knows that the worker takes no new work.
    pub informed: watch::Sender<bool>,
}

impl CoordinatorLink {
    /// Keeps the worker registered, until it is expelled.
    pub async fn run(mut self, mut told: LinkSignals) {
        let mut pause = REDIAL.0;
        loop {
            match self.connect().await {
                // A worker with leases stays: steps need neither the coordinator nor this certificate. Without leases
                // the process ends, and one that a supervisor starts in its place reads its token file anew.
                Err(Refusal::Token(e))
                    if told.registered.is_none() && self.holdings.leases().is_empty() =>
                {
                    tracing::error!("{e}");
                    told.expelled.send_replace(Some(e));
                    return;
                }
                Ok((watched, client, carrier)) => {
                    pause = REDIAL.0;
                    self.away = AbsenceNotice::default();
                    told.lost.send_replace(None);
                    if let Some(tell) = told.registered.take() {
                        drop(tell.send(Ok(())));
                    }
                    tracing::info!(
                        coordinator = self.join,
                        name = self.holdings.me.name,
                        "registered"
                    );
                    if let Some(e) = self.attend(&watched, &client, carrier, &told).await {
                        // The coordinator's reason is final: dialling again would only repeat it.
                        tracing::error!("{e}");
                        told.expelled.send_replace(Some(e));
                        return;
                    }
                    tracing::warn!(
                        coordinator = self.join,
                        "lost contact with the coordinator: {}",
                        watched.ended().unwrap_or_default()
                    );
                }
                Err(Refusal::Final(e)) if told.registered.is_none() => {
                    tracing::error!("{e}");
                    told.expelled.send_replace(Some(e));
                    return;
                }
                Err(Refusal::Final(e) | Refusal::Token(e) | Refusal::ForNow(e)) => {
                    // An error before the first registration is the result of `start`.
                    if let Some(tell) = told.registered.take() {
                        drop(tell.send(Err(e)));
                        return;
                    }
                    self.away.tell(&e);
                    told.lost.send_replace(Some(e));
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(REDIAL.1);
        }
    }

    async fn connect(
        &mut self,
    ) -> Result<(WatchedConnection, CoordinatorClient, JoinHandle<()>), Refusal> {
        self.credentials.rejoin_if_expired().await?;
        let holdings = &self.holdings;
        let dialled = reach(
            &holdings.world,
            &holdings.endpoint,
            &self.join,
            Role::Coordinator,
        )
        .await?;
        let watched = holdings.detector.watch(dialled.connection);
        // The streams are served before the registration, since the coordinator probes links before it answers it.
        service::serve_connection(
            holdings,
            watched.clone(),
            Role::Coordinator,
            "coordinator".into(),
            None,
        );
        let registered = async {
            let (client, carrier) =
                rpc::stay_connected(&holdings.world, watched.connection()).await?;
            let register = Registration {
                leases: holdings.leases_to_register(),
                ..self.register.clone()
            };
            let (name, incarnation) = (&*holdings.me.name, register.incarnation.0);
            control_event!("register", name = name, incarnation = incarnation);
            let answer = client.register(call(), register).await;
            let registered = rpc::answer(None, answer)?;
            control_event!("registered", name = name, incarnation = incarnation);
            Ok((registered, client, carrier))
        };
        let (registered, client, carrier) = registered.await.map_err(|error: Error| {
            // The coordinator's reason to end the connection says more than the failure of the call.
            let why = watched.connection().close_reason();
            let expelled = why.and_then(|why| expulsion(&holdings.me.name, &why));
            // Without the close, the monitor would keep the connection alive for no one. It is no goodbye: the
            // coordinator may take the worker for registered.
            watched.give_up("not registered");
            match expelled {
                Some(expelled) => Refusal::Final(expelled),
                None => Refusal::ForNow(error),
            }
        })?;
        let peers = registered.peers.iter().map(|p| (&*p.name, &*p.address));
        warn_of_loopback((&registered.name, &registered.address), peers);
        holdings.revoke(registered.revoked);
        if registered.drained {
            tracing::warn!(
                "worker {} is out of service until `convoke undrain {}`",
                registered.name,
                registered.name
            );
        }
        Ok((watched, client, carrier))
    }

    /// Renews the certificate when due, and reports the worker's service state, until the connection ends. Returns the error
    /// where it ended for good.
    async fn attend(
        &mut self,
        watched: &WatchedConnection,
        client: &CoordinatorClient,
        mut carrier: JoinHandle<()>,
        told: &LinkSignals,
    ) -> Option<Error> {
        let mut state = self.holdings.engine.gate.service_state();
        // The state is reported once at the start, since a new connection knows nothing of it.
        state.mark_changed();
        let mut untold = false;
        self.credentials.reconnected();
        let mut look = tokio::time::interval(RENEWAL_CHECK);
        look.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                why = watched.connection().closed() => return expulsion(&self.holdings.me.name, &why),
                _ = &mut carrier => {
                    watched.give_up("no calls pass");
                }
                Ok(()) = state.changed() => {
                    let stands = state.borrow_and_update().clone();
                    let serves = stands == ServiceState::Serving;
                    if !serves {
                        let (name, incarnation) = (&*self.holdings.me.name, self.register.incarnation.0);
                        control_event!("leave", name = name, incarnation = incarnation);
                    }
                    let informed = inform(client, stands).await;
                    untold = informed.is_err();
                    match informed {
                        Ok(()) => drop(told.informed.send_replace(!serves)),
                        Err(e) => tracing::warn!("cannot tell the coordinator: {e}"),
                    }
                }
                () = tokio::time::sleep(TELL_AGAIN), if untold => state.mark_changed(),
                () = self.holdings.more_dropped(), if !mutant!("dropped-untold") => {
                    let leases = self.holdings.take_dropped();
                    let answer = client.dropped(call(), leases.clone()).await;
                    if let Err(e) = rpc::answer(None, answer) {
                        // The next registration lists the held leases.
                        tracing::debug!("cannot tell the coordinator of dropped leases: {e}");
                        watched.give_up("no calls pass");
                    }
                }
                () = self.holdings.engine.failures.more() => {
                    let failures = &self.holdings.engine.failures;
                    let failed = failures.take();
                    if failed.is_empty() {
                        continue;
                    }
                    let answer = client.failed(call(), failed.clone()).await;
                    if let Err(e) = rpc::answer(None, answer) {
                        tracing::debug!("cannot tell the coordinator of failed steps: {e}");
                        failures.put_back(failed);
                        watched.give_up("no calls pass");
                    }
                }
                _ = look.tick() => self.credentials.renew_if_due(client).await,
            }
        }
    }
}

/// Reports the worker's service state to the coordinator, which takes a worker to be serving until told otherwise.
async fn inform(client: &CoordinatorClient, state: ServiceState) -> Result<()> {
    let answer = match state {
        ServiceState::Serving => return Ok(()),
        ServiceState::Leaving => client.leave(call()).await,
        ServiceState::Wedged(why) => client.wedged(call(), why).await,
    };
    rpc::answer(None, answer)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_worker_whose_token_was_revoked_does_not_dial_again() {
        let error = || Error::new(Code::Unauthorized, "no");
        let is_final = |f: JoinFailure| matches!(Refusal::from(f), Refusal::Final(_));
        assert!(is_final(JoinFailure::Revoked(error())));
        assert!(!is_final(JoinFailure::Unreachable(error())));
        // A worker with leases outlives the token that it would join with.
        assert!(!is_final(JoinFailure::Refused(error())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_is_away_says_so_at_once_and_then_seldom() {
        let lines = Arc::<AtomicUsize>::default();
        let written = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || {
            written.fetch_add(1, Ordering::Relaxed);
            std::io::sink()
        });
        let _log = tracing::subscriber::set_default(subscriber.finish());
        let (away, why) = (AbsenceNotice::default(), Error::unreachable(None, "nobody"));
        let mut said = vec![];
        // As often as it dials, for three times as long as it is silent.
        for _ in 0..450 {
            away.tell(&why);
            said.push(lines.load(Ordering::Relaxed));
            tokio::time::advance(REDIAL.1).await;
        }
        assert_eq!((said[0], said[149], said[150]), (1, 1, 2));
        assert_eq!((said[299], said[300], said[449]), (2, 3, 3));
        // Whoever was back meanwhile says anew that it is away.
        AbsenceNotice::default().tell(&why);
        assert_eq!(lines.load(Ordering::Relaxed), 4);
    }
}
