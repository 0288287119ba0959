//! A client's connection to a cluster.

pub(crate) mod callbacks;
pub(crate) mod coordinator;
#[cfg(feature = "embedded")]
pub(crate) mod embedded;
pub(crate) mod presence;
pub(crate) mod runtime;
pub(crate) mod sources;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::call;
use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::JoinToken;
use convoke_common::memory::Ledger;
use convoke_common::rpc::{self, ClusterStatus, RendezvousStatus};
use convoke_common::world::{NoCompute, World};
use convoke_rendezvous::Hub;

use crate::cluster::callbacks::Reports;
use crate::cluster::presence::ClusterPresence;
use crate::cluster::runtime::NetThread;
use crate::eager::Sessions;

/// A secret that lets a client in: one line, as `convoke token create --role client` prints it.
#[derive(Debug, Clone)]
pub struct Token(pub(crate) JoinToken);

impl Token {
    /// Reads a file that holds a token and nothing else.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Token> {
        let path = path.as_ref();
        let failed = |e: &dyn std::fmt::Display| {
            Error::new(
                Code::Unauthorized,
                format!("token file {}: {e}", path.display()),
            )
            .advise("make one with `convoke token create --role client --ttl 1h`")
        };
        let world = World::real(Arc::new(NoCompute));
        let token = JoinToken::from_file(world.store.as_ref(), path);
        token
            .map(Token)
            .map_err(|e| failed(&convoke_common::admission::chain(&e)))
    }
}

impl std::str::FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Token> {
        let token = text.parse::<JoinToken>();
        token
            .map(Token)
            .map_err(|e| Error::new(Code::Unauthorized, e.to_string()))
    }
}

/// A connection to a cluster. Its clones share it, and so do the tensors, devices and models that were made with it;
/// dropping the last of them closes the connection.
#[derive(Clone)]
pub struct Cluster {
    // Declared before `net`, so that it is dropped before the thread that its tasks run on.
    pub(crate) session: Arc<ClusterPresence>,
    pub(crate) eager: Arc<Sessions>,
    #[cfg(feature = "embedded")]
    pub(crate) embedded: Option<Arc<crate::cluster::embedded::Parts>>,
    pub(crate) net: NetThread,
}

/// Connects to the coordinator at `HOST:PORT`.
pub async fn connect(address: &str, token: Token) -> Result<Cluster> {
    let net = NetThread::start("convoke-net", World::real(Arc::new(NoCompute)))?;
    join(net, address, token, None).await
}

/// Connects to the coordinator at `HOST:PORT` over a [`World`] and a tokio runtime that the caller brings: no thread is
/// started, and everything that the connection does runs on the runtime that this is called in. The client's identity
/// is kept in `state_dir`, where one is given, for the next connection.
pub async fn connect_in(
    world: World,
    address: &str,
    token: Token,
    state_dir: Option<PathBuf>,
) -> Result<Cluster> {
    join(NetThread::current(world), address, token, state_dir).await
}

async fn join(
    net: NetThread,
    address: &str,
    token: Token,
    state_dir: Option<PathBuf>,
) -> Result<Cluster> {
    let (world, address) = (net.world().clone(), address.to_owned());
    let session = net
        .run(async move { ClusterPresence::connect(world, &address, &token.0, state_dir).await });
    let session = session.await?;
    net.serves(&session.endpoint);
    let cluster = Cluster {
        eager: Sessions::new(session.clone(), None, &net),
        session,
        #[cfg(feature = "embedded")]
        embedded: None,
        net,
    };
    cluster.eager.note_members(&cluster.status().await?);
    Ok(cluster)
}

impl Cluster {
    /// Runs a call. Where the workers are in this process, it runs on the calling thread as far as possible.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        #[cfg(feature = "embedded")]
        if self.embedded.is_some() {
            return self.net.run_here(call).await;
        }
        self.net.run(call).await
    }

    /// Sets whether issuing an op, a move or a put fails at once, with `WouldBlock`, while its worker has as much on
    /// its way as it may. By default it waits for room, at the longest until the worker is lost. The setting holds for
    /// all clones of this connection.
    pub fn fail_when_full(&self, fails: bool) {
        self.eager.fail_when_full(fails);
    }

    /// How many frames and streams of workers this client refused, by reason.
    pub fn refused(&self) -> BTreeMap<String, u64> {
        let mut refused = self.session.hub.refused();
        refused.extend(self.session.refused.counted());
        refused
    }

    /// Counts of the sends and receives that meet at this client, or wait to meet.
    pub fn rendezvous(&self) -> RendezvousStatus {
        self.session.hub.status()
    }

    /// This client's end of the rendezvous: its leases and its links.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.session.hub
    }

    /// How many entries this client keeps in each table. Only files are left once its models and tensors are dropped,
    /// and nothing once its functions are dropped as well.
    pub fn tables(&self) -> Vec<(&'static str, usize)> {
        let mut tables = self.eager.tables();
        tables.push(("leases", self.session.coordinator.held()));
        tables.push(("files", self.session.sources.len()));
        tables
    }

    /// The ledger of the memory that this client holds for calls.
    pub fn ledger(&self) -> &Ledger {
        &self.session.ledger
    }

    /// Returns the state of the cluster: members, links, programs, memory and live steps.
    pub async fn status(&self) -> Result<ClusterStatus> {
        let session = self.session.clone();
        self.net
            .run(async move {
                let ask = session
                    .coordinator
                    .ask(|client| async move { rpc::answer(None, client.status(call()).await) });
                ask.await
            })
            .await
    }

    /// Waits until `count` workers have joined, at most `bound`. Calls `tell` with their number whenever it changes, on
    /// the thread that awaits this.
    pub async fn await_workers(
        &self,
        count: u32,
        bound: Duration,
        mut tell: impl FnMut(u32) + Send,
    ) -> Result<u32> {
        let (session, reports) = (self.session.clone(), Arc::<Reports<u32>>::default());
        let noting = reports.clone();
        let waiting = self.net.run(async move {
            let mut note = |have| noting.note(have, |_| true);
            session.await_workers(count, bound, &mut note).await
        });
        let tell = |have| {
            tell(have);
            Ok(())
        };
        reports.awaiting(waiting, tell).await
    }

    /// Leaves the cluster: closes all connections, and ends the cluster where it is embedded. Whatever still needs one
    /// of its tensors or devices then fails with `cancelled`.
    pub async fn shutdown(self) {
        self.session.close();
        self.eager.close();
        #[cfg(feature = "embedded")]
        if let Some(parts) = &self.embedded {
            return parts.shutdown(&self.net).await;
        }
        let session = self.session.clone();
        let told = self.net.run(async move {
            session.wait_closed().await;
            Ok(())
        });
        // An error means that the network thread is gone.
        told.await.ok();
    }
}
