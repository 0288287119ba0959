//! The client's connection to the coordinator, which is made anew whenever it is lost.
//!
//! ```text
//! There --connection ends--> Away --dialled and resumed--> There
//!                              '--refused for good-------> Gone
//! ```
//!
//! Invariants
//! 1. Leases and steps do not depend on this connection. A call that needs the coordinator waits for its return until
//!    the call's deadline, or for [`RETURN_BOUND`] where it has none.
//! 2. The first call on a new connection tells the coordinator which driver is connected and which leases it holds. A
//!    lease whose release the coordinator did not hear of is released then.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::VERSION;
use convoke_common::admission::{JoinFailure, call, reach};
use convoke_common::control_event;
use convoke_common::credentials::{Credentials, RENEWAL_CHECK};
use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::detection::{Detector, WatchedConnection};
use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::{OutboundConnection, Role, dial};
use convoke_common::ids::{Incarnation, LeaseId};
use convoke_common::mutant;
use convoke_common::rpc::{self, CoordinatorClient, RETURN_BOUND};
use convoke_common::tasks::Tasks;
use convoke_common::world::quic::{Connection, ConnectionError};
use convoke_common::world::{Endpoint, World};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, timeout_at};

/// First and longest pause between dials of an absent coordinator. A call that needs the coordinator ends the pause.
const REDIAL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How long a dial of the coordinator's last address may take. A dial sends its packets ever less often, so many short
/// dials reach a returning coordinator sooner than a long one.
const SHORT_DIAL: Duration = Duration::from_secs(1);

/// At every dial whose number is a multiple of this, the coordinator's name is looked up again: it may have returned at
/// another address.
const LOOK_UP: u32 = 4;

#[derive(Clone)]
enum ConnectionState {
    There {
        client: CoordinatorClient,
        connection: Connection,
        /// The number of the connection, counted from 0.
        generation: u64,
    },
    Away(Error),
    /// The connection ended for good: dialling again cannot mend it.
    Gone(Error),
}

/// The client's connection to the coordinator, which a [`Keeper`] task keeps.
pub(crate) struct CoordinatorLink {
    world: World,
    address: String,
    state: watch::Receiver<ConnectionState>,
    wanted: Arc<Notify>,
    held: Arc<HeldLeases>,
    /// The tasks of the client's connection to the cluster.
    tasks: Tasks,
}

/// A live connection to the coordinator.
struct ReachedCoordinator {
    client: CoordinatorClient,
    connection: Connection,
    generation: u64,
}

/// The leases that this client holds.
#[derive(Default)]
struct HeldLeases(Mutex<BTreeSet<LeaseId>>);

impl HeldLeases {
    fn leases(&self) -> MutexGuard<'_, BTreeSet<LeaseId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a connection could not be made.
struct DialFailure {
    error: Error,
    /// Whether the refusal is final, so that dialling again cannot mend it.
    for_good: bool,
}

impl From<JoinFailure> for DialFailure {
    fn from(failure: JoinFailure) -> DialFailure {
        match failure {
            JoinFailure::Unreachable(error) => error.into(),
            JoinFailure::Refused(error) | JoinFailure::Revoked(error) => DialFailure {
                error,
                for_good: true,
            },
        }
    }
}

impl From<Error> for DialFailure {
    fn from(error: Error) -> DialFailure {
        // A certificate error is not final: this host's calendar may be wrong.
        let for_good = error.code == Code::VersionMismatch;
        DialFailure { error, for_good }
    }
}

/// A connection to the coordinator, on which it knows this client's leases.
struct LiveConnection {
    watched: WatchedConnection,
    client: CoordinatorClient,
    /// The task that carries the client's calls.
    carrier: JoinHandle<()>,
}

impl LiveConnection {
    fn state(&self, generation: u64) -> ConnectionState {
        ConnectionState::There {
            client: self.client.clone(),
            connection: self.watched.connection().clone(),
            generation,
        }
    }

    /// Keeps the certificate fresh until the connection has ended. Returns the reason, and its text.
    async fn attend(&mut self, credentials: &mut Credentials) -> (ConnectionError, String) {
        credentials.reconnected();
        let mut look = tokio::time::interval(RENEWAL_CHECK);
        look.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let client = self.client.clone();
        let ended = self.ended();
        tokio::pin!(ended);
        loop {
            tokio::select! {
                biased;
                ended = &mut ended => return ended,
                _ = look.tick() => credentials.renew_if_due(&client).await,
            }
        }
    }

    /// Waits until the connection has ended. Returns the reason, and its text. A connection that stands but carries no
    /// calls any more is closed here.
    async fn ended(&mut self) -> (ConnectionError, String) {
        let connection = self.watched.connection();
        tokio::select! {
            biased;
            why = connection.closed() => {
                let text = self.watched.ended().unwrap_or_else(|| why.to_string());
                (why, text)
            }
            _ = &mut self.carrier => {
                self.watched.give_up("no calls pass");
                (connection.closed().await, "it takes no more calls".to_owned())
            }
        }
    }
}

/// All that the client needs to reach the coordinator.
pub(crate) struct CoordinatorRoute {
    pub(crate) world: World,
    pub(crate) endpoint: Endpoint,
    pub(crate) detector: Detector,
    pub(crate) address: String,
    /// The incarnation of this client, which is the driver of its leases.
    pub(crate) driver: Incarnation,
    pub(crate) credentials: Credentials,
}

impl CoordinatorRoute {
    /// Dials the coordinator by its name, which is looked up.
    async fn reach(&self) -> Result<OutboundConnection, JoinFailure> {
        let (world, endpoint) = (&self.world, &self.endpoint);
        let reached = reach(world, endpoint, &self.address, Role::Coordinator).await;
        reached.map_err(|failure| match failure {
            JoinFailure::Unreachable(e) if e.code == Code::Unreachable && e.advice.is_empty() => {
                let advice = "check that the coordinator runs and that its UDP port is open";
                JoinFailure::Unreachable(e.advise(advice))
            }
            other => other,
        })
    }

    /// Tells the coordinator which driver is connected and which leases it holds.
    async fn resume(
        &self,
        dialled: OutboundConnection,
        held: &HeldLeases,
    ) -> Result<LiveConnection, DialFailure> {
        let watched = self.detector.watch(dialled.connection);
        let resumed = async {
            let (client, carrier) = rpc::stay_connected(&self.world, watched.connection()).await?;
            let held = held.leases().iter().copied().collect();
            let answer = client
                .resume(call(), self.driver, held, VERSION.to_owned())
                .await;
            rpc::answer(None, answer).map(|()| (client, carrier))
        };
        match resumed.await {
            Ok((client, carrier)) => Ok(LiveConnection {
                watched,
                client,
                carrier,
            }),
            Err(e) => {
                // The detector would keep a connection alive that nobody uses. There is no goodbye: the coordinator may
                // take the connection for resumed.
                let said = expulsion(watched.connection().close_reason().as_ref());
                watched.give_up("not resumed");
                Err(DialFailure {
                    for_good: said.is_some(),
                    error: said.unwrap_or(e),
                })
            }
        }
    }

    /// Connects to the coordinator, and starts the task that keeps the connection.
    pub(crate) async fn connect(self) -> Result<CoordinatorLink> {
        let held = Arc::<HeldLeases>::default();
        let reached = self.reach().await.map_err(JoinFailure::into_error)?;
        let resumed = self.resume(reached, &held).await;
        let there = resumed.map_err(|refused| refused.error)?;
        let (tell, state) = watch::channel(there.state(0));
        let link = CoordinatorLink {
            address: self.address.clone(),
            world: self.world.clone(),
            state,
            wanted: Arc::default(),
            held: held.clone(),
            tasks: Tasks::new(self.world.clone()),
        };
        let keeper = Keeper {
            tell,
            wanted: link.wanted.clone(),
            held,
            tasks: link.tasks.clone(),
        };
        link.tasks.spawn(keeper.run(self, there));
        Ok(link)
    }
}

/// The error of a connection that the coordinator has ended for good; `None` where dialling again may mend it.
fn expulsion(why: Option<&ConnectionError>) -> Option<Error> {
    match why? {
        ConnectionError::ApplicationClosed(closed)
            if closed.error_code == rpc::close::REVOKED.into() =>
        {
            let e = Error::new(Code::Unauthorized, "the token of this client was revoked");
            Some(e.advise("join anew with another token: convoke token create --role client"))
        }
        ConnectionError::ApplicationClosed(closed)
            if closed.error_code == rpc::close::MEMBERSHIP_OVER.into() =>
        {
            let e = Error::new(
                Code::Unauthorized,
                "the time for which its token let this client stay is over",
            );
            Some(e.advise("connect anew: the token may still let it in"))
        }
        _ => None,
    }
}

/// The task that owns the connection, and replaces it when it is lost.
struct Keeper {
    tell: watch::Sender<ConnectionState>,
    wanted: Arc<Notify>,
    held: Arc<HeldLeases>,
    tasks: Tasks,
}

impl Keeper {
    async fn run(self, mut way: CoordinatorRoute, mut there: LiveConnection) {
        for generation in 1.. {
            let (why, text) = there.attend(&mut way.credentials).await;
            if self.tasks.is_cancelled() {
                // This client closed the connection meanwhile.
                return;
            }
            tracing::warn!(
                coordinator = way.address,
                "lost contact with the coordinator: {text}"
            );
            let msg = format!("lost contact with the coordinator: {text}");
            let lost = Error::unreachable(None, msg);
            let back = match expulsion(Some(&why)) {
                Some(final_word) => Err(final_word),
                None => {
                    self.tell.send_replace(ConnectionState::Away(lost));
                    let last = there.watched.connection().remote_address();
                    self.redial(&mut way, last).await
                }
            };
            there = match back {
                Ok(there) => there,
                Err(e) => {
                    self.tell.send_replace(ConnectionState::Gone(e));
                    return;
                }
            };
            tracing::info!(coordinator = way.address, "the coordinator is back");
            self.tell.send_replace(there.state(generation));
        }
    }

    /// Dials until the coordinator is back, or refuses this client for good.
    async fn redial(&self, way: &mut CoordinatorRoute, last: SocketAddr) -> Result<LiveConnection> {
        let (mut pause, mut dials) = (REDIAL.0, 0u32);
        loop {
            dials = dials.wrapping_add(1);
            let back = async {
                way.credentials.rejoin_if_expired().await?;
                let dialled = match dials % LOOK_UP {
                    0 => way.reach().await?,
                    _ => dial(&way.endpoint, last, Role::Coordinator, SHORT_DIAL)
                        .await
                        .map_err(JoinFailure::of_dial)?,
                };
                way.resume(dialled, &self.held).await
            };
            match back.await {
                Ok(back) => return Ok(back),
                Err(DialFailure {
                    error,
                    for_good: true,
                }) => return Err(error),
                Err(DialFailure { error: e, .. }) => {
                    tracing::debug!(
                        coordinator = way.address,
                        "cannot reach the coordinator: {e}"
                    );
                    self.tell.send_replace(ConnectionState::Away(e));
                }
            }
            tokio::select! {
                biased;
                () = self.wanted.notified() => pause = REDIAL.0,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(REDIAL.1),
            }
        }
    }
}

/// Whether an error says that the coordinator could not be reached, rather than a worker that it reports on.
pub(crate) fn is_away(error: Option<&Error>) -> bool {
    error.is_some_and(|e| e.code == Code::Unreachable && e.site.is_none())
}

impl CoordinatorLink {
    /// Returns a client of the coordinator's services. Where the coordinator is away, waits for its return until
    /// `deadline`, or for [`RETURN_BOUND`] where there is none.
    pub(crate) async fn client(&self, deadline: Option<Instant>) -> Result<CoordinatorClient> {
        self.after(None, deadline).await.map(|found| found.client)
    }

    /// Like [`CoordinatorLink::client`], but waits for a connection of a later generation than `last`.
    async fn after(
        &self,
        last: Option<u64>,
        deadline: Option<Instant>,
    ) -> Result<ReachedCoordinator> {
        let begun = Instant::now();
        let until = deadline.unwrap_or(begun + RETURN_BOUND);
        let mut state = self.state.clone();
        let later = |s: &ConnectionState| match s {
            ConnectionState::There { generation, .. } => last.is_none_or(|l| *generation > l),
            ConnectionState::Away(_) => false,
            ConnectionState::Gone(_) => true,
        };
        let is_away = !later(&state.borrow());
        if is_away {
            self.wanted.notify_one();
        }
        let _timer = is_away.then(|| Timer::arm(TimerKind::Return, until));
        let waited = timeout_at(until, state.wait_for(later)).await;
        let found = waited.map(|found| found.map(|s| s.clone()));
        let found = match found {
            Ok(Ok(found)) => found,
            Ok(Err(_)) => return Err(Error::new(Code::Cancelled, "the client has left")),
            Err(_) => self.state.borrow().clone(),
        };
        match found {
            ConnectionState::There {
                client,
                connection,
                generation,
            } => Ok(ReachedCoordinator {
                client,
                connection,
                generation,
            }),
            ConnectionState::Away(e) => {
                // The message states whole tenths of a second: more digits tell nothing.
                let waited = Duration::from_millis(begun.elapsed().as_millis() as u64 / 100 * 100);
                let msg = format!(
                    "the coordinator at {} cannot be reached, waited {waited:?}: {}",
                    self.address, e.message
                );
                let advice = "start the coordinator again with its --state-dir";
                Err(Error::unreachable(None, msg).advise(advice))
            }
            ConnectionState::Gone(e) => Err(e),
        }
    }

    /// Makes an idempotent call to the coordinator. Where the coordinator went away during the call and came back in
    /// time, makes the call again.
    pub(crate) async fn ask<T, F>(&self, ask: impl Fn(CoordinatorClient) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.ask_on(None, |found: ReachedCoordinator| ask(found.client))
            .await
    }

    /// Like [`CoordinatorLink::ask`], on a stream that ends with the answer, so that the buffers of a large call are
    /// freed then.
    pub(crate) async fn ask_apart<T, F>(
        &self,
        deadline: Option<Instant>,
        ask: impl Fn(CoordinatorClient) -> F + Sync,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let ask = &ask;
        let asked = self.ask_on(deadline, |found: ReachedCoordinator| async move {
            let client = rpc::connect_coordinator(&self.world, &found.connection).await?;
            ask(client).await
        });
        asked.await
    }

    async fn ask_on<T, F>(
        &self,
        deadline: Option<Instant>,
        ask: impl Fn(ReachedCoordinator) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let found = self.after(None, deadline).await?;
        let generation = found.generation;
        let answer = ask(found).await;
        if !is_away(answer.as_ref().err()) {
            return answer;
        }
        ask(self.after(Some(generation), deadline).await?).await
    }

    /// The number of leases that this client holds.
    pub(crate) fn held(&self) -> usize {
        self.held.leases().len()
    }

    /// Notes that a lease was granted.
    pub(crate) fn holds(&self, lease: LeaseId) {
        self.held.leases().insert(lease);
    }

    /// Releases a lease, now, or once the coordinator is back.
    pub(crate) async fn release(&self, lease: LeaseId) -> Result<()> {
        control_event!("release", lease = lease.0);
        if !mutant!("release-not-owed") {
            self.held.leases().remove(&lease);
        }
        let told = self
            .ask(|client| async move { rpc::answer(None, client.release(call(), lease).await) });
        told.await?;
        control_event!("released", lease = lease.0);
        Ok(())
    }

    /// The tasks that end when the client leaves.
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Stops keeping the connection.
    pub(crate) fn close(&self) {
        self.tasks.cancel();
    }
}

impl Drop for CoordinatorLink {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
