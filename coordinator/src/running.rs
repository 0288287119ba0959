//! Starting and stopping a coordinator.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::chain;
use convoke_common::detection::Detector;
use convoke_common::identity::{
    Budget, CaHash, ClusterCa, IdentityError, JoinToken, OwnIdentity, PeerName, Role, TlsConfigs,
    TokenId, TokenInfo,
};
use convoke_common::rpc::{LeaseStatus, MemberStatus, close};
use convoke_common::world::{Endpoint, EndpointOptions, FileMode, World};
use convoke_common::{Code, Error, Result};
use tokio::time::timeout;

use crate::admin::{Listener, socket_in};
use crate::audit::{Audit, Entry, Event};
use crate::authority::Authority;
use crate::blocking::blocking;
use crate::service::Service;
use crate::state::{State, StoredState};
use crate::state_dir;
use convoke_common::tasks::{StopOnDrop, Tasks};

/// The name in the coordinator's own certificate.
const NAME: &str = "coordinator";

/// How often the coordinator checks whether its certificate is due for renewal: after two days, and at once if the
/// calendar was set back to before the certificate's start.
const RENEWAL_CHECK: Duration = Duration::from_secs(1);

/// How long closed connections may take to inform their peers.
const GOODBYE: Duration = Duration::from_secs(1);

/// The settings of a coordinator that a deployment decides.
#[derive(Debug, Clone)]
pub struct CoordinatorConfig {
    /// The address to listen on; with port 0 the system chooses the port.
    pub listen: SocketAddr,
    /// The folder of authority, tokens and names; `None` for a cluster that ends with this process.
    pub state_dir: Option<PathBuf>,
    /// The folder of the admin socket; without it there is no admin socket.
    pub run_dir: Option<PathBuf>,
    /// The folder in which a token without expiry is left for each role, at [`token_file`](crate::token_file). Each
    /// role has a subfolder of its own, which the containers of that role share.
    pub token_dir: Option<PathBuf>,
}

/// The coordinator, which [`Coordinator::start`] starts.
pub struct Coordinator;

/// A running coordinator. Dropping it stops it; [`RunningCoordinator::shutdown`] also waits.
pub struct RunningCoordinator {
    service: Arc<Service>,
    endpoint: Endpoint,
    tasks: StopOnDrop,
}

fn unusable(e: IdentityError) -> Error {
    Error::new(Code::Io, chain(&e))
}

struct OpenedCluster {
    ca: ClusterCa,
    state: Option<Arc<State>>,
    kept: StoredState,
}

/// Reads the authority and the state, or creates them.
fn open(world: &World, config: &CoordinatorConfig) -> Result<OpenedCluster> {
    if let Some(folder) = &config.run_dir {
        let made = world.store.create_dir(folder, FileMode::Secret);
        // Whoever can write to this folder decides who is let in.
        let made = made.and_then(|()| world.store.check_private(folder));
        made.map_err(|e| Error::new(Code::Io, chain(&e)))?;
    }
    let Some(folder) = &config.state_dir else {
        let ca = ClusterCa::create(world).map_err(unusable)?;
        return Ok(OpenedCluster {
            ca,
            state: None,
            kept: StoredState::default(),
        });
    };
    let state_dir::StateDirContents { ca, state, kept } = state_dir::open(world, folder)?;
    Ok(OpenedCluster {
        ca,
        state: Some(Arc::new(state)),
        kept,
    })
}

impl Coordinator {
    /// Starts the coordinator. Returns once members can join.
    pub async fn start(world: World, config: CoordinatorConfig) -> Result<RunningCoordinator> {
        let (inside, settings) = (world.clone(), config.clone());
        let OpenedCluster {
            ca,
            state,
            mut kept,
        } = blocking(&world, move || open(&inside, &settings)).await??;
        let tasks = Tasks::new(world.clone());
        let audit = match &config.state_dir {
            Some(folder) => Audit::start(&world, &tasks, folder),
            None => Audit::default(),
        };
        let tokens = std::mem::take(&mut kept.tokens);
        let authority = Authority::new(world.clone(), ca, tokens, state.clone(), audit.clone());
        let own = own_identity(&world, &authority.ca())?;
        let tls = TlsConfigs::cluster(&own, authority.revoked().clone(), world.wall.clone())
            .map_err(unusable)?;
        let admin = match &config.run_dir {
            Some(folder) => Some(Listener::bind(&socket_in(folder)).await?),
            None => None,
        };
        let options = EndpointOptions::default();
        let (endpoint, detector, listen) =
            Detector::listening(&world, config.listen, &tls, &options).await?;
        audit.record(Entry::of(Event::Started));
        if let Some(folder) = &config.token_dir {
            authority.leave_tokens(folder).await?;
        }
        let service = Service::start(
            world,
            authority,
            tasks.clone(),
            endpoint.clone(),
            detector,
            state,
            kept,
            audit,
        );
        tasks.spawn(listen);
        if let Some(admin) = admin {
            tasks.spawn(admin.run(service.clone(), tasks.clone()));
        }
        tasks.spawn(renew(service.clone(), own, tls));
        tracing::info!(address = %endpoint.local_addr(), "coordinator listens");
        Ok(RunningCoordinator {
            service,
            endpoint,
            tasks: StopOnDrop(tasks),
        })
    }
}

fn own_identity(world: &World, ca: &ClusterCa) -> Result<OwnIdentity> {
    let name = NAME
        .parse::<PeerName>()
        .map_err(|e| Error::internal(e.to_string()))?;
    ca.issue_own(world, Role::Coordinator, name)
        .map_err(unusable)
}

/// Renews the coordinator's own certificate whenever it is due.
async fn renew(service: Arc<Service>, mut own: OwnIdentity, tls: TlsConfigs) {
    let mut replaced = service.authority.subscribe();
    loop {
        // The certificate is checked after the timeout and after each change of the authority.
        let _ = timeout(RENEWAL_CHECK, replaced.changed()).await;
        let now = service.world.wall.unix_seconds();
        let ca = service.authority.ca();
        // The authority may have been replaced, or the former one retired.
        if !own.needs_renewal(now) && own.authorities() == ca.authorities() {
            continue;
        }
        let renewed = own_identity(&service.world, &ca);
        match renewed.and_then(|next| tls.renew(&next).map(|()| next).map_err(unusable)) {
            Ok(next) => {
                own = next;
                service.authority.shows(&ca);
            }
            Err(error) => {
                tracing::error!(%error, "the coordinator's certificate could not be renewed")
            }
        }
    }
}

impl RunningCoordinator {
    /// Returns the address that the coordinator listens on.
    pub fn addr(&self) -> SocketAddr {
        self.endpoint.local_addr()
    }

    /// Returns the hash by which join tokens identify this cluster.
    pub fn ca_hash(&self) -> CaHash {
        self.service.authority.ca_hash()
    }

    /// Returns members and leases as the coordinator knows them, without asking the workers.
    pub async fn known(&self) -> Result<(Vec<MemberStatus>, Vec<LeaseStatus>)> {
        self.service.known().await
    }

    /// Returns the size of each table that is kept for clients. Between calls of clients only plans and drivers are
    /// left, and once the clients are gone nothing is.
    pub async fn tables(&self) -> Result<Vec<(&'static str, usize)>> {
        self.service.tables().await
    }

    /// Creates a join token that expires after `ttl`.
    pub async fn create_token(&self, role: Role, ttl: Option<Duration>) -> Result<JoinToken> {
        self.create_token_with(role, ttl, Budget::default()).await
    }

    /// Creates a join token as [`RunningCoordinator::create_token`] does, with a budget that all members who join with
    /// it share.
    pub async fn create_token_with(
        &self,
        role: Role,
        ttl: Option<Duration>,
        budget: Budget,
    ) -> Result<JoinToken> {
        self.service.authority.create(role, ttl, budget).await
    }

    /// Bounds how long those who join with a token may stay members.
    pub async fn bound_membership(&self, id: &TokenId, ttl: Duration) -> Result<()> {
        self.service.authority.bound_membership(id, ttl).await
    }

    /// Lists all join tokens, without their secrets.
    pub async fn tokens(&self) -> Vec<TokenInfo> {
        self.service.authority.list().await
    }

    /// Revokes a token and its members' certificates: their connections are closed, and the workers are informed.
    pub async fn revoke_token(&self, id: &TokenId) -> Result<()> {
        self.service.revoke(id).await
    }

    /// Takes a worker out of service until it is asked back. Answers whether it is there and told to end.
    pub async fn drain(&self, name: &str) -> Result<bool> {
        self.service.drain(name).await
    }

    /// Lifts the quarantine of the nodes of this name. Answers in how many functions one was lifted.
    pub async fn lift_quarantine(&self, node: &str) -> Result<u32> {
        self.service.lift(node.to_owned()).await
    }

    /// Puts a worker back into service. Answers whether plans use it from now on.
    pub async fn undrain(&self, name: &str) -> Result<bool> {
        self.service.undrain(name).await
    }

    /// Forgets a worker that is gone and holds no lease, so that its name is free.
    pub async fn forget(&self, name: &str) -> Result<()> {
        self.service.forget(name.to_owned()).await
    }

    /// Whether the coordinator can store its state; the error says why not.
    pub async fn health(&self) -> Result<()> {
        self.service.health().await
    }

    /// Stops the coordinator: its members are informed, and after at most `bound` all of its tasks have ended. Leases
    /// go on.
    pub async fn shutdown(self, bound: Duration) {
        self.stop(bound).await;
        // Peers that the message does not reach notice the end by their idle timeout.
        let _ = timeout(GOODBYE.min(bound), self.endpoint.wait_idle()).await;
    }

    /// Stops the coordinator as [`RunningCoordinator::shutdown`] does, except that it does not wait until the members
    /// are informed.
    pub async fn stop(&self, bound: Duration) {
        // The endpoint is closed first, so that nothing that ends with a connection can reach a worker any more.
        self.endpoint
            .close(close::STOPPING.into(), b"the coordinator stops");
        if timeout(bound, self.tasks.0.stop()).await.is_err() {
            tracing::warn!("the coordinator did not stop in time");
        }
    }
}
